"""Owns working the queue: claim a ticket, run it, claim the next, so many at a time.
May touch the queue through the recorder, and the supervisor it starts runs in.
Never claims what it could not start, and never goes on claiming when nothing can be started.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from supervisor.audit.records import Decision
from supervisor.control.server import make_order
from supervisor.daemon import Supervisor
from supervisor.errors import NotStarted, StateError, SupervisorError, UsageError
from supervisor.identifiers import new_ulid
from supervisor.limits.caps import effective
from supervisor.profile.load import Loaded, load
from supervisor.runs.life import LiveRun
from supervisor.runs.reasons import StopReason
from supervisor.runs.spending import profile_caps
from supervisor.store.store import Store
from supervisor.store.tickets import Claim, Claimed, Nothing

_MARK = re.compile(r"\{(?:ticket|goal|project)\}")
_LOOK_EVERY_S = 1.0
_GIVE_BACK_PATIENCE_S = 10.0
_NOT_STARTED_IN_A_ROW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a worker does with a ticket. {ticket}, {goal} and {project} in argv are replaced, word by word."""

    profile: str
    worktree: str
    argv: Sequence[str]
    environment: dict[str, str]
    projects: Sequence[str] = ()
    concurrency: int = 1
    until_empty: bool = False

    def words(self, claimed: Claimed) -> list[str]:
        ticket = claimed.ticket
        named = {"{ticket}": ticket.key, "{goal}": ticket.goal, "{project}": ticket.project}
        # In one pass: a goal may speak of {project}.
        return [_MARK.sub(lambda mark: named[mark[0]], word) for word in self.argv]


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told what the worker does: a claim, the end of a run, and why nothing is claimed."""

    claimed: Callable[[Claimed], None] = lambda _: None
    started: Callable[[LiveRun], None] = lambda _: None
    ended: Callable[[LiveRun], None] = lambda _: None
    idle: Callable[[Nothing], None] = lambda _: None
    failed: Callable[[Claimed, SupervisorError], None] = lambda *_: None


_NOTHING_TODAY = ("empty", "daily_cap")
"""Why a worker that is to end with the queue ends: waiting for midnight is not working."""


@dataclass(slots=True)
class QueueWorker:
    """work() until end() is called, or with until_empty until nothing is left to claim."""

    supervisor: Supervisor
    assignment: Assignment
    watcher: Watcher = field(default_factory=Watcher)
    _ending: bool = False
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: Future[Claimed | Nothing] | None = None
    _busy: int = 0
    _failures: int = 0
    _why_idle: Nothing | None = None
    _problem: SupervisorError | None = None

    def end(self) -> None:
        """Claim nothing more; what runs goes on until its supervisor ends it."""
        self._ending = True
        self._wake.set()
        if self._asked is not None:
            self._asked.cancel()

    async def work(self) -> None:
        """Raises UsageError for what can be known before the first claim, NotStarted when nothing starts."""
        loaded = check_unattended(self.assignment.profile, self.supervisor)
        async with asyncio.TaskGroup() as tasks:
            while not self._ending:
                outcome = await self._claim(loaded) if self._busy < self.assignment.concurrency else None
                if isinstance(outcome, Claimed):
                    self._busy += 1
                    tasks.create_task(self._run(outcome))
                    continue
                if isinstance(outcome, Nothing) and not self._ending:
                    self._tell_idle(outcome)
                    if self.assignment.until_empty and outcome.why in _NOTHING_TODAY and not self._busy:
                        return
                await self._pause()
        if self._problem is not None:
            raise self._problem

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY_S):
                await self._wake.wait()
        self._wake.clear()

    def _tell_idle(self, why: Nothing) -> None:
        if self._why_idle is None or self._why_idle.why != why.why:
            _tell(self.watcher.idle, why)
        self._why_idle = why

    async def _claim(self, loaded: Loaded) -> Claimed | Nothing:
        own = self.supervisor
        jump_s = own.booking.jump_s
        if jump_s:
            return Nothing(
                "clock", f"the clock jumped {jump_s:.0f} s ahead; supervisorctl resume confirms it"
            )
        everybody, caps = own.config.daily.caps, profile_caps(loaded.profile)
        gateway = loaded.profile.network.mode == "gateway"
        claim = Claim(
            worker_id=own.worker_id,
            run_id=new_ulid(),
            now=own.booking.now(),
            day=own.booking.day().name,
            lease_until=own.leases.until(),
            projects=self.assignment.projects,
            ceiling_nanos=caps.run_nanos if gateway else None,
            caps_of=lambda project: effective(caps, everybody, project),
        )
        try:
            return await self._ask(lambda store: store.tickets.claim(claim))
        except StateError as error:
            return Nothing("database", error.message)

    async def _ask(self, action: Callable[[Store], Claimed | Nothing]) -> Claimed | Nothing:
        """The end does not wait for a claim that has not begun: a database that is away may stay away."""
        self._asked = asked = self.supervisor.recorder.write(action)
        try:
            return await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._ending or (task is not None and task.cancelling()):
                raise
            return Nothing("ended", "")
        finally:
            self._asked = None

    async def _run(self, claimed: Claimed) -> None:
        """One ticket, from its claim to the end of its run."""
        self._why_idle = None
        about = {"fence": claimed.fence, "project": claimed.ticket.project}
        self.supervisor.audit.decide(Decision.TICKET_CLAIMED, about, claimed.run_id, claimed.ticket.key)
        _tell(self.watcher.claimed, claimed)
        try:
            live = await self._start(claimed)
            await live.ended.wait()
            _tell(self.watcher.ended, live)
            self._count(live.problem if live.run.reason is StopReason.NOT_STARTED else None)
        except SupervisorError as error:
            await self._give_back(claimed, error)
            self._count(error)
        finally:
            self._busy -= 1
            self._wake.set()

    async def _start(self, claimed: Claimed) -> LiveRun:
        assignment, ticket = self.assignment, claimed.ticket
        wanted: dict[str, Any] = {
            "ticket": ticket.key,
            "profile": assignment.profile,
            "worktree": assignment.worktree,
            "argv": assignment.words(claimed),
            "project": ticket.project,
            "goal": ticket.goal,
            "environment": assignment.environment,
        }
        order = await asyncio.to_thread(make_order, wanted, None, claimed)
        live = await self.supervisor.launch(order)
        _tell(self.watcher.started, live)
        return live

    async def _give_back(self, claimed: Claimed, why: SupervisorError) -> None:
        """What failed for another reason than the database would fail again: the next ticket's turn."""
        review = not isinstance(why, StateError)
        _tell(self.watcher.failed, claimed, why)
        key, fence, at = claimed.ticket.key, claimed.fence, self.supervisor.booking.now()

        def undo(store: Store) -> None:
            store.ledger.release_ceiling(claimed.run_id)
            store.tickets.give_back(key, fence, at, review=review)

        undone = self.supervisor.recorder.keep(undo)
        await self.supervisor.recorder.settled(undone, _GIVE_BACK_PATIENCE_S)

    def _count(self, error: SupervisorError | None) -> None:
        """A host on which nothing starts would eat the whole queue: stop after a few in a row."""
        self._failures = self._failures + 1 if error is not None else 0
        if error is not None and self._failures >= _NOT_STARTED_IN_A_ROW:
            self._problem = NotStarted(
                f"{self._failures} runs in a row could not be started, the last one: {error.message}",
                hint=error.hint or "mend that, then `supervisorctl tickets requeue` what was not run",
            )
            self.end()


def check_unattended(profile: str, supervisor: Supervisor) -> Loaded:
    """A profile that nobody watches needs its caps. Raises UsageError naming what is not set."""
    loaded = load(profile)
    if loaded.profile.network.mode != "gateway":
        return loaded
    caps = effective(profile_caps(loaded.profile), supervisor.config.daily.caps, "")
    if caps.run_nanos is None:
        raise UsageError(
            f"profile {loaded.profile.name} has no limits.usd, and nobody watches what `work` spends",
            hint='set it, like usd = "0.50"; "0" allows no call',
        )
    if caps.global_day_nanos is None:
        raise UsageError(
            "there is no cap on what a day may cost, and nobody watches what `work` spends",
            hint='set daily.global_usd in the configuration or the profile, like global_usd = "20"',
        )
    return loaded


def _tell(watch: Callable[..., None], *what: Any) -> None:
    """Who watches may fail, as when its terminal is gone: the claimed ticket is run all the same."""
    with suppress(Exception):
        watch(*what)
