"""Owns telling one dialect from another, line by line, and turning lines into events.
May touch nothing: lines that were redacted in, events out.
Never raises on what an agent wrote, and never reads a line that is too long or too deep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from supervisor.events import EventKind
from supervisor.logs.dialects import claude, codex, gemini
from supervisor.logs.dialects.said import Told
from supervisor.logs.dialects.words import Json, Words

MAX_LINE = 1 << 20
"""Characters. A longer line stays in the log and is no event."""

_FORGED = ("dialect", "said")


class Dialect(Protocol):
    """What reads one dialect of one run; it remembers what belongs together over lines."""

    def read(self, line: Json, at: str) -> list[Told]: ...

    def finish(self) -> list[Told]: ...


class DialectReader:
    """For one run. read() takes a line of any of its streams, finish() tells what was still open."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        """clean: takes secrets out of a decoded text: decoding undoes escapes that hid them in the line."""
        self._words = Words(clean)
        self._dialects: dict[str, Dialect] = {}

    def read(self, text: str, at: str, *, unknown_too: bool) -> list[Told] | None:
        """The events a line stands for; None for a line that is none of them.

        unknown_too: JSON objects of a shape nobody here knows are events as well.
        """
        if not text.startswith("{") or len(text) > MAX_LINE:
            return None
        try:
            line = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return None
        if not isinstance(line, dict):
            return None
        return self._read(line, at, unknown_too=unknown_too)

    def finish(self) -> list[Told]:
        return [event for dialect in self._dialects.values() for event in dialect.finish()]

    def _read(self, line: dict[str, Any], at: str, *, unknown_too: bool) -> list[Told] | None:
        if line.get("kind") == EventKind.ITERATION:
            return [Told(EventKind.ITERATION, self._own(line))]
        if claude.speaks(line):
            return self._dialect(claude.NAME, claude.ClaudeReader).read(line, at)
        if codex.speaks(line):
            return self._dialect(codex.NAME, codex.CodexReader).read(line, at)
        if gemini.speaks(line):
            return self._dialect(gemini.NAME, gemini.GeminiReader).read(line, at)
        return [Told(EventKind.AGENT_EVENT, self._own(line))] if unknown_too else None

    def _dialect(self, name: str, make: Callable[[Words], Dialect]) -> Dialect:
        if name not in self._dialects:
            self._dialects[name] = make(self._words)
        return self._dialects[name]

    def _own(self, line: dict[str, Any]) -> dict[str, Any]:
        """The design's own events, and those of shapes nobody knows: as they are, within bounds."""
        kept = {key: value for key, value in line.items() if key != "kind" and key not in _FORGED}
        args = kept.pop("args", None)
        detail = self._words.as_it_is(kept)
        if args is not None:
            detail["args"] = self._words.arguments(args)
        return detail
