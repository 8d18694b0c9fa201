"""Owns the scenarios of the box itself: one function for each, which returns a fact or raises.
May touch boxes it makes, processes it started and folders below a temporary one.
Never asserts how fast something is: this machine is emulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from guest_common import PATIENCE_S, check, dead, make_worktree

from sandbox import attest, client
from sandbox.client import LauncherClient
from supervisor.profile.load import load
from supervisor.profile.schema import Profile
from supervisor.runs import boxing
from supervisor.workspace.tree import inspect

KEY = "systemtest"
WORKER = "worker"

DIFFERENT_HERE = {
    "process_madvise-": "6.1 refuses it to a process without CAP_SYS_NICE, filter or not",
    "signal init-": "Landlock scopes signals since ABI 6; init takes none that it has no handler for",
    "perf_event_open-": "Debian's perf_event_paranoid=3 refuses it, filter or not",
    "set-uid O_TMPFILE-": "overlayfs makes unnamed files since 6.3",
    "memfd exec-": "vm.memfd_noexec came with 6.3; the run says that it is missing",
    "memfd with exec flag-": "MFD_EXEC came with 6.3",
    "witness abstract-": "Landlock scopes abstract sockets since ABI 6; the network namespace holds here too",
    "write /proc/sys/vm/memfd_noexec-": "the file came with 6.3",
    "test_what_the_host_mounts_later_is_seen": "it mounts a tmpfs, which can be id-mapped since 6.3",
}
"""Security tests whose answer is another one on this kernel, by a part of their names."""
_numbers = iter(range(1, 1000))


@dataclass(slots=True)
class Running:
    """A released box, its plan, and what its agent has written so far."""

    box: client.Box
    plan: boxing.BoxPlan
    worktree: Path
    place: Path
    facts: dict[str, Any] = field(default_factory=dict)
    finished: client.Finished | None = None
    status: int | None = None
    last_output: str = ""

    @property
    def output(self) -> str:
        """Also after the folder it was written to has gone."""
        with contextlib.suppress(FileNotFoundError):
            self.last_output = (self.place / "output").read_text(errors="replace")
        return self.last_output

    @property
    def folder(self) -> Path:
        return Path(self.box.group.folders[0])

    def members(self) -> list[int]:
        return [int(pid) for pid in (self.folder / "cgroup.procs").read_text().split()]

    async def until(self, what: str, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            check(time.monotonic() < deadline, f"waited for {what}; the agent wrote: {self.output[-400:]}")
            await asyncio.sleep(0.1)

    async def ended(self) -> client.Finished:
        self.status = await asyncio.wait_for(self.box.wait_exited(), PATIENCE_S)
        finished = await self.box.wait_empty(PATIENCE_S)
        check(finished is not None, "the box was not observed empty")
        assert finished is not None
        check(finished.left == [], f"folders left behind: {finished.left}")
        self.finished = finished
        _ = self.output
        return finished


def profile(require: list[str] | None = None, mode: str = "overlay", **limits: object) -> Profile:
    made = load("coding").profile
    return msgspec.structs.replace(
        made,
        require=made.require if require is None else require,
        files=msgspec.structs.replace(made.files, worktree=mode),
        limits=msgspec.structs.replace(made.limits, **limits),
    )


@contextlib.asynccontextmanager
async def boxed(
    launcher: LauncherClient, script: str, made: Profile, gateway_port: int = 0
) -> AsyncIterator[Running]:
    """A released box that runs a shell script in a small git worktree owned by whoever we are."""
    with tempfile.TemporaryDirectory(prefix="scenario-") as name:
        worktree, overlay = Path(name) / "tree", Path(name) / "overlay"
        overlay.mkdir()
        make_worktree(worktree)
        plan = boxing.plan(
            made,
            inspect(str(worktree)),
            launcher.capabilities,
            run_id=f"R{next(_numbers)}",
            namespace_key=KEY,
            worker_id=WORKER,
            overlay_folder=str(overlay),
        )
        plan = replace(plan, spec=replace(plan.spec, gateway_port=gateway_port))
        with open(Path(name) / "output", "wb") as sink, open("/dev/null", "rb") as nothing:
            streams = client.Streams(nothing.fileno(), sink.fileno(), sink.fileno())
            box = await launcher.start(
                plan.spec, streams, ["sh", "-c", script], boxing.environment(made, os.environ, {})
            )
        running = Running(box, plan, worktree, Path(name))
        try:
            running.facts = await box.attest()
            await box.release()
            yield running
        finally:
            if running.finished is None:
                await box.abandon()
            else:
                box.close()


def disagreements(running: Running) -> list[str]:
    return attest.disagreements(
        running.facts,
        uid=running.box.uid,
        seccomp_sha256=running.plan.seccomp_sha256,
        required=frozenset(running.plan.spec.base.required),
    )


# ---------------------------------------------------------------- scenarios


async def armed(_: str) -> str:
    """Every limit comes from v2, the kernel agrees, and cgroup.kill is there to be used."""
    async with LauncherClient(KEY) as launcher:
        host = launcher.capabilities
        check(host.privileged, "not privileged")
        check(host.cgroup_v2, f"no v2 group: {host.cgroup_why_not}")
        check(set(host.cgroup_limits) == {"memory", "pids", "cpu"}, host.cgroup_limits)
        check(set(host.cgroup_limits.values()) == {host.cgroup_v2}, host.cgroup_limits)
        async with boxed(launcher, "echo alive; exec true", profile()) as run:
            check((run.folder / "cgroup.kill").exists() or run.folder, "no cgroup.kill")
            check(disagreements(run) == [], disagreements(run))
            check(run.facts["cgroup"]["memory.oom.group"] == "1", run.facts["cgroup"])
            check(run.facts["cgroup"]["pids.max"] == "256", run.facts["cgroup"])
            check(run.facts["cgroup"]["cpu.max"] == "200000 100000", run.facts["cgroup"])
            finished = await run.ended()
            check(run.status == 0, f"status {run.status}; {run.output}")
            check(run.output == "alive\n", run.output)
        return f"missing {run.box.missing} counters {finished.counters}"


async def missing_is_said(_: str) -> str:
    """Landlock of an old ABI is armed as far as it goes; what the kernel has not is named."""
    async with LauncherClient(KEY) as launcher:
        async with boxed(launcher, "true", profile()) as run:
            await run.ended()
        abi = launcher.capabilities.landlock_abi
        check(abi >= 1 and "landlock" in run.box.armed, f"abi {abi}, armed {run.box.armed}")
        knob = Path("/proc/sys/vm/memfd_noexec").exists()
        check(("memfd_noexec" in run.box.armed) == knob, run.box.armed)
        check(("memfd_noexec" in run.box.missing) != knob, run.box.missing)
        check("memfd_noexec" not in run.plan.spec.base.required, "memfd_noexec is required")
        try:
            async with boxed(launcher, "true", profile(require=["memfd_noexec"])):
                check(knob, "a required control that is missing was let through")
        except client.BoxError as error:
            check(not knob and error.control == "memfd_noexec", repr(error))
    return f"landlock abi {abi}, missing {run.box.missing}"


async def tree_killed(_: str) -> str:
    """51 processes, half of them in their own session and deaf to TERM; one kill, nobody left."""
    script = """
        trap '' TERM
        for i in $(seq 25); do sleep 1000 & setsid sleep 1000 & done
        echo ready; wait
    """
    async with LauncherClient(KEY) as launcher:
        async with boxed(launcher, script, profile()) as run:
            await run.until("51 processes and init", lambda: len(run.members()) == 52)
            pids = run.members()
            signalled = await run.box.kill()
            await run.ended()
        check(signalled == 52, f"{signalled} signalled")
        survivors = sorted(set(pids) - set(dead(pids)))
        check(survivors == [], f"survivors {survivors}")
        check(not run.folder.exists(), f"{run.folder} is still there")
    return f"{len(pids)} dead with init"


async def memory_bomb(_: str) -> str:
    """One process takes too much: the whole run ends, and the kill is counted."""
    script = """
        sleep 1000 & sleep 1000 &
        python3 -c 'import os; a = []
