"""Owns runs and events as tests of the store write them.
May touch nothing.
Never is what a real run looks like.
"""

from __future__ import annotations

import msgspec

from supervisor.events import Event, EventKind
from supervisor.runs.reasons import StopReason
from supervisor.store.records import KillRecord, Run, RunState

AT = "2026-09-01T02:14:07.512Z"


def make_run(number: int = 1, ticket: str = "T-1") -> Run:
    return Run(
        run_id=f"R{number:04}",
        ticket=ticket,
        profile="offline",
        profile_digest="d",
        command=["a", "b c"],
        worktree="/w",
        host="h",
        boot_id="b",
        worker_id="W",
        state=RunState.CREATED,
        created_at=AT,
    )


def make_event(run: Run, kind: EventKind = EventKind.RUN_CREATED) -> Event:
    return Event(at=AT, run_id=run.run_id, ticket=run.ticket, kind=kind, detail={"x": [1, "ü", None]})


def ended(run: Run) -> Run:
    return msgspec.structs.replace(
        run,
        state=RunState.ENDED,
        reason=StopReason.KILLED,
        ended_at=AT,
        kill=KillRecord(elapsed_ms=1.5, survivors=0, stage="kill", processes=3),
        attestation={"armed": ["x"], "facts": {"deep": [1]}},
        totals={"seconds": 1.25},
        cgroups=["/a"],
    )
