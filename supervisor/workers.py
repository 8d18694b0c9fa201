"""Owns who is supervising: one lock per supervisor process, and which of them are alive.
May touch lock files in the state folder and the workers table.
Never takes a stored state for life: only a lock that the kernel holds for a process counts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from supervisor.errors import StateError
from supervisor.ownership import open_file
from supervisor.paths import Paths
from supervisor.store.records import Worker

_LOCK_PATIENCE_S = 60.0
_LOCK_EVERY_S = 0.01


def lock_path(paths: Paths, worker_id: str) -> str:
    return f"{paths.worker_locks}/{worker_id}.lock"


def hold(path: str) -> int:
    """Lock a file for the life of the descriptor that is returned. Raises BlockingIOError if held."""
    try:
        fd = open_file(path, os.O_RDWR)
    except OSError as error:
        raise StateError(f"{path} cannot be made: {error.strerror}", hint="free space there") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def is_alive(worker: Worker | None, now: str) -> bool:
    """On this host: does a process hold its lock? Elsewhere: does its lease last? now is RFC 3339 UTC.

    One that is not in the table has ended in good order, or was found dead before.
    """
    if worker is None:
        return False
    if worker.host != socket.gethostname():
        return worker.lease_until > now
    return _is_locked(worker.lock_path)


def _is_locked(path: str) -> bool:
    """The kernel lets go of a lock when the process that holds it dies."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(fd)
    return False


def _lock_patiently(fd: int, path: str) -> None:
    """Who holds it ends what a dead supervisor left: that takes seconds. One that hangs is left alone."""
    until_s = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise StateError(
                    f"{path} has been held for {_LOCK_PATIENCE_S:.0f} s by another supervisor",
                    hint=f"fuser {path} names the process; if it hangs, end it",
                ) from None
        time.sleep(_LOCK_EVERY_S)


@contextmanager
def exclusive(paths: Paths, what: str) -> Iterator[None]:
    """One process at a time does this; the others wait."""
    path = f"{paths.state}/{what}.lock"
    try:
        fd = open_file(path, os.O_RDWR)
    except OSError as error:
        raise StateError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        _lock_patiently(fd, path)
        yield
    finally:
        os.close(fd)
