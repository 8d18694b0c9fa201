"""Owns how one event reads to a person: a sentence for each kind.
May touch nothing.
Never leaves out a figure that a reader would ask for next; the rest is in --json.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from supervisor.cli import money_text
from supervisor.events import EventKind
from supervisor.profile.units import show_duration, show_size


def sentence(event: dict[str, Any]) -> str:
    """event: as `events --json` prints it. Text of the agent's is in it: make it visible before printing."""
    detail: dict[str, Any] = event["detail"]
    tell = _SENTENCES.get(event["kind"])
    return tell(detail) if tell else _fields(detail)


def _created(detail: dict[str, Any]) -> str:
    return f"profile {detail['profile']}: {shlex.join(map(str, detail['command']))}"


def _armed(detail: dict[str, Any]) -> str:
    missing = "".join(f" · weaker: {name} ({why})" for name, why in detail["missing"].items())
    return f"{detail['controls']} controls in {show_duration(detail['armed_ms'] / 1000)}{missing}"


def _stop(detail: dict[str, Any]) -> str:
    asked = " · ".join(str(part) for part in (detail["by"], detail["who"], detail["note"]) if part)
    how = f"with {show_duration(detail['grace_s'])} to end" if detail["grace_s"] else "by force"
    figures = _fields(detail["figures"])
    return f"{asked}, {how}" + (f" ({figures})" if figures else "")


def _empty(detail: dict[str, Any]) -> str:
    left = f" · left behind: {' '.join(map(str, detail['left']))}" if detail["left"] else ""
    many = "1 process" if detail["processes"] == 1 else f"{detail['processes']} processes"
    return f"{many} gone in {show_duration(detail['elapsed_ms'] / 1000)}{left}"


def _ended(detail: dict[str, Any]) -> str:
    totals: dict[str, Any] = detail["totals"] or {}
    parts = [str(detail["reason"]), *money_text.used(totals)]
    if "seconds" in totals:
        parts.append(show_duration(float(totals["seconds"])))
    if detail["exit_status"] is not None:
        parts.append(f"exit {detail['exit_status']}")
    if totals.get("redacted"):
        parts.append(f"{totals['redacted']} secrets redacted")
    if totals.get("dropped_bytes"):
        parts.append(f"{show_size(int(totals['dropped_bytes']))} dropped")
    return " · ".join(parts)


def _applied(detail: dict[str, Any]) -> str:
    if detail.get("discarded"):
        return "discarded"
    refused = detail.get("refused", [])
    named = ", ".join(f"{one['path']} ({one['why']})" for one in refused[:3])
    more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
    return f"{detail['written']} written" + (f" · refused: {named}{more}" if refused else "")


def _fields(detail: dict[str, Any]) -> str:
    return " · ".join(
        f"{key} {_short(value)}" for key, value in detail.items() if value not in ("", {}, [], None)
    )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(inner)}" for key, inner in value.items())
    return ", ".join(map(_short, value)) if isinstance(value, list) else str(value)


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    EventKind.RUN_CREATED: _created,
    EventKind.BOX_ARMED: _armed,
    EventKind.RUN_STARTED: lambda _: "the agent was released",
    EventKind.STOP_REQUESTED: _stop,
    EventKind.BOX_EMPTY: _empty,
    EventKind.RUN_ENDED: _ended,
    EventKind.ITERATION: money_text.iteration,
    EventKind.AGENT_EVENT: lambda detail: money_text.agent_said(detail) or _fields(detail),
    EventKind.CALL_REFUSED: lambda detail: f"{detail['code']}: {detail['message']}",
    EventKind.CAP_WARNING: money_text.warning,
    EventKind.OUTPUT_DROPPED: lambda detail: f"{show_size(int(detail['bytes']))} past the limit",
    EventKind.WORKTREE_APPLIED: _applied,
}
