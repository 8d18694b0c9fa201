"""Owns every call into the C library that Python's standard library does not offer.
May touch ctypes, and nothing else may: a test reads the imports of all modules and holds this.
Never decides anything: a wrapper sets its types, makes one call and raises OSError naming its argument.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time

# PyDLL keeps the interpreter lock during the call: a clone3 child must own it when it returns.
_libc = ctypes.PyDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

# From include/uapi/asm-generic/unistd.h: the same number on every architecture since 5.1.
_NR_OPEN_TREE = 428
_NR_MOVE_MOUNT = 429
_NR_FSOPEN = 430
_NR_FSCONFIG = 431
_NR_FSMOUNT = 432
_NR_CLONE3 = 435
_NR_CLOSE_RANGE = 436
_NR_OPENAT2 = 437
_NR_MOUNT_SETATTR = 442
_NR_LANDLOCK_CREATE_RULESET = 444
_NR_LANDLOCK_ADD_RULE = 445
_NR_LANDLOCK_RESTRICT_SELF = 446
# These two differ: arch/x86/entry/syscalls/syscall_64.tbl and asm-generic (arm64).
_MACHINE = os.uname().machine
_NR_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(_MACHINE, -1)
_NR_RT_SIGACTION = {"x86_64": 13, "aarch64": 134}.get(_MACHINE, -1)
_NR_STATX = {"x86_64": 332, "aarch64": 291}.get(_MACHINE, -1)

# include/uapi/linux/sched.h
CLONE_NEWTIME = 0x00000080
_CLONE_VM = 0x00000100
CLONE_PIDFD = 0x00001000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_INTO_CGROUP = 0x200000000

# include/uapi/linux/mount.h, include/uapi/linux/fcntl.h
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x00000004
MOVE_MOUNT_T_EMPTY_PATH = 0x00000040
MOUNT_ATTR_RDONLY = 0x00000001
MOUNT_ATTR_NOSUID = 0x00000002
MOUNT_ATTR_NODEV = 0x00000004
MOUNT_ATTR_NOEXEC = 0x00000008
MOUNT_ATTR_IDMAP = 0x00100000
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6

# include/uapi/asm-generic/mman-common.h
_MADV_POPULATE_WRITE = 23

# include/uapi/linux/openat2.h
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

# include/uapi/linux/stat.h: struct statx begins with the mask, the birth time is at byte 80.
_STATX_BTIME = 0x00000800
_STATX_BYTES = 256
_STATX_BTIME_AT = 80

# include/uapi/linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_LINUX_CAPABILITY_VERSION_3 = 0x20080522

# include/uapi/linux/ptrace.h
_PTRACE_DETACH = 17
_PTRACE_SEIZE = 0x4206
_PTRACE_INTERRUPT = 0x4207
_PTRACE_SECCOMP_GET_FILTER = 0x420C
_WALL = 0x40000000
_STOP_PATIENCE_S = 0.25
_STOP_AT_ONCE_S = 0.0002  # it sleeps in a call, and stops in less than a pause of ours would take

_SLEEPER_STACK = 16384

_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _call(what: str, number: int, *arguments: object) -> int:
    if number < 0:
        raise OSError(errno.ENOSYS, f"no number known for this machine ({_MACHINE})", what)
    return _check(_syscall(ctypes.c_long(number), *arguments), what)


def _path(value: str) -> ctypes.c_char_p:
    return ctypes.c_char_p(os.fsencode(value))


# ---------------------------------------------------------------- processes


def clone3(flags: int, cgroup_fd: int = -1) -> tuple[int, int]:
    """Fork into new namespaces: (pid, pidfd) in the parent, (0, -1) in the child.

    Only for a process with one thread. Source: clone3(2), struct clone_args version 2.
    """
    pidfd = ctypes.c_int(-1)
    exit_signal = 17  # SIGCHLD
    if cgroup_fd >= 0:
        flags |= CLONE_INTO_CGROUP
    arguments = struct.pack(
        "=11Q",
        flags | CLONE_PIDFD,
        ctypes.addressof(pidfd),
        0,
        0,
        exit_signal,
        0,
        0,
        0,
        0,
        0,
        max(cgroup_fd, 0),
    )
    buffer = ctypes.create_string_buffer(arguments, len(arguments))
    api = ctypes.pythonapi
    api.PyOS_BeforeFork()
    pid = _syscall(ctypes.c_long(_NR_CLONE3), buffer, ctypes.c_size_t(len(arguments)))
    number = ctypes.get_errno()
    if pid == 0:
        api.PyOS_AfterFork_Child()
        return 0, -1
    api.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, os.strerror(number), "clone3")
    return pid, pidfd.value


class Sleeper:
    """A process in a new user namespace that only sleeps, in our memory and on a stack of its own.

    A fork would copy our page tables, and have us copy every page that we write to afterwards.
    """

    def __init__(self) -> None:
        self._stack = ctypes.create_string_buffer(_SLEEPER_STACK)
        top = (ctypes.addressof(self._stack) + _SLEEPER_STACK) & ~15
        pause = ctypes.cast(_libc.pause, ctypes.c_void_p)
        flags = _CLONE_VM | CLONE_NEWUSER | 17  # SIGCHLD
        self.pid = _check(_libc.clone(pause, ctypes.c_void_p(top), ctypes.c_int(flags), None), "clone")

    def end(self) -> None:
        """The stack may go only after it: it is a child of ours, so its number is not used again."""
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def sethostname(name: str) -> None:
    raw = os.fsencode(name)
    _check(_libc.sethostname(ctypes.c_char_p(raw), ctypes.c_size_t(len(raw))), "sethostname")


def close_from(first: int, keep: tuple[int, ...] = ()) -> None:
    """Close every descriptor >= first except those kept."""
    start = first
    for fd in sorted(fd for fd in keep if fd >= first):
        if fd > start:
            _call("close_range", _NR_CLOSE_RANGE, ctypes.c_uint(start), ctypes.c_uint(fd - 1), 0)
        start = fd + 1
    _call("close_range", _NR_CLOSE_RANGE, ctypes.c_uint(start), ctypes.c_uint(0xFFFFFFFF), 0)


def own_memory() -> None:
    """Copy now what is still shared with the process we were forked from, or have forked.

    Else each page is copied when it is first written to, which a counted reference is enough for: some
    microseconds each, hundreds of times, while somebody waits (madvise(2), since 5.14).
    """
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        lines = maps.read().splitlines()
    for line in lines:
        span, kind = line.split(" ", 2)[:2]
        if kind == "rw-p":
            begin, end = (int(word, 16) for word in span.split("-"))
            _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_POPULATE_WRITE)


# ---------------------------------------------------------------- prctl


def _prctl(what: str, option: int, *values: object) -> None:
    padded = list(values) + [0] * (4 - len(values))
    arguments = [v if not isinstance(v, int) else ctypes.c_ulong(v) for v in padded]
    _check(_libc.prctl(ctypes.c_int(option), *arguments), what)


def set_parent_death_signal(number: int) -> None:
    """Cleared by the kernel whenever the uid changes: set it again after that (prctl(2))."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, number)


