"""Owns whose the files of a state folder are: what root makes in the daemon's state is the daemon's.
May touch the owner of what was made just now, through its descriptor.
Never gives away what was there before.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager

SERVICE_ACCOUNT = "sidecar-daemon"
"""The user that the installed daemon runs as (systemd/sysusers.conf)."""


def is_trusted(uid: int) -> bool:
    """May this user own a folder that we write in? Root and ourselves; for root also the daemon's user."""
    if uid in (0, os.geteuid()):
        return True
    try:
        return os.geteuid() == 0 and uid == pwd.getpwnam(SERVICE_ACCOUNT).pw_uid
    except KeyError:
        return False


def make_folder(path: str, mode: int) -> bool:
    """Like mkdir -p, for the owner of the folder it is in; False where it was there. Raises OSError."""
    parent, name = os.path.split(path)
    if not os.path.isdir(parent):
        make_folder(parent, mode)
    with _held(parent) as folder:
        try:
            os.mkdir(name, mode, dir_fd=folder)
        except FileExistsError:
            return False
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            _give(fd, folder)
        finally:
            os.close(fd)
    return True


def open_file(path: str, flags: int, *, exclusive: bool = False) -> int:
    """Open a file of mode 600, made for the owner of its folder where it is missing. Raises OSError.

    exclusive: only ever a new one, as with O_EXCL.
    """
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    parent, name = os.path.split(path)
    with _held(parent) as folder:
        while True:
            try:
                # Made by us for certain: a name that led to something else would give that away.
                fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
                break
            except FileExistsError:
                if exclusive:
                    raise
            try:
                return _plain(os.open(name, flags | os.O_NONBLOCK, dir_fd=folder), path)
            except FileNotFoundError:
                continue  # removed in between
        try:
            _give(fd, folder)
        except BaseException:
            os.close(fd)
            raise
    return fd


@contextmanager
def _held(folder: str) -> Iterator[int]:
    """One look-up for making and for whose it is: between two, the name could come to lead elsewhere."""
    fd = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _plain(fd: int, path: str) -> int:
    """A FIFO in a file's place would hold up whoever writes to it."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a plain file", path)
    os.set_blocking(fd, True)
    return fd


def read_file(path: str, most_bytes: int) -> bytes:
    """At most so much of a plain file; anything else at that name is an OSError, and is not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", path)
        return file.read(most_bytes)


def _give(fd: int, folder: int) -> None:
    """To the owner of the held folder, what is still root's alone."""
    if os.geteuid() != 0:
        return
    owner = os.fstat(folder)
    if owner.st_uid != 0 and is_trusted(owner.st_uid) and os.fstat(fd).st_uid == 0:
        os.fchown(fd, owner.st_uid, owner.st_gid)