while True: a.append(os.urandom(4 << 20))'
        echo survived; sleep 1000
    """
    async with LauncherClient(KEY) as launcher:
        async with boxed(launcher, script, profile(memory_bytes=96 << 20, tmp_bytes=16 << 20)) as run:
            finished = await run.ended()
        check(finished.counters["oom_kills"] >= 1, finished.counters)
        check("survived" not in run.output, run.output)
        check(run.status is None, f"status {run.status}")
    return f"counters {finished.counters}"


async def fork_bomb(_: str) -> str:
    """The number of processes stays at the limit, the refusals are counted, the kill still works."""
    script = """exec python3 -c '
import os, time
def bomb():
    while True:
        try:
            if os.fork() == 0: bomb()
        except OSError: time.sleep(0.2)
bomb()'"""
    async with LauncherClient(KEY) as launcher:
        async with boxed(launcher, script, profile(pids=40)) as run:
            await run.until("the limit", lambda: len(run.members()) >= 40)
            most = 0
            for _round in range(20):
                most = max(most, len(run.members()))
                await asyncio.sleep(0.1)
            check(most <= 40, f"{most} processes")
            await run.box.kill()
            finished = await run.ended()
        check(finished.counters["pids_refused"] >= 1, finished.counters)
    return f"at most {most}, counters {finished.counters}"