def set_dumpable(value: bool) -> None:
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, int(value))


def reset_signals() -> None:
    """Every signal back to its default: what is ignored would stay so over an exec (signal(7)).

    Not by the C library, which does not let 32 and 33 be named, and whose posix_spawn leaves exactly
    these two ignored in whatever it starts.
    """
    default = ctypes.create_string_buffer(32)  # struct kernel_sigaction, all zero: SIG_DFL
    for number in range(1, 65):
        if number not in (9, 19):
            _call(
                f"signal {number}", _NR_RT_SIGACTION, ctypes.c_int(number), default, None, ctypes.c_size_t(8)
            )


def set_process_name(name: str) -> None:
    """At most 15 bytes are kept."""
    _prctl("PR_SET_NAME", _PR_SET_NAME, ctypes.c_char_p(name.encode()))


def set_no_new_privs() -> None:
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def drop_bounding_capability(number: int) -> bool:
    """False when the kernel has no capability of that number."""
    if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) == 0:
        return True
    if ctypes.get_errno() == errno.EINVAL:
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "PR_CAPBSET_DROP")


def clear_capabilities() -> None:
    """Empty the ambient, effective, permitted and inheritable sets of this thread (capset(2))."""
    _prctl("PR_CAP_AMBIENT", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = ctypes.create_string_buffer(struct.pack("=Ii", _LINUX_CAPABILITY_VERSION_3, 0), 8)
    data = ctypes.create_string_buffer(24)
    _check(_libc.capset(header, data), "capset")


def install_seccomp(program: bytes) -> None:
    """Load a classic BPF program of struct sock_filter entries (8 bytes each)."""
    instructions = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(instructions)), 16
    )
    _prctl("PR_SET_SECCOMP", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header)


