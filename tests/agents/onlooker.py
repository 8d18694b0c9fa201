"""Owns looking at a box's network from outside: which names are looked up in it, what has no route.
May touch the namespaces of the run it is told of: it gives them a resolver that knows no name.
Never lets a look-up pass unseen because a box has no resolver: in a plain box glibc asks nobody.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
from pathlib import Path

from sandbox import syscalls

START_PORT = 8788
_DNS_PORT = 53
_CLONE_FS = 0x200  # include/uapi/linux/sched.h
_SIOCSIFADDR = 0x8916  # include/uapi/linux/sockios.h
_ADDRESS = "192.0.2.2"  # of a network for documentation (RFC 5737)
_NO_SUCH_NAME = 0x8183  # a response, recursion available, NXDOMAIN (RFC 1035, 4.1.1)

WAIT = f"""
import os, socket, sys, time
while True:
    try:
        socket.create_connection(("127.0.0.1", {START_PORT})).close()
        break
    except OSError:
        time.sleep(0.02)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Before an agent: wait until somebody looks on."""


class Onlooker(threading.Thread):
    """Looks on from the moment it is told of a run's uid until end() is called.

    names: what was looked up. unreachable: packets that had no route, as the kernel counted them.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.names: set[str] = set()
        self.unreachable = 0
        self.failure: BaseException | None = None
        self._switch = folder / "nsswitch.conf"
        self._switch.write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        self._uid = 0
        self._told = threading.Event()
        self._looking = threading.Event()
        self._over = threading.Event()

    def look_at(self, uid: int) -> None:
        """uid: of one run alone. Returns once nothing of it can pass unseen."""
        self._uid = uid
        self._told.set()
        self._looking.wait()
        if self.failure is not None:
            raise self.failure

    def end(self) -> None:
        """Wait until the last question has been read."""
        self._over.set()
        self._told.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            self._told.wait()
            if self._uid:
                self._look()
        except BaseException as error:
            self.failure = error
        finally:
            self._looking.set()

    def _look(self) -> None:
        process = _process_of(self._uid)
        network = os.open(f"/proc/{process}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        mounts = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        flags = syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC
        switch = syscalls.open_tree(syscalls.AT_FDCWD, str(self._switch), flags)
        # All of this thread alone (setns(2)), which ends there and never comes back.
        syscalls.unshare(_CLONE_FS)
        syscalls.setns(network, syscalls.CLONE_NEWNET)
        counters = _counters()
        before = _without_route(counters)
        _give_an_address()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
            resolver.bind(("127.0.0.1", _DNS_PORT))
            resolver.settimeout(0.1)
            syscalls.setns(mounts, syscalls.CLONE_NEWNS)
            syscalls.move_mount(switch, syscalls.AT_FDCWD, "/etc/nsswitch.conf")
            for descriptor in (network, mounts, switch):
                os.close(descriptor)
            with socket.create_server(("127.0.0.1", START_PORT)):
                self._looking.set()
                while not self._over.is_set():
                    self._answer(resolver)
            self._answer(resolver)
        self.unreachable = _without_route(counters) - before
        for counter in counters:
            os.close(counter)

    def _answer(self, resolver: socket.socket) -> None:
        try:
            question, client = resolver.recvfrom(1 << 16)
        except TimeoutError:
            return
        name, end = _asked_name(question)
        self.names.add(name)
        head = struct.pack("!HHHHHH", int.from_bytes(question[:2]), _NO_SUCH_NAME, 1, 0, 0, 0)
        resolver.sendto(head + question[12 : end + 4], client)


def _give_an_address() -> None:
    """glibc and others leave out look-ups (AI_ADDRCONFIG) where only loopback has an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        address = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(_ADDRESS))
        fcntl.ioctl(probe, _SIOCSIFADDR, struct.pack("16s16s8x", b"lo:1", address))


def _asked_name(question: bytes) -> tuple[str, int]:
    """The name in a DNS query (RFC 1035, 4.1), and where its type and class begin."""
    labels, at = [], 12
    while at < len(question) and question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode("ascii", "replace"))
        at += 1 + question[at]
    return ".".join(labels), at + 1


def _process_of(uid: int) -> int:
    """A process of the run, which is in the box's namespaces."""
    while True:
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and f"\nUid:\t{uid}\t" in Path(f"/proc/{name}/status").read_text():
                    return int(name)
            except OSError:
                continue


def _counters() -> list[int]:
    """Descriptors of the kernel's counters for this thread's network; they stay with it."""
    folder = f"/proc/self/task/{threading.get_native_id()}/net"
    return [os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("snmp", "snmp6")]


def _without_route(counters: list[int]) -> int:
    """How often somebody wanted to reach an address that no interface leads to (IPv4 and IPv6)."""
    old, new = (os.pread(counter, 1 << 16, 0).decode().splitlines() for counter in counters)
    names, values = (line.split()[1:] for line in old if line.startswith("Ip:"))
    found = int(dict(zip(names, values, strict=True))["OutNoRoutes"])
    return found + sum(int(line.split()[1]) for line in new if line.startswith("Ip6OutNoRoutes"))
