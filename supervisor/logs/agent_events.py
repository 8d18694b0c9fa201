"""Owns turning lines of an agent's output and log files into events, whatever dialect they are in.
May touch nothing: lines that were redacted in, events out.
Never takes a line for an event before the redactor has seen it, nor a text of it before it did again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.events import EventKind
from supervisor.logs.book import LogLine
from supervisor.logs.dialects.reader import DialectReader
from supervisor.logs.dialects.said import Told
from supervisor.logs.redact.seam import LineRedactor

Emit = Callable[[EventKind, dict[str, Any]], None]


class AgentEvents:
    """For one run. take() as lines are kept, finish() once there are no more."""

    def __init__(self, redactor: LineRedactor, emit: Emit) -> None:
        self._emit = emit
        self._reader = DialectReader(
            lambda text: redactor.redact(text.encode("utf-8", "replace"))[0].decode(errors="replace")
        )

    def take(self, lines: list[LogLine]) -> list[LogLine]:
        """Emit what the lines stand for; those that stand for nothing are returned.

        In a file that the profile names every JSON object is an event, on standard output only what
        is known: programs print JSON for other reasons too.
        """
        rest = []
        for line in lines:
            told = None
            if not line.cut and line.s != "err":
                told = self._reader.read(line.t, line.at, unknown_too=line.s == "file")
            if told is None:
                rest.append(line)
            else:
                self._tell(told, {"file": line.f} if line.s == "file" else {})
        return rest

    def finish(self) -> None:
        self._tell(self._reader.finish(), {})

    def _tell(self, told: list[Told], where: dict[str, Any]) -> None:
        for kind, detail in told:
            self._emit(kind, {**detail, **where})
