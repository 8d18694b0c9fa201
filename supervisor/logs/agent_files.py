"""Owns keeping an agent's own log files in the run's log, while it runs and at its end.
May touch the box's log folder through FileTail, the run's log book, and the places kept beside it.
Never keeps a line that the redactor has not seen, and never keeps one twice after a restart.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable

from sandbox.client import Box
from supervisor.clock import Clock
from supervisor.events import EventKind
from supervisor.logs.agent_events import Emit
from supervisor.logs.book import LogBook, LogLine, read_lines
from supervisor.logs.tail import kept
from supervisor.logs.tail.files import FileTail, Found
from supervisor.profile.schema import Profile

_KEEP_EVERY = 10
"""Looks; what is told between two of them is found in the log itself after a crash."""

_MAX_NAMES = 4096
"""An agent can make new names for ever; what is known of more than these is forgotten."""

_MAX_GAPS = 100
"""More gaps than this of one run are not told one by one."""


class AgentFiles:
    """poll() while the run lives, finish() once the box is empty."""

    def __init__(
        self,
        box: Box,
        profile: Profile,
        book: LogBook,
        clock: Clock,
        emit: Emit,
        on_lines: Callable[[list[LogLine]], None],
    ) -> None:
        wanted = profile.log.files and box.log_folder >= 0
        # A descriptor of our own: the folder outlives the box until its last line has been read.
        self._folder = os.dup(box.log_folder) if wanted else -1
        self._kept_path = f"{os.path.dirname(book.path)}/tail.json"
        self._book = book
        self._names: dict[str, str] = {}
        self._tail = self._open(profile, book) if wanted else None
        self._clock = clock
        self._emit = emit
        self._on_lines = on_lines
        self._reported: set[str] = set()
        self._gaps = 0
        self._looks_since_kept = 0
        self._changed = False

    def _open(self, profile: Profile, book: LogBook) -> FileTail:
        before = kept.load(self._kept_path)
        told: Counter[str] = Counter()
        offset = before.log_bytes
        while True:
            lines, following = read_lines(book.path, offset)
            told.update(line.f for line in lines if line.s == "file")
            if following == offset:
                break
            offset = following
        limit = book.max_line_bytes + book.redactor.longest
        return FileTail(
            self._folder,
            profile.log.files,
            limit,
            before.places,
            dict(told),
            may_be_named=lambda name: self._shown(name) == name,
        )

    def _shown(self, name: str) -> str:
        """A file's name is the agent's text as well, and goes into the log, events and the trail."""
        if len(self._names) > _MAX_NAMES:
            self._names.clear()
        if name not in self._names:
            raw = name.encode("utf-8", "surrogateescape")
            self._names[name] = self._book.redactor.redact(raw)[0].decode("utf-8", "surrogateescape")
        return self._names[name]

    @property
    def wanted(self) -> bool:
        """Does the profile name any file?"""
        return self._tail is not None

    def poll(self) -> None:
        if self._tail is not None:
            self._take(self._tail.poll())
            self._looks_since_kept += 1
            if self._changed and self._looks_since_kept >= _KEEP_EVERY:
                self._keep(self._tail)

    def finish(self) -> None:
        if self._tail is not None:
            self._take(self._tail.finish())

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _take(self, found: Iterable[Found]) -> None:
        assert self._tail is not None
        for name, lines, gap in found:
            self._changed = True
            if gap is not None and self._gaps < _MAX_GAPS:
                self._gaps += 1
                self._emit(EventKind.LOG_GAP, {"file": name, "why": gap})
            if lines:
                self._on_lines(self._book.add("file", lines, self._clock.utc(), name))
        for name in self._tail.refused - self._reported:
            self._reported.add(name)
            self._emit(EventKind.LOG_REFUSED, {"file": self._shown(name)})

    def _keep(self, tail: FileTail) -> None:
        size = os.stat(self._book.path).st_size
        kept.save(self._kept_path, kept.Kept(size, tail.saved()))
        self._looks_since_kept, self._changed = 0, False
