"""Owns the second opinion on files: which Landlock rights a box has, and enforcing them.
May touch only the ruleset of the calling thread.
Never widens what the mounts allow: it repeats them in another mechanism.
"""

from __future__ import annotations

import os
import stat

from sandbox import syscalls
from sandbox.spec import Landlock, PathAccess

# include/uapi/linux/landlock.h; the number behind each is the ABI that brought it.
EXECUTE = 1 << 0  # 1
WRITE_FILE = 1 << 1  # 1
READ_FILE = 1 << 2  # 1
READ_DIR = 1 << 3  # 1
REMOVE_DIR = 1 << 4  # 1
REMOVE_FILE = 1 << 5  # 1
MAKE_CHAR = 1 << 6  # 1
MAKE_DIR = 1 << 7  # 1
MAKE_REG = 1 << 8  # 1
MAKE_SOCK = 1 << 9  # 1
MAKE_FIFO = 1 << 10  # 1
MAKE_BLOCK = 1 << 11  # 1
MAKE_SYM = 1 << 12  # 1
REFER = 1 << 13  # 2
TRUNCATE = 1 << 14  # 3
IOCTL_DEV = 1 << 15  # 5

SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0  # 6
SCOPE_SIGNAL = 1 << 1  # 6

_FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_READ = READ_FILE | READ_DIR
_WRITE = (
    WRITE_FILE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SOCK
    | MAKE_FIFO
    | MAKE_SYM
    | REFER
    | TRUNCATE
)


def compile_rules(
    abi: int,
    *,
    list_only: tuple[str, ...] = (),
    read: tuple[str, ...] = (),
    execute: tuple[str, ...] = (),
    write: tuple[str, ...] = (),
    devices: tuple[str, ...] = (),
) -> Landlock | None:
    """Rules for the paths inside the box, or None where the kernel has no Landlock.

    list_only shows names and no contents; read and write are folders or files; execute adds the
    right to run what is below. A path that does not exist in the box is passed over.
    """
    if abi < 1:
        return None
    handled = (1 << 13) - 1
    handled |= REFER if abi >= 2 else 0
    handled |= TRUNCATE if abi >= 3 else 0
    handled |= IOCTL_DEV if abi >= 5 else 0
    wanted: dict[str, int] = {}
    for paths, access in (
        (list_only, READ_DIR),
        (read, _READ),
        (execute, _READ | EXECUTE),
        (write, _READ | _WRITE),
        (devices, _READ | WRITE_FILE | TRUNCATE | IOCTL_DEV),
    ):
        for path in paths:
            wanted[path] = wanted.get(path, 0) | access
    return Landlock(
        abi=abi,
        handled_files=handled,
        scoped=SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if abi >= 6 else 0,
        paths=tuple(PathAccess(path=path, access=access & handled) for path, access in wanted.items()),
    )


def prepare(rules: Landlock, root: str) -> int:
    """A ruleset's descriptor, with the rules for paths that are there below root; nothing is enforced."""
    ruleset = syscalls.landlock_create_ruleset(rules.handled_files, 0, rules.scoped, rules.abi)
    try:
        _add(ruleset, rules.paths, root)
    except OSError:
        os.close(ruleset)
        raise
    return ruleset


def enforce(ruleset: int, paths: tuple[PathAccess, ...]) -> None:
    """Add the last rules, then restrict the calling thread and its children for good.

    Needs no_new_privs. The descriptor is closed.
    """
    try:
        _add(ruleset, paths, "")
        syscalls.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)


def _add(ruleset: int, paths: tuple[PathAccess, ...], root: str) -> None:
    """Rights of two rules for one file add up (landlock(7))."""
    for rule in paths:
        try:
            where = os.open(root + rule.path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            folder = stat.S_ISDIR(os.fstat(where).st_mode)
            access = rule.access if folder else rule.access & _FILE_RIGHTS
            syscalls.landlock_add_path(ruleset, access, where)
        finally:
            os.close(where)
