"""Owns that a box is armed or not at all: each control is broken in turn, and nothing is executed.
May touch launchers of its own whose one mechanism is replaced before they serve.
Never breaks what would reach the host: namespaces are refused here, not left out.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from boxlab import (
    PYTHON,
    Lab,
    as_planned,
    edited_profile,
    without_filters,
)

from sandbox.spec import ALWAYS_REQUIRED, Control

_RAISE = """
import errno, os
def broken(where, name, when=lambda *a, **k: True):
    real = getattr(where, name)
    def call(*arguments, **named):
        if when(*arguments, **named):
            raise OSError(errno.ENOTRECOVERABLE, "broken on purpose", name)
        return real(*arguments, **named)
    setattr(where, name, call)
def in_agent(*_, **__): return os.getpid() != 1
from sandbox import cgroups, identity, landlock, mounts, network, syscalls
"""
_WITHOUT = """
_create = cgroups.create
def create(where, name):
    limits = {{key: value for key, value in where.limits.items() if key != "{limit}"}}
    return _create(cgroups.Hierarchies({v2}, limits), name)
cgroups.create = create
"""

BROKEN: dict[Control, str] = {
    Control.USER_NAMESPACE: "broken(syscalls, 'setns', lambda fd, kind: kind == syscalls.CLONE_NEWUSER)",
    Control.NETWORK_NAMESPACE: "broken(network, 'raise_loopback')",
    Control.UTS_NAMESPACE: "broken(syscalls, 'sethostname')",
    Control.CGROUP_NAMESPACE: "broken(syscalls, 'unshare', lambda flags: flags == syscalls.CLONE_NEWCGROUP)",
    Control.ROOT: "broken(syscalls, 'pivot_root')",
    Control.WORKTREE: "broken(mounts, '_overlay')",
    Control.PROTECTED_PATHS: "broken(mounts, '_bind_onto_itself')",
    Control.IDENTITY: "broken(identity, 'become_agent', in_agent)",
    Control.CAPABILITIES: "broken(identity, 'drop_bounding_set', in_agent)",
    Control.NO_NEW_PRIVS: "broken(syscalls, 'set_no_new_privs')",
    Control.SECCOMP: "broken(syscalls, 'install_seccomp')",
    Control.LANDLOCK: "broken(syscalls, 'landlock_restrict_self')",
    Control.MEMFD_NOEXEC: "mounts._set_memfd_noexec = lambda proc: 'broken'",
    Control.RESOURCE_LIMITS: "broken(identity, 'set_resource_limits')",
    Control.MEMORY_LIMIT: _WITHOUT.format(v2="where.v2", limit="memory"),
    Control.PIDS_LIMIT: _WITHOUT.format(v2="where.v2", limit="pids"),
    Control.CPU_LIMIT: _WITHOUT.format(v2="where.v2", limit="cpu"),
    Control.CGROUP_KILL: _WITHOUT.format(v2="None", limit=""),
    Control.DESCRIPTORS: "broken(syscalls, 'close_from', in_agent)",
}
"""Each breaks the one thing that arms the control; errors are raised where the kernel would."""

MADE_BY_CLONE = {
    Control.MOUNT_NAMESPACE,
    Control.PID_NAMESPACE,
    Control.IPC_NAMESPACE,
    Control.TIME_NAMESPACE,
}
"""One clone3 makes these with the others: the kernel does not say which of them it refused."""

ELSEWHERE = {
    Control.ENVIRONMENT: "test_a_program_that_cannot_be_executed",
    Control.PRIVATE_UID: "test_rootless.py",
}

MARK = [PYTHON, "-c", "open('marker', 'w').write('executed')"]


def markers(lab: Lab) -> list[Path]:
    return list(lab.folder.glob("*/upper/marker"))


def attempt(lab: Lab, tree: Path, patch: str, *, require: list[str]) -> tuple[str, str]:
    profile = edited_profile(require=require)
    error = lab.refused(tree, MARK, profile=profile, weaken=as_planned, patch=_RAISE + patch)
    return ("", "") if error is None else (error.control, str(error))


def test_every_control_is_broken_somewhere() -> None:
    assert set(BROKEN) | MADE_BY_CLONE | set(ELSEWHERE) == set(Control)


def test_control_nothing_broken_and_the_marker_is_there(lab: Lab, worktree: Path) -> None:
    everything = [str(control) for control in Control]
    profile = edited_profile(require=everything)
    outcome = lab.run(worktree, MARK, profile=profile, patch=_RAISE)
    assert outcome.code == 0
    assert outcome.wrong == []
    assert outcome.upper is not None
    assert (outcome.upper / "marker").read_text() == "executed"
    (outcome.upper / "marker").unlink()


@pytest.mark.parametrize("control", BROKEN)
def test_a_broken_control_is_an_error_with_its_name(lab: Lab, worktree: Path, control: Control) -> None:
    name, message = attempt(lab, worktree, BROKEN[control], require=[str(control), "cgroup"])
    assert name == str(control), message
    assert message
    assert markers(lab) == []


def test_a_refused_clone_is_an_error_and_nothing_runs(lab: Lab, worktree: Path) -> None:
    patch = "broken(syscalls, 'clone3', lambda flags, *_: flags & syscalls.CLONE_NEWNS)"
    assert attempt(lab, worktree, patch, require=[])[0] == "user_namespace"
    assert markers(lab) == []


@pytest.mark.parametrize("flag", ["IPC", "TIME", "NET"])
def test_a_namespace_that_was_left_out_is_found_by_attestation(lab: Lab, worktree: Path, flag: str) -> None:
    control = {"IPC": "ipc_namespace", "TIME": "time_namespace", "NET": "network_namespace"}[flag]
    patch = f"from sandbox import network, syscalls; syscalls.CLONE_NEW{flag} = 0\n"
    patch += "network.raise_loopback = lambda: None"
    outcome = lab.run(
        worktree, ["true"], profile=edited_profile(require=[control]), patch=patch, weaken=without_filters
    )
    assert f"{control}: shared with the supervisor" in outcome.wrong


@pytest.mark.parametrize(
    "step",
    ["_tmpfs", "_symlink", "_etc", "_bind", "_devices", "_terminals", "_proc", "_log_folder"],
)
def test_a_mount_step_that_fails_is_named(lab: Lab, worktree: Path, step: str) -> None:
    patch = f"""
