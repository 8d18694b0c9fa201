"""Owns reading the log files an agent writes itself, below a folder held by descriptor.
May touch that folder, opening plain files with one name only, never through a symlink.
Never believes the folder: names, sizes and contents come from an adversary.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from sandbox import layout, syscalls
from supervisor.logs.tail.lines import LineSplitter
from supervisor.logs.tail.place import WINDOW, Place, ReadSoFar, go_on_from, is_same_file, place_of

_CHUNK = 1 << 18
_FILE_BYTES_PER_LOOK = 1 << 22
_BYTES_PER_LOOK = 1 << 23
_MAX_OPEN = 64
_MAX_PARKED = 1024
_MAX_LISTED = 4096
_MAX_NAMES = 1 << 16
_MAX_REFUSED = 256
_HELD_LINES = 8
"""All files together hold back no more than so many longest lines."""

_TICK_NS = 100_000_000
"""Times of change are as coarse as the kernel's tick: one that is younger may stand for two changes."""

_NEVER = (-1, -1)
_LOOKS_UNTIL_LET_GO = 50
_LOOKS_AS_A_COPY = 20
_RULES = (
    syscalls.RESOLVE_BENEATH
    | syscalls.RESOLVE_NO_SYMLINKS
    | syscalls.RESOLVE_NO_MAGICLINKS
    | syscalls.RESOLVE_NO_XDEV
)


class Gap(StrEnum):
    """Why lines of a file may be missing: what was written and gone between two looks nobody has read."""

    TRUNCATED = "truncated"
    REWRITTEN = "rewritten"
    TOO_MANY_FILES = "too_many_files"


class Found(NamedTuple):
    """What a look found in one file. lines may be MarkedLines; gap comes before them."""

    name: str
    lines: list[bytes]
    gap: Gap | None = None


@dataclass(slots=True)
class _Followed:
    name: str
    fd: int
    splitter: LineSplitter
    read: ReadSoFar
    line_starts: int = 0
    seen: tuple[int, int] = _NEVER
    gone_for: int = 0
    copy_for: int = 0
    """Looks that are left for it to turn out to be the copy of a file that is truncated next."""


@dataclass(slots=True)
class _Ended:
    """What a file held before it was truncated. rest: a line that was held, until a copy turns up or not."""

    name: str
    read: ReadSoFar | Place
    line_starts: int
    rest: list[bytes]

    def was_copied_to(self, fd: int, size: int) -> bool:
        if isinstance(self.read, Place):
            return size >= self.read.offset and go_on_from(self.read, fd) is not None
        return self.read.was_copied_to(fd, size)


