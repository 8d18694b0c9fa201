"""Owns the command that says what this host can arm, by arming it.
May touch two real boxes of its own, killed at the end, and folders in the temporary directory.
Never judges by versions: what cannot be tried is not shown as armed.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import tempfile
import time
from typing import Any

import click

from supervisor.cli import output
from supervisor.cli.look import json_option
from supervisor.errors import SupervisorError
from supervisor.profile.units import show_duration

_TREE = 50
_SHOWN = 5
_FORKS = f"""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for i in range({_TREE}):
    if os.fork() == 0:
        if i % 3: os.setsid()
        if i % 3 == 2 and os.fork(): os._exit(0)
        time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""

_EXPLAIN = {
    "user_namespace": "no privilege in it reaches the host",
    "mount_namespace": "own file tree",
    "pid_namespace": "sees and signals only its own processes",
    "network_namespace": "no interface but its own loopback",
    "ipc_namespace": "no shared memory with the host",
    "uts_namespace": "own host name",
    "cgroup_namespace": "cannot see where its groups are",
    "time_namespace": "own clock offsets",
    "root": "small root built from nothing",
    "worktree": "the worktree, mapped to the run's uid",
    "protected_paths": "read-only and hidden paths",
    "identity": "unprivileged uid",
    "private_uid": "one uid per run",
    "capabilities": "none left, and none can be gained",
    "no_new_privs": "set-uid programs give nothing",
    "seccomp": "list of system calls",
    "landlock": "second opinion on files",
    "memfd_noexec": "no program from anonymous memory",
    "resource_limits": "descriptors, file size, core, queues",
    "memory_limit": "memory and swap",
    "pids_limit": "number of processes",
    "cpu_limit": "share of the processors",
    "cgroup_kill": "everything killed as one",
    "descriptors": "nothing inherited",
    "environment": "built from nothing",
}


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Make a real box, look at it from outside, kill it, try to get out of a second; show what is armed.

    Exit code 0 when the shipped profiles can run here and nothing got out, 1 otherwise.
    """
    found = asyncio.run(_examine())
    if as_json:
        output.print_json(found)
    else:
        _print(found)
    return 0 if found["ok"] else 1


async def _examine() -> dict[str, Any]:
    """controls: [{name, armed, detail}]; ok: do the shipped profiles start here?"""
    from sandbox.spec import Control
    from supervisor.workspace.apply import discard

    folder = tempfile.mkdtemp(prefix="doctor-", dir="/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
    try:
        armed, missing, kill, problem = await _try_box(folder)
    finally:
        discard(f"{folder}/overlay")
        shutil.rmtree(folder)
    controls = []
    for control in Control:
        detail = _EXPLAIN[control] if control in armed else missing.get(control, problem or "was not reached")
        controls.append({"name": str(control), "armed": control in armed, "detail": detail})
    if kill:
        controls.append(kill)
    if not problem:
        controls.append(await _try_to_get_out(armed))
    needed = _required() | {"kill", "probes"}
    ok = not problem and all(row["armed"] for row in controls if row["name"] in needed)
    return {"host": _host(), "controls": controls, "ok": ok, "problem": problem}


def _required() -> set[str]:
    from supervisor.profile.load import load
    from supervisor.runs.boxing import required_controls

    return {str(control) for control in required_controls(load("base").profile)}


def _host() -> dict[str, str]:
    release = platform.freedesktop_os_release()
    return {
        "system": release.get("PRETTY_NAME", "Linux"),
        "kernel": platform.release(),
        "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
        "systemd": "yes" if os.path.isdir("/run/systemd/system") else "no",
        "redactor": _redactor(),
    }


def _redactor() -> str:
    """The engine that scans logs here: "hyperscan", or "python", which is slower and finds the same."""
    from supervisor.logs.redact.engines import default

    return default().ready().name


async def _try_box(folder: str) -> tuple[list[str], dict[str, str], dict[str, Any] | None, str]:
    """As the base profile makes it, but requiring nothing that a host could lack."""
    import msgspec

    from sandbox import attest
    from sandbox.client import BoxError, LauncherClient, Streams
    from supervisor.profile.load import load
    from supervisor.runs import boxing
    from supervisor.workspace.tree import inspect

    profile = msgspec.structs.replace(load("base").profile, require=[])
    os.mkdir(f"{folder}/tree")
    os.mkdir(f"{folder}/overlay")
    try:
        async with LauncherClient("doctor") as launcher:
            made = boxing.plan(
                profile,
                inspect(f"{folder}/tree"),
                launcher.capabilities,
                run_id="DOCTOR",
                namespace_key="doctor",
                worker_id=f"doctor{os.getpid()}",
                overlay_folder=f"{folder}/overlay",
            )
            read_end, write_end = os.pipe()
            null = os.open("/dev/null", os.O_RDWR)
            try:
                box = await launcher.start(
                    made.spec,
                    Streams(null, write_end, null),
                    ["python3", "-c", _FORKS],
                    boxing.environment(profile, {}, {}),
                )
            finally:
                os.close(write_end)
                os.close(null)
            wrong = attest.disagreements(
                await box.attest(),
                uid=box.uid,
                seccomp_sha256=made.seccomp_sha256,
                required=frozenset(made.spec.base.required),
            )
            await box.release()
            await asyncio.to_thread(os.read, read_end, 16)
            os.close(read_end)
            began_s = time.monotonic()
            processes = await box.kill()
            emptied = await box.wait_empty(10.0)
            took = show_duration(time.monotonic() - began_s)
            box.close()
            many = f"{processes} hostile processes" if processes else "a tree of hostile processes"
            said = f"{many} gone in {took}" if emptied else "something was alive after 10 s"
            kill = {"name": "kill", "armed": emptied is not None, "detail": said}
            return box.armed, box.missing, kill, "; ".join(wrong)
    except BoxError as error:
        said = f"{error.control}: {error.message}" if error.control else error.message
        return [], {}, None, f"{said}; {error.hint}" if error.hint else said
    except SupervisorError as error:
        return [], {}, None, error.message


async def _try_to_get_out(armed: list[str]) -> dict[str, Any]:
    """The probes of `profile verify`, in a box that requires whatever this host can arm."""
    from dataclasses import replace

    import msgspec

    from supervisor.profile.load import load
    from supervisor.verify.verify import verify

    base = load("base")
    profile = msgspec.structs.replace(base.profile, require=sorted(armed))
    try:
        found = await verify(replace(base, profile=profile))
    except SupervisorError as error:
        return {"name": "probes", "armed": False, "detail": error.message}
    tried = [result for result in found.probes if result.tried]
    wrong = [result.probe.attempt for result in tried if not result.passed]
    wrong += [f"the witness {name} was reached" for name in found.witnesses]
    shown = ", ".join(wrong[:_SHOWN]) + (f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
    detail = f"{len(tried)} attempts to get out or to see too much, none succeeds"
    return {"name": "probes", "armed": not wrong, "detail": shown or detail}


def _print(found: dict[str, Any]) -> None:
    host = found["host"]
    systemd = "systemd" if host["systemd"] == "yes" else "no systemd"
    output.say(f"host     {host['system']} · Linux {host['kernel']} · {systemd} · {host['user']}")
    slower = "" if host["redactor"] == "hyperscan" else " (slower; pip install hyperscan)"
    output.say(f"redactor {host['redactor']}{slower}")
    for row in found["controls"] if not found["problem"] else []:
        mark = output.GOOD if row["armed"] else output.bad(output.BAD)
        output.say(f"  {mark} {row['name']:<18} {row['detail']}")
    armed = sum(row["armed"] for row in found["controls"])
    output.say(f"result   {armed} of {len(found['controls'])} armed")
    if found["problem"]:
        output.say(output.bad(f"problem  {found['problem']}"))
    lacking = [row["name"] for row in found["controls"] if not row["armed"]]
    if found["ok"] and lacking:
        output.say(
            f"  hint: profiles that require {', '.join(lacking)} do not start here; the shipped ones do"
        )
    elif not found["ok"]:
        output.say(
            "  hint: the shipped profiles do not start here; run as root on the host, or give a profile"
        )
        output.say("        that does not require what is missing")