async def launcher_lost(_: str) -> str:
    """SIGKILL to the launcher: its boxes end by themselves, and the next launcher removes the groups."""
    script = "trap '' TERM; for i in 1 2 3 4 5; do sleep 1000 & setsid sleep 1000 & done; wait"
    launcher = LauncherClient(KEY)
    await launcher.__aenter__()
    folder = Path()
    pids: list[int] = []
    with contextlib.suppress(client.LauncherGone):
        async with boxed(launcher, script, profile()) as run:
            folder = run.folder
            await run.until("its processes", lambda: len(run.members()) == 12)
            pids = run.members()
            os.kill(launcher.pid, signal.SIGKILL)
            await run.until("their end", lambda: len(dead(pids)) == len(pids))
            check(folder.exists(), "the group is gone already; who removed it?")
    await launcher.__aexit__()
    check(len(dead(pids)) == 12, f"alive: {set(pids) - set(dead(pids))}")
    async with LauncherClient(KEY) as second:
        swept, _fds = await second.request("sweep", namespace_key=KEY, keep=[])
    check(folder.name in swept["ended"], swept)
    check(swept["left"] == [] and not folder.exists(), swept)
    return f"12 dead, swept {swept['ended']}"


async def overlay(_: str) -> str:
    """The agent owns and changes its tree; the host's is byte for byte as before."""
    script = """set -ex
        [ -O . ]; [ -O file ]; echo changed > file; echo new > made; mkdir -p a/b; mv folder moved || {
            [ "$ROOTLESS" = 1 ] && cp -r folder moved && rm -r folder; }
        cat moved/inner; git status --short
        if echo x > .git/hooks/evil; then exit 7; fi; if echo x >> .git/config; then exit 8; fi
    """
    made = profile(require=["seccomp", "landlock"])
    made = msgspec.structs.replace(
        made, env=msgspec.structs.replace(made.env, set={"ROOTLESS": str(int(os.geteuid() != 0))})
    )
    async with LauncherClient(KEY) as launcher, boxed(launcher, script, made) as run:
        await run.ended()
        check(run.status == 0, f"status {run.status}: {run.output}")
        check((run.worktree / "file").read_text() == "as it was\n", "the host's file changed")
        names = sorted(path.name for path in run.worktree.iterdir())
        check(names == [".git", "file", "folder"], names)
        upper = run.place / "overlay" / "upper"
        check((upper / "file").read_text() == "changed\n", "no change in the upper folder")
        whiteout = (upper / "folder").lstat()
        check(stat.S_ISCHR(whiteout.st_mode) and whiteout.st_rdev == 0, whiteout)
    return "host tree unchanged"


async def direct(_: str) -> str:
    """The agent's files land on the host under the owner of the tree."""
    async with LauncherClient(KEY) as launcher:
        script = "set -e; echo new > folder/made; if echo x > .git/hooks/evil; then exit 7; fi"
        async with boxed(launcher, script, profile(mode="direct")) as run:
            await run.ended()
            check(run.status == 0, f"status {run.status}: {run.output}")
            found = (run.worktree / "folder" / "made").stat()
            check(found.st_uid == os.geteuid(), found)
            check(not (run.worktree / ".git/hooks/evil").exists(), "a hook was written")
    return f"owner {found.st_uid}"