@dataclass(slots=True)
class FileTail:
    """Follows every file whose path matches one of the patterns (as the agent sees them).

    folder: a descriptor of the box's log folder. refused collects names that are not plain files.
    A file is known by device, inode, birth and what was read of it: renaming it (log rotation) does
    not make it a new one, and rewriting it does. places: from places() of an earlier tail, to go on
    there. may_be_named: is it safe to write that name down? told: by name, how many lines past those
    places the first look finds that were taken already.
    """

    folder: int
    patterns: list[str]
    line_limit_bytes: int
    places: Iterable[Place] = ()
    told: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    may_be_named: Callable[[str], bool] = lambda _: True
    _followed: dict[int, _Followed] = field(default_factory=dict)
    _parked: dict[int, tuple[Place, tuple[int, int]]] = field(default_factory=dict)
    _ended: deque[_Ended] = field(default_factory=lambda: deque(maxlen=16))
    _crowd_told: bool = False

    def __post_init__(self) -> None:
        self._parked = {place.inode: (place, _NEVER) for place in self.places}

    def poll(self) -> list[Found]:
        """New lines since the last look, of a bounded number of bytes."""
        return self._look(final=False)[0]

    def finish(self) -> Iterator[Found]:
        """The last look, after the box is empty: everything, also lines without their newline."""
        more = True
        while more:
            found, more = self._look(final=True)
            yield from found
        for entry in self._followed.values():
            yield from self._let_go(entry)
        self._followed.clear()

    def close(self) -> None:
        for entry in self._followed.values():
            os.close(entry.fd)
        self._followed.clear()

    def saved(self) -> list[Place]:
        """How far each file was read, whole lines only: for a tail that goes on after this one."""
        open_now = [place_of(e.name, e.fd, e.read, e.line_starts) for e in self._followed.values()]
        return [*open_now, *(place for place, _ in self._parked.values())]

    # ------------------------------------------------------------ a look

    def _look(self, *, final: bool) -> tuple[list[Found], bool]:
        """What was found, and whether there is more to read at once."""
        listed, crowded = self._list()
        found: list[Found] = []
        left = _BYTES_PER_LOOK
        for inode, entry in list(self._followed.items()):
            if left <= 0:
                return found, True
            left -= self._visit(inode, entry, listed, found, final=final)
        for inode, name in listed.items():
            if inode in self._followed or self._is_unchanged(inode, name):
                continue
            if left <= 0:
                return found, True
            if len(self._followed) >= _MAX_OPEN and not self._park_one(listed):
                crowded = True
                break
            new = self._open(name)
            if new is not None:
                left -= self._visit(inode, new, listed, found, final=final)
        if crowded and not self._crowd_told:
            self._crowd_told = True
            found.append(Found("", [], Gap.TOO_MANY_FILES))
        for ended in self._ended:
            if ended.rest:
                found += self._without_told(ended.name, ended.rest)
                ended.rest, ended.line_starts = [], ended.read.offset
        if left > 0:
            self.told.clear()
        return found, left < _BYTES_PER_LOOK

    def _list(self) -> tuple[dict[int, str], bool]:
        """The names by inode of what matches or was read before, and whether there are too many."""
        base = len(layout.LOG_FOLDER) + 1
        wanted = [pattern[base:] for pattern in self.patterns]
        listed: dict[int, str] = {}
        seen = 0
        with os.scandir(self.folder) as entries:
            for entry in entries:
                seen += 1
                if seen > _MAX_NAMES or len(listed) >= _MAX_LISTED:
                    break
                inode = entry.inode()
                if not self.may_be_named(entry.name):
                    self._keep_out(entry.name, inode, listed)
                elif any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in wanted):
                    listed[inode] = entry.name
                elif inode in self._followed or inode in self._parked:
                    listed.setdefault(inode, entry.name)
        crowded = seen > _MAX_NAMES or len(listed) >= _MAX_LISTED
        # Known files first: what became of them says what a new one is.
        ordered = sorted(listed.items(), key=lambda item: (item[0] not in self._parked, item[1]))
        return dict(ordered), crowded

    def _keep_out(self, name: str, inode: int, listed: dict[int, str]) -> None:
        """A name that must not be written down: a file that is known goes on under its old one."""
        self.refused.add(name)
        if inode in self._followed:
            listed.setdefault(inode, self._followed[inode].name)
        elif inode in self._parked:
            listed.setdefault(inode, self._parked[inode][0].name)

    def _visit(
        self, inode: int, entry: _Followed, listed: dict[int, str], found: list[Found], *, final: bool
    ) -> int:
        """Read on in one file; how many bytes were read. One that is gone for long is let go of."""
        if entry.copy_for and not self._is_decided(entry, final=final):
            return 0
        count, at_end = self._read(entry, found, final=final)
        self._bound_what_is_held(entry)
        if not at_end:
            # The others have their turn before this one goes on.
            self._followed[inode] = self._followed.pop(inode)
        elif inode in listed:
            entry.gone_for = 0
        else:
            entry.gone_for += 1
            # A writer may have it open still; but an agent's deleted file also fills its folder.
            if entry.gone_for > _LOOKS_UNTIL_LET_GO and not os.fstat(entry.fd).st_nlink:
                found += self._let_go(self._followed.pop(inode))
        return count

    def _let_go(self, entry: _Followed) -> list[Found]:
        rest = entry.splitter.rest()
        os.close(entry.fd)
        return self._without_told(entry.name, rest)

    # ------------------------------------------------------------ files come and are parked

    def _open(self, name: str) -> _Followed | None:
        """Follow a file from where it was left before, or from its start."""
        shown = os.fsencode(name).decode("utf-8", errors="backslashreplace")
        try:
            if not stat.S_ISREG(os.stat(name, dir_fd=self.folder, follow_symlinks=False).st_mode):
                self._refuse(shown)
                return None
            fd = syscalls.openat2(self.folder, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, _RULES)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV, errno.ENXIO, errno.EACCES):
                self._refuse(shown)
            return None
        status = os.fstat(fd)
        inode = status.st_ino
        known, _ = self._parked.pop(inode, (None, None))
        plain = stat.S_ISREG(status.st_mode) and (status.st_nlink == 1 or known is not None)
        if not plain or inode in self._followed:
            if not plain:
                self._refuse(shown)
            os.close(fd)
            return None
        entry = _Followed(shown, fd, LineSplitter(self.line_limit_bytes), ReadSoFar())
        if known is not None and is_same_file(known, fd):
            self._go_on(entry, known)
        elif any(other.read.was_copied_to(fd, status.st_size) for other in self._followed.values()):
            entry.copy_for = _LOOKS_AS_A_COPY
        else:
            self._go_on_in_copy(entry, status.st_size)
        self._followed[inode] = entry
        return entry

    def _go_on(self, entry: _Followed, known: Place) -> None:
        entry.name = known.name
        before = go_on_from(known, entry.fd)
        if before is None:
            self._ended.append(_Ended(known.name, known, known.offset, []))
        else:
            entry.read, entry.line_starts = before, before.offset

    def _refuse(self, shown: str) -> None:
        if len(self.refused) < _MAX_REFUSED:
            self.refused.add(shown)

    def _is_decided(self, entry: _Followed, *, final: bool) -> bool:
        """A copy that is made before its original is truncated holds nothing but what was read there.

        If the original is truncated soon, it was one, and is read from where the original was left.
        """
        if self._go_on_in_copy(entry, os.fstat(entry.fd).st_size):
            entry.copy_for = 0
        else:
            entry.copy_for = 0 if final else entry.copy_for - 1
        return not entry.copy_for

    def _go_on_in_copy(self, entry: _Followed, size: int) -> bool:
        for ended in self._ended:
            if ended.was_copied_to(entry.fd, size):
                self._ended.remove(ended)
                _start_at(entry, min(ended.line_starts, size))
                return True
        return False

    def _park_one(self, listed: dict[int, str]) -> bool:
        """Close the file that is read to its end and has waited longest; it is opened when it changes."""
        for inode, entry in self._followed.items():
            status = os.fstat(entry.fd)
            whole = entry.line_starts == entry.read.offset == status.st_size
            if not whole or entry.copy_for or not entry.read.is_still_in(entry.fd):
                continue
            if inode in listed:
                if len(self._parked) >= _MAX_PARKED:
                    return False
                place = place_of(entry.name, entry.fd, entry.read, entry.line_starts)
                self._parked[inode] = (place, _mark(status))
            del self._followed[inode]
            os.close(entry.fd)
            return True
        return False

    def _is_unchanged(self, inode: int, name: str) -> bool:
        if inode not in self._parked:
            return False
        try:
            status = os.stat(name, dir_fd=self.folder, follow_symlinks=False)
        except OSError:
            return True
        return self._parked[inode][1] == (status.st_size, status.st_ctime_ns)

    # ------------------------------------------------------------ reading

    def _read(self, entry: _Followed, found: list[Found], *, final: bool) -> tuple[int, bool]:
        """Read on: how many bytes, and was the end reached?"""
        status = os.fstat(entry.fd)
        if entry.seen == (status.st_size, status.st_ctime_ns) and not final:
            return 0, True
        if status.st_size < entry.read.offset:
            found += self._begin_again(entry, Gap.TRUNCATED)
        elif not entry.read.is_still_in(entry.fd):
            found += self._begin_again(entry, Gap.REWRITTEN)
        count = 0
        while count < _FILE_BYTES_PER_LOOK:
            chunk = os.pread(entry.fd, _CHUNK, entry.read.offset)
            text = chunk.rstrip(b"\0") if chunk.endswith(b"\0") else chunk
            if not text and not self._skip_nuls(entry, chunk):
                # From before the reads: whatever changes from there on shows.
                entry.seen = _mark(status)
                return count, True
            if text and not self._still_the_same(entry, text):
                found += self._begin_again(entry, Gap.REWRITTEN)
            elif text:
                self._take(entry, text, found)
            count += max(1, len(text))
        return count, False

    def _still_the_same(self, entry: _Followed, chunk: bytes) -> bool:
        """After a read: was it of the file whose beginning was read before? Then it is not mixed.

        An empty file was not rewritten yet, so what was read is what it held.
        """
        after = ReadSoFar(entry.read.offset, entry.read.head, entry.read.recent)
        after.take(chunk)
        return after.is_still_in(entry.fd) or not os.fstat(entry.fd).st_size

    def _take(self, entry: _Followed, chunk: bytes, found: list[Found]) -> None:
        last = chunk.rfind(b"\n")
        if last >= 0:
            entry.line_starts = entry.read.offset + last + 1
        entry.read.take(chunk)
        found += self._without_told(entry.name, entry.splitter.feed(chunk))

    def _without_told(self, name: str, lines: list[bytes]) -> list[Found]:
        """Lines that the tail before this one had told when it was stopped are passed over."""
        told = self.told.get(name, 0)
        if told and lines:
            self.told[name] = max(0, told - len(lines))
            lines = lines[told:]
        return [Found(name, lines)] if lines else []

    def _begin_again(self, entry: _Followed, why: Gap) -> list[Found]:
        """It is another file under the same inode; the line that was held ends here, or in a copy."""
        rest = entry.splitter.rest()
        self._ended.append(_Ended(entry.name, entry.read, entry.line_starts, rest))
        entry.read, entry.line_starts = ReadSoFar(), 0
        for other in self._followed.values():
            if other.copy_for and self._go_on_in_copy(other, os.fstat(other.fd).st_size):
                other.copy_for = 0
        return [Found(entry.name, [], why)]

    def _skip_nuls(self, entry: _Followed, chunk: bytes) -> bool:
        """Past a run of NULs or a hole, if anything follows it.

        At the end of a file it stays: a writer that makes room first will put its lines there.
        """
        at = entry.read.offset
        while chunk:
            try:
                at = os.lseek(entry.fd, at, os.SEEK_DATA)
            except OSError:
                return False
            chunk = os.pread(entry.fd, _CHUNK, at)
            text = chunk.lstrip(b"\0")
            at += len(chunk) - len(text)
            if text:
                entry.splitter.skip_nuls(at - entry.read.offset)
                entry.read.skip(at - entry.read.offset)
                return True
        return False

    def _bound_what_is_held(self, entry: _Followed) -> None:
        held = sum(len(other.splitter.held) for other in self._followed.values())
        if held > _HELD_LINES * self.line_limit_bytes:
            entry.splitter.squeeze()


def _mark(status: os.stat_result) -> tuple[int, int]:
    """What shows that a file was changed: its size and the time of its last change."""
    young = time.time_ns() - status.st_ctime_ns < _TICK_NS
    return _NEVER if young else (status.st_size, status.st_ctime_ns)


def _start_at(entry: _Followed, at: int) -> None:
    """What comes before was read elsewhere."""
    start = max(0, at - WINDOW)
    head = os.pread(entry.fd, min(WINDOW, at), 0)
    entry.read = ReadSoFar(offset=at, head=head, recent=os.pread(entry.fd, at - start, start))
    entry.line_starts = at
