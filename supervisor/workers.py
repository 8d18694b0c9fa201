"""Owns who is supervising: one lock per supervisor process, and which of them are alive.
May touch lock files in the state folder and the workers table.
Never takes a stored state for life: only a lock that the kernel holds for a process counts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from supervisor.errors import StateError
from supervisor.ownership import open_file
from supervisor.paths import Paths
from supervisor.store.records import Worker


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
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(fd)
    return False


@contextmanager
def exclusive(paths: Paths, what: str) -> Iterator[None]:
    """One process at a time does this; the others wait."""
    path = f"{paths.state}/{what}.lock"
    try:
        fd = open_file(path, os.O_RDWR)
    except OSError as error:
        raise StateError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
