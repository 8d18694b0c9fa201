"""Owns the file that says how far an agent's log files were read, so that reading can go on there.
May touch tail.json in the run's folder, replaced as a whole.
Never holds a line: places, and how long the run's log was when they were true.
"""

from __future__ import annotations

import os

import msgspec

from supervisor.logs.tail.place import Place
from supervisor.ownership import open_file


class Kept(msgspec.Struct, frozen=True):
    """log_bytes: the run's log had that length; lines of files that stand behind it came after places."""

    log_bytes: int = 0
    places: list[Place] = []


def load(path: str) -> Kept:
    """What was kept last; nothing where there is no such file, or none that can be read."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Kept)
    except (OSError, msgspec.DecodeError):
        return Kept()


def save(path: str, kept: Kept) -> None:
    """Replace it; a reader finds the old one or the new one. A full disk leaves the old one.

    Not synced: after a crash of the machine there is no box whose files could be read on.
    """
    new = f"{path}.new"
    try:
        with open(new, "wb", opener=_private) as file:
            file.write(msgspec.json.encode(kept))
        os.replace(new, path)
    except OSError:
        return


def _private(path: str, flags: int) -> int:
    return open_file(path, flags & ~os.O_CREAT)
