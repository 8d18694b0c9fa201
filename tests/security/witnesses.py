"""Owns what waits on the host to be reached from a box: sockets, a process, a secret, a descriptor.
May touch loopback ports, one abstract name and a folder of its own.
Never answers: it only remembers that somebody came.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
from pathlib import Path

from boxlab import PYTHON, end


class Witnesses:
    """Everything a box must not reach; seen() names what was reached since the last call."""

    def __init__(self, folder: Path) -> None:
        self.secret = secrets.token_hex(16)
        os.environ["WITNESS_SECRET"] = self.secret
        self.descriptor = self._inheritable_secret()
        token = secrets.token_hex(16)
        self.process = subprocess.Popen([PYTHON, "-c", "import time; time.sleep(900)", token])
        self.sockets: dict[str, socket.socket] = {}
        self.arguments = {"secret": self.secret[::-1], "process": token[::-1], "pid": str(self.process.pid)}
        for name, family, kind, address in (
            ("tcp4", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            ("udp4", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0witness-{token}"),
            ("path", socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "witness.sock")),
        ):
            self.sockets[name] = listen(family, kind, address)
        os.chmod(folder / "witness.sock", 0o777)
        self.arguments |= {n: str(self.sockets[n].getsockname()[1]) for n in ("tcp4", "tcp6", "udp4")}
        self.arguments |= {"abstract": f"witness-{token}", "path": str(folder / "witness.sock")}

    def _inheritable_secret(self) -> int:
        """What a careless supervisor has open: not close-on-exec, on a descriptor of 9 or more."""
        memory = os.memfd_create("secret", 0)
        os.write(memory, self.secret.encode())
        high = fcntl.fcntl(memory, fcntl.F_DUPFD, 9)
        os.close(memory)
        os.set_inheritable(high, True)
        return high

    def seen(self) -> set[str]:
        return {name for name, one in self.sockets.items() if came(one)}

    def close(self) -> None:
        del os.environ["WITNESS_SECRET"]
        os.close(self.descriptor)
        for one in self.sockets.values():
            one.close()
        end(self.process)


def listen(family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
    one = socket.socket(family, kind)
    one.bind(address)
    if kind == socket.SOCK_STREAM:
        one.listen(64)
    one.setblocking(False)
    return one


def came(one: socket.socket) -> bool:
    """Did anybody connect or send? Takes all that is waiting."""
    found = False
    while True:
        try:
            if one.type == socket.SOCK_STREAM:
                one.accept()[0].close()
            else:
                one.recv(1024)
        except BlockingIOError:
            return found
        found = True