broken(mounts, "{step}")
for kind, function in list(mounts._EXECUTE.items()):
    if function.__name__ == "{step}": mounts._EXECUTE[kind] = mounts.{step}
"""
    name, message = attempt(lab, worktree, patch, require=[])
    assert name == "root"
    assert "broken on purpose" in message
    assert markers(lab) == []


@pytest.mark.parametrize("control", sorted(set(BROKEN) - ALWAYS_REQUIRED - {Control.CGROUP_KILL}))
def test_a_control_that_is_not_required_is_reported_as_missing(
    lab: Lab, worktree: Path, control: Control
) -> None:
    async def start() -> tuple[list[str], dict[str, str]]:
        async with lab.fresh_client(_RAISE + BROKEN[control]) as client:
            spec = lab.plan(worktree, edited_profile(require=[]), client).spec
            async with lab.started(client, spec, ["true"]) as box:
                return box.armed, box.missing

    armed, missing = lab.wait(start())
    assert missing[str(control)]
    assert str(control) not in armed


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("no-such-program", "there is no program no-such-program in the box on its PATH"),
        ("./no-such-program", "there is no program ./no-such-program in the box"),
        ("./README", "cannot be executed"),
        ("/etc/shadow", "there is no program /etc/shadow in the box"),
        ("/tmp", "cannot be executed"),
    ],
)
def test_a_program_that_cannot_be_executed(lab: Lab, worktree: Path, program: str, message: str) -> None:
    error = lab.refused(worktree, [program], profile=edited_profile(), weaken=as_planned, patch="")
    assert error is not None
    assert error.control == "program"
    assert message in str(error)


def test_a_program_that_the_kernel_will_not_execute(lab: Lab, worktree: Path) -> None:
    """It looks executable, so only the exec itself can tell."""
    broken = worktree / "broken"
    broken.write_bytes(b"\x7fELF but not really")
    broken.chmod(0o755)
    error = lab.refused(worktree, ["./broken"], profile=edited_profile(), weaken=as_planned, patch="")
    assert error is not None
    assert (error.control, error.number) == (str(Control.ENVIRONMENT), "ENOEXEC")


def test_arming_reports_every_control_and_attestation_agrees(lab: Lab, worktree: Path) -> None:
    async def start() -> tuple[list[str], dict[str, str], object]:
        client = await lab.opened("")
        spec = lab.plan(worktree, edited_profile(), client).spec
        async with lab.started(client, spec, ["true"]) as box:
            return box.armed, box.missing, json.loads(json.dumps(await box.attest()))

    armed, missing, facts = lab.wait(start())
    assert set(armed) | set(missing) == {str(control) for control in Control}
    assert set(armed) & set(missing) == set()
    assert facts
