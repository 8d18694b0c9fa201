"""Owns the attempts to reach something: sockets of every family, addresses, the host's witnesses.
May touch sockets.
Never sends more than a greeting.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable

from sandbox.probes.inside.base import ARGUMENTS, ATTEMPTS, attempt, call


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
