"""Owns a daemon of the bench's own, started as a user starts it: `supervisorctl serve`.
May touch its state and run folder, its control socket and its process.
Never leaves it or a run of it alive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import place
from supervisor.control.client import ask
from supervisor.errors import NoSupervisor
from supervisor.paths import Paths

PROGRAM = str(Path(sys.executable).parent / "supervisorctl")
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that answers. environment: what a command needs to find it."""

    pid: int
    socket: str
    environment: dict[str, str]

    def run(self, ticket: str, worktree: Path, argv: list[str]) -> None:
        """Returns when the agent was released."""
        ask(
            self.socket,
            "run",
            timeout_s=60.0,
            ticket=ticket,
            profile=place.PROFILE,
            worktree=str(worktree),
            argv=argv,
            project="",
            environment={},
        )

    def wait_line(self, ticket: str, text: str) -> None:
        """Until the agent has printed this line."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            page = ask(self.socket, "log", ticket=ticket, offset=0)
            if any(line["t"].strip() == text for line in page["lines"]):
                return
            if time.monotonic() > deadline or page["ended"]:
                raise RuntimeError(f"{ticket} does not print {text!r}")
            time.sleep(0.01)

    def group(self, ticket: str) -> tuple[str, int]:
        """The run's cgroup v2 folder, and the pid of its init."""
        found: dict[str, Any] = ask(self.socket, "status", ticket=ticket)
        init = int(found["attestation"]["init_pid"])
        lines = Path(f"/proc/{init}/cgroup").read_text().splitlines()
        path = next(line.removeprefix("0::") for line in lines if line.startswith("0::"))
        mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
        return next(words[1] for words in mounts if words[2] == "cgroup2") + path, init

    def launcher(self) -> int:
        """The pid of its launcher: the only child it has."""
        children = [
            int(pid)
            for task in os.listdir(f"/proc/{self.pid}/task")
            for pid in Path(f"/proc/{self.pid}/task/{task}/children").read_text().split()
        ]
        if len(children) != 1:
            raise RuntimeError(f"the daemon has {len(children)} children")
        return children[0]


@contextmanager
def serving(folder: Path) -> Iterator[Daemon]:
    paths = Paths(str(folder / "state"), str(folder / "run"))
    environment = {
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        "SUPERVISOR_STATE_DIR": paths.state,
        "SUPERVISOR_RUN_DIR": paths.run,
    }
    process = subprocess.Popen(
        [PROGRAM, "serve", "--quiet"], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _wait_answer(process, paths.control_socket)
        yield Daemon(process.pid, paths.control_socket, environment)
    finally:
        process.terminate()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its launcher sees the end of its socket and ends the boxes
            process.wait()
            raise


def _wait_answer(process: subprocess.Popen[bytes], socket: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            ask(socket, "ping")
            return
        except NoSupervisor:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            time.sleep(0.02)
