"""Owns that a mount which is not as planned is named, whichever step it is of.
May touch nothing.
Never believes a plan: each of its steps is broken once.
"""

from __future__ import annotations

from typing import Any

import pytest

from sandbox import layout
from sandbox.mount_check import disagreements, planned
from sandbox.spec import Bind, Hide, LogFolder, MountStep, Pin, Protect, Tmpfs, Worktree

TREE = Worktree(source="/w", target="/w", upper="/u", work="/o", executable=False)
STEPS: tuple[MountStep, ...] = (
    *layout.base_steps(layout.Rooms(read=("/opt/x",), tmp_bytes=1 << 20, log_bytes=1 << 20)),
    TREE,
    Pin(target="/w/.git"),
    Protect(target="/w/.git/hooks", placeholder=None),
    Hide(target="/w/key", folder=False),
)


def as_planned() -> list[dict[str, Any]]:
    made = [(step.target, planned(step)) for step in STEPS]
    return [{"target": target, "flags": sorted(flags)} for target, flags in made if flags is not None]


def test_control_what_is_as_planned_is_not_named() -> None:
    assert disagreements(as_planned(), STEPS) == []
    assert {type(step) for step in STEPS} >= {Bind, Tmpfs, LogFolder, Worktree, Pin, Protect, Hide}


@pytest.mark.parametrize("number", range(len(as_planned())))
def test_a_mount_that_lacks_a_flag_or_is_not_there_is_named(number: int) -> None:
    mounts = as_planned()
    target, flags = mounts[number]["target"], list(mounts[number]["flags"])
    for flag in flags:
        mounts[number]["flags"] = [other for other in flags if other != flag]
        (wrong,) = disagreements(mounts, STEPS)
        assert str(target) in wrong and flag in wrong
    del mounts[number]
    (wrong,) = disagreements(mounts, STEPS)
    assert f"nothing is mounted at {target}" in wrong


def test_a_writable_mount_that_nobody_planned_is_named() -> None:
    mounts = [*as_planned(), {"target": "/sys", "flags": ["rw", "nosuid", "nodev"]}]
    assert disagreements(mounts, STEPS) == ["root: /sys can be written, and no step made it"]
    mounts[-1]["flags"] = ["ro"]
    assert disagreements(mounts, STEPS) == []


def test_of_two_steps_at_one_place_the_last_one_counts() -> None:
    """A direct worktree that is frozen: its own mount is under the one that protects it."""
    steps = (*STEPS, Protect(target="/w", placeholder=None))
    over: dict[str, Any] = {"target": "/w", "flags": ["ro", "nosuid", "nodev", "noexec"]}
    assert disagreements([*as_planned(), over], steps) == []
    assert disagreements(as_planned(), steps) == ["protected_paths: /w is not ro"]
    over["flags"].remove("noexec")
    assert disagreements([*as_planned(), over], steps) == ["protected_paths: /w is not noexec"]


def test_what_lies_over_a_mount_is_what_is_seen() -> None:
    mounts = [*as_planned(), {"target": "/w/.git/hooks", "flags": ["rw", "nosuid", "nodev"]}]
    assert disagreements(mounts, STEPS) == ["protected_paths: /w/.git/hooks is not ro"]
