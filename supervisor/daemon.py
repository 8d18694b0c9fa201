"""Owns wiring the parts of one supervisor process: start, reconcile, watch, shut down.
May touch everything below it; it is the only module that knows all of them.
Never decides about a run itself: it hands requests to the run's own life.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Literal
from zoneinfo import ZoneInfo

from sandbox.client import LauncherClient
from supervisor import workers
from supervisor.audit.records import Decision
from supervisor.audit.trail import Trail
from supervisor.booking import BookingClock
from supervisor.clock import CLOCK_JUMP, Clock, SystemClock, boot_id, rfc3339
from supervisor.config import Config
from supervisor.errors import NotFound, StateError, SupervisorError, UsageError
from supervisor.events import EventKind
from supervisor.identifiers import new_ulid
from supervisor.leases import Leases
from supervisor.limits.charges import Booking
from supervisor.logs.redact.known import KnownSecrets
from supervisor.logs.redact.redactor import Redactor
from supervisor.ownership import make_folder
from supervisor.paths import Paths, launcher_socket
from supervisor.profile.schema import Profile
from supervisor.runs.life import LiveRun, Surroundings
from supervisor.runs.order import Order, Step
from supervisor.runs.reasons import StopRequest, kill_request
from supervisor.runs.reconcile import reconcile
from supervisor.runs.spending import Spending
from supervisor.state_keys import state_key
from supervisor.stopping import stop_file
from supervisor.stopping.database_flag import DatabaseFlags
from supervisor.store.recorder import Recorder
from supervisor.store.records import Run, RunState, Worker
from supervisor.store.store import Store, open_store
from supervisor.store.values import is_true

if TYPE_CHECKING:
    from supervisor.gateway.hub import GatewayHub

_LOOK_EVERY_S = 1.0
_NOTE_PATIENCE_S = 0.02
Kind = Literal["daemon", "foreground", "worker"]


class Supervisor:
    """Runs agents until it is closed; then it ends them first. Use as an async context manager."""

    def __init__(
        self,
        paths: Paths,
        config: Config,
        kind: Kind,
        *,
        clock: Clock | None = None,
        on_step: Callable[[Step], None] = lambda _: None,
    ) -> None:
        self.paths = paths
        self.config = config
        self.kind: Kind = kind
        self.clock = clock or SystemClock()
        self.worker_id = new_ulid()
        self.runs: dict[str, LiveRun] = {}
        self.lost: list[Run] = []
        self.store: Store
        self.recorder: Recorder
        self.launcher: LauncherClient
        self.audit: Trail
        self._on_step = on_step
        self._stack = AsyncExitStack()
        self._tasks: asyncio.TaskGroup
        self._look = asyncio.Event()
        self._closing = False
        self.booking: BookingClock
        self.leases: Leases
        self._hub: GatewayHub | None = None
        self._flags: DatabaseFlags

    @property
    def socket_path(self) -> str:
        if self.kind == "daemon":
            return self.paths.control_socket
        return self.paths.worker_socket(self.worker_id)

    # ------------------------------------------------------------ start and end

    async def __aenter__(self) -> Supervisor:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        """The order matters: the launcher before any thread, the lock before the row, then tidy up."""
        if self.kind == "daemon":
            self._be_the_only_daemon()
        self.launcher = await self._stack.enter_async_context(self._launcher_client())
        self.audit = Trail(self.paths.audit)
        self._redaction_key = state_key(self.paths, "redaction")
        self._stack.callback(self._end_audit)
        _use_all_descriptors()
        lock = workers.hold(workers.lock_path(self.paths, self.worker_id))
        self._stack.callback(self._let_go, lock)
        location = self.config.store_location(self.paths.database)
        self.recorder = Recorder(location)
        self._stack.callback(self.recorder.close)
        self.store = open_store(location)
        self._stack.callback(self.store.close)
        # A connection of its own: a database that hangs is waited for in a thread, not in the loop.
        flags = open_store(location)
        self._stack.callback(flags.close)
        self._flags = DatabaseFlags(flags, location, self.config.stop)
        self._stack.callback(self._flags.close)
        self._keep_time()
        self._stack.push_async_callback(self._close_hub)
        self._register()
        self._stack.callback(self._unregister)
        self.audit.decide(Decision.SUPERVISOR_STARTED, self._about_us())
        self.lost = await reconcile(self.paths, self.store, self.launcher, self.clock)
        for run in self.lost:
            detail = {"reason": run.reason, "by": run.reason_by, "totals": run.totals}
            self.audit.decide(Decision.RUN_LOST, detail, run.run_id, run.ticket)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        for watch in (self._watch_stops(), self._watch_clock(), self.leases.keep()):
            self._stack.callback(self._tasks.create_task(watch).cancel)
        self._stack.push_async_callback(self._end_runs)

    def _about_us(self) -> dict[str, object]:
        about = {"worker_id": self.worker_id, "kind": self.kind, "host": socket.gethostname()}
        return {**about, "pid": os.getpid(), "uid": os.getuid(), "boot_id": boot_id()}

    def _end_audit(self) -> None:
        self.audit.decide(Decision.SUPERVISOR_STOPPED, {"worker_id": self.worker_id, "kind": self.kind})
        self.audit.close()

    def _keep_time(self) -> None:
        """By which clock charges are booked and leases end: the database's, where hosts share one."""
        zone = ZoneInfo(self.config.daily.zone)
        self.booking = BookingClock(self.clock, boot_id(), zone, self.store.settings())
        shared = self._look_at_shared_clock(self.store)
        self.leases = Leases(
            recorder=self.recorder,
            clock=self.clock,
            booking=self.booking,
            worker_id=self.worker_id,
            lease_s=self.config.queue.lease_s,
            shared=shared,
            runs=lambda: list(self.runs.values()),
        )

    def _look_at_shared_clock(self, store: Store) -> bool:
        now = store.now()
        if now is not None:
            self.booking.use_offset((now - self.clock.utc()).total_seconds())
        return now is not None

    async def _watch_clock(self) -> None:
        """Once a second: a clock that jumped ahead pauses claims until somebody confirms it."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            with suppress(StateError):
                await self.recorder.call(self._check_clock)

    def _check_clock(self, store: Store) -> None:
        self._look_at_shared_clock(store)
        settings = store.settings()
        for key, value in self.booking.look(settings).items():
            if key == CLOCK_JUMP or self.kind != "foreground":
                store.set_setting(key, value)

    def _launcher_client(self) -> LauncherClient:
        at = launcher_socket() if self.kind == "daemon" else ""
        return LauncherClient(self.paths.namespace_key, at=at)

    def _be_the_only_daemon(self) -> None:
        try:
            lock = workers.hold(f"{self.paths.state}/daemon.lock")
        except BlockingIOError:
            raise UsageError(
                f"a daemon for {self.paths.state} is running already", hint="supervisorctl ps"
            ) from None
        self._stack.callback(os.close, lock)

    def _let_go(self, lock: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(workers.lock_path(self.paths, self.worker_id))
        os.close(lock)

    def _register(self) -> None:
        worker = Worker(
            worker_id=self.worker_id,
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid=os.getpid(),
            kind=self.kind,
            socket=self.socket_path,
            started_at=rfc3339(self.clock.utc()),
            lock_path=workers.lock_path(self.paths, self.worker_id),
            lease_until=self.leases.until(),
        )
        self.store.add_worker(worker)

    def _unregister(self) -> None:
        """Last of all writes; a row that stays is removed by the next start."""
        self.recorder.write(lambda store: store.remove_worker(self.worker_id))

    async def _end_runs(self) -> None:
        """Nothing of ours lives on without us. With the launcher gone all has ended, for that reason."""
        self._closing = True
        for run in [] if self.launcher.gone else list(self.runs.values()):
            run.request_stop(kill_request("supervisor", who=self.kind, note="the supervisor was shut down"))
        for run in list(self.runs.values()):
            await run.ended.wait()

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # ------------------------------------------------------------ runs

    async def launch(self, order: Order) -> LiveRun:
        """Write the run down and start its life; a refusal is written down too.

        Raises UsageError for a ticket that runs already, StateError.
        """
        try:
            return await self._launch(order)
        except SupervisorError as error:
            detail = {"why": error.message, "profile": order.loaded.profile.name, "project": order.project}
            self.audit.decide(Decision.RUN_REFUSED, detail, ticket=order.ticket)
            raise

    async def _launch(self, order: Order) -> LiveRun:
        if not self.audit.ready:
            await asyncio.to_thread(self.audit.check)
        if order.claim is None:
            self._refuse_when_paused(order.project)
        if self._closing:
            raise UsageError("the supervisor is shutting down")
        run = self._new_run(order)
        folder = self.paths.run_folder(run.run_id)
        try:
            make_folder(folder, 0o700)
        except OSError as error:
            raise StateError(f"{folder} cannot be made: {error.strerror}", hint="free space there") from error
        around = Surroundings(
            paths=self.paths,
            recorder=self.recorder,
            launcher=self.launcher,
            clock=self.clock,
            worker_id=self.worker_id,
            stop_is_wanted=self.stop_is_wanted,
            spending=self._spending_of,
            audit=self.audit,
            redaction_key=self._redaction_key,
            on_step=self._on_step,
        )
        live = LiveRun(order, around, run)
        created = live.row.make_event(EventKind.RUN_CREATED, {"profile": run.profile, "command": run.command})
        try:
            await asyncio.wrap_future(self.recorder.write(lambda store: store.create_run(live.run, created)))
        except BaseException:
            os.rmdir(folder)
            raise
        self.audit.event(created)
        self.audit.decide(Decision.RUN_ADMITTED, _terms(live), run.run_id, run.ticket)
        order.on_event(created)
        self.runs[order.ticket] = live
        self._tasks.create_task(self._live(live))
        return live

    @property
    def hub(self) -> GatewayHub:
        """Made, and the libraries it needs imported, with the first run that calls models."""
        if self._hub is None:
            from supervisor.gateway.hub import GatewayHub

            self._hub = GatewayHub(self.config, self.recorder)
        return self._hub

    async def _close_hub(self) -> None:
        if self._hub is not None:
            await self._hub.close()

    def _spending_of(self, live: LiveRun) -> Spending:
        run = live.run

        def seconds_left() -> float:
            return live.wall_clock.left_s(self.clock.boottime_s()) if live.wall_clock else 0.0

        return Spending(
            profile=live.profile,
            booking=Booking(
                run_id=run.run_id,
                ticket=run.ticket,
                project=run.project,
                worker_id=run.worker_id,
                fence=run.fence,
            ),
            row=live.row,
            recorder=self.recorder,
            clock=self.booking,
            daily=self.config.daily,
            hub=lambda: self.hub,
            lease_s=self.config.queue.lease_s,
            seconds_left=seconds_left,
            request_stop=live.request_stop,
        )

    async def _live(self, live: LiveRun) -> None:
        try:
            await live.live()
        finally:
            self.runs.pop(live.order.ticket, None)

    def _new_run(self, order: Order) -> Run:
        run_id = order.claim.run_id if order.claim else new_ulid()
        profile = order.loaded.profile
        redactor = Redactor(KnownSecrets(order.secrets), key=self._redaction_key)
        overlay = self.paths.run_folder(run_id) if profile.files.worktree == "overlay" else ""
        return Run(
            run_id=run_id,
            ticket=order.ticket,
            project=order.project,
            profile=profile.name,
            profile_digest=order.loaded.digest,
            command=[redactor.redact(word.encode())[0].decode() for word in order.argv],
            worktree=order.tree.root,
            overlay=overlay,
            host=socket.gethostname(),
            boot_id=boot_id(),
            worker_id=self.worker_id,
            fence=order.claim.fence if order.claim else 0,
            state=RunState.CREATED,
            created_at=rfc3339(self.clock.utc()),
            limits={
                "wall_clock_s": profile.limits.wall_clock_s,
                "stop_grace_s": profile.limits.stop_grace_s,
                "memory_bytes": profile.limits.memory_bytes,
                "pids": profile.limits.pids,
                "cpu_cores": profile.limits.cpu_cores,
                **_model_limits(profile),
            },
        )

    def _refuse_when_paused(self, project: str) -> None:
        settings = self.store.settings()
        for key in ("paused", f"paused:{project}" if project else "paused"):
            if is_true(settings.get(key)):
                of = f" of project {project}" if key != "paused" else ""
                raise UsageError(
                    f"starting runs{of} is paused", hint="supervisorctl resume lets them start again"
                )

    # ------------------------------------------------------------ stops

    def find(self, ticket: str) -> LiveRun:
        """The live run of a ticket in this process. Raises NotFound."""
        if ticket not in self.runs:
            raise NotFound(f"no ticket {ticket} is running here")
        return self.runs[ticket]

    async def stop_is_wanted(self, ticket: str) -> StopRequest | None:
        """Look once: stop-files, then flags. A database that is away does not hide the files."""
        notes = stop_file.look(self.paths, [ticket])
        if notes:
            return kill_request("stop_file", note=notes[ticket])
        flags = await asyncio.to_thread(self._flags.look, [ticket])
        if flags:
            return kill_request("database_flag", note=flags[ticket])
        return None

    async def _watch_stops(self) -> None:
        """Every second, and as soon as something changes in the folder: look for every live run."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._look.set)

        watch = stop_file.StopFolderWatch(self.paths, wake)
        try:
            while True:
                if self.runs:
                    await asyncio.to_thread(watch.refresh)
                    await self._stop_what_is_flagged()
                # Not wait_for: before Python 3.12 it swallows a cancellation that comes with its event.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        await self._look.wait()
                self._look.clear()
        finally:
            watch.close()

    async def _stop_what_is_flagged(self) -> None:
        """Runs that were asked and are using their grace too: a file or a flag ends that."""
        live = {t: run for t, run in self.runs.items() if run.request is None or run.request.grace_s > 0}
        found = stop_file.look(self.paths, live)
        if "" in found.values():
            # `echo why > file` makes the file before it writes: the note is worth a moment.
            await asyncio.sleep(_NOTE_PATIENCE_S)
            found |= stop_file.look(self.paths, found)
        for ticket, note in found.items():
            live[ticket].request_stop(kill_request("stop_file", note=note))
        flags = await asyncio.to_thread(self._flags.look, list(live))
        for ticket, note in flags.items():
            live[ticket].request_stop(kill_request("database_flag", note=note))


def _terms(live: LiveRun) -> dict[str, object]:
    """Under which profile and limits a run may start."""
    run = live.run
    about: dict[str, object] = {"profile": run.profile, "profile_digest": run.profile_digest}
    return {
        **about,
        "project": run.project,
        "worktree": run.worktree,
        "fence": run.fence,
        "limits": run.limits,
    }


def _use_all_descriptors() -> None:
    """Agents' connections count among ours: four runs would use up the usual soft limit, and kill with it.

    After the launcher was started, whose boxes have limits of their own.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _model_limits(profile: Profile) -> dict[str, int | float]:
    """Those that are set, as they are kept with the run."""
    limits = profile.limits
    found = {
        "iterations": limits.iterations,
        "tokens": limits.tokens,
        "usd_nanos": limits.usd_nanos,
        "ticket_usd_nanos": limits.ticket_usd_nanos,
    }
    return {name: value for name, value in found.items() if value is not None}
