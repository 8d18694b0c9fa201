"""Owns turning an agent's own log files into log lines and events, while it runs and at its end.
May touch the box's log folder through FileTail, and the run's log book.
Never takes a line for an event before the redactor has seen it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from sandbox.client import Box
from supervisor.clock import Clock
from supervisor.events import EventKind
from supervisor.logs.book import LogBook, LogLine
from supervisor.logs.tail.files import FileTail
from supervisor.profile.schema import Profile

_MAX_DEPTH = 32
_MAX_EVENTS = 5000
"""More events than this of one run stay in the log only; the count goes on."""

Emit = Callable[[EventKind, dict[str, Any]], None]


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
        limit = book.max_line_bytes + book.redactor.longest
        wanted = profile.log.files and box.log_folder >= 0
        # A descriptor of our own: the folder outlives the box until its last line has been read.
        self._folder = os.dup(box.log_folder) if wanted else -1
        self._tail = FileTail(self._folder, profile.log.files, limit) if wanted else None
        self._book = book
        self._clock = clock
        self._emit = emit
        self._on_lines = on_lines
        self._events = 0
        self._reported: set[str] = set()

    @property
    def wanted(self) -> bool:
        """Does the profile name any file?"""
        return self._tail is not None

    def poll(self) -> None:
        if self._tail is not None:
            self._take(self._tail.poll())

    def finish(self) -> None:
        if self._tail is not None:
            self._take(self._tail.finish())

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _take(self, found: list[tuple[str, list[bytes], int]]) -> None:
        assert self._tail is not None
        for name, lines, dropped in found:
            self._book.drop(dropped)
            kept = self._book.add("file", lines, self._clock.utc(), name)
            self._on_lines(kept)
            for line in kept:
                self._as_event(line)
        for name in self._tail.refused - self._reported:
            self._reported.add(name)
            self._emit(EventKind.LOG_REFUSED, {"file": name})

    def _as_event(self, line: LogLine) -> None:
        if self._events >= _MAX_EVENTS:
            return
        try:
            said = self._clean(msgspec.json.decode(line.t), 0)
        except (msgspec.DecodeError, RecursionError):
            return
        if isinstance(said, dict):
            self._events += 1
            kind = EventKind.ITERATION if said.get("kind") == "iteration" else EventKind.AGENT_EVENT
            self._emit(kind, {"file": line.f, **{k: v for k, v in said.items() if k != "kind"}})

    def _clean(self, value: Any, depth: int) -> Any:
        """Once more through the redactor: decoding undoes escapes that it did not know in the line."""
        if depth > _MAX_DEPTH:
            return "(nested too deep)"
        if isinstance(value, str):
            return self._book.redactor.redact(value.encode())[0].decode(errors="replace")
        if isinstance(value, list):
            return [self._clean(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {self._clean(k, depth): self._clean(item, depth + 1) for k, item in value.items()}
        return value
