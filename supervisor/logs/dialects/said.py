"""Owns what a dialect's reader makes of a line: the events it stands for, and the tool calls still open.
May touch nothing.
Never keeps more open calls than a bounded number.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from supervisor.clock import parse_rfc3339
from supervisor.events import EventKind

_MAX_OPEN = 256


class Said(StrEnum):
    """What an agent_event of a known dialect tells; docs/events.md."""

    SESSION = "session"
    MESSAGE = "message"
    TOOL = "tool"
    RESULT = "result"
    ERROR = "error"


class Told(NamedTuple):
    """One event, before the run it belongs to and its time are added."""

    kind: EventKind
    detail: dict[str, Any]


@dataclass(slots=True)
class ToolCall:
    """A tool that the agent called. outcome: "" until its result was read."""

    tool: str
    args: dict[str, Any]
    at: str
    outcome: str = ""
    result_bytes: int = 0
    duration_ms: int | None = None

    def end(self, outcome: str, result_bytes: int, at: str) -> None:
        """at: when the line of the result came, by our clock, as its call's."""
        self.outcome, self.result_bytes = outcome, result_bytes
        self.duration_ms = _between_ms(self.at, at)

    def as_detail(self) -> dict[str, Any]:
        detail: dict[str, Any] = {"tool": self.tool, "args": self.args}
        detail["outcome"] = self.outcome or "unknown"
        if self.duration_ms is not None:
            detail["duration_ms"] = self.duration_ms
        if self.result_bytes:
            detail["result_bytes"] = self.result_bytes
        return detail


@dataclass(slots=True)
class OpenCalls:
    """Calls by the agent's own id; the oldest is forgotten when there are too many."""

    _calls: OrderedDict[str, ToolCall] = field(default_factory=OrderedDict)

    def add(self, key: object, call: ToolCall) -> None:
        self._calls[str(key)[:100]] = call
        if len(self._calls) > _MAX_OPEN:
            self._calls.popitem(last=False)

    def take(self, key: object) -> ToolCall | None:
        return self._calls.pop(str(key)[:100], None)


def tell(dialect: str, said: Said, detail: dict[str, Any]) -> Told:
    """An agent_event. Its own fields come last, so that none of the agent's can stand in their place."""
    return Told(EventKind.AGENT_EVENT, {**detail, "dialect": dialect, "said": said})


def _between_ms(earlier: str, later: str) -> int | None:
    try:
        passed: float = (_instant(later) - _instant(earlier)).total_seconds()
    except ValueError:
        return None
    return max(0, round(passed * 1000))


def _instant(text: str) -> datetime:
    return parse_rfc3339(text)
