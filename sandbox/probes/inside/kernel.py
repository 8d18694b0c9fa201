"""Owns the attempts on namespaces, mounts, other processes and the surface of the kernel.
May touch whatever the kernel lets it, with arguments that change nothing where they are let through.
Never judges.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import struct
import tempfile

from sandbox.probes.inside.base import (
    ARGUMENTS,
    NEWNET,
    NEWNS,
    NEWPID,
    NEWUSER,
    NEWUTS,
    X86,
    attempt,
    call,
    libc,
    simple,
)

for _kind, _flag in (
    ("user", NEWUSER),
    ("mount", NEWNS),
    ("net", NEWNET),
    ("pid", NEWPID),
    ("uts", NEWUTS),
):
    simple(f"unshare {_kind}", "unshare", _flag)
simple("pivot_root", "pivot_root", b"/nowhere", b"/nowhere")
simple("sethostname", "sethostname", b"owned", 5)
simple("fspick", "fspick", -100, b"/", 0)
simple("mount_setattr", "mount_setattr", -100, b"/", 0, None, 0)
simple("open_tree", "open_tree", -100, b"/", 1)
simple("move_mount", "move_mount", -1, b"", -1, b"", 0)
simple("chroot", "chroot", b"/")


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
    pid = call("clone", NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@attempt("clone3 newuser")
def _clone3() -> None:
    arguments = ctypes.create_string_buffer(struct.pack("=8Q", NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0))
    pid = call("clone3", arguments, 64)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


simple("ptrace traceme", "ptrace", 0, 0, 0, 0)


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


simple("add_key", "add_key", b"user", b"name", b"payload", 7, -3)
simple("request_key", "request_key", b"user", b"no-such-key", None, 0)
simple("keyctl", "keyctl", 0, -3, 1)
simple("io_uring_setup twice wrong", "io_uring_setup", 0, None)
simple("personality no randomisation", "personality", 0x40000)
simple("personality query", "personality", 0xFFFFFFFF)
simple("fanotify_init", "fanotify_init", 0x200, 0)
simple("syslog size", "syslog", 10, None, 0)
simple("unknown call", "nothing")
simple("swapon", "swapon", b"/nowhere", 0)
simple("acct", "acct", b"/nowhere")
simple("reboot", "reboot", 0, 0, 0, None)
simple("kexec_load", "kexec_load", 0, 0, None, 0xFFFF)
simple("init_module", "init_module", None, 0, b"")
simple("set_mempolicy", "set_mempolicy", 0, None, 0)
simple("modify_ldt", "modify_ldt", 0, None, 0)


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
    if not X86:
        os.kill(os.getpid(), signal.SIGSYS)  # there is no such door on this machine
    code = b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3"  # push rbx; mov eax, 20; int 0x80; pop rbx; ret
    return _execute_code(code)


@attempt("x32 getpid")
def _x32() -> str | None:
    if not X86:
        os.kill(os.getpid(), signal.SIGSYS)
    call_number = 0x40000000 | 39
    result = libc.syscall(ctypes.c_long(call_number))
    if result == -1:
        raise OSError(ctypes.get_errno(), "x32")
    return None


def _execute_code(code: bytes) -> str | None:
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    result = ctypes.CFUNCTYPE(ctypes.c_long)(address)()
    return None if result == os.getpid() else f"returned {result}"