# ---------------------------------------------------------------- mounts


def open_tree(directory: int, path: str, flags: int) -> int:
    return _call(
        path or f"fd {directory}", _NR_OPEN_TREE, ctypes.c_int(directory), _path(path), ctypes.c_uint(flags)
    )


def move_mount(mount: int, directory: int, path: str) -> None:
    """Attach a detached mount at path below directory; the last component may not be a symlink."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | (0 if path else MOVE_MOUNT_T_EMPTY_PATH)
    _call(
        path or f"fd {directory}",
        _NR_MOVE_MOUNT,
        ctypes.c_int(mount),
        _path(""),
        ctypes.c_int(directory),
        _path(path),
        ctypes.c_uint(flags),
    )


def mount_setattr(
    directory: int,
    path: str,
    *,
    set_bits: int = 0,
    clear_bits: int = 0,
    propagation: int = 0,
    user_namespace: int = 0,
    recursive: bool = False,
) -> None:
    attributes = ctypes.create_string_buffer(
        struct.pack("=4Q", set_bits, clear_bits, propagation, user_namespace), 32
    )
    flags = (0 if path else AT_EMPTY_PATH) | (AT_RECURSIVE if recursive else 0)
    _call(
        path or f"fd {directory}",
        _NR_MOUNT_SETATTR,
        ctypes.c_int(directory),
        _path(path),
        ctypes.c_uint(flags),
        attributes,
        ctypes.c_size_t(32),
    )


def new_mount(kind: str, options: dict[str, str | None], attributes: int) -> int:
    """A detached mount of a new file system: fsopen(2), fsconfig(2), fsmount(2).

    An option with the value None is a flag. Raises OSError with the kernel's own message where it gave one.
    """
    context = _call(kind, _NR_FSOPEN, _path(kind), ctypes.c_uint(1))
    try:
        for key, value in options.items():
            command = _FSCONFIG_SET_FLAG if value is None else _FSCONFIG_SET_STRING
            text = None if value is None else _path(value)
            _fsconfig(context, f"{kind} {key}={value}", command, _path(key), text)
        _fsconfig(context, kind, _FSCONFIG_CMD_CREATE, None, None)
        return _call(kind, _NR_FSMOUNT, ctypes.c_int(context), ctypes.c_uint(1), ctypes.c_uint(attributes))
    finally:
        os.close(context)


def _fsconfig(
    context: int, what: str, command: int, key: ctypes.c_char_p | None, text: ctypes.c_char_p | None
) -> None:
    try:
        _call(what, _NR_FSCONFIG, ctypes.c_int(context), ctypes.c_uint(command), key, text, ctypes.c_int(0))
    except OSError as error:
        try:
            message = os.read(context, 512).decode(errors="replace").strip()
        except OSError:
            message = ""
        if message:
            raise OSError(error.errno, f"{error.strerror} ({message})", what) from None
        raise


def pivot_root(new_root: str, put_old: str) -> None:
    _call("pivot_root", _NR_PIVOT_ROOT, _path(new_root), _path(put_old))


def umount(path: str, flags: int = 0) -> None:
    _check(_libc.umount2(_path(path), ctypes.c_int(flags)), path)


def openat2(directory: int, path: str, flags: int, resolve: int, mode: int = 0) -> int:
    """open with rules for every component on the way (openat2(2), since 5.6)."""
    how = struct.pack("=3Q", flags | os.O_CLOEXEC, mode, resolve)
    buffer = ctypes.create_string_buffer(how, len(how))
    return _call(path, _NR_OPENAT2, ctypes.c_int(directory), _path(path), buffer, ctypes.c_size_t(len(how)))


def birth_time_ns(fd: int) -> int:
    """When an open file was made (statx(2), since 4.11); 0 where its file system does not say."""
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    arguments = (ctypes.c_int(fd), _path(""), ctypes.c_int(AT_EMPTY_PATH), ctypes.c_uint(_STATX_BTIME))
    _call("statx", _NR_STATX, *arguments, buffer)
    (mask,) = struct.unpack_from("=I", buffer)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _STATX_BTIME_AT)
    return int(seconds * 10**9 + nanoseconds) if mask & _STATX_BTIME else 0


# ---------------------------------------------------------------- Landlock


def landlock_abi() -> int:
    """The kernel's Landlock version, 0 where it is absent or switched off."""
    result = int(
        _syscall(
            ctypes.c_long(_NR_LANDLOCK_CREATE_RULESET),
            None,
            ctypes.c_size_t(0),
            ctypes.c_uint(_LANDLOCK_CREATE_RULESET_VERSION),
        )
    )
    return max(result, 0)


