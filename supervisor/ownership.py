"""Owns whose the files of a state folder are: what root makes in the daemon's state is the daemon's.
May touch the owner of what was made just now, through its descriptor.
Never gives away what was there before.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat

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
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_folder(parent, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _give(fd, parent)
    finally:
        os.close(fd)
    return True


def open_file(path: str, flags: int, *, exclusive: bool = False) -> int:
    """Open a file of mode 600, made for the owner of its folder where it is missing. Raises OSError.

    exclusive: only ever a new one, as with O_EXCL.
    """
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            # Made by us for certain: a name that led to something else would give that away.
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            break
        except FileExistsError:
            if exclusive:
                raise
        try:
            return _plain(os.open(path, flags | os.O_NONBLOCK), path)
        except FileNotFoundError:
            continue  # removed in between
    try:
        _give(fd, os.path.dirname(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


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


def _give(fd: int, folder: str) -> None:
    if os.geteuid() != 0:
        return
    owner = os.stat(folder or ".")
    if owner.st_uid != 0 and is_trusted(owner.st_uid):
        os.fchown(fd, owner.st_uid, owner.st_gid)
