"""Owns a real PostgreSQL server of its own: made, started, stopped and removed with its data.
May touch one fresh folder, one loopback port, and the server process that it started.
Never touches a server or a cluster that was there before, and leaves nothing behind.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

PASSWORD = "Xq7:Zk9/Wm3@Vt5"
PASSWORD_IN_URL = "Xq7%3AZk9%2FWm3%40Vt5"
_START_S = 30.0
_numbers = itertools.count(1)


def programs() -> Path:
    """Where the newest server's programs are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not found:
        raise RuntimeError("the tests need a PostgreSQL server: `make setup` as root installs it")
    return found[-1]


@dataclass(slots=True)
class Server:
    """durable: with fsync, as measures need it; tests do without."""

    durable: bool = False
    port: int = 0
    _folder: Path = field(default_factory=Path)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        self._folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
        try:
            self._make()
            self._run()
        except BaseException:
            self.stop()
            raise
        return self

    def _as_user(self, command: Sequence[object]) -> list[str]:
        """A server refuses to be root; it also ends when we do, however that comes about."""
        other = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
        return ["setpriv", "--pdeathsig=QUIT", *other, *map(str, command)]

    def _make(self) -> None:
        password = self._folder / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            account = pwd.getpwnam("nobody")
            for path in (self._folder, password):
                os.chown(path, account.pw_uid, account.pw_gid)
        options = ["--username=tester", f"--pwfile={password}", "--auth-host=scram-sha-256", "--no-sync"]
        options += ["--auth-local=trust", "--encoding=UTF8", "--locale=C.UTF-8"]
        command = self._as_user([programs() / "initdb", *options, "-D", self._folder / "data"])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")

    def _run(self) -> None:
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._folder),
            "fsync": "on" if self.durable else "off",
            "max_connections": "200",
            "deadlock_timeout": "200ms",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [programs() / "postgres", "-D", self._folder / "data", "-p", str(self.port), *options]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(self._as_user(command), stdout=log, stderr=log, cwd="/")
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self._folder / "log").read_text()) from None
                time.sleep(0.02)

    def url(self, database: str) -> str:
        """Over the loopback, with a password."""
        return f"postgresql://tester:{PASSWORD_IN_URL}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str) -> str:
        return f"postgresql:///{database}?host={self._folder}&port={self.port}&user=tester"

    def crash(self) -> None:
        """As a power cut is for the clients: every connection is gone at once."""
        self._end(signal.SIGQUIT)

    def start_again(self) -> None:
        self._run()

    def stop(self) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new empty database, dropped afterwards."""
        name = f"test{next(_numbers)}"
        self._manage(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            self._manage(f"DROP DATABASE {name} WITH (FORCE)")

    def _manage(self, statement: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def running(*, durable: bool = False) -> Iterator[Server]:
    server = Server(durable=durable).start()
    try:
        yield server
    finally:
        server.stop()