def landlock_create_ruleset(handled_files: int, handled_network: int, scoped: int, abi: int) -> int:
    """struct landlock_ruleset_attr grew: 8 bytes (ABI 1), 16 (ABI 4), 24 (ABI 6)."""
    raw = struct.pack("=3Q", handled_files, handled_network, scoped)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    buffer = ctypes.create_string_buffer(raw, len(raw))
    return _call(
        "landlock_create_ruleset",
        _NR_LANDLOCK_CREATE_RULESET,
        buffer,
        ctypes.c_size_t(size),
        ctypes.c_uint(0),
    )


def landlock_add_path(ruleset: int, access: int, directory: int) -> None:
    raw = struct.pack("=Qi", access, directory)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    _call(
        f"landlock_add_rule fd {directory}",
        _NR_LANDLOCK_ADD_RULE,
        ctypes.c_int(ruleset),
        ctypes.c_int(_LANDLOCK_RULE_PATH_BENEATH),
        buffer,
        ctypes.c_uint(0),
    )


def landlock_restrict_self(ruleset: int) -> None:
    _call("landlock_restrict_self", _NR_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))


# ---------------------------------------------------------------- reading a filter back


def _wait_stopped(pid: int) -> None:
    """Bounded: a process in vfork does not stop, and whoever attests has other boxes to look after.

    One that does not stop cannot be let go either, and as its tracer we would keep its whole pid
    namespace from ending: it is killed and collected.
    """
    begun = time.monotonic()
    while os.waitpid(pid, _WALL | os.WNOHANG)[0] == 0:
        waited = time.monotonic() - begun
        if waited > _STOP_PATIENCE_S:
            os.kill(pid, 9)  # not a bare pid: a traced process keeps its number until we collect it
            os.waitpid(pid, _WALL)
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), f"process {pid} does not stop")
        if waited > _STOP_AT_ONCE_S:
            time.sleep(0.0001)


def read_seccomp_filters(pid: int) -> list[bytes]:
    """The seccomp programs of a process, newest first, as the kernel holds them.

    Needs CAP_SYS_ADMIN and CONFIG_CHECKPOINT_RESTORE (ptrace(2)). The process is stopped meanwhile.
    """
    libc = _libc
    libc.ptrace.restype = ctypes.c_long
    _check(libc.ptrace(_PTRACE_SEIZE, pid, None, None), f"ptrace {pid}")
    try:
        _check(libc.ptrace(_PTRACE_INTERRUPT, pid, None, None), f"ptrace {pid}")
        _wait_stopped(pid)
        filters = []
        for index in range(32):
            count = libc.ptrace(_PTRACE_SECCOMP_GET_FILTER, pid, ctypes.c_void_p(index), None)
            if count < 0:
                if ctypes.get_errno() == errno.ENOENT:
                    break
                _check(count, f"seccomp filter of {pid}")
            buffer = ctypes.create_string_buffer(count * 8)
            _check(
                libc.ptrace(_PTRACE_SECCOMP_GET_FILTER, pid, ctypes.c_void_p(index), buffer),
                f"seccomp filter of {pid}",
            )
            filters.append(buffer.raw)
        return filters
    finally:
        libc.ptrace(_PTRACE_DETACH, pid, None, None)
