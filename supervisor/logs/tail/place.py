"""Owns knowing a file again: which one it is, how far it was read, and whether that part is still there.
May touch descriptors it is given, reading only.
Never takes a name, an inode or a size for proof that a file is the one that was read.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import msgspec

from sandbox import syscalls

WINDOW = 4096
"""Bytes of the head, and of what was read last, that are compared at every look."""

COPY_HEAD = 256
"""A shorter file is only taken for an earlier copy of another when at least so much of it is the same."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """How far a file was read, to be stored. offset: where its next line begins, in bytes.

    device, inode and born_ns (0: unknown) say which file; head and recent are SHA-256 of the first
    head_bytes and of the last recent_bytes before the offset, and say whether it still holds them.
    """

    name: str
    device: int
    inode: int
    born_ns: int
    offset: int
    head_bytes: int
    head: str
    recent_bytes: int
    recent: str


@dataclass(slots=True)
class ReadSoFar:
    """What was read of an open file: enough of it in memory to notice that it was rewritten."""

    offset: int = 0
    head: bytes = b""
    recent: bytes = b""

    def take(self, chunk: bytes) -> None:
        if len(self.head) < WINDOW:
            self.head = (self.head + chunk[:WINDOW])[:WINDOW]
        self.recent = (self.recent + chunk[-WINDOW:])[-WINDOW:]
        self.offset += len(chunk)

    def skip(self, count: int) -> None:
        """A hole: as taking that many NUL bytes."""
        nothing = bytes(min(count, WINDOW))
        self.head = (self.head + nothing)[:WINDOW] if len(self.head) < WINDOW else self.head
        self.recent = (self.recent + nothing)[-WINDOW:]
        self.offset += count

    def is_still_in(self, fd: int) -> bool:
        """Does the file hold at both ends what was read there?

        A writer that puts other bytes only between the two windows is not noticed.
        """
        if os.pread(fd, len(self.head), 0) != self.head:
            return False
        return os.pread(fd, len(self.recent), self.offset - len(self.recent)) == self.recent

    def was_copied_to(self, fd: int, size: int) -> bool:
        """Does another file hold all that this one held, or a part of it that is long enough to tell?

        Compared at the head and where this one was read last.
        """
        if not self.head or (size < self.offset and size < COPY_HEAD):
            return False
        common, recent = self.head[:size], self.recent if size >= self.offset else b""
        # A hole alone says nothing: truncations leave one at the head of any file.
        if not (common.strip(b"\0") or recent.strip(b"\0")) or os.pread(fd, len(common), 0) != common:
            return False
        return os.pread(fd, len(recent), self.offset - len(recent)) == recent


def place_of(name: str, fd: int, read: ReadSoFar, line_starts: int) -> Place:
    """line_starts: the offset at which the line begins that is not complete yet."""
    found = os.fstat(fd)
    behind = read.offset - line_starts
    recent = read.recent[: len(read.recent) - behind] if behind < len(read.recent) else b""
    head = read.head[:line_starts]
    return Place(
        name=name,
        device=found.st_dev,
        inode=found.st_ino,
        born_ns=syscalls.birth_time_ns(fd),
        offset=line_starts,
        head_bytes=len(head),
        head=_digest(head),
        recent_bytes=len(recent),
        recent=_digest(recent),
    )


def is_same_file(place: Place, fd: int) -> bool:
    """An inode is used again for another file; its time of birth and the bytes that were read are not."""
    found = os.fstat(fd)
    same = (found.st_dev, found.st_ino) == (place.device, place.inode)
    born_ns = syscalls.birth_time_ns(fd)
    return same and (not place.born_ns or not born_ns or place.born_ns == born_ns)


def go_on_from(place: Place, fd: int) -> ReadSoFar | None:
    """What was read up to the place, if the file still holds it; None when it was rewritten since."""
    head = os.pread(fd, place.head_bytes, 0)
    recent = os.pread(fd, place.recent_bytes, place.offset - place.recent_bytes)
    if os.fstat(fd).st_size < place.offset or _digest(head) != place.head or _digest(recent) != place.recent:
        return None
    if place.offset > len(head) and len(head) < WINDOW:
        head = os.pread(fd, min(WINDOW, place.offset), 0)
    return ReadSoFar(offset=place.offset, head=head, recent=recent)


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
