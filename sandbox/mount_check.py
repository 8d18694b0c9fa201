"""Owns comparing the mounts of a box, as the kernel shows them from outside, with the steps that made them.
May touch nothing: facts and plan are arguments.
Never passes over a mount that can be written and that no step asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sandbox import spec

_QUIET = frozenset({"nosuid", "nodev"})
_SEALED = _QUIET | {"ro", "noexec"}


def planned(step: spec.MountStep) -> frozenset[str] | None:
    """The flags that the step's mount must have; None for one that mounts nothing, or may."""
    match step:
        case spec.Bind():
            return None if step.optional else _QUIET | {"ro"} | _noexec(step.executable)
        case spec.Etc() | spec.Proc() | spec.Hide():
            return _SEALED
        case spec.Devices():
            return frozenset({"ro", "nosuid", "noexec"})
        case spec.Terminals():
            return frozenset({"rw", "nosuid", "noexec"})
        case spec.Tmpfs() | spec.Worktree():
            return _QUIET | {"rw"} | _noexec(step.executable)
        case spec.LogFolder():
            return _QUIET | {"rw", "noexec"}
        case spec.Protect():
            return _QUIET | {"ro"}
        case spec.Pin() | spec.Unlock():
            return _QUIET | {"rw"}
        case spec.Symlink() | spec.Directory() | spec.HomeFiles():
            return None


def _noexec(executable: bool) -> frozenset[str]:
    return frozenset() if executable else frozenset({"noexec"})


def disagreements(mounts: Iterable[Mapping[str, Any]], steps: Iterable[spec.MountStep]) -> list[str]:
    """What is not as planned, each with the control's name before it; empty when all is well.

    mounts: as sandbox/attest.py reads them, in the order of mountinfo(5); the last at a target is the
    one that is seen.
    """
    there = {str(mount["target"]): frozenset(mount["flags"]) for mount in mounts}
    wrong: list[str] = []
    # A direct worktree whose root is frozen has a protecting mount on top of its own: the last one counts.
    expected: dict[str, tuple[spec.MountStep, frozenset[str]]] = {}
    for step in steps:
        if (flags := planned(step)) is not None:
            _, below = expected.get(step.target, (step, frozenset()))
            expected[step.target] = (step, flags | (below & {"noexec"}))
    for target, (step, flags) in expected.items():
        found = there.get(target)
        if found is None:
            wrong.append(f"{_control(step)}: nothing is mounted at {target}")
        elif not flags <= found:
            lacking = " ".join(sorted(flags - found))
            wrong.append(f"{_control(step)}: {target} is not {lacking}")
    for target, found in there.items():
        device = target.startswith("/dev/")
        if "rw" in found and target not in expected and not device:
            wrong.append(f"root: {target} can be written, and no step made it")
    return wrong


def _control(step: spec.MountStep) -> str:
    if isinstance(step, spec.Worktree):
        return "worktree"
    return (
        "protected_paths" if isinstance(step, spec.Protect | spec.Hide | spec.Pin | spec.Unlock) else "root"
    )
