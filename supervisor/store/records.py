"""Owns the shapes of what is stored: a run, a worker, a ticket.
May touch nothing.
Never says how or where they are stored.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from supervisor.runs.reasons import StopReason


class RunState(StrEnum):
    """created → starting → running → stopping → ended; unkillable is stuck before ended."""

    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    UNKILLABLE = "unkillable"
    ENDED = "ended"


class KillRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a run was brought to its end. elapsed_ms: from the request to observed empty.

    stage: the strongest thing that was needed, "exit", "term" or "kill". processes: how many were
    alive when force was used.
    """

    elapsed_ms: float
    survivors: int
    stage: str
    processes: int = 0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One row of runs. Instants are RFC 3339 UTC. exit_status is a wait status (wait(2)) or None.

    fence: the number under which its ticket was claimed, 0 when it was not claimed from the queue.
    """

    run_id: str
    ticket: str
    project: str = ""
    profile: str
    profile_digest: str
    command: list[str]
    worktree: str
    overlay: str = ""
    host: str
    boot_id: str
    worker_id: str
    state: RunState
    reason: StopReason | None = None
    reason_by: str = ""
    reason_who: str = ""
    reason_note: str = ""
    figures: dict[str, int | float | str] = {}
    stage: str = ""
    exit_status: int | None = None
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    limits: dict[str, int | float] = {}
    totals: dict[str, int | float] = {}
    kill: KillRecord | None = None
    attestation: dict[str, Any] | None = None
    cgroups: list[str] = []
    applied: str = ""
    fence: int = 0


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A supervisor process. socket is where it takes requests; kind is "daemon", "foreground" or "worker".

    lock_path: the file on its host whose lock it holds. lease_until: for the other hosts.
    """

    worker_id: str
    host: str
    boot_id: str
    pid: int
    kind: str
    socket: str
    started_at: str
    lock_path: str = ""
    lease_until: str = ""


class TicketState(StrEnum):
    """open → claimed → running → ended; needs_review where somebody must look before it runs again."""

    OPEN = "open"
    CLAIMED = "claimed"
    RUNNING = "running"
    ENDED = "ended"
    NEEDS_REVIEW = "needs_review"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One row of tickets. fence grows with every claim; who holds an older number holds nothing.

    worker_id and lease_until say who has it and until when, and are empty when nobody has.
    """

    key: str
    project: str = ""
    goal: str = ""
    state: TicketState = TicketState.OPEN
    stop_requested: bool = False
    stop_reason: str | None = None
    attempts: int = 0
    priority: int = 0
    fence: int = 0
    worker_id: str = ""
    lease_until: str = ""
    created_at: str = ""
    updated_at: str
