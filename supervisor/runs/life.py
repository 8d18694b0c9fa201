"""Owns the life of one run, from a stored intention to a closed row with one reason.
May touch its box, its pipes, its log and its row; everything it opens it also closes.
Never releases the agent before all is armed and compared, and never reports dead what was not seen dead.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from sandbox import attest, mount_check
from sandbox.client import Box, BoxError, Finished, LauncherClient, LauncherGone, Streams
from supervisor.audit.trail import Trail
from supervisor.clock import Clock
from supervisor.errors import NotStarted, SupervisorError
from supervisor.events import EventKind
from supervisor.limits.wall_clock import WallClock
from supervisor.logs.agent_events import AgentEvents
from supervisor.logs.agent_files import AgentFiles
from supervisor.logs.book import LogBook, LogLine
from supervisor.logs.redact.known import KnownSecrets
from supervisor.logs.redact.redactor import Redactor
from supervisor.logs.tail.pipes import PipeCapture, drain, make_pipe
from supervisor.paths import Paths
from supervisor.runs import boxing
from supervisor.runs.attestation import attestation
from supervisor.runs.order import Order, Step
from supervisor.runs.reasons import StopReason, StopRequest, kill_request, limit_request
from supervisor.runs.row import RunRow
from supervisor.runs.spending import Spending
from supervisor.runs.verdict import Seen, Verdict, decide
from supervisor.store.recorder import Recorder
from supervisor.store.records import KillRecord, Run, RunState

_LOOK_EVERY_S = 1.0
_FILES_EVERY_S = 0.1
_EMPTY_PATIENCE_S = 10.0
_DRAIN_PATIENCE_S = 2.0
_UNKILLABLE_RETRY_S = 5.0
_RECORD_PATIENCE_S = 10.0
_INTENT_PATIENCE_S = 0.05
_OTHERS_PATIENCE_S = 2.0  # nobody waits for an end that nobody asked of us, and its reason may be in the row
_CLOSE_PATIENCE_S = 2.0
_DYING_S = 0.05


_ABOUT_PROGRAMS = (
    "programs are looked up inside the box; name further folders of the host in files.read, "
    "and set files.executable = true for programs in the worktree"
)


SpendingFor = Callable[["LiveRun"], Spending]
"""Makes what a run's money is kept with; the supervisor knows the clock, the caps and the upstreams."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a run needs of the supervisor that owns it. store only reads; writes go to recorder."""

    paths: Paths
    recorder: Recorder
    launcher: LauncherClient
    clock: Clock
    worker_id: str
    stop_is_wanted: Callable[[str], Awaitable[StopRequest | None]]
    spending: SpendingFor
    audit: Trail
    redaction_key: bytes
    on_step: Callable[[Step], None] = lambda _: None


