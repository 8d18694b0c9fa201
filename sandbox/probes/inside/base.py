"""Owns what all attempts share: the table of them, raw system calls, what they are told.
May touch nothing by itself; it is part of a program that runs in a box, or outside as a control.
Never judges: each attempt says "ok", an errno's name, a signal's name, or what it found.
"""

from __future__ import annotations

import ctypes
import os
import platform
import tempfile
from collections.abc import Callable

TIMEOUT_S = 5.0
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
ATTEMPTS: dict[str, Callable[[], str | None]] = {}
AT_START: list[int] = []
"""Descriptors that were open before anything was tried."""

ARGUMENTS: dict[str, str] = {}
"""What the test tells the attempts: ports, paths and tokens of its witnesses."""

NUMBERS = {
    "x86_64": {
        "socket": 41, "clone": 56, "ptrace": 101, "syslog": 103, "personality": 135, "modify_ldt": 154,
        "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166, "reboot": 169, "sethostname": 170,
        "init_module": 175, "add_key": 248, "request_key": 249, "keyctl": 250, "mbind": 237,
        "set_mempolicy": 238, "unshare": 272, "move_pages": 279, "perf_event_open": 298,
        "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308,
        "process_vm_readv": 310, "kcmp": 312, "finit_module": 313, "bpf": 321, "userfaultfd": 323,
        "kexec_load": 246, "swapon": 167, "acct": 163, "settimeofday": 164, "adjtimex": 159, "iopl": 172,
        "vhangup": 153, "mknod": 133, "creat": 85, "chmod": 90, "open": 2, "quotactl": 179, "getpid": 39,
    },
    "aarch64": {
        "socket": 198, "clone": 220, "ptrace": 117, "syslog": 116, "personality": 92, "pivot_root": 41,
        "chroot": 51, "mount": 40, "umount2": 39, "reboot": 142, "sethostname": 161, "init_module": 105,
        "add_key": 217, "request_key": 218, "keyctl": 219, "mbind": 235, "set_mempolicy": 237,
        "unshare": 97, "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
        "kcmp": 272, "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_load": 104, "swapon": 224,
        "acct": 89, "settimeofday": 170, "adjtimex": 171, "vhangup": 58, "quotactl": 60, "getpid": 172,
    },
}.get(platform.machine(), {})  # fmt: skip
NUMBERS |= {
    "pidfd_open": 434, "clone3": 435, "openat2": 437, "pidfd_getfd": 438, "io_uring_setup": 425,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fspick": 433, "mount_setattr": 442,
    "memfd_secret": 447, "process_mrelease": 448, "fchmodat2": 452, "process_madvise": 440,
    "quotactl_fd": 443, "nothing": 100000,
}  # fmt: skip
NEWUSER, NEWNS, NEWNET, NEWPID, NEWUTS = 0x10000000, 0x20000, 0x40000000, 0x20000000, 0x4000000


def attempt(name: str) -> Callable[[Callable[[], str | None]], Callable[[], str | None]]:
    def register(function: Callable[[], str | None]) -> Callable[[], str | None]:
        ATTEMPTS[name] = function
        return function

    return register


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """One system call; raises OSError with its errno."""
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    result = int(libc.syscall(ctypes.c_long(NUMBERS[name]), *plain))
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def simple(name: str, number: str, *arguments: int | bytes | None) -> None:
    def run() -> None:
        call(number, *arguments)

    ATTEMPTS[name] = run


def scratch_file(mode: int = 0o600) -> str:
    fd, path = tempfile.mkstemp(dir=ARGUMENTS.get("folder", "."))
    os.fchmod(fd, mode)
    os.close(fd)
    return path


def new_name() -> str:
    path = scratch_file()
    os.unlink(path)
    return path
