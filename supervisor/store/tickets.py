"""Owns the queue: which ticket is claimed next, by whom, until when, and who is fenced off.
May touch the table tickets, and the ledger for what a claimed run may spend.
Never gives a rescued ticket back to the queue by itself, and never lets an old number act on a ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from supervisor.errors import NotFound, SupervisorError, UsageError
from supervisor.identifiers import check_goal, check_project
from supervisor.limits.budget import Caps, Refusal, Scope
from supervisor.limits.charges import Booking
from supervisor.limits.money import show_usd
from supervisor.runs.reasons import StopReason
from supervisor.store.database import Database, Row
from supervisor.store.ledger import Ledger
from supervisor.store.records import Run, Ticket, TicketState
from supervisor.store.values import NOT_SET, is_true, understood

_PAUSED = "paused"
_UNCLEAR_ENDS = (StopReason.SUPERVISOR_LOST, StopReason.UNKILLABLE)


class TicketIsRunning(UsageError):
    """A live run of the same ticket exists; two at once are never started."""

    def __init__(self, ticket: str) -> None:
        super().__init__(
            f"ticket {ticket} has a live run already",
            hint=f"supervisorctl status {ticket} · supervisorctl kill {ticket}",
        )


class LeaseLost(SupervisorError):
    """The ticket belongs to another worker now, or to nobody."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A ticket that is this worker's until its lease ends; run_id is the run it was claimed for."""

    run_id: str
    ticket: Ticket

    @property
    def fence(self) -> int:
        return self.ticket.fence


@dataclass(frozen=True, slots=True)
class Nothing:
    """Why nothing was claimed: empty, paused, daily_cap, clock, database, ended. detail is for people."""

    why: str
    detail: str = ""


