"""Owns reading the log files an agent writes itself, below a folder held by descriptor.
May touch that folder, opening plain files with one name only, never through a symlink.
Never believes the folder: names, sizes and contents come from an adversary.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from dataclasses import dataclass, field

from sandbox import layout, syscalls
from supervisor.logs.tail.lines import LineSplitter

_CHUNK = 1 << 18
_CHUNKS_PER_LOOK = 16
_MAX_FILES = 64
_RULES = (
    syscalls.RESOLVE_BENEATH
    | syscalls.RESOLVE_NO_SYMLINKS
    | syscalls.RESOLVE_NO_MAGICLINKS
    | syscalls.RESOLVE_NO_XDEV
)


Found = tuple[str, list[bytes], int]
"""File name, lines, and how many bytes of overlong lines were thrown away."""


@dataclass(slots=True)
class _Followed:
    name: str
    fd: int
    offset: int
    splitter: LineSplitter


@dataclass(slots=True)
class FileTail:
    """Follows every file whose path matches one of the patterns (as the agent sees them).

    folder: a descriptor of the box's log folder. refused collects names that are not plain files.
    A file is known by its inode: renaming it (log rotation) does not make it a new one.
    """

    folder: int
    patterns: list[str]
    line_limit_bytes: int
    refused: set[str] = field(default_factory=set)
    _followed: dict[int, _Followed] = field(default_factory=dict)

    def poll(self) -> list[Found]:
        """New lines since the last look, a bounded number of bytes of each file."""
        return self._look(_CHUNKS_PER_LOOK)

    def finish(self) -> list[Found]:
        """The last look, after the box is empty: everything, also lines without their newline."""
        found = self._look(None)
        for entry in self._followed.values():
            found += self._let_go(entry)
        self._followed.clear()
        return found

    def _look(self, chunks: int | None) -> list[Found]:
        there = self._find()
        found: list[Found] = []
        for inode, entry in list(self._followed.items()):
            at_end = self._read(entry, chunks, found)
            if at_end and inode not in there:
                found += self._let_go(self._followed.pop(inode))  # replaced or removed
        return found

    def _let_go(self, entry: _Followed) -> list[Found]:
        rest = entry.splitter.rest()
        os.close(entry.fd)
        return [(entry.name, rest, 0)] if rest else []

    def _find(self) -> set[int]:
        """The inodes under matching names now; new ones are opened, no more than there may be."""
        base = len(layout.LOG_FOLDER) + 1
        wanted = [pattern[base:] for pattern in self.patterns]
        there: set[int] = set()
        with os.scandir(self.folder) as entries:
            matching = sorted(
                (e for e in entries if any(fnmatch.fnmatchcase(e.name, pattern) for pattern in wanted)),
                key=lambda e: e.name,
            )
        for entry in matching:
            if entry.inode() not in self._followed and len(self._followed) < _MAX_FILES:
                self._open(entry.name)
            there.add(entry.inode())
        return there

    def _open(self, name: str) -> None:
        shown = os.fsencode(name).decode("utf-8", errors="backslashreplace")
        try:
            fd = syscalls.openat2(self.folder, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, _RULES)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV, errno.ENXIO):
                self.refused.add(shown)
            return
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_ino in self._followed:
            if found.st_ino not in self._followed:
                self.refused.add(shown)
            os.close(fd)
            return
        self._followed[found.st_ino] = _Followed(shown, fd, 0, LineSplitter(self.line_limit_bytes))

    def _read(self, entry: _Followed, chunks: int | None, found: list[Found]) -> bool:
        """Read on; True when the end was reached. A file that shrank is read from its start again."""
        if os.fstat(entry.fd).st_size < entry.offset:
            entry.offset = 0
        while chunks is None or chunks > 0:
            chunk = os.pread(entry.fd, _CHUNK, entry.offset)
            if not chunk:
                return True
            entry.offset += len(chunk)
            lines, dropped = entry.splitter.feed(chunk)
            if lines or dropped:
                found.append((entry.name, lines, dropped))
            chunks = chunks - 1 if chunks is not None else None
        return False
