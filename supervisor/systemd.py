"""Owns what the daemon and systemd say to each other: readiness, signs of life, inherited sockets.
May touch the environment variables and the socket that systemd sets for a service.
Never needs systemd: without it every call does nothing.
"""

from __future__ import annotations

import asyncio
import os
import socket

_FIRST_DESCRIPTOR = 3  # sd_listen_fds(3), SD_LISTEN_FDS_START
_PINGS_PER_WATCHDOG = 3


def notify(text: str) -> None:
    """sd_notify(3): one datagram to the socket systemd names."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
        try:
            notifier.sendto(text.encode(), address)
        except OSError:
            return


def watchdog_interval_s() -> float | None:
    """How often a sign of life is due, None when nobody waits for one (sd_watchdog_enabled(3))."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    meant_for = os.environ.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or int(microseconds) == 0:
        return None
    if meant_for and meant_for != str(os.getpid()):
        return None
    return int(microseconds) / 1e6 / _PINGS_PER_WATCHDOG


async def keep_watchdog_quiet() -> None:
    """Ping from the loop that does the work: a loop that no longer turns sends nothing."""
    interval_s = watchdog_interval_s()
    while interval_s is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)
    await asyncio.Event().wait()


def inherited_socket(name: str) -> socket.socket | None:
    """The socket of that FileDescriptorName= which systemd listens on for us, None where there is none.

    Raises OSError when the descriptor is no listening stream socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    for place in range(int(os.environ.get("LISTEN_FDS", "0"))):
        if names[place : place + 1] != [name]:
            continue
        found = socket.socket(fileno=_FIRST_DESCRIPTOR + place)
        found.set_inheritable(False)
        if found.type != socket.SOCK_STREAM or not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.close()
            raise OSError(f"the socket {name} that was handed over does not listen for streams")
        return found
    return None
