"""Owns finding what a dead supervisor left behind, ending it and writing it down.
May touch the rows, cgroups, locks and sockets of supervisors whose lock nobody holds.
Never touches what belongs to a live supervisor, and never calls a lost run a success.
"""

from __future__ import annotations

import contextlib
import os
import socket

import msgspec

from sandbox.client import LauncherClient
from supervisor import workers
from supervisor.clock import Clock, rfc3339
from supervisor.events import Event, EventKind
from supervisor.paths import Paths
from supervisor.runs.force import kill_leftover
from supervisor.runs.reasons import StopReason
from supervisor.store.records import KillRecord, Run, RunState
from supervisor.store.store import Store


async def reconcile(paths: Paths, store: Store, launcher: LauncherClient, clock: Clock) -> list[Run]:
    """End and close every run whose supervisor is gone; the closed runs are returned.

    Done before anything new starts. Several supervisors starting at once take turns.
    """
    with workers.exclusive(paths, "reconcile"):
        dead = [
            w
            for w in store.workers()
            if w.host == socket.gethostname() and not workers.is_alive(paths, w.worker_id)
        ]
        alive = [w.worker_id for w in store.workers() if w not in dead]
        await launcher.request("sweep", namespace_key=paths.namespace_key, keep=alive)
        gone = {w.worker_id for w in dead}
        closed = [_close(store, run, clock) for run in store.live_runs() if _is_lost(run, gone, paths)]
        for worker in dead:
            store.remove_worker(worker.worker_id)
            for path in (worker.socket, workers.lock_path(paths, worker.worker_id)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
    return closed


def _is_lost(run: Run, gone: set[str], paths: Paths) -> bool:
    if run.host != socket.gethostname():
        return False
    return run.worker_id in gone or not workers.is_alive(paths, run.worker_id)


def _close(store: Store, run: Run, clock: Clock) -> Run:
    """supervisor_lost, unless `kill --force` had said before that it was to be killed.

    Where no cgroup held the run, its death pipe and its parent's death have ended it; this is the
    third way.
    """
    kill_leftover(run)
    at = rfc3339(clock.utc())
    forced = run.reason_by == "operator" and run.stage == "force"
    reason = StopReason.KILLED if forced else StopReason.SUPERVISOR_LOST
    closed = msgspec.structs.replace(
        run,
        state=RunState.ENDED,
        reason=reason,
        reason_by=run.reason_by if forced else "supervisor",
        reason_note=run.reason_note if forced else "the supervisor died; everything of the run was ended",
        kill=run.kill or KillRecord(elapsed_ms=0.0, survivors=0, stage="kill"),
        stage="kill",
        ended_at=at,
    )
    detail = {"reason": closed.reason, "by": closed.reason_by, "note": closed.reason_note}
    event = Event(at=at, run_id=run.run_id, ticket=run.ticket, kind=EventKind.RUN_ENDED, detail=detail)
    store.update_run(closed, event)
    return closed
