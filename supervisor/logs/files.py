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
from supervisor.logs.capture import LineSplitter

_CHUNK = 1 << 18
_MAX_FILES = 64
_RULES = (
    syscalls.RESOLVE_BENEATH
    | syscalls.RESOLVE_NO_SYMLINKS
    | syscalls.RESOLVE_NO_MAGICLINKS
    | syscalls.RESOLVE_NO_XDEV
)


@dataclass(slots=True)
class _Followed:
    fd: int
    inode: int
    offset: int
    splitter: LineSplitter


@dataclass(slots=True)
class FileTail:
    """Follows every file whose path matches one of the patterns (as the agent sees them).

    folder: a descriptor of the box's log folder. refused collects names that are not plain files.
    """

    folder: int
    patterns: list[str]
    line_limit_bytes: int
    refused: set[str] = field(default_factory=set)
    _followed: dict[str, _Followed] = field(default_factory=dict)

    def poll(self) -> list[tuple[str, list[bytes], int]]:
        """New lines since the last look: (file name, lines, bytes dropped of overlong lines)."""
        found = []
        for name in self._names():
            known = self._followed.get(name)
            current = self._open(name)
            for entry in (known, current if current is not known else None):
                if entry is not None:
                    lines, dropped = self._read(entry)
                    if lines or dropped:
                        found.append((name, lines, dropped))
            if known is not None and current is not None and current is not known:
                os.close(known.fd)
        return found

    def finish(self) -> list[tuple[str, list[bytes], int]]:
        """The last look, after the box is empty, with lines that never got their newline."""
        found = self.poll()
        for name, entry in self._followed.items():
            rest = entry.splitter.rest()
            if rest:
                found.append((name, rest, 0))
            os.close(entry.fd)
        self._followed.clear()
        return found

    def _names(self) -> list[str]:
        base = len(layout.LOG_FOLDER) + 1
        wanted = [pattern[base:] for pattern in self.patterns]
        names = sorted(os.listdir(self.folder))
        return [n for n in names if any(fnmatch.fnmatchcase(n, pattern) for pattern in wanted)][:_MAX_FILES]

    def _open(self, name: str) -> _Followed | None:
        """The file under that name now; a replaced one is read to its end first, then let go."""
        try:
            fd = syscalls.openat2(self.folder, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, _RULES)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV, errno.ENXIO):
                self.refused.add(name)
            return None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            self.refused.add(name)
            os.close(fd)
            return None
        known = self._followed.get(name)
        if known is not None and known.inode == found.st_ino:
            os.close(fd)
            if found.st_size < known.offset:
                known.offset = 0  # truncated: what is there now is new
            return known
        entry = _Followed(fd, found.st_ino, 0, LineSplitter(self.line_limit_bytes))
        self._followed[name] = entry
        return entry

    def _read(self, entry: _Followed) -> tuple[list[bytes], int]:
        chunk = os.pread(entry.fd, _CHUNK, entry.offset)
        entry.offset += len(chunk)
        return entry.splitter.feed(chunk) if chunk else ([], 0)
