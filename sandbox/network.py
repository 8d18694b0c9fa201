"""Owns the box's network: a loopback that is up, and on request one listener on it.
May touch the network namespace it is called in, which must be the box's.
Never adds an address, a route or another interface.
"""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFFLAGS = 0x8913  # include/uapi/linux/sockios.h
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_BACKLOG = 1024


def raise_loopback() -> None:
    """ip link set lo up, as one ioctl: pyroute2 would bring 344 modules into the root process."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        request = struct.pack("16sH14x", b"lo", 0)
        answer = fcntl.ioctl(probe, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("=H", answer, 16)
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def open_listener(port: int) -> socket.socket:
    """A TCP listener on 127.0.0.1 of this namespace; it can be accepted from outside."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
