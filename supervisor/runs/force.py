"""Owns ending a run without its supervisor: hung, dead, or out of reach.
May touch the run's cgroups and its init by pidfd, and its row in the database.
Never signals a bare stored pid: a process is known by pid, start time and boot.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import time
from typing import Any

import msgspec

from sandbox.cgroups import RunGroup, is_group
from supervisor import workers
from supervisor.clock import SystemClock, boot_id, rfc3339
from supervisor.errors import NotFound, NotYetDead, StateError, UsageError
from supervisor.events import Event, EventKind
from supervisor.runs.attestation import process_start
from supervisor.runs.reasons import StopReason
from supervisor.store.records import KillRecord, Run, RunState
from supervisor.store.store import Store

_PATIENCE_S = 10.0
_RECORD_PATIENCE_S = 0.5
_LOOK_EVERY_S = 0.005


def force_kill(store: Store, ticket: str, note: str) -> dict[str, Any]:
    """Write the intent, kill through the kernel's own handles, wait until nothing is alive.

    Raises NotFound, NotYetDead, UsageError (a run of another host). A database that cannot be
    written does not keep anything alive: the intent is then lost, the kill is not.
    """
    run = store.latest_run(ticket)
    if run is None:
        raise NotFound(f"no ticket {ticket!a} has ever run here")
    if run.ended_at is not None:
        return _result(run, 0.0, 0, already=True)
    if run.host != socket.gethostname():
        raise UsageError(f"{ticket} runs on {run.host}", hint=f"use kill --force on {run.host}")
    began_s = time.monotonic()
    store.hurry(_RECORD_PATIENCE_S)
    _write_intent(store, run, note)
    if run.attestation is None and _is_supervised(store, run):
        # Nothing of it can be reached from here yet; its supervisor looks at the flag before the release.
        with contextlib.suppress(StateError):
            store.set_flag(ticket)
        raise NotYetDead(
            f"{ticket} is only being started, by a supervisor that does not answer",
            hint=f"it is flagged and ends before its agent starts; supervisorctl resume {ticket} unflags it",
        )
    processes = kill_leftover(run)
    while _is_alive(run):
        if time.monotonic() - began_s > _PATIENCE_S:
            raise NotYetDead(f"something of {ticket} is still alive after {_PATIENCE_S:.0f} s")
        kill_leftover(run)
        time.sleep(_LOOK_EVERY_S)
    elapsed_ms = round((time.monotonic() - began_s) * 1000, 3)
    if not _is_supervised(store, run):
        with contextlib.suppress(StateError):  # dead all the same; the next start closes the row
            run = _close(store, run, note, elapsed_ms, processes)
    return _result(run, elapsed_ms, processes, already=False)


def _is_supervised(store: Store, run: Run) -> bool:
    return workers.is_alive(store.worker(run.worker_id), rfc3339(SystemClock().utc()))


def _who() -> str:
    try:
        return f"{os.getuid()}:{getpass.getuser()}"
    except (KeyError, OSError):
        return f"{os.getuid()}:?"


def _write_intent(store: Store, run: Run, note: str) -> None:
    """The supervisor, if it ever wakes, finds here why its run has died."""
    marked = msgspec.structs.replace(
        run, state=RunState.STOPPING, reason_by="operator", reason_who=_who(), reason_note=note, stage="force"
    )
    detail = {"by": "operator", "who": _who(), "note": note, "grace_s": 0.0, "forced": True}
    try:
        store.update_run(marked, _event(run, EventKind.STOP_REQUESTED, detail))
    except StateError:
        return


def _group(run: Run) -> RunGroup:
    """The run's groups as its row names them; v2 is the one that can be killed as a whole."""
    there = [folder for folder in run.cgroups if is_group(folder)]
    v2 = next((folder for folder in there if os.path.exists(f"{folder}/cgroup.events")), None)
    limits = {str(number): folder for number, folder in enumerate(there) if folder != v2}
    return RunGroup(run.run_id, v2, limits)


def kill_leftover(run: Run) -> int:
    """KILL through every handle there is; how many processes the groups held.

    The daemon has no right to groups that root's embedded supervisors made: there the box's init takes
    everything with it, as the pid namespace ends with it (pid_namespaces(7)).
    """
    group = _group(run)
    members = len(group.members())
    group.try_kill()
    pidfd = _open_init(run)
    if pidfd >= 0:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it went in between
        finally:
            os.close(pidfd)
    return members


def _open_init(run: Run) -> int:
    """A pidfd of the box's init if that very process still lives, else -1."""
    known = run.attestation or {}
    pid, start = known.get("init_pid"), known.get("init_start")
    if not pid or not start or run.boot_id != boot_id():
        return -1
    try:
        pidfd = os.pidfd_open(int(pid))
    except OSError:
        return -1
    if process_start(int(pid)) == start and not _is_zombie(int(pid)):
        return pidfd
    os.close(pidfd)
    return -1


def _is_zombie(pid: int) -> bool:
    """Dead but not collected: its hung launcher has not looked yet. Nothing of it runs."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def _is_alive(run: Run) -> bool:
    if _group(run).populated():
        return True
    pidfd = _open_init(run)
    if pidfd >= 0:
        os.close(pidfd)
        return True
    return False


def _event(run: Run, kind: EventKind, detail: dict[str, Any]) -> Event:
    at = rfc3339(SystemClock().utc())
    return Event(at=at, run_id=run.run_id, ticket=run.ticket, kind=kind, detail=detail)


def _close(store: Store, run: Run, note: str, elapsed_ms: float, processes: int) -> Run:
    """Nobody else will: the supervisor of this run is dead."""
    closed = msgspec.structs.replace(
        run,
        state=RunState.ENDED,
        reason=StopReason.KILLED,
        reason_by="operator",
        reason_who=_who(),
        reason_note=note,
        stage="kill",
        kill=KillRecord(elapsed_ms=elapsed_ms, survivors=0, stage="kill", processes=processes),
        ended_at=rfc3339(SystemClock().utc()),
    )
    detail = {"reason": closed.reason, "by": "operator", "who": closed.reason_who, "note": note}
    store.update_run(closed, _event(run, EventKind.RUN_ENDED, detail))
    return closed


def _result(run: Run, elapsed_ms: float, processes: int, *, already: bool) -> dict[str, Any]:
    return {
        "ticket": run.ticket,
        "run_id": run.run_id,
        "dead": True,
        "elapsed_ms": elapsed_ms,
        "survivors": 0,
        "stage": "kill",
        "processes": processes,
        "reason": run.reason or StopReason.KILLED,
        "already": already,
    }
