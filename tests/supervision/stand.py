"""Owns a supervisor to attack: fresh state and run folders, a worktree, a daemon or a foreground run.
May touch what it made below /var/tmp, and processes that it started or that run in its boxes.
Never touches the real state, and leaves no process, mount, group or file, also when a test fails.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from supervisor.cli.main import main
from supervisor.control.client import ask
from supervisor.errors import SupervisorError
from supervisor.logs.book import read_lines
from supervisor.observe.queries import Queries
from supervisor.paths import Paths
from supervisor.store.records import Run
from supervisor.store.store import Store, open_store

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
CTL = str(Path(sys.executable).with_name("supervisorctl"))
PYTHON = "/usr/bin/python3"
OWNER = 1000
FIRST_RUN_UID = 0x7000_0000
PATIENCE_S = 30.0

PROFILE = """
schema = 1
name = "stand"
extends = "offline"
[limits]
wall_clock = "{wall_clock}"
stop_grace = "{stop_grace}"
memory = "{memory}"
{more}
"""

HOSTILE = """
import os, signal, sys, time
for number in (15, 1, 2): signal.signal(number, signal.SIG_IGN)
there, here = os.pipe()
for i in range(9):
    if os.fork() == 0:
        if i % 3: os.setsid()
        if i % 3 == 2 and os.fork(): os._exit(0)
        os.write(here, b"x")
        time.sleep(600)
        os._exit(0)
if os.fork() == 0:
    os.write(here, b"x")
    os.kill(os.getpid(), signal.SIGSTOP)
for i in range(10): os.read(there, 1)
print("UP", flush=True)
time.sleep(600)
"""
"""Eleven processes that ignore what can be ignored: plain, in own sessions, orphaned, stopped."""

POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("UP", flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Done:
    """What a command line said and how it exited."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def clear_error(self) -> bool:
        """An error line and no traceback; what it must say is for each test."""
        return (
            "error:" in self.err and "Traceback" not in self.out + self.err and "unexpected" not in self.err
        )


def until(what: Callable[[], T], wanted: str = "it did not happen", patience_s: float = PATIENCE_S) -> T:
    """Ask again and again until the answer is true; the deadline is only against hanging."""
    deadline = time.monotonic() + patience_s
    while True:
        answer = what()
        if answer:
            return answer
        assert time.monotonic() < deadline, wanted
        time.sleep(0.03)


