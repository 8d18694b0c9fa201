"""Owns the one event schema: the kinds, and the shape every event has (docs/events.md).
May touch nothing.
Never holds the contents of a file: a path and a size say enough.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

SCHEMA_VERSION = 1


class EventKind(StrEnum):
    """Everything that can be said about a run."""

    RUN_CREATED = "run_created"
    BOX_ARMED = "box_armed"
    RUN_STARTED = "run_started"
    STOP_REQUESTED = "stop_requested"
    SIGNAL_SENT = "signal_sent"
    BOX_EMPTY = "box_empty"
    RUN_ENDED = "run_ended"
    ITERATION = "iteration"
    AGENT_EVENT = "agent_event"
    CALL_REFUSED = "call_refused"
    CAP_WARNING = "cap_warning"
    METER_PROBLEM = "meter_problem"
    OUTPUT_DROPPED = "output_dropped"
    LOG_REFUSED = "log_refused"
    LOG_GAP = "log_gap"
    WORKTREE_APPLIED = "worktree_applied"


MEANING: dict[EventKind, str] = {
    EventKind.RUN_CREATED: "a run exists; nothing has been made for it yet",
    EventKind.BOX_ARMED: "every required control reported armed and was compared with the kernel's view",
    EventKind.RUN_STARTED: "the agent was released and executed",
    EventKind.STOP_REQUESTED: "somebody or something wants the run to end, written before anything is done",
    EventKind.SIGNAL_SENT: "TERM went to the agent",
    EventKind.BOX_EMPTY: "nothing of the run is alive, observed",
    EventKind.RUN_ENDED: "the run is closed with its reason",
    EventKind.ITERATION: "one model call, as the gateway metered it or as the agent's own log tells it",
    EventKind.AGENT_EVENT: "a line of the agent's own NDJSON that is not an iteration",
    EventKind.CALL_REFUSED: "a model call was not let through; the agent was told why",
    EventKind.CAP_WARNING: "spending passed 80 % of a cap",
    EventKind.METER_PROBLEM: "something about a call's figures that an operator should know",
    EventKind.OUTPUT_DROPPED: "output past the limits was counted and thrown away",
    EventKind.LOG_REFUSED: "a log file of the agent is not a plain file and was not read",
    EventKind.LOG_GAP: "a log file was truncated or rewritten; what nobody had read of it by then is gone",
    EventKind.WORKTREE_APPLIED: "changes were carried over to the host's tree, or refused",
}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `events --json`. at is RFC 3339 UTC; detail holds what the kind needs."""

    v: int = SCHEMA_VERSION
    at: str
    run_id: str
    ticket: str
    kind: EventKind
    detail: dict[str, Any] = {}
