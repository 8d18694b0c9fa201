"""Owns the attempts to get out: small attacks that run inside a box, and outside as their controls.
May touch whatever it is let touch; it imports the standard library only and is run as a script.
Never judges: each attempt says "ok", an errno's name, a signal's name, or what it found.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import pty
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_TIMEOUT_S = 5.0
_libc = ctypes.CDLL(None, use_errno=True)
_X86 = platform.machine() == "x86_64"
ATTEMPTS: dict[str, Callable[[], str | None]] = {}
ARGUMENTS: dict[str, str] = {}
"""What the test tells the attempts: ports, paths and tokens of its witnesses."""

_NUMBERS = {
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
_NUMBERS |= {
    "pidfd_open": 434, "clone3": 435, "openat2": 437, "pidfd_getfd": 438, "io_uring_setup": 425,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fspick": 433, "mount_setattr": 442,
    "memfd_secret": 447, "process_mrelease": 448, "fchmodat2": 452, "process_madvise": 440,
    "quotactl_fd": 443, "nothing": 100000,
}  # fmt: skip
_NEWUSER, _NEWNS, _NEWNET, _NEWPID, _NEWUTS = 0x10000000, 0x20000, 0x40000000, 0x20000000, 0x4000000


def attempt(name: str) -> Callable[[Callable[[], str | None]], Callable[[], str | None]]:
    def register(function: Callable[[], str | None]) -> Callable[[], str | None]:
        ATTEMPTS[name] = function
        return function

    return register


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """One system call; raises OSError with its errno."""
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    result = int(_libc.syscall(ctypes.c_long(_NUMBERS[name]), *plain))
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def _simple(name: str, number: str, *arguments: int | bytes | None) -> None:
    def run() -> None:
        call(number, *arguments)

    ATTEMPTS[name] = run


# ---------------------------------------------------------------- namespaces and mounts

for _kind, _flag in (
    ("user", _NEWUSER),
    ("mount", _NEWNS),
    ("net", _NEWNET),
    ("pid", _NEWPID),
    ("uts", _NEWUTS),
):
    _simple(f"unshare {_kind}", "unshare", _flag)
_simple("pivot_root", "pivot_root", b"/nowhere", b"/nowhere")
_simple("sethostname", "sethostname", b"owned", 5)
_simple("fspick", "fspick", -100, b"/", 0)
_simple("mount_setattr", "mount_setattr", -100, b"/", 0, None, 0)
_simple("open_tree", "open_tree", -100, b"/", 1)
_simple("move_mount", "move_mount", -1, b"", -1, b"", 0)
_simple("chroot", "chroot", b"/")


@attempt("mount tmpfs")
def _mount() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        call("mount", b"none", folder.encode(), b"tmpfs", 0, None)
        call("umount2", folder.encode(), 2)


@attempt("remount writable")
def _remount() -> None:
    call("mount", None, ARGUMENTS.get("remount", "/usr").encode(), None, 0x1020, None)  # MS_REMOUNT|MS_BIND


@attempt("umount proc mask")
def _umount() -> None:
    call("umount2", b"/proc/kcore", 2)


@attempt("fsopen")
def _fsopen() -> None:
    os.close(call("fsopen", b"tmpfs", 0))


@attempt("setns own uts")
def _setns() -> None:
    fd = os.open("/proc/self/ns/uts", os.O_RDONLY)
    call("setns", fd, 0)


@attempt("clone newuser")
def _clone() -> None:
    pid = call("clone", _NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt("clone3 newuser")
def _clone3() -> None:
    arguments = ctypes.create_string_buffer(struct.pack("=8Q", _NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0))
    pid = call("clone3", arguments, 64)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


# ---------------------------------------------------------------- other processes

_simple("ptrace traceme", "ptrace", 0, 0, 0, 0)


@attempt("ptrace own child")
def _ptrace_child() -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        call("ptrace", 0x4206, pid, 0, 0)
    finally:
        os.kill(pid, signal.SIGKILL)


@attempt("ptrace init")
def _ptrace_init() -> None:
    call("ptrace", 0x4206, 1, 0, 0)


@attempt("signal init")
def _signal_init() -> None:
    os.kill(1, 0)


@attempt("limit init")
def _limit_init() -> None:
    resource.prlimit(1, resource.RLIMIT_NOFILE, resource.prlimit(1, resource.RLIMIT_NOFILE))


@attempt("process_vm_readv self")
def _vm_read() -> None:
    source, target = ctypes.create_string_buffer(b"x" * 8, 8), ctypes.create_string_buffer(8)
    local = ctypes.create_string_buffer(struct.pack("=QQ", ctypes.addressof(target), 8))
    remote = ctypes.create_string_buffer(struct.pack("=QQ", ctypes.addressof(source), 8))
    call("process_vm_readv", os.getpid(), local, 1, remote, 1, 0)


@attempt("pidfd_getfd self")
def _getfd() -> None:
    call("pidfd_getfd", call("pidfd_open", os.getpid(), 0), 0, 0)


@attempt("kcmp self")
def _kcmp() -> None:
    call("kcmp", os.getpid(), os.getpid(), 0, 0, 1)


@attempt("process_mrelease")
def _mrelease() -> None:
    call("process_mrelease", -1, 0)


@attempt("process_madvise")
def _madvise() -> None:
    vector = ctypes.create_string_buffer(struct.pack("=QQ", 0, 0))
    call("process_madvise", call("pidfd_open", os.getpid(), 0), vector, 0, 20, 0)


# ---------------------------------------------------------------- kernel surface

_simple("add_key", "add_key", b"user", b"name", b"payload", 7, -3)
_simple("request_key", "request_key", b"user", b"no-such-key", None, 0)
_simple("keyctl", "keyctl", 0, -3, 1)
_simple("io_uring_setup twice wrong", "io_uring_setup", 0, None)
_simple("personality no randomisation", "personality", 0x40000)
_simple("personality query", "personality", 0xFFFFFFFF)
_simple("fanotify_init", "fanotify_init", 0x200, 0)
_simple("syslog size", "syslog", 10, None, 0)
_simple("unknown call", "nothing")
_simple("swapon", "swapon", b"/nowhere", 0)
_simple("acct", "acct", b"/nowhere")
_simple("reboot", "reboot", 0, 0, 0, None)
_simple("kexec_load", "kexec_load", 0, 0, None, 0xFFFF)
_simple("init_module", "init_module", None, 0, b"")
_simple("set_mempolicy", "set_mempolicy", 0, None, 0)
_simple("modify_ldt", "modify_ldt", 0, None, 0)


@attempt("io_uring_setup")
def _io_uring() -> None:
    os.close(call("io_uring_setup", 1, ctypes.create_string_buffer(120)))


@attempt("bpf map")
def _bpf() -> None:
    os.close(call("bpf", 0, ctypes.create_string_buffer(struct.pack("=5I", 2, 4, 4, 1, 0), 72), 72))


@attempt("perf_event_open")
def _perf() -> None:
    attributes = bytearray(128)
    struct.pack_into("=IIQ", attributes, 0, 1, 128, 0)
    struct.pack_into("=Q", attributes, 40, 1 << 0 | 1 << 5 | 1 << 6)  # disabled, no kernel, no hypervisor
    os.close(call("perf_event_open", ctypes.create_string_buffer(bytes(attributes), 128), 0, -1, -1, 0))


@attempt("userfaultfd user mode")
def _uffd() -> None:
    os.close(call("userfaultfd", 1))


@attempt("memfd_secret")
def _memfd_secret() -> None:
    os.close(call("memfd_secret", 0))


@attempt("name_to_handle_at")
def _handle() -> None:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 136)
    mount = ctypes.create_string_buffer(4)
    call("name_to_handle_at", -100, b"/usr", handle, mount, 0)


@attempt("open_by_handle_at")
def _by_handle() -> None:
    handle = ctypes.create_string_buffer(struct.pack("=IiQ", 8, 1, 2), 16)
    root = os.open("/", os.O_RDONLY)
    call("open_by_handle_at", root, handle, os.O_RDONLY)


@attempt("int 0x80 getpid")
def _int80() -> str | None:
    if not _X86:
        os.kill(os.getpid(), signal.SIGSYS)  # there is no such door on this machine
    code = b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3"  # push rbx; mov eax, 20; int 0x80; pop rbx; ret
    return _execute_code(code)


@attempt("x32 getpid")
def _x32() -> str | None:
    if not _X86:
        os.kill(os.getpid(), signal.SIGSYS)
    call_number = 0x40000000 | 39
    result = _libc.syscall(ctypes.c_long(call_number))
    if result == -1:
        raise OSError(ctypes.get_errno(), "x32")
    return None


def _execute_code(code: bytes) -> str | None:
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    result = ctypes.CFUNCTYPE(ctypes.c_long)(address)()
    return None if result == os.getpid() else f"returned {result}"


# ---------------------------------------------------------------- identity, set-uid bits, execution


@attempt("setuid 0")
def _setuid() -> None:
    os.setuid(0)


@attempt("setresuid other")
def _setresuid() -> None:
    os.setresuid(65534, 65534, 65534)


@attempt("setgid 0")
def _setgid() -> None:
    os.setgid(0)


@attempt("setgroups")
def _setgroups() -> None:
    os.setgroups([0])


@attempt("no_new_privs off")
def _nnp() -> None:
    if _libc.prctl(38, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


@attempt("capabilities")
def _capabilities() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    sets = {line.split()[0]: line.split()[1] for line in lines if line.startswith("Cap")}
    return "zero" if not any(int(value, 16) for value in sets.values()) else json.dumps(sets)


@attempt("identity")
def _identity() -> str:
    return f"{os.getresuid()} {os.getresgid()} {os.getgroups()}"


def _scratch_file(mode: int = 0o600) -> str:
    fd, path = tempfile.mkstemp(dir=ARGUMENTS.get("folder", "."))
    os.fchmod(fd, mode)
    os.close(fd)
    return path


def _bits(path: str) -> str | None:
    try:
        return None if os.stat(path).st_mode & 0o6000 else "no bits"
    finally:
        os.unlink(path)


@attempt("set-uid chmod")
def _suid_chmod() -> str | None:
    path = _scratch_file()
    try:
        os.chmod(path, 0o4755)
    except OSError:
        os.unlink(path)
        raise
    return _bits(path)


@attempt("set-gid fchmod")
def _sgid_fchmod() -> str | None:
    path = _scratch_file()
    fd = os.open(path, os.O_RDWR)
    try:
        os.fchmod(fd, 0o2755)
    except OSError:
        os.unlink(path)
        raise
    return _bits(path)


@attempt("set-uid fchmodat2")
def _suid_fchmodat2() -> str | None:
    path = _scratch_file()
    try:
        call("fchmodat2", -100, path.encode(), 0o4755, 0)
    except OSError:
        os.unlink(path)
        raise
    return _bits(path)


def _new_name() -> str:
    path = _scratch_file()
    os.unlink(path)
    return path


@attempt("set-uid open")
def _suid_open() -> str | None:
    path = _new_name()
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755))
    return _bits(path)


@attempt("set-uid O_TMPFILE")
def _suid_tmpfile() -> None:
    os.close(os.open(ARGUMENTS.get("folder", "."), os.O_TMPFILE | os.O_WRONLY, 0o4755))


@attempt("set-uid mknod")
def _suid_mknod() -> str | None:
    path = _new_name()
    os.mknod(path, 0o104755)
    return _bits(path)


@attempt("set-uid creat")
def _suid_creat() -> str | None:
    if not _X86:
        raise PermissionError(errno.EPERM, "no creat here")
    path = _new_name()
    call("creat", path.encode(), 0o4755)
    return _bits(path)


@attempt("set-uid openat2")
def _suid_openat2() -> str | None:
    path = _new_name()
    how = ctypes.create_string_buffer(struct.pack("=3Q", os.O_CREAT | os.O_WRONLY, 0o4755, 0), 24)
    os.close(call("openat2", -100, path.encode(), how, 24))
    return _bits(path)


@attempt("set-gid folder")
def _sgid_folder() -> str | None:
    path = _new_name()
    os.mkdir(path, 0o2777)
    mode = os.stat(path).st_mode
    os.rmdir(path)
    return None if mode & 0o6000 else "no bits"


@attempt("device node")
def _device() -> None:
    path = _new_name()
    os.mknod(path, 0o020666, os.makedev(1, 3))
    os.unlink(path)


def _run_copy(folder: str, *before: str) -> None:
    path = os.path.join(folder, f"true{os.getpid()}")
    with open("/usr/bin/true", "rb") as source, open(path, "wb") as target:
        target.write(source.read())
    try:
        os.chmod(path, 0o755)
        done = subprocess.run([*before, path], capture_output=True, check=False)
        if done.returncode:
            raise PermissionError(errno.EACCES, done.stderr.decode())
    finally:
        os.unlink(path)


@attempt("exec in /tmp")
def _exec_tmp() -> None:
    _run_copy("/tmp")


@attempt("exec in /dev/shm")
def _exec_shm() -> None:
    _run_copy("/dev/shm")


@attempt("exec in home")
def _exec_home() -> None:
    _run_copy(os.environ["HOME"])


@attempt("exec in /var/tmp")
def _exec_var_tmp() -> None:
    _run_copy("/var/tmp")


@attempt("loader in /tmp")
def _exec_loader() -> None:
    _run_copy("/tmp", f"/lib64/ld-linux-{platform.machine().replace('_', '-')}.so.2")


@attempt("exec in worktree")
def _exec_worktree() -> None:
    _run_copy(".")


@attempt("memfd exec")
def _exec_memfd() -> None:
    fd = os.memfd_create("x", 0)
    with open("/usr/bin/true", "rb") as source:
        os.write(fd, source.read())
    pid = os.fork()
    if pid == 0:
        try:
            os.execve(fd, ["true"], {})
        except OSError as error:
            os._exit(error.errno or 255)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, "memfd")


@attempt("memfd with exec flag")
def _memfd_flag() -> None:
    os.close(os.memfd_create("x", 0x10))


@attempt("raise core limit")
def _core_limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))


@attempt("core of a crash")
def _core() -> str:
    folder = tempfile.mkdtemp(dir=ARGUMENTS.get("folder", "."))
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        if ARGUMENTS.get("core"):
            resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
        os.kill(os.getpid(), signal.SIGSEGV)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    left = os.listdir(folder)
    for name in left:
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    return "core" if os.WCOREDUMP(status) else "no core"


# ---------------------------------------------------------------- terminals


def _on_terminal(request: int, value: int = 0) -> None:
    """A controlling terminal of our own, then the ioctl on it."""
    pid, master = pty.fork()
    if pid == 0:
        try:
            ctypes.set_errno(0)
            buffer = ctypes.create_string_buffer(b"x")
            result = _libc.ioctl(ctypes.c_int(0), ctypes.c_ulong(request | value << 32), buffer)
            os._exit(ctypes.get_errno() if result else 0)
        except BaseException:
            os._exit(255)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(master)
    if code:
        raise OSError(code, "ioctl")


@attempt("TIOCSTI")
def _tiocsti() -> None:
    _on_terminal(0x5412)


@attempt("TIOCSTI high bits")
def _tiocsti_high() -> None:
    _on_terminal(0x5412, 1)


@attempt("TIOCLINUX")
def _tioclinux() -> None:
    _on_terminal(0x541C)


@attempt("open /dev/tty")
def _tty() -> None:
    os.close(os.open("/dev/tty", os.O_RDWR))


# ---------------------------------------------------------------- network


def _socket(family: int, kind: int, protocol: int = 0) -> Callable[[], None]:
    def run() -> None:
        os.close(call("socket", family, kind, protocol))

    return run


for _name, _arguments in {
    "vsock": (40, 1, 0),
    "alg": (38, 5, 0),
    "packet": (17, 3, 0),
    "xdp": (44, 3, 0),
    "raw icmp": (2, 3, 1),
    "mptcp": (2, 1, 262),
    "netlink route": (16, 3, 0),
    "netlink audit": (16, 3, 9),
    "netlink uevent": (16, 3, 15),
    "netlink sock_diag": (16, 3, 4),
    "netlink netfilter": (16, 3, 12),
    "netlink generic": (16, 3, 16),
    "bluetooth": (31, 5, 0),
    "key": (15, 3, 2),
    "tipc": (30, 2, 0),
}.items():
    ATTEMPTS[f"socket {_name}"] = _socket(*_arguments)


def _connect(family: int, kind: int, address: object) -> None:
    """Without waiting: a connect under way means that the kernel found a route."""
    with socket.socket(family, kind) as one:
        one.setblocking(False)
        try:
            one.connect(address)  # type: ignore[arg-type]
        except BlockingIOError:
            select.select([], [one], [], 0.2)
            number = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if number:
                raise OSError(number, "connect") from None


def _elsewhere(name: str, family: int, kind: int, address: tuple[str, int]) -> None:
    def run() -> None:
        _connect(family, kind, address)

    ATTEMPTS[name] = run


for _name, _family, _address in (
    ("public v4", socket.AF_INET, "192.0.2.7"),
    ("metadata v4", socket.AF_INET, "169.254.169.254"),
    ("private v4", socket.AF_INET, "10.0.0.1"),
    ("public v6", socket.AF_INET6, "2001:db8::7"),
    ("metadata v6", socket.AF_INET6, "fd00:ec2::254"),
):
    _elsewhere(f"tcp {_name}", _family, socket.SOCK_STREAM, (_address, 80))
    _elsewhere(f"udp {_name}", _family, socket.SOCK_DGRAM, (_address, 53))


@attempt("tcp fast open")
def _fast_open() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setblocking(False)
        try:
            one.sendto(b"x", socket.MSG_FASTOPEN, ("192.0.2.7", 80))
        except BlockingIOError:
            return


@attempt("witness tcp v4")
def _witness4() -> None:
    _connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(ARGUMENTS["tcp4"])))


@attempt("witness tcp v6")
def _witness6() -> None:
    _connect(socket.AF_INET6, socket.SOCK_STREAM, ("::1", int(ARGUMENTS["tcp6"])))


@attempt("witness udp")
def _witness_udp() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("127.0.0.1", int(ARGUMENTS["udp4"])))
        one.send(b"hello")
        one.settimeout(0.2)
        one.recv(10)


@attempt("witness abstract")
def _witness_abstract() -> None:
    _connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + ARGUMENTS["abstract"])


@attempt("witness path")
def _witness_path() -> None:
    _connect(socket.AF_UNIX, socket.SOCK_STREAM, ARGUMENTS["path"])


@attempt("witness in worktree")
def _witness_worktree() -> None:
    _connect(socket.AF_UNIX, socket.SOCK_STREAM, "host.sock")


@attempt("loopback down")
def _lo_down() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, 0x8914, struct.pack("16sH14x", b"lo", 0))


@attempt("interfaces")
def _interfaces() -> str:
    return " ".join(name for _, name in socket.if_nameindex())


@attempt("own server")
def _own_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        _connect(socket.AF_INET, socket.SOCK_STREAM, server.getsockname())


# ---------------------------------------------------------------- procfs, files, secrets


def _open(name: str, path: str, flags: int) -> None:
    def run() -> str | None:
        fd = os.open(path, flags)
        try:
            if flags == os.O_RDONLY and not os.path.isdir(f"/proc/self/fd/{fd}"):
                return None if os.read(fd, 1) else "empty"
            return None
        finally:
            os.close(fd)

    ATTEMPTS[name] = run


for _name in ("environ", "maps", "mem", "cmdline", "status"):
    _open(f"read /proc/1/{_name}", f"/proc/1/{_name}", os.O_RDONLY)
for _name in ("root", "cwd", "fd", "ns"):
    _open(f"read /proc/1/{_name}", f"/proc/1/{_name}", os.O_RDONLY | os.O_DIRECTORY)
for _path in (
    "/etc/shadow",
    "/root",
    "/home",
    "/sys",
    "/run/docker.sock",
    "/dev/kmsg",
    "/dev/mem",
    "/dev/kvm",
    "/dev/vda",
    "/dev/fuse",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kallsyms",
    "/proc/timer_list",
    "/proc/self/root/etc/shadow",
    "/../../etc/shadow",
):
    _open(f"read {_path}", _path, os.O_RDONLY)
for _path in (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/memfd_noexec",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sysrq-trigger",
    "/proc/self/oom_score_adj",
    "/proc/self/uid_map",
):
    _open(f"write {_path}", _path, os.O_WRONLY)


def _create(path: str) -> None:
    def run() -> None:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        os.unlink(path)

    ATTEMPTS[f"create {path}"] = run


for _path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/var/x", "/run/x", "/proc/x", "/tmp/x", "/dev/shm/x"):
    _create(_path)


@attempt("create beside the worktree")
def _beside() -> None:
    os.close(os.open("../planted", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


@attempt("read beside the worktree")
def _read_beside() -> None:
    Path("../beside.txt").read_text()


@attempt("processes seen")
def _processes() -> str:
    token = ARGUMENTS["process"].encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and int(name) != os.getppid():
            try:
                if token in Path(f"/proc/{name}/cmdline").read_bytes():
                    return "host process seen"
            except OSError:
                continue
    return "own only"


@attempt("secrets in environments")
def _environments() -> str:
    token = ARGUMENTS["secret"][::-1].encode()
    for name in os.listdir("/proc"):
        if name.isdigit() or name in ("self", "thread-self"):
            for file in ("environ", "cmdline"):
                try:
                    if token in Path(f"/proc/{name}/{file}").read_bytes():
                        return f"found in {file}"
                except OSError:
                    continue
    return "absent"


@attempt("environment")
def _environment() -> str:
    return " ".join(sorted(os.environ))


@attempt("kill by host pid")
def _kill_host() -> None:
    os.kill(int(ARGUMENTS["pid"]), 0)


# ---------------------------------------------------------------- running them


def run_one(name: str) -> str:
    """In a child of its own, so that a signal or a hang is an answer too."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            answer = ATTEMPTS[name]() or "ok"
        except OSError as error:
            answer = errno.errorcode.get(error.errno or 0, str(error))
        except BaseException as error:
            answer = repr(error)
        os.write(write_end, answer.encode()[:4000])
        os._exit(0)
    os.close(write_end)
    ready, _, _ = select.select([read_end], [], [], _TIMEOUT_S)
    answer = os.read(read_end, 4096).decode() if ready else "timeout"
    os.close(read_end)
    for target in (-pid, pid):
        try:
            os.kill(target, signal.SIGKILL)
        except OSError:
            continue
    _, status = os.waitpid(pid, 0)
    if not answer and os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return answer


def main() -> None:
    """Arguments: JSON of the witnesses, then the names of the attempts. Prints JSON."""
    ARGUMENTS.update(json.loads(sys.argv[1]))
    names = json.loads(sys.argv[2])
    print(json.dumps({name: run_one(name) for name in names}))


if __name__ == "__main__":
    main()
