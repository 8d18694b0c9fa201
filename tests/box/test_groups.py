"""Owns what a control group answers while somebody else removes it.
May touch one group of its own, below the launcher's hierarchies.
Never takes a group that has gone for one that lives, nor for an error.
"""

from __future__ import annotations

import errno
import os

import pytest

from sandbox import cgroups


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_a_group_that_goes_while_it_is_read_is_empty(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Open, removed, read: the kernel answers ENODEV (kernfs)."""

    def gone(path: str, text: str = "") -> str:
        raise OSError(number, os.strerror(number), path)

    group = cgroups.RunGroup("run", "/nowhere", {"memory": "/nowhere"})
    monkeypatch.setattr(cgroups, "read_text", gone)
    monkeypatch.setattr(cgroups, "_write", gone)
    assert not group.populated()
    assert group.members() == []
    assert group.oom_kills() == 0
    group.kill()


def test_a_group_that_may_not_be_read_is_not_called_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> str:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(cgroups, "read_text", refused)
    with pytest.raises(PermissionError):
        cgroups.RunGroup("run", "/nowhere", {}).populated()
