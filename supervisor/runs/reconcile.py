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
from supervisor.store.records import KillRecord, Run, RunState, Worker
from supervisor.store.store import Store


async def reconcile(paths: Paths, store: Store, launcher: LauncherClient, clock: Clock) -> list[Run]:
    """End and close every run whose supervisor is gone; the closed runs are returned.

    Done before anything new starts. Several supervisors starting at once take turns.
    """
    with workers.exclusive(paths, "reconcile"):
        here, now = socket.gethostname(), rfc3339(store.now() or clock.utc())
        known = {worker.worker_id: worker for worker in store.workers()}
        dead = [w for w in known.values() if w.host == here and not workers.is_alive(w, now)]
        alive = [w.worker_id for w in known.values() if w not in dead]
        await launcher.request("sweep", namespace_key=paths.namespace_key, keep=alive)
        closed = []
        for run in store.live_runs():
            if run.host == here and not workers.is_alive(known.get(run.worker_id), now):
                kill_leftover(run)
                closed.append(_close(store, run, now))
        for worker in dead:
            store.remove_worker(worker.worker_id)
            for path in _own_files(worker):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
    return closed


def _own_files(worker: Worker) -> list[str]:
    """Its socket and its lock, if they are named as ours are: a row is anybody's who can write the database.

    Not the daemon's control socket, on which systemd may listen across its restarts.
    """
    wanted = {f"workers/{worker.worker_id}.{kind}" for kind in ("sock", "lock")}
    paths = (worker.socket, worker.lock_path)
    return [path for path in paths if "/".join(path.rsplit("/", 2)[1:]) in wanted]


def close_lost_elsewhere(store: Store, now: str) -> list[Run]:
    """Close runs of other hosts whose supervisor has not renewed its lease, and free what they held.

    A supervisor that cannot renew ends its runs before its lease is over; one that is dead took them
    with it.
    """
    here = socket.gethostname()
    known = {worker.worker_id: worker for worker in store.workers()}
    lost = [
        run
        for run in store.live_runs()
        if run.host != here and not workers.is_alive(known.get(run.worker_id), now)
    ]
    closed = [_close(store, run, now) for run in lost]
    for worker in known.values():
        if worker.host != here and not workers.is_alive(worker, now):
            store.remove_worker(worker.worker_id)
    return closed


def _close(store: Store, run: Run, at: str) -> Run:
    """supervisor_lost, unless `kill --force` had said before that it was to be killed.

    A call that was under way may have been made, so what it held is charged.
    """
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
    store.ledger.settle_run(run.run_id, "supervisor lost", at)
    store.update_run(closed, event)
    return closed