def end_process(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@dataclass
class Stand:
    """One state. ctl runs the command line on it; the rest looks without it."""

    folder: Path
    marker: str
    tree: Path
    environment: dict[str, str]
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    uids: set[int] = field(default_factory=set)
    daemon: subprocess.Popen[str] | None = None
    count: int = 0
    latest: dict[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> Paths:
        return Paths(f"{self.folder}/state", f"{self.folder}/run")

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def profile(self, **values: str) -> str:
        """A profile file; wall_clock, stop_grace, memory and more (TOML) can be given."""
        given = {"wall_clock": "5m", "stop_grace": "400ms", "memory": "256MiB", "more": ""} | values
        self.count += 1
        path = self.folder / f"profile{self.count}.toml"
        path.write_text(PROFILE.format(**given))
        return str(path)

    def ticket(self) -> str:
        self.count += 1
        return f"T-{self.count}"

    # ------------------------------------------------------------ the command line

    def spawn(self, *words: str, **changes: Any) -> subprocess.Popen[str]:
        return self.spawn_program([CTL, *words], **changes)

    def spawn_program(self, argv: list[str], **changes: Any) -> subprocess.Popen[str]:
        """Anything that is to be ended with the stand."""
        options: dict[str, Any] = {
            "cwd": self.tree,
            "env": self.environment,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "start_new_session": True,
        }
        process = subprocess.Popen(argv, **(options | changes))
        self.processes.append(process)
        return process

    def ctl(self, *words: str) -> Done:
        """One command to its end, in a fork of this process: the same code without its imports."""
        with tempfile.TemporaryFile(dir=self.folder) as out, tempfile.TemporaryFile(dir=self.folder) as err:
            pid = os.fork()
            if pid == 0:
                self._be_the_command(words, out.fileno(), err.fileno())
            _, status = os.waitpid(pid, 0)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return Done(os.waitstatus_to_exitcode(status), *texts)

    def _be_the_command(self, words: tuple[str, ...], out: int, err: int) -> NoReturn:
        code = 1
        try:
            os.setsid()
            os.chdir(self.tree)
            os.environ.clear()
            os.environ.update(self.environment)
            for target, source in enumerate((os.open("/dev/null", os.O_RDONLY), out, err)):
                os.dup2(source, target)
            sys.argv = [CTL, *words]
            sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            os._exit(code)

    def serve(self) -> subprocess.Popen[str]:
        """A daemon that answers."""
        process = self.spawn("serve")
        self.daemon = process
        until(lambda: self.answers() or process.poll() is not None, "no daemon came up")
        assert process.poll() is None, process.stderr and process.stderr.read()
        return process

    def answers(self) -> bool:
        try:
            ask(self.paths.control_socket, "ping", timeout_s=5.0)
        except SupervisorError:
            return False
        return True

    # ------------------------------------------------------------ runs

    def start(self, code: str = HOSTILE, *, ticket: str = "", profile: str = "", up: str = "UP") -> str:
        """Start a run where this stand starts them; the ticket, once the agent has printed UP."""
        ticket = ticket or self.ticket()
        profile = profile or self.profile()
        if self.daemon is not None:
            self.ask("run", **self.order(ticket, code, profile))
        else:
            process = self.foreground(code, ticket=ticket, profile=profile)
            until(lambda: self.row(ticket) is not None or process.poll() is not None)
            assert process.poll() is None, process.communicate()
        self.wait_for_line(ticket, up)
        return ticket

    def order(self, ticket: str, code: str, profile: str) -> dict[str, Any]:
        return {
            "ticket": ticket,
            "profile": profile,
            "worktree": str(self.tree),
            "argv": [PYTHON, "-c", code, self.marker],
            "environment": {},
        }

    def foreground(
        self, code: str, *, ticket: str, profile: str, options: tuple[str, ...] = (), **changes: Any
    ) -> subprocess.Popen[str]:
        words = ("run", "--ticket", ticket, "--profile", profile, *options)
        return self.spawn(*words, "--", PYTHON, "-c", code, self.marker, **changes)

    def ask(self, op: str, **arguments: Any) -> Any:
        return ask(self.paths.control_socket, op, timeout_s=60.0, **arguments)

    def run_to_end(self, code: str, *, profile: str = "", ticket: str = "") -> Run:
        """Start a run and wait for its end, without looking at its output."""
        ticket = ticket or self.ticket()
        profile = profile or self.profile()
        if self.daemon is not None:
            self.ask("run", **self.order(ticket, code, profile))
            return self.ended(ticket)
        process = self.foreground(code, ticket=ticket, profile=profile)
        process.communicate(timeout=90)
        return self.ended(ticket)

    @contextmanager
    def store(self) -> Iterator[Store]:
        store = open_store(self.paths.database)
        try:
            yield store
        finally:
            store.close()

    def row(self, ticket: str) -> Run | None:
        if not os.path.exists(self.paths.database):
            return None
        with self.store() as store:
            run = store.latest_run(ticket)
        if run is not None and run.attestation:
            self.uids.add(int(run.attestation["uid"]))
        return run

    def ended(self, ticket: str) -> Run:
        """The closed row of a ticket; nothing of it is alive then."""

        def closed() -> Run | None:
            run = self.row(ticket)
            return run if run is not None and run.ended_at is not None else None

        run = until(closed, f"{ticket} did not end")
        assert run is not None
        return run

    def lines(self, ticket: str) -> list[str]:
        if ticket not in self.latest:
            run = self.row(ticket)
            if run is None:
                return []
            self.latest[ticket] = run.run_id
        offset, found = 0, []
        while True:
            page, following = read_lines(self.paths.logs(self.latest[ticket]), offset)
            found += [line.t for line in page]
            if following == offset:
                return found
            offset = following

    def wait_for_line(self, ticket: str, text: str) -> None:
        def there() -> bool:
            if text in self.lines(ticket):
                return True
            run = self.row(ticket)
            if run is not None and run.ended_at is not None and text not in self.lines(ticket):
                raise AssertionError(f"{ticket} ended: {run.reason} {run.reason_note}")
            return False

        until(there, f"{ticket} did not print {text}")

    def events(self, ticket: str) -> list[dict[str, Any]]:
        with self.store() as store:
            found: list[dict[str, Any]] = Queries(store, self.paths).events(ticket)["events"]
        return found

    # ------------------------------------------------------------ what is left

    def survivors(self) -> list[int]:
        """Processes of runs of this stand that are alive: by the marker, and by the runs' uids."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                status = Path(f"/proc/{name}/status").read_text()
            except OSError:
                continue
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            uid = int(fields["Uid"].split()[0])
            ours = uid in self.uids or (uid >= FIRST_RUN_UID and self.marker.encode() in command)
            if ours and fields["State"][0] not in "ZX":
                found.append(int(name))
        return found

    def groups(self) -> list[str]:
        """Control group folders of this state, in any hierarchy."""
        key = self.paths.namespace_key
        found = []
        for base, folders, _ in os.walk("/sys/fs/cgroup"):
            if os.path.basename(base) == key:
                found += [f"{base}/{name}" for name in folders]
        return found

    def close(self) -> None:
        for process in self.processes:
            end_process(process)
        try:
            until(lambda: not self.survivors(), "something of a run survives its supervisor")
        finally:
            for pid in self.survivors():
                os.kill(pid, signal.SIGKILL)
            _remove_groups(self.paths.namespace_key)
            shutil.rmtree(self.folder)


def _remove_groups(key: str) -> None:
    """What a killed launcher had no chance to remove; the next start would."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        bases = [base for base, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(base) == key]
        if not bases:
            return
        for base in bases:
            for folder, _, _ in os.walk(base, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    time.sleep(0.01)


@contextmanager
def stand() -> Iterator[Stand]:
    """A fresh state with a small worktree, nothing started yet."""
    folder = Path(tempfile.mkdtemp(prefix="sv-", dir="/var/tmp"))
    folder.chmod(0o755)
    tree = folder / "tree"
    tree.mkdir()
    (tree / "README").write_text("hello\n")
    for path in (tree, tree / "README"):
        os.chown(path, OWNER, OWNER)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SUPERVISOR_")}
    kept |= {"SUPERVISOR_STATE_DIR": f"{folder}/state", "SUPERVISOR_RUN_DIR": f"{folder}/run"}
    made = Stand(folder, f"marker-{secrets.token_hex(8)}", tree, kept)
    try:
        yield made
    finally:
        made.close()
