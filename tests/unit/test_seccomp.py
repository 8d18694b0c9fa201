"""Owns what the one filter of every box answers, call by call, for the machine the tests run on.
May touch libseccomp for the numbers of calls, as the compiler does.
Never lets a native call be killed, nor a call be on two lists.
"""

from __future__ import annotations

import errno
import os
import socket
import sys

import pyseccomp
import pytest
from bpf_machine import Call, run

from sandbox import seccomp
from sandbox.bpf import ALLOW, KILL_PROCESS, MAX_INSTRUCTIONS, refuse

MACHINE = os.uname().machine
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[MACHINE]
OTHERS = {0xC000003E, 0xC00000B7, 0x40000003, 0x40000028} - {ARCH}
PROGRAM = seccomp.compile_filter().program
EPERM, ENOSYS, NO_FAMILY = refuse(errno.EPERM), refuse(errno.ENOSYS), refuse(errno.EAFNOSUPPORT)


def number(name: str) -> int:
    return int(pyseccomp.resolve_syscall(pyseccomp.system_arch(), name))


def answer(name: str, *arguments: int) -> int:
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    return run(PROGRAM, Call(number(name), ARCH, padded))


def native(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if number(name) >= 0]


def test_lists_are_apart_and_written_once() -> None:
    lists = [*seccomp.ALLOWED, *seccomp.REFUSED, *seccomp.ABSENT]
    assert len(lists) == len(set(lists))
    decided = set(seccomp.actions())
    assert set(seccomp.ABSENT) & decided == set()
    assert decided > set(seccomp.ALLOWED) | set(seccomp.REFUSED)


def test_every_listed_call_has_its_answer() -> None:
    branching = set(seccomp.actions()) - set(seccomp.ALLOWED) - set(seccomp.REFUSED)
    assert {name for name in native(seccomp.ALLOWED) if answer(name) != ALLOW} == set()
    assert {name for name in native(seccomp.REFUSED) if answer(name) != EPERM} == set()
    assert {name for name in native(seccomp.ABSENT) if answer(name) != ENOSYS} == set()
    assert branching == {
        "clone", "ioctl", "personality", "socket", "socketpair", "chmod", "fchmod", "fchmodat",
        "fchmodat2", "creat", "mknod", "mknodat", "open", "openat", "prlimit64", "setrlimit",
    }  # fmt: skip


def test_everything_else_is_absent_and_nothing_native_is_killed() -> None:
    named = {number(name) for name in seccomp.actions()}
    for call in range(1024):
        found = run(PROGRAM, Call(call, ARCH))
        assert found != KILL_PROCESS
        if call not in named:
            assert found == ENOSYS


def test_foreign_calls_are_killed() -> None:
    for arch in OTHERS:
        for call in (0, 1, 20, 39, 102, 359):
            assert run(PROGRAM, Call(call, arch)) == KILL_PROCESS
    if MACHINE == "x86_64":
        for call in (0x40000000, 0x40000027, 0x40000200, 0x7FFFFFFF, 0xFFFFFFFF):
            assert run(PROGRAM, Call(call, ARCH)) == KILL_PROCESS


NAMESPACES = {
    "NEWNS": 0x20000, "NEWCGROUP": 0x2000000, "NEWUTS": 0x4000000, "NEWIPC": 0x8000000,
    "NEWUSER": 0x10000000, "NEWPID": 0x20000000, "NEWNET": 0x40000000,
}  # fmt: skip


@pytest.mark.parametrize("flag", NAMESPACES)
def test_clone_makes_no_namespace(flag: str) -> None:
    for other in (0, 17, 0x3D0F00):  # nothing, SIGCHLD, what a thread is made with
        assert answer("clone", NAMESPACES[flag] | other) == EPERM
        assert answer("clone", other) == ALLOW


def test_sockets() -> None:
    high = 1 << 32
    allowed = {(family, kind, protocol) for family in (2, 10) for kind in (1, 2) for protocol in (0, 6, 17)}
    allowed |= {(16, kind, 0) for kind in range(8)} | {(1, k, p) for k in range(8) for p in (0, 6, 17)}
    for family in range(64):
        for kind in range(8):
            for protocol in (0, 1, 4, 6, 9, 12, 15, 16, 17, 33, 132, 136, 255, 262):
                wanted = ALLOW if family == 1 or (family, kind, protocol) in allowed else NO_FAMILY
                for flags in (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK):
                    assert answer("socket", family, kind | flags, protocol) == wanted, (family, kind)
    assert answer("socket", high | 38, 5, 0) == NO_FAMILY
    assert answer("socketpair", 1, 1, 0) == ALLOW
    assert answer("socketpair", 2, 1, 0) == NO_FAMILY


@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o6000, 0o4755])
@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("chmod", (0,)),
        ("fchmod", (0,)),
        ("fchmodat", (0, 0)),
        ("fchmodat2", (0, 0)),
        ("creat", (0,)),
        ("mknod", (0,)),
        ("mknodat", (0, 0)),
        ("open", (0, os.O_CREAT)),
        ("openat", (0, 0, os.O_CREAT | os.O_WRONLY)),
        ("openat", (0, 0, os.O_TMPFILE | os.O_RDWR)),
        ("open", (0, os.O_TMPFILE)),
    ],
)
def test_set_id_bits(name: str, before: tuple[int, ...], bits: int) -> None:
    if number(name) < 0:
        assert MACHINE != "x86_64" or name == "fchmodat2"
        return
    assert answer(name, *before, bits) == EPERM
    assert answer(name, *before, 0o1777) == ALLOW


def test_the_mode_of_an_open_that_creates_nothing_is_whatever_the_register_held() -> None:
    assert answer("openat", 0, 0, os.O_RDONLY | os.O_DIRECTORY, 0o7777) == ALLOW


def test_terminal_requests() -> None:
    for request, wanted in ((0x5412, EPERM), (0x541C, EPERM), (0x5413, ALLOW), (0x5401, ALLOW)):
        assert answer("ioctl", 0, request) == wanted
        assert answer("ioctl", 0, request | 1 << 32) == wanted


def test_personality() -> None:
    assert answer("personality", 0) == ALLOW
    assert answer("personality", 0xFFFFFFFF) == ALLOW
    assert answer("personality", 0x40000) == EPERM
    assert answer("personality", 0x400000) == EPERM


def test_the_filter_is_one_and_its_digest_is_of_its_bytes() -> None:
    import hashlib

    first = seccomp.compile_filter()
    assert seccomp.compile_filter() is first
    assert first.instructions * 8 == len(first.program) <= 8 * MAX_INSTRUCTIONS
    assert first.sha256 == hashlib.sha256(first.program).hexdigest()


def test_without_libseccomp_there_is_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    seccomp.compile_filter.cache_clear()
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(seccomp.SeccompUnavailable, match="libseccomp2"):
        seccomp.compile_filter()


def test_no_filter_is_known_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    seccomp.compile_filter.cache_clear()
    monkeypatch.setattr(os, "uname", lambda: type("U", (), {"machine": "riscv64"}))
    with pytest.raises(seccomp.SeccompUnavailable, match="riscv64"):
        seccomp.compile_filter()
