"""Owns what can be asked about runs, as plain data for people, JSON and the control socket.
May touch the store and the runs' log books, read-only.
Never changes anything.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from supervisor import workers
from supervisor.clock import CLOCK_JUMP, rfc3339
from supervisor.errors import NotFound, UsageError
from supervisor.limits.budget import Scope
from supervisor.limits.caps import DailyCaps
from supervisor.limits.money import usd_text
from supervisor.paths import Paths
from supervisor.runs.verdict import agent_exit_code
from supervisor.store.ledger import SpendRow
from supervisor.store.records import Run, Worker
from supervisor.store.store import Store

_RECENT = 5


class Queries:
    """Every method answers with JSON shapes; a ticket that is not known raises NotFound."""

    def __init__(self, store: Store, paths: Paths, zone: str = "UTC", caps: DailyCaps | None = None) -> None:
        """zone: the one that days are cut by. caps: those of the configuration, None for none."""
        self.store = store
        self.paths = paths
        self.zone = zone
        self.caps = caps or DailyCaps()

    def ps(self, include_ended: bool = False) -> list[dict[str, Any]]:
        """Live runs, oldest first; with include_ended those of the last day too."""
        rows = self.store.live_runs()
        if include_ended:
            since = rfc3339(datetime.now(UTC) - timedelta(days=1))
            rows = [*reversed(self.store.ended_runs(since)), *rows]
        known = {worker.worker_id: worker for worker in self.store.workers()}
        return [self._short(run, known.get(run.worker_id)) for run in rows]

    def status(self, ticket: str) -> dict[str, Any]:
        """One run in full: the latest of that ticket."""
        run = self.find(ticket)
        return {**self._short(run, self.store.worker(run.worker_id)), **_long(run)}

    def find(self, ticket: str) -> Run:
        run = self.store.latest_run(ticket)
        if run is None:
            waits = self.store.ticket(ticket)
            if waits is not None:
                raise NotFound(
                    f"{ticket} is {waits.state} in the queue and has not run",
                    hint=f"supervisorctl tickets remove {ticket} takes it out",
                )
            raise NotFound(f"no ticket {ticket!a} has ever run here", hint=self._known())
        return run

    def events(self, ticket: str, after: int = 0) -> dict[str, Any]:
        """Events after a number, the number to go on from, and whether more can come."""
        run = self.find(ticket)
        found = self.store.events(run.run_id, after)
        last = found[-1][0] if found else after
        return {
            "events": [msgspec.to_builtins(event) for _, event in found],
            "next": last,
            "ended": run.ended_at is not None,
        }

    def log(self, ticket: str, offset: int = 0) -> dict[str, Any]:
        """Log lines from a byte offset, the offset to go on from, and whether more can come."""
        from supervisor.logs.book import read_lines  # and with it the redactor, which no other needs

        run = self.find(ticket)
        lines, end = read_lines(self.paths.logs(run.run_id), offset)
        return {
            "lines": [msgspec.to_builtins(line) for line in lines],
            "next": end,
            "ended": run.ended_at is not None,
        }

    def report(self, since: str = "7d") -> dict[str, Any]:
        """How runs ended and what they cost in a span of time ("7d", "12h", or an instant)."""
        from supervisor.observe.report import report  # no other question adds up so much

        return report(self.store, since)

    def spend(self, day: str = "") -> dict[str, Any]:
        """A day's money, in nano-dollars: what is spent, held and left of everything and of each project."""
        from zoneinfo import ZoneInfo  # the calendar is needed by no other question

        from supervisor.limits.day import day_named, day_of

        now, zone = self.store.now() or datetime.now(UTC), ZoneInfo(self.zone)
        settings = self.store.settings()
        try:
            wanted = day_named(day, zone) if day else day_of(now, zone)
        except ValueError:
            raise UsageError(f"--day {day!a} is no date", hint="write it like 2026-12-01") from None
        if not day:
            # A clock that was set back goes on booking on the latest day there is.
            wanted = day_named(max(wanted.name, self.store.ledger.latest_day()), zone)
        rows = self.store.ledger.spend(wanted.name)
        scopes = [_spend_row(row) for row in (_as_configured(rows, self.caps) if not day else rows)]
        return {
            "day": wanted.name,
            "zone": self.zone,
            "start": rfc3339(wanted.start),
            "end": rfc3339(wanted.end),
            "left_s": max(0.0, round((wanted.end - now).total_seconds(), 3)),
            "clock_jump_s": float(settings.get(CLOCK_JUMP) or 0),
            "capped": any(scope["cap_nanos"] is not None for scope in scopes),
            "scopes": scopes,
        }

    def _short(self, run: Run, worker: Worker | None) -> dict[str, Any]:
        return {
            "run_id": run.run_id,
            "ticket": run.ticket,
            "project": run.project,
            "profile": run.profile,
            "command": run.command,
            "worktree": run.worktree,
            "state": run.state,
            "reason": run.reason,
            "by": run.reason_by or None,
            "started_at": run.started_at,
            "ended_at": run.ended_at,
            "created_at": run.created_at,
            "limits": run.limits,
            "totals": _totals(run),
            "supervised": run.ended_at is not None or workers.is_alive(worker, self._now()),
        }

    def _now(self) -> str:
        """As the leases of workers are written."""
        return rfc3339(self.store.now() or datetime.now(UTC))

    def _known(self) -> str:
        live = [run.ticket for run in self.store.live_runs()][:_RECENT]
        ended = self.store.ended_runs("", _RECENT)
        parts = [f"running now: {', '.join(live)}" if live else "nothing is running"]
        if ended:
            parts.append("recently ended: " + ", ".join(f"{run.ticket} ({run.reason})" for run in ended))
        return " · ".join(parts)


