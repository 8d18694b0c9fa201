"""Owns the shapes of the audit trail: kinds of records, decisions, seals and gaps (docs/audit.md).
May touch nothing.
Never holds what an agent wrote beyond a bounded size: longer details are known by their digest.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

MAX_DETAIL = 4096
"""Bytes of a record's detail as JSON; a longer one is replaced by its size and SHA-256."""


class RecordKind(StrEnum):
    """What a record is."""

    HEAD = "head"
    EVENT = "event"
    DECISION = "decision"
    LOG = "log"
    SEAL = "seal"
    GAP = "gap"


class Decision(StrEnum):
    """What was decided or done that is no event of one run; `what` of a decision record."""

    SUPERVISOR_STARTED = "supervisor_started"
    SUPERVISOR_STOPPED = "supervisor_stopped"
    RUN_ADMITTED = "run_admitted"
    RUN_REFUSED = "run_refused"
    RUN_LOST = "run_lost"
    TICKET_CLAIMED = "ticket_claimed"
    FORCE_KILLED = "force_killed"
    CHANGES_APPLIED = "changes_applied"
    CHANGES_DISCARDED = "changes_discarded"
    STARTS_PAUSED = "starts_paused"
    STARTS_RESUMED = "starts_resumed"
    FLAG_CLEARED = "flag_cleared"
    KEY_TAKEN = "key_taken"
    CHECKPOINT_MADE = "checkpoint_made"


class SealWhy(StrEnum):
    """Why a seal was set; `what` of a seal record."""

    BATCH = "batch"
    HEARTBEAT = "heartbeat"
    CLOSING = "closing"
    SEGMENT = "segment"


class GapWhy(StrEnum):
    """What is missing, as far as the writer knows; `what` of a gap record."""

    TORN = "torn"
    MISSING = "missing"
    UNWRITTEN = "unwritten"


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A record before it has a number. at is RFC 3339 UTC."""

    kind: RecordKind
    what: str
    at: str
    run_id: str = ""
    ticket: str = ""
    detail: dict[str, Any] = {}


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a segment without its chain value and MAC. n counts from 0 over all segments."""

    n: int
    at: str
    kind: RecordKind
    what: str
    run_id: str = ""
    ticket: str = ""
    detail: dict[str, Any] = {}


def encode(draft: Draft, number: int) -> bytes:
    """The body of a record. A detail that is too long is known by size and digest."""
    detail = draft.detail
    try:
        raw = msgspec.json.encode(detail)
    except (TypeError, ValueError, RecursionError) as error:
        # Nothing that is told may end the trail; UnicodeEncodeError is a ValueError.
        raw, detail = b"", {"not_encodable": type(error).__name__}
    if len(raw) > MAX_DETAIL:
        import hashlib  # commands that are to be quick come here with a few words only

        detail = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    record = Record(
        n=number,
        at=draft.at,
        kind=draft.kind,
        what=draft.what,
        run_id=draft.run_id,
        ticket=draft.ticket,
        detail=detail,
    )
    return msgspec.json.encode(record)


def decode(body: bytes) -> Record | None:
    """None for what is no record."""
    try:
        return msgspec.json.decode(body, type=Record)
    except (msgspec.DecodeError, RecursionError):
        return None
