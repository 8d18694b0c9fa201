"""Owns what waits on the host to be reached from a box: sockets, a process, a secret in an environment.
May touch loopback ports, one abstract name and the folder it is given.
Never answers: it only remembers that somebody came.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from contextlib import ExitStack

_TOKEN = "SUPERVISOR_WITNESS"


class Witnesses:
    """Use as a context manager. seen() names what was reached since the last call.

    arguments: what the probes are told, so that they can look for it. What is looked for in other
    processes is told backwards, or it would be found in the probes' own arguments.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._sockets: dict[str, socket.socket] = {}
        self.arguments: dict[str, str] = {}

    def __enter__(self) -> Witnesses:
        token, secret = secrets.token_hex(16), secrets.token_hex(16)
        os.environ[_TOKEN] = secret
        self._stack.callback(os.environ.pop, _TOKEN, None)
        process = subprocess.Popen(["sleep", f"{600}.{int(token[:8], 16)}"])
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        path = f"{self._folder}/witness.sock"
        for name, family, kind, address in (
            ("tcp4", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            ("udp4", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0witness-{token}"),
            ("path", socket.AF_UNIX, socket.SOCK_STREAM, path),
        ):
            self._listen(name, family, kind, address)
        os.chmod(path, 0o777)
        self.arguments = {
            "secret": secret[::-1],
            "process": f"{int(token[:8], 16)}"[::-1],
            "pid": str(process.pid),
            "abstract": f"witness-{token}",
            "path": path,
            "tcp6": "9",
        } | {
            name: str(one.getsockname()[1])
            for name, one in self._sockets.items()
            if name in ("tcp4", "tcp6", "udp4")
        }
        return self

    def _listen(self, name: str, family: int, kind: int, address: object) -> None:
        try:
            one = socket.socket(family, kind)
            self._stack.callback(one.close)
            one.bind(address)  # type: ignore[arg-type]
        except OSError:
            if family == socket.AF_INET6:
                return  # a host without it; nobody can be reached there
            raise
        if kind == socket.SOCK_STREAM:
            one.listen(16)
        one.setblocking(False)
        self._sockets[name] = one

    def seen(self) -> set[str]:
        return {name for name, one in self._sockets.items() if _came(one)}

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _came(one: socket.socket) -> bool:
    try:
        if one.type == socket.SOCK_STREAM:
            one.accept()[0].close()
        else:
            one.recv(16)
    except BlockingIOError:
        return False
    return True