def _totals(run: Run) -> dict[str, Any]:
    """As they are stored; money also as the text that JSON readers expect."""
    nanos = run.totals.get("spent_nanos")
    return dict(run.totals) if nanos is None else {**run.totals, "cost_usd": usd_text(int(nanos))}


def _as_configured(rows: list[SpendRow], caps: DailyCaps) -> list[SpendRow]:
    """Today's rows with the caps that the configuration sets now, and its projects without a charge too.

    A row remembers the cap of the last call; where the configuration sets none, a profile did.
    """
    known = {(row.scope, row.key) for row in rows}
    wanted = [(Scope.GLOBAL_DAY, ""), *((Scope.PROJECT_DAY, name) for name in sorted(caps.projects))]
    rows = [*rows, *(_unspent(*one) for one in wanted if one not in known)]
    return [_capped(row, caps) for row in sorted(rows, key=lambda row: row.scope is not Scope.GLOBAL_DAY)]


def _unspent(scope: Scope, key: str) -> SpendRow:
    return SpendRow(scope=scope, key=key, spent_nanos=0, held_nanos=0, cap_nanos=None, tokens=0, calls=0)


def _capped(row: SpendRow, caps: DailyCaps) -> SpendRow:
    cap = caps.global_nanos if row.scope is Scope.GLOBAL_DAY else caps.of_project(row.key)
    return row if cap is None else msgspec.structs.replace(row, cap_nanos=cap)


def _spend_row(row: SpendRow) -> dict[str, Any]:
    used = row.spent_nanos + row.held_nanos
    left = None if row.cap_nanos is None else max(0, row.cap_nanos - used)
    return {
        "scope": row.scope,
        "project": row.key if row.scope is Scope.PROJECT_DAY else None,
        "spent_nanos": row.spent_nanos,
        "spent_usd": usd_text(row.spent_nanos),
        "held_nanos": row.held_nanos,
        "held_usd": usd_text(row.held_nanos),
        "left_nanos": left,
        "left_usd": None if left is None else usd_text(left),
        "cap_nanos": row.cap_nanos,
        "cap_usd": None if row.cap_nanos is None else usd_text(row.cap_nanos),
        "tokens": row.tokens,
        "calls": row.calls,
    }


def _long(run: Run) -> dict[str, Any]:
    code = agent_exit_code(run.exit_status)
    return {
        "profile_digest": run.profile_digest,
        "who": run.reason_who or None,
        "note": run.reason_note or None,
        "figures": run.figures,
        "stage": run.stage or None,
        "exit_status": code,
        "host": run.host,
        "boot_id": run.boot_id,
        "kill": msgspec.to_builtins(run.kill),
        "attestation": run.attestation,
        "applied": run.applied or None,
    }


def result(run: Run) -> dict[str, Any]:
    """What `run --json` prints: one object when the run has ended."""
    return {
        "run_id": run.run_id,
        "ticket": run.ticket,
        "reason": run.reason,
        "by": run.reason_by,
        "who": run.reason_who or None,
        "note": run.reason_note or None,
        "figures": run.figures,
        "exit_status": agent_exit_code(run.exit_status),
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "totals": _totals(run),
        "attestation": run.attestation,
        "kill": msgspec.to_builtins(run.kill),
        "applied": run.applied or None,
    }


def kill_result(run: Run) -> dict[str, Any]:
    """What `kill --json` prints for each ticket."""
    kill = run.kill
    return {
        "ticket": run.ticket,
        "run_id": run.run_id,
        "dead": run.ended_at is not None,
        "elapsed_ms": kill.elapsed_ms if kill else None,
        "survivors": kill.survivors if kill else None,
        "stage": kill.stage if kill else None,
        "processes": kill.processes if kill else None,
        "spent_nanos": run.totals.get("spent_nanos"),
        "reason": run.reason,
        "already": False,
    }
