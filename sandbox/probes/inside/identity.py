"""Owns the attempts on identity, set-uid bits, execution and terminals.
May touch files of its own making, and a terminal of its own.
Never judges.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import pty
import resource
import signal
import struct
import subprocess
import tempfile
from pathlib import Path

from sandbox.probes.inside.base import ARGUMENTS, X86, attempt, call, libc, new_name, scratch_file


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
    if libc.prctl(38, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


@attempt("capabilities")
def _capabilities() -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    sets = {line.split()[0]: line.split()[1] for line in lines if line.startswith("Cap")}
    return "zero" if not any(int(value, 16) for value in sets.values()) else json.dumps(sets)


@attempt("identity")
def _identity() -> str:
    return f"{os.getresuid()} {os.getresgid()} {os.getgroups()}"


def _bits(path: str) -> str | None:
    try:
        return None if os.stat(path).st_mode & 0o6000 else "no bits"
    finally:
        os.unlink(path)


@attempt("set-uid chmod")
def _suid_chmod() -> str | None:
    path = scratch_file()
    try:
        os.chmod(path, 0o4755)
    except OSError:
        os.unlink(path)
        raise
    return _bits(path)


@attempt("set-gid fchmod")
def _sgid_fchmod() -> str | None:
    path = scratch_file()
    fd = os.open(path, os.O_RDWR)
    try:
        os.fchmod(fd, 0o2755)
    except OSError:
        os.unlink(path)
        raise
    return _bits(path)


@attempt("set-uid fchmodat2")
def _suid_fchmodat2() -> str | None:
    path = scratch_file()
    try:
        call("fchmodat2", -100, path.encode(), 0o4755, 0)
    except OSError:
        os.unlink(path)
        raise
    return _bits(path)


@attempt("set-uid open")
def _suid_open() -> str | None:
    path = new_name()
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755))
    return _bits(path)


@attempt("set-uid O_TMPFILE")
def _suid_tmpfile() -> None:
    os.close(os.open(ARGUMENTS.get("folder", "."), os.O_TMPFILE | os.O_WRONLY, 0o4755))


@attempt("set-uid mknod")
def _suid_mknod() -> str | None:
    path = new_name()
    os.mknod(path, 0o104755)
    return _bits(path)


@attempt("set-uid creat")
def _suid_creat() -> str | None:
    if not X86:
        raise PermissionError(errno.EPERM, "no creat here")
    path = new_name()
    call("creat", path.encode(), 0o4755)
    return _bits(path)


@attempt("set-uid openat2")
def _suid_openat2() -> str | None:
    path = new_name()
    how = ctypes.create_string_buffer(struct.pack("=3Q", os.O_CREAT | os.O_WRONLY, 0o4755, 0), 24)
    os.close(call("openat2", -100, path.encode(), how, 24))
    return _bits(path)


@attempt("set-gid folder")
def _sgid_folder() -> str | None:
    path = new_name()
    os.mkdir(path, 0o2777)
    mode = os.stat(path).st_mode
    os.rmdir(path)
    return None if mode & 0o6000 else "no bits"


@attempt("device node")
def _device() -> None:
    path = new_name()
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


def _on_terminal(request: int, value: int = 0) -> None:
    """A controlling terminal of our own, then the ioctl on it."""
    pid, master = pty.fork()
    if pid == 0:
        try:
            ctypes.set_errno(0)
            buffer = ctypes.create_string_buffer(b"x")
            result = libc.ioctl(ctypes.c_int(0), ctypes.c_ulong(request | value << 32), buffer)
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