class LiveRun:
    """One run. request_stop may be called at any time from the same loop; ended is set at the end."""

    def __init__(self, order: Order, around: Surroundings, run: Run) -> None:
        self.order = order
        self.around = around
        self.row = RunRow(run, around.recorder, around.clock, order.on_event, around.audit.event)
        self.profile = boxing.with_own_files_protected(order.loaded, order.tree)
        self.redactor = Redactor(KnownSecrets(order.secrets), key=around.redaction_key)
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.problem: SupervisorError | None = None
        self.box: Box | None = None
        self.wall_clock: WallClock | None = None
        self.request: StopRequest | None = None
        self._requested_at_s = 0.0
        self._wake = asyncio.Event()
        self._launcher_gone = False
        self._released = False
        self._forced: StopRequest | None = None
        self._seccomp_sha256 = ""
        self._watcher = order.on_lines
        self.spending = around.spending(self)

    @property
    def run(self) -> Run:
        return self.row.run

    def request_stop(self, request: StopRequest) -> None:
        """The first request gives the reason; a later one can only make the end come sooner."""
        if self.request is None:
            self.request = request
            self._requested_at_s = self.around.clock.boottime_s()
        elif request.grace_s < self.request.grace_s:
            self.request = msgspec.structs.replace(self.request, grace_s=request.grace_s)
        self._wake.set()

    def _heard(self, lines: list[LogLine]) -> None:
        """To whoever watches; a watcher that fails (its terminal is gone) is not told any more."""
        lines = self._agent_events.take(lines)
        try:
            self._watcher(lines)
        except Exception:
            self._watcher = lambda _: None

    # ------------------------------------------------------------ the walk

    async def live(self) -> None:
        """Everything, in order. What goes wrong before the release is the run's end: not_started."""
        try:
            self.around.on_step(Step.CREATED)
            async with AsyncExitStack() as stack:
                await self._walk(stack)
        except (BoxError, SupervisorError, OSError) as error:
            if self._released:
                await self._fail(error)
            else:
                await self._not_started(_as_not_started(error))
        except Exception as error:
            await self._fail(error)
        finally:
            self.started.set()
            self.ended.set()

    async def _walk(self, stack: AsyncExitStack) -> None:
        await self._refuse_if_stopped()
        stack.callback(self.spending.settle_rest)
        provider_keys = await self.spending.prepare()
        known = KnownSecrets({**self.order.secrets, **provider_keys})
        self.redactor = Redactor(known, key=self.around.redaction_key)
        self._agent_events = AgentEvents(self.redactor, self.spending.self_reported)
        book = self._open_book()
        stack.callback(book.close)
        began_s = self.around.clock.boottime_s()
        box, captures = await self._make_box(book, stack)
        self.box = box
        stack.callback(box.close)
        self.around.on_step(Step.BOX_MADE)
        files = AgentFiles(
            box, self.profile, book, self.around.clock, self.spending.self_reported, self._heard
        )
        stack.callback(files.close)
        try:
            await self.spending.open(box.listener, stack)
            await self._attest(box, began_s)
            await self._refuse_if_stopped()
            await self._release(box)
        except BaseException:
            await box.abandon()
            raise
        try:
            finished, kill, wait_status = await self._supervise(box, files)
        except Exception as error:
            finished, kill, wait_status = await self._end_after(error, box)
        await drain(captures, _DRAIN_PATIENCE_S)
        try:
            files.finish()
            self._agent_events.finish()
        except Exception as error:
            self.row.tell(EventKind.OUTPUT_DROPPED, {"bytes": 0, "why": f"the log files: {error!r}"})
        await self._close(book, finished, kill, wait_status)

    def _open_book(self) -> LogBook:
        limits, log = self.profile.limits, self.profile.log
        path = self.around.paths.logs(self.run.run_id)
        run = self.run

        def seal(piece: dict[str, Any]) -> None:
            self.around.audit.log(run.run_id, run.ticket, piece)

        return LogBook(path, self.redactor, limits.output_bytes, log.max_line_bytes, seal).open()

    async def _refuse_if_stopped(self) -> None:
        """A stop that was there before the agent was: nothing is executed."""
        request = self.request or await self.around.stop_is_wanted(self.order.ticket)
        if request is not None:
            self.request = request
            said = request.note or request.who
            raise NotStarted(
                f"a stop for {self.order.ticket} is in force ({request.by}{': ' + said if said else ''})",
                hint=_how_to_lift(request, self.around.paths, self.order.ticket),
            )

    async def _make_box(self, book: LogBook, stack: AsyncExitStack) -> tuple[Box, list[PipeCapture]]:
        plan = boxing.plan(
            self.profile,
            self.order.tree,
            self.around.launcher.capabilities,
            run_id=self.run.run_id,
            namespace_key=self.around.paths.namespace_key,
            worker_id=self.around.worker_id,
            overlay_folder=self.run.overlay or None,
        )
        self._seccomp_sha256 = plan.seccomp_sha256
        (out_read, out_write), (err_read, err_write) = make_pipe(), make_pipe()
        captures = [
            PipeCapture(out_read, "out", book, self.around.clock, self._heard),
            PipeCapture(err_read, "err", book, self.around.clock, self._heard),
        ]
        for capture in captures:
            capture.start()
            stack.callback(capture.stop)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        order = self.order
        about = {
            "SUPERVISOR_TICKET": order.ticket,
            "SUPERVISOR_PROJECT": order.project,
            "SUPERVISOR_GOAL": order.goal,
        }
        environment = boxing.environment(self.profile, order.caller_environment, order.secrets, about)
        try:
            streams = Streams(null, out_write, err_write)
            box = await self.around.launcher.start(plan.spec, streams, self.order.argv, environment)
        finally:
            for fd in (null, out_write, err_write):
                os.close(fd)
        return box, captures

    async def _attest(self, box: Box, began_s: float) -> None:
        """Compare the kernel's view with what was asked for; a disagreement ends it here."""
        facts = await box.attest()
        required = frozenset(box.spec.base.required)
        wrong = attest.disagreements(
            facts, uid=box.uid, seccomp_sha256=self._seccomp_sha256, required=required
        )
        wrong += mount_check.disagreements(facts["mounts"], (*box.spec.base.steps, *box.spec.steps))
        if wrong:
            control = wrong[0].partition(":")[0]
            raise NotStarted(f"not as it was reported: {'; '.join(wrong)}", control=control)
        armed_ms = round((self.around.clock.boottime_s() - began_s) * 1000, 3)
        written = self.row.change(
            EventKind.BOX_ARMED,
            {"controls": len(box.armed), "missing": box.missing, "armed_ms": armed_ms},
            state=RunState.STARTING,
            attestation={**attestation(box, facts, armed_ms), "protect": self.profile.files.protect},
            cgroups=box.group.folders,
        )
        if not await self.row.settled(written, _RECORD_PATIENCE_S):
            raise NotStarted("the attestation could not be stored", hint="see the state of the database")
        self.around.on_step(Step.ATTESTED)

    async def _release(self, box: Box) -> None:
        """The row says running before anything runs: a crash in between is found at the next start."""
        limit_s = self.profile.limits.wall_clock_s
        self.wall_clock = WallClock(self.around.clock.boottime_s(), limit_s)
        written = self.row.change(
            EventKind.RUN_STARTED, {}, state=RunState.RUNNING, started_at=self.row.now()
        )
        if not await self.row.settled(written, _RECORD_PATIENCE_S):
            raise NotStarted("the start could not be stored", hint="see the state of the database")
        await box.release()
        self._released = True
        self.started.set()
        self.around.on_step(Step.RELEASED)

    # ------------------------------------------------------------ while it runs

    async def _supervise(self, box: Box, files: AgentFiles) -> tuple[Finished, KillRecord, int | None]:
        """Until the agent exits or a stop is requested, then to the end.

        Limits and log files are looked at to the very end: a long grace is still the agent's time.
        """
        async with asyncio.TaskGroup() as tasks:
            exited = tasks.create_task(box.wait_exited())
            woken = tasks.create_task(_wait(self._wake))
            watchers = [
                woken,
                tasks.create_task(self._repeat(lambda: self._look_at_limits(box))),
            ]
            if files.wanted:
                watchers.append(tasks.create_task(self._repeat(lambda: _look_at_files(files))))
            try:
                await asyncio.wait([exited, woken], return_when=asyncio.FIRST_COMPLETED)
                finished, kill = await self._end(box, exited)
            finally:
                for watcher in watchers:
                    watcher.cancel()
        return finished, kill, exited.result()

    async def _end_after(self, error: Exception, box: Box) -> tuple[Finished, KillRecord, None]:
        """A mistake of ours while the agent ran ends this run, and only this one."""
        self.spending.refuse()
        self.request_stop(kill_request("supervisor", who="failure", note=repr(error)))
        processes = await self._force(box)
        await self._until_dead(box)
        elapsed_ms = self._since_ms(self._requested_at_s)
        return (
            await self._until_removed(box),
            KillRecord(elapsed_ms=elapsed_ms, survivors=0, stage="kill", processes=processes),
            None,
        )

    async def _repeat(self, look: Callable[[], float]) -> None:
        """Look, then pause for as long as look says. A watcher that fails ends the run, not the watch."""
        try:
            while True:
                await asyncio.sleep(look())
        except Exception as error:
            self.request_stop(kill_request("supervisor", who="watcher", note=repr(error)))

    def _look_at_limits(self, box: Box) -> float:
        """Wall clock and memory. Looked at every second: a single timer would sleep with the machine."""
        limits = self.profile.limits
        assert self.wall_clock is not None
        now_s = self.around.clock.boottime_s()
        figures: dict[str, int | float | str]
        if self.wall_clock.is_up(now_s):
            figures = {"limit_s": limits.wall_clock_s, "used_s": round(self.wall_clock.used_s(now_s), 1)}
            grace_s = limits.stop_grace_s
            self.request_stop(
                limit_request(StopReason.MAX_SECONDS, grace_s, who="wall_clock", figures=figures)
            )
        elif box.group.oom_kills():
            figures = {"limit_bytes": limits.memory_bytes}
            self.request_stop(limit_request(StopReason.OUT_OF_MEMORY, 0.0, who="memory", figures=figures))
        left_s = self.wall_clock.left_s(now_s)
        return min(_LOOK_EVERY_S, left_s) if left_s > 0 else _LOOK_EVERY_S

    # ------------------------------------------------------------ the end

    async def _end(self, box: Box, exited: asyncio.Task[int | None]) -> tuple[Finished, KillRecord]:
        """Ask if there is a grace, then force, then look until it is empty.

        A TERM waits for the intent to be stored. A kill goes out before that, and is not reported before
        both are done. The end is queued behind the intent, so no row ends without it. For a moment after
        a kill nothing else is done: the kernel needs every core for the dying.
        """
        self.spending.refuse()
        began_s = self._requested_at_s if self.request else self.around.clock.boottime_s()
        at_once = self.request is not None and not self.request.grace_s and not exited.done()
        processes = box.strike() if at_once else 0
        empty = processes > 0 and await self._see_it_die(box)
        elapsed_ms = self._since_ms(began_s)
        # Before anything is written over it: this process may have been hung while it was left.
        self._forced = await self._request_of_others()
        stage = "kill" if self._forced or at_once else "exit"
        intent: asyncio.Task[None] | None = None
        if self.request is not None:
            intent = self._write_request(self.request)
            if self.request.grace_s > 0:
                await intent
                if not exited.done():
                    stage = await self._ask(box, exited, self.request)
                    # Somebody may have lost patience meanwhile, and not with us.
                    self._forced = self._forced or await self._request_of_others()
                    stage = "kill" if self._forced else stage
        if not empty:
            # After a natural exit too: what the agent left behind goes with it.
            processes = max(processes, await self._force(box))
            self.around.on_step(Step.KILL_SENT)
            await self._until_dead(box)
            elapsed_ms = self._since_ms(began_s)
            self.around.on_step(Step.EMPTY)
        if intent is not None:
            await intent
        kill = KillRecord(elapsed_ms=elapsed_ms, survivors=0, stage=stage, processes=processes)
        return await self._until_removed(box), kill

    async def _see_it_die(self, box: Box) -> bool:
        self.around.on_step(Step.KILL_SENT)
        if not await box.wait_dead(_DYING_S):
            return False
        self.around.on_step(Step.EMPTY)
        return True

    def _since_ms(self, began_s: float) -> float:
        return round((self.around.clock.boottime_s() - began_s) * 1000, 3)

    def _write_request(self, request: StopRequest) -> asyncio.Task[None]:
        """Queue the intent; the task ends when it is stored, or when the database has had its time."""
        detail: dict[str, Any] = {"by": request.by, "who": request.who, "note": request.note}
        detail |= {"grace_s": request.grace_s, "figures": request.figures}
        written = self.row.change(EventKind.STOP_REQUESTED, detail, state=RunState.STOPPING)

        async def stored() -> None:
            await self.row.settled(written, _INTENT_PATIENCE_S)
            self.around.on_step(Step.STOP_WRITTEN)

        return asyncio.create_task(stored())

    async def _ask(self, box: Box, exited: asyncio.Task[int | None], request: StopRequest) -> str:
        """TERM, then wait for the grace; a sooner request shortens it."""
        await box.terminate()
        self.row.tell(EventKind.SIGNAL_SENT, {"signal": "TERM", "grace_s": request.grace_s})
        self.around.on_step(Step.TERM_SENT)
        while not exited.done():
            assert self.request is not None
            left_s = self._requested_at_s + self.request.grace_s - self.around.clock.boottime_s()
            if left_s <= 0:
                return "kill"
            self._wake.clear()
            woken = asyncio.ensure_future(self._wake.wait())
            await asyncio.wait((exited, woken), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            woken.cancel()
        return "term"

    async def _force(self, box: Box) -> int:
        try:
            return await box.kill()
        except BoxError as error:
            self._launcher_gone |= isinstance(error, LauncherGone)
            return _kill_alone(box)

    async def _until_dead(self, box: Box) -> None:
        """Observed, not assumed. What does not die keeps its row, its slot and an alarm."""
        dead = await box.wait_dead(_EMPTY_PATIENCE_S)
        if not dead:
            self.row.change(None, {}, state=RunState.UNKILLABLE, reason=StopReason.UNKILLABLE)
        while not dead:
            await self._force(box)
            dead = await box.wait_dead(_UNKILLABLE_RETRY_S)

    async def _until_removed(self, box: Box) -> Finished:
        """Counters read, groups removed; by the launcher, or without it if it has gone."""
        try:
            while (finished := await box.wait_empty(_EMPTY_PATIENCE_S)) is None:
                await self._force(box)
            return finished
        except LauncherGone:
            self._launcher_gone = True
            while box.group.populated():
                _kill_alone(box)
                await asyncio.sleep(0.01)
            counters = box.group.counters()
            return Finished(counters, box.group.remove())

    async def _close(
        self, book: LogBook, finished: Finished, kill: KillRecord, wait_status: int | None
    ) -> None:
        seen = Seen(
            wait_status=wait_status,
            request=self._forced or self.request,
            forced=kill.stage == "kill",
            oom_kills=finished.counters.get("oom_kills", 0),
            launcher_gone=self._launcher_gone,
        )
        verdict = decide(seen)
        if self.run.reason is StopReason.UNKILLABLE:
            verdict = Verdict(StopReason.UNKILLABLE, verdict.by, verdict.who, "died after the deadline")
        self.row.tell(
            EventKind.BOX_EMPTY,
            {"processes": kill.processes, "elapsed_ms": kill.elapsed_ms, "left": finished.left},
        )
        if book.totals.dropped_bytes:
            self.row.tell(EventKind.OUTPUT_DROPPED, {"bytes": book.totals.dropped_bytes})
        assert self.wall_clock is not None
        seconds = round(self.wall_clock.used_s(self.around.clock.boottime_s()), 3)
        await self.spending.close()
        self.spending.settle_rest()
        totals = {
            "seconds": seconds,
            **finished.counters,
            **book.totals.as_dict(),
            **self.spending.totals(),
        }
        await self._finish(verdict, kill, wait_status, totals)

    async def _request_of_others(self) -> StopRequest | None:
        """`kill --force` acts without this process and leaves its intent in the row."""
        run_id = self.run.run_id
        try:
            async with asyncio.timeout(_INTENT_PATIENCE_S if self.request else _OTHERS_PATIENCE_S):
                row = await self.around.recorder.call(lambda store: store.run(run_id))
        except (SupervisorError, TimeoutError):
            return None
        if row is None or row.stage != "force":
            return None
        return kill_request(row.reason_by, who=row.reason_who, note=row.reason_note)

    async def _not_started(self, error: NotStarted) -> None:
        # A program's name stands in the message, and a secret could have been written there.
        error.message = self.redactor.redact(error.message.encode("utf-8", "replace"))[0].decode()
        self.problem = error
        by, who = ("control", error.control) if self.request is None else (self.request.by, self.request.who)
        verdict = Verdict(StopReason.NOT_STARTED, by, who, error.message)
        nothing = KillRecord(elapsed_ms=0.0, survivors=0, stage="exit")
        await self._finish(verdict, nothing, None, {"seconds": 0.0})

    async def _fail(self, error: Exception) -> None:
        """A mistake of ours outside of _supervise; the box is gone, and no other run may suffer from it."""
        if not self._released:
            await self._not_started(NotStarted(f"unexpected: {error!r}"))
            return
        verdict = Verdict(StopReason.SUPERVISOR_LOST, "supervisor", "failure", repr(error))
        kill = KillRecord(elapsed_ms=0.0, survivors=0, stage="kill")
        await self._finish(verdict, kill, None, {"seconds": 0.0})

    async def _finish(
        self,
        verdict: Verdict,
        kill: KillRecord,
        wait_status: int | None,
        totals: dict[str, int | float],
    ) -> None:
        detail: dict[str, Any] = msgspec.structs.asdict(verdict)
        written = self.row.change(
            EventKind.RUN_ENDED,
            {**detail, "exit_status": wait_status, "totals": totals},
            state=RunState.ENDED,
            reason=verdict.reason,
            reason_by=verdict.by,
            reason_who=verdict.who,
            reason_note=verdict.note,
            figures=self.request.figures if self.request else {},
            stage=kill.stage,
            kill=kill,
            exit_status=wait_status,
            totals=totals,
            ended_at=self.row.now(),
        )
        await self.row.settled(written, _CLOSE_PATIENCE_S)
        self.around.on_step(Step.CLOSED)


def _kill_alone(box: Box) -> int:
    """Without the launcher: the group by descriptor and by path where it is ours, and init, who takes all
    of its namespace along (pid_namespaces(7))."""
    struck = box.strike()
    box.group.try_kill()
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(box.pidfd, signal.SIGKILL)
    return struck


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _look_at_files(files: AgentFiles) -> float:
    files.poll()
    return _FILES_EVERY_S


def _as_not_started(error: BoxError | SupervisorError | OSError) -> NotStarted:
    if isinstance(error, NotStarted):
        return error
    if isinstance(error, BoxError) and error.control == "program":
        return NotStarted(error.message, control="program", hint=_ABOUT_PROGRAMS)
    if isinstance(error, BoxError):
        name = f"{error.control} cannot be armed: " if error.control else ""
        return NotStarted(f"{name}{error.message}", control=error.control, hint=error.hint)
    if isinstance(error, OSError):
        return NotStarted(f"{error.strerror or error}: {error.filename}")
    return NotStarted(error.message, hint=error.hint)


def _how_to_lift(request: StopRequest, paths: Paths, ticket: str) -> str:
    if request.by == "stop_file":
        return f"remove {paths.stop_folder}/{ticket} or {paths.stop_everything} when it may run again"
    if request.by == "database_flag":
        return f"supervisorctl resume {ticket} clears the flag"
    return ""
