"""Owns reading the trail's files: which segments there are, and their lines one after the other.
May touch the files below <state>/audit/, read-only.
Never reads more of a line at once than a record can be.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from supervisor.audit.records import Record, decode
from supervisor.audit.sealing import Sealed, take_apart
from supervisor.audit.state import TrailState, read_state
from supervisor.errors import NotFound

MAX_LINE = 1 << 16
_SEGMENT = re.compile(r"(\d{6,})\.ndjson", re.ASCII)


class Line(NamedTuple):
    """A line of a segment, and where it begins in it. sealed and record are None for what is none."""

    segment: int
    offset: int
    raw: bytes
    sealed: Sealed | None
    record: Record | None


def segments(folder: str) -> list[int]:
    """Their numbers in order. Raises NotFound where there is no trail."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        hint = "a supervisor makes one when it starts"
        raise NotFound(f"there is no audit trail in {folder}: {error.strerror}", hint=hint) from None
    return sorted(int(match[1]) for match in map(_SEGMENT.fullmatch, names) if match)


def path_of(folder: str, segment: int) -> str:
    return f"{folder}/{segment:06}.ndjson"


def lines_of(folder: str, segment: int, offset: int = 0) -> Iterator[Line]:
    """From an offset on. A piece longer than any record comes as a line that is none."""
    with open(path_of(folder, segment), "rb") as file:
        file.seek(offset)
        while raw := file.readline(MAX_LINE):
            yield _line(segment, offset, raw)
            offset += len(raw)


def _line(segment: int, offset: int, raw: bytes) -> Line:
    sealed = take_apart(raw[:-1]) if raw.endswith(b"\n") else None
    record = decode(sealed.body) if sealed is not None else None
    return Line(segment, offset, raw, sealed if record is not None else None, record)


def records(folder: str) -> Iterator[Record]:
    """What can be read, in order and unverified."""
    for number in segments(folder):
        for line in lines_of(folder, number):
            if line.record is not None:
                yield line.record


def state_of(folder: str) -> TrailState | None:
    """What the key file says of the trail's end; None where it is not there or cannot be read."""
    try:
        fd = os.open(f"{folder}/key", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return read_state(fd)
    finally:
        os.close(fd)
