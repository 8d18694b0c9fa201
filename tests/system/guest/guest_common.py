"""Owns what all scenarios share: the assertion, the wait with a bound, the worktree, who is dead.
May touch folders it is given.
Never knows the product.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 60.0


def check(truth: object, what: object) -> None:
    if not truth:
        raise AssertionError(str(what))


def dead(pids: list[int]) -> list[int]:
    return [pid for pid in pids if not Path(f"/proc/{pid}").exists()]


def wait_until(what: str, condition: Callable[[], object], seen: Callable[[], object] = str) -> None:
    """Look until it is so. seen is asked once, when the patience is over, for the message."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        check(time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s for {what} {seen()}")
        time.sleep(0.2)


def make_worktree(folder: Path) -> Path:
    """A small git working copy that belongs to whoever calls."""
    subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
    (folder / "file").write_text("as it was\n")
    (folder / "folder").mkdir()
    (folder / "folder" / "inner").write_text("inner\n")
    return folder