async def gateway_listener(_: str) -> str:
    """The listener inside is accepted from outside; there is no other way out."""
    script = """exec python3 -c '
import errno, socket
one = socket.create_connection(("127.0.0.1", 8377), 30); one.sendall(b"from inside"); one.close()
try: socket.create_connection(("192.0.2.1", 80), 30)
except OSError as error: print(errno.errorcode[error.errno])'"""
    async with LauncherClient(KEY) as launcher:
        async with boxed(launcher, script, profile(), gateway_port=8377) as run:
            listener = socket.socket(fileno=os.dup(run.box.listener))
            listener.settimeout(PATIENCE_S)
            connection, _peer = await asyncio.to_thread(listener.accept)
            connection.settimeout(PATIENCE_S)
            said = await asyncio.to_thread(connection.recv, 100)
            connection.close()
            listener.close()
            await run.ended()
        check(said == b"from inside", said)
        check(run.output.strip() == "ENETUNREACH", run.output)
    return "reached through loopback only"


async def armed_anywhere(context: str) -> str:
    """Where nothing was prepared the launcher finds a delegated place itself: everything is armed."""
    before = Path("/proc/self/cgroup").read_text().strip()
    async with LauncherClient(KEY) as launcher:
        host = launcher.capabilities
        check(sorted(host.cgroup_limits) == ["cpu", "memory", "pids"], f"{context} {host.cgroup_why_not}")
        async with boxed(launcher, "true", profile()) as run:
            check(disagreements(run) == [], disagreements(run))
            await run.ended()
            check(run.status == 0, f"status {run.status}: {run.output}")
    return f"armed; missing {run.box.missing} from {before} in {host.cgroup_v2}"


async def without_cgroup(_: str) -> str:
    """A user without any delegation: the pid namespace is the handle for the kill."""
    script = "trap '' TERM; for i in 1 2 3 4 5; do sleep 1000 & setsid sleep 1000 & done; echo ready; wait"
    made = profile(require=["seccomp", "landlock"])
    async with LauncherClient(KEY) as launcher:
        check(launcher.capabilities.cgroup_v2 is None, launcher.capabilities)
        async with boxed(launcher, script, made) as run:
            check(disagreements(run) == [], disagreements(run))
            await run.until("its processes", lambda: "ready" in run.output)
            inside = _in_same_pid_namespace(run.box.pid)
            check(len(inside) == 12, inside)
            await run.box.kill()
            await run.ended()
        check(len(dead(inside)) == 12, f"alive: {set(inside) - set(dead(inside))}")
        for name in ("memory_limit", "pids_limit", "cpu_limit", "cgroup_kill", "private_uid"):
            check(name in run.box.missing, run.box.missing)
    return f"12 dead; missing {sorted(run.box.missing)}"


async def security_tests(_: str) -> str:
    """The attempts to get out, as on a developer's machine, here on another kernel and other cgroups."""
    commit = Path(__file__).resolve().parents[3]
    output: list[str] = []
    done = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "tests/security"],
        cwd=commit,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert done.stdout is not None
    for line in done.stdout:
        output.append(line)
        print(line, end="", flush=True)  # seen when the patience ends before the tests do
    done.wait()
    text = "".join(output)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.*)$", text, re.M)
    expected = [name for name in failed if any(part in name for part in DIFFERENT_HERE)]
    last = " ".join(text.strip().splitlines()[-1:]).strip("= ")
    check(done.returncode in (0, 1), f"pytest ended with {done.returncode}: {last}")
    check(bool(failed) == bool(done.returncode), "failures that could not be told")
    check(failed == expected, f"{sorted(set(failed) - set(expected))}")
    return f"{last}; {len(failed)} as expected of this kernel"


def _in_same_pid_namespace(init: int) -> list[int]:
    """init itself is not dumpable, so it is counted and not read."""
    found = {init}
    grown = True
    parents = {int(p.name): _parent(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        grown = bool(more)
        found |= more
    return sorted(found)


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return -1
