"""Owns running a command on a host that lacks something: python3 lacking_host.py WHAT CMD...
May touch namespaces it makes for itself, and its own limits and filters.
Never changes anything that outlives the command.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_LANDLOCK = (444, 445, 446)
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def without_cgroups() -> None:
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))
    _check(_libc.mount(b"none", b"/sys/fs/cgroup", b"tmpfs", 1, None))


def without_landlock() -> None:
    """As a kernel without it answers: ENOSYS (seccomp(2), classic BPF over struct seccomp_data)."""
    load, equal, give = 0x20, 0x15, 0x06
    allow, enosys = 0x7FFF0000, 0x00050000 | 38
    code = [(load, 0, 0, 0)]
    code += [(equal, len(_LANDLOCK) - number, 0, call) for number, call in enumerate(_LANDLOCK)]
    code += [(give, 0, 0, allow), (give, 0, 0, enosys)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    wanted = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program))
    _check(_libc.prctl(22, 2, ctypes.create_string_buffer(wanted)))


def without_user_namespaces() -> None:
    """Root of a user namespace in which no further one can be made (user_namespaces(7))."""
    _check(_libc.unshare(_CLONE_NEWUSER))
    parent = os.getpid()
    # The maps of a namespace with more than one id are written from outside it.
    maps = "".join(f"echo '0 0 65536' > /proc/{parent}/{name};" for name in ("uid_map", "gid_map"))
    read_end, write_end = _outside
    os.write(write_end, maps.encode())
    os.close(write_end)
    os.read(read_end, 1)
    with open("/proc/sys/user/max_user_namespaces", "w") as limit:
        limit.write("0")


def in_a_container() -> None:
    """What root has left in a container with default settings: no CAP_SYS_ADMIN, NET_ADMIN or PTRACE."""
    words = ["setpriv", "--bounding-set=-sys_admin,-net_admin,-sys_ptrace,-mknod", "--inh-caps=-all"]
    os.execvp(words[0], [*words, "--", *sys.argv[2:]])


def _helper() -> tuple[int, int]:
    """A process that stays outside and does what it is told once."""
    there, ours = os.pipe()
    back, done = os.pipe()
    if os.fork() == 0:
        os.close(ours)
        told = os.read(there, 4096).decode()
        if told:
            subprocess.run(["sh", "-c", told], check=True)
            os.write(done, b"x")
        os._exit(0)
    os.close(there)
    os.close(done)
    return back, ours


LACKING = {
    "nothing": lambda: None,
    "cgroups": without_cgroups,
    "landlock": without_landlock,
    "user namespaces": without_user_namespaces,
    "privilege": in_a_container,
}

if __name__ == "__main__":
    _outside = _helper()
    LACKING[sys.argv[1]]()
    os.close(_outside[0])
    if sys.argv[1] != "user namespaces":
        os.close(_outside[1])
    os.execvp(sys.argv[2], sys.argv[2:])