def _too_little(refused: Refusal, project: str) -> str:
    whose = "the day" if refused.scope is Scope.GLOBAL_DAY else f"the day of project {project or '(none)'}"
    left, cap = show_usd(refused.left), show_usd(refused.cap)
    return f"{whose} has {left} of {cap} left, and a run may use {show_usd(refused.needed)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who wants a ticket, for which run, and what that run may spend at most.

    ceiling_nanos None: nothing is held for it, but a cap that is used up still gives it nothing.

    Instants are RFC 3339 UTC. projects: only those, all when empty. caps_of gives a project's caps.
    """

    worker_id: str
    run_id: str
    now: str
    day: str
    lease_until: str
    projects: Collection[str] = ()
    ceiling_nanos: int | None = None
    caps_of: Callable[[str], Caps] = lambda _: Caps()


_WAITS = "it waits in the queue already; supervisorctl tickets remove takes it out"


class Tickets:
    """The queue as a table. Each method is one transaction."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self._db = database
        self._ledger = ledger

    # ------------------------------------------------------------ people

    def add(self, key: str, *, project: str, goal: str, priority: int, at: str) -> Ticket:
        """A new ticket, ready to be claimed. Raises UsageError when the key is taken, or for a text that
        no run could be given.
        """
        check_project(project)
        check_goal(goal)
        with self._db.transaction():
            made = self._db.change(
                "INSERT INTO tickets (key, project, goal, state, priority, created_at, updated_at)"
                " VALUES (?, ?, ?, 'open', ?, ?, ?) ON CONFLICT (key) DO NOTHING",
                (key, project, goal, priority, at, at),
            )
            found = self.find(key)
            assert found is not None
            if not made:
                raise UsageError(
                    f"there is a ticket {key} already ({found.state})",
                    hint=_WAITS
                    if found.state == TicketState.OPEN
                    else f"supervisorctl tickets requeue {key} lets it run again",
                )
            return found

    def find(self, key: str) -> Ticket | None:
        rows = self._db.rows("SELECT * FROM tickets WHERE key = ?", (key,))
        return _ticket(rows[0]) if rows else None

    def listed(self, *, state: str = "", project: str | None = None) -> list[Ticket]:
        """In the order in which they would be claimed; state "" is all."""
        rows = self._db.rows(
            "SELECT * FROM tickets WHERE (? = '' OR state = ?) AND (? = 0 OR project = ?)"
            " ORDER BY priority DESC, created_at, key",
            (state, state, int(project is not None), project or ""),
        )
        return [_ticket(row) for row in rows]

    def remove(self, key: str) -> Ticket:
        """Take a ticket out that has never run. Raises NotFound, and UsageError for one with a record."""
        with self._db.transaction():
            found = self.find(key)
            if found is None:
                raise NotFound(f"there is no ticket {key}", hint="supervisorctl tickets list")
            if found.state != TicketState.OPEN:
                raise UsageError(
                    f"ticket {key} is {found.state}", hint="only one that waits can be taken out"
                )
            if found.attempts:
                raise UsageError(
                    f"ticket {key} has run before, and its record stays",
                    hint=f"supervisorctl pause --project {found.project}" if found.project else "",
                )
            self._db.change("DELETE FROM tickets WHERE key = ? AND state = 'open'", (key,))
            return found

    def requeue(self, key: str, at: str) -> Ticket:
        """Let a ticket that has ended run again. Raises NotFound, and UsageError while it is not over."""
        with self._db.transaction():
            found = self.find(key)
            if found is None:
                raise NotFound(f"there is no ticket {key}", hint=f"supervisorctl tickets add {key}")
            if found.stop_requested:
                raise UsageError(
                    f"a stop for {key} is in force", hint=f"supervisorctl resume {key} clears it"
                )
            if found.state == TicketState.OPEN:
                return found
            if found.state not in (TicketState.ENDED, TicketState.NEEDS_REVIEW):
                raise UsageError(f"ticket {key} is {found.state}", hint="it has to end first")
            if self._db.rows("SELECT run_id FROM runs WHERE ticket = ? AND state <> 'ended'", (key,)):
                raise TicketIsRunning(key)
            self._db.change(
                "UPDATE tickets SET state = 'open', updated_at = ?,"
                " created_at = CASE created_at WHEN '' THEN ? ELSE created_at END WHERE key = ?",
                (at, at, key),
            )
            again = self.find(key)
            assert again is not None
            return again

    # ------------------------------------------------------------ workers

    def claim(self, claim: Claim) -> Claimed | Nothing:
        """The first ticket that is open, not paused, not stopped, and whose run fits under the day's caps.

        A project whose cap is reached does not keep the others waiting.
        """
        with self._db.transaction(alone=True):
            paused = self._paused()
            if _PAUSED in paused:
                return Nothing("paused", "everything is paused")
            refused: Refusal | None = None
            whose = ""
            passed_over = {key.removeprefix(f"{_PAUSED}:") for key in paused}
            some_paused = bool(passed_over)
            while (ticket := self._first_open(claim.projects, passed_over)) is not None:
                refused = self._take(claim, ticket)
                if refused is None:
                    taken = self.find(ticket.key)
                    assert taken is not None
                    return Claimed(claim.run_id, taken)
                whose = ticket.project
                if refused.scope is Scope.GLOBAL_DAY:
                    break
                passed_over.add(ticket.project)
            if refused is not None:
                return Nothing("daily_cap", _too_little(refused, whose))
            if some_paused and self._first_open(claim.projects, ()) is not None:
                return Nothing("paused", "every open ticket is of a project that is paused")
            return Nothing("empty")

    def _first_open(self, only: Collection[str], but: Collection[str]) -> Ticket | None:
        """The next one; rows that another worker is looking at are passed over."""
        chosen = f" AND project IN ({', '.join('?' * len(only))})" if only else ""
        chosen += f" AND project NOT IN ({', '.join('?' * len(but))})" if but else ""
        marks = ", ".join("?" * len(NOT_SET))
        rows = self._db.rows(
            f"SELECT * FROM tickets WHERE state = 'open'{chosen}"
            f" AND LOWER(TRIM(CAST(stop_requested AS TEXT))) IN ({marks})"
            f" ORDER BY priority DESC, created_at, key LIMIT 1{self._db.skip_locked}",
            (*only, *but, *NOT_SET),
        )
        return _ticket(rows[0]) if rows else None

    def _take(self, claim: Claim, ticket: Ticket) -> Refusal | None:
        fence = ticket.fence + 1
        booking = Booking(
            run_id=claim.run_id,
            ticket=ticket.key,
            project=ticket.project,
            worker_id=claim.worker_id,
            fence=fence,
        )
        caps = claim.caps_of(ticket.project)
        nanos = claim.ceiling_nanos or 0
        refused = self._ledger.hold_ceiling(booking, claim.day, nanos, caps, claim.lease_until)
        if refused is not None:
            return refused
        self._db.change(
            "UPDATE tickets SET state = 'claimed', fence = ?, worker_id = ?, lease_until = ?, updated_at = ?"
            " WHERE key = ?",
            (fence, claim.worker_id, claim.lease_until, claim.now, ticket.key),
        )
        return None

    def _paused(self) -> set[str]:
        rows = self._db.rows("SELECT key, value FROM agent_settings")
        return {row["key"] for row in rows if row["key"].startswith(_PAUSED) and is_true(row["value"])}

    def renew_lease(self, key: str, fence: int, lease_until: str) -> bool:
        """False: it is not this worker's any more, and its run must end."""
        with self._db.transaction():
            return bool(
                self._db.change(
                    "UPDATE tickets SET lease_until = ? WHERE key = ? AND fence = ?"
                    " AND state IN ('claimed', 'running')",
                    (lease_until, key, fence),
                )
            )

    def give_back(self, key: str, fence: int, at: str, *, review: bool = False) -> bool:
        """A claim whose run was never started: the ticket is open again, for its worker says so itself.

        review: what is wrong is the ticket's own, so somebody must look; open, it would be claimed for ever.
        """
        state = TicketState.NEEDS_REVIEW if review else TicketState.OPEN
        with self._db.transaction():
            return bool(
                self._db.change(
                    "UPDATE tickets SET state = ?, worker_id = '', lease_until = '', updated_at = ?"
                    " WHERE key = ? AND fence = ? AND state = 'claimed'",
                    (state, at, key, fence),
                )
            )

    def rescue(self, now: str) -> list[Ticket]:
        """Tickets whose worker did not renew: somebody must look. The old worker is fenced off.

        One that somebody is writing just now is passed over: its worker may live after all.
        """
        with self._db.transaction():
            found = self._db.rows(
                "SELECT key FROM tickets WHERE state IN ('claimed', 'running')"
                f" AND lease_until <> '' AND lease_until < ?{self._db.skip_locked}",
                (now,),
            )
            return [_ticket(self._rescue(row["key"], now)) for row in found]

    def _rescue(self, key: str, now: str) -> Row:
        return self._db.rows(
            "UPDATE tickets SET state = 'needs_review', fence = fence + 1, worker_id = '',"
            " lease_until = '', stop_reason = ?, updated_at = ? WHERE key = ? RETURNING *",
            (StopReason.LEASE_LOST, now, key),
        )[0]

    # ------------------------------------------------------------ the life of a run

    def start(self, run: Run) -> None:
        """Inside the run's own transaction. Raises TicketIsRunning, or LeaseLost for a claim that is over."""
        if run.fence:
            if not self._db.change(
                "UPDATE tickets SET state = 'running', attempts = attempts + 1, updated_at = ?"
                " WHERE key = ? AND fence = ? AND state = 'claimed'",
                (run.created_at, run.ticket, run.fence),
            ):
                raise LeaseLost(f"the claim on {run.ticket} is over")
            return
        if not self._db.change(
            "INSERT INTO tickets (key, project, state, attempts, created_at, updated_at)"
            " VALUES (?, ?, 'running', 1, ?, ?)"
            " ON CONFLICT (key) DO UPDATE SET state = 'running', attempts = tickets.attempts + 1,"
            " updated_at = excluded.updated_at WHERE tickets.state <> 'claimed'",
            (run.ticket, run.project, run.created_at, run.created_at),
        ):
            raise TicketIsRunning(run.ticket)

    def end(self, run: Run) -> None:
        """Inside the run's own transaction. A run that was fenced off leaves the ticket as it is."""
        unclear = run.fence and run.reason in _UNCLEAR_ENDS
        mine = "fence = ? AND state IN ('claimed', 'running')" if run.fence else "state = 'running'"
        self._db.change(
            "UPDATE tickets SET state = ?, stop_reason = ?, worker_id = '', lease_until = '', updated_at = ?"
            f" WHERE key = ? AND {mine}",
            (
                TicketState.NEEDS_REVIEW if unclear else TicketState.ENDED,
                run.reason,
                run.ended_at,
                run.ticket,
                *((run.fence,) if run.fence else ()),
            ),
        )


def _ticket(row: Row) -> Ticket:
    with understood("ticket", row["key"]):
        return msgspec.convert({**row, "stop_requested": is_true(row["stop_requested"])}, Ticket)
