"""Owns the scenarios of the command line and of the daemon as a systemd service.
May touch services it makes, a state folder of its own, and the agents that it started.
Never looks inside: what it knows it has from the program's output, from /proc and from the cgroups.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guest_common import PATIENCE_S, check, dead, make_worktree, wait_until

PROGRAM = "/opt/supervisor/bin/supervisorctl"
SERVICE = "test-supervisor.service"
CGROUPS = Path("/sys/fs/cgroup")
TREE = "trap '' TERM; for i in $(seq 25); do sleep 1000 & setsid sleep 1000 & done; echo ready; wait"
"""51 processes of the agent, half of them in sessions of their own; with init 52."""


@dataclass(frozen=True, slots=True)
class Place:
    """A state folder, a run folder and working copies, all below one folder."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "SUPERVISOR_STATE_DIR": str(self.folder / "state"),
            "SUPERVISOR_RUN_DIR": str(self.folder / "run"),
        }

    def worktree(self, name: str) -> Path:
        return make_worktree(self.folder / name)

    def start(self, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PROGRAM, *arguments],
            cwd=cwd or self.folder,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str, cwd: Path | None = None, code: int = 0) -> str:
        """Run supervisorctl to its end; its output. Any other exit code than the expected one fails."""
        process = self.start(*arguments, cwd=cwd)
        try:
            out, err = process.communicate(timeout=2 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{arguments} did not end; it said {out[-300:]} {err[-600:]}") from None
        check(
            process.returncode == code,
            f"{arguments} ended with {process.returncode}: {out[-300:]} {err[-900:]}",
        )
        return out

    def ask(self, *arguments: str, cwd: Path | None = None, code: int = 0) -> Any:
        return json.loads(self.call(*arguments, "--json", cwd=cwd, code=code))

    def groups(self, ticket: str) -> list[Path]:
        """Where the record says that the newest run of a ticket is."""
        with contextlib.closing(sqlite3.connect(self.folder / "state/supervisor.db", timeout=30)) as database:
            rows = database.execute("SELECT cgroups FROM runs WHERE ticket = ? ORDER BY run_id", (ticket,))
            return [Path(folder) for (listed,) in rows.fetchall()[-1:] for folder in json.loads(listed)]

    def status(self, ticket: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("status", ticket)
        return found


@contextlib.contextmanager
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="place-", dir="/var/tmp") as name:
        yield Place(Path(name))


@contextlib.contextmanager
def daemon(where: Place) -> Iterator[None]:
    """The daemon as a transient service, as its unit file would start it."""
    _start_daemon(where)
    try:
        yield
    except BaseException:
        _show_daemon(where)
        raise
    finally:
        subprocess.run(["systemctl", "kill", "--kill-who=all", "-s", "KILL", SERVICE], capture_output=True)
        subprocess.run(["systemctl", "stop", SERVICE], capture_output=True)
        subprocess.run(["systemctl", "reset-failed", SERVICE], capture_output=True)


def _start_daemon(where: Place) -> None:
    settings = [f"--setenv={name}={value}" for name, value in where.environment.items()]
    options = "-p Type=notify -p Delegate=yes -p KillMode=mixed -p TimeoutStopSec=60".split()
    done = subprocess.run(
        ["systemd-run", "--quiet", "--collect", f"--unit={SERVICE}", *options, *settings, PROGRAM, "serve"],
        capture_output=True,
        text=True,
    )
    check(done.returncode == 0, f"the daemon did not start: {done.stderr} {_journal()}")


def _show_daemon(where: Place) -> None:
    """What somebody who looks into a failure would ask for first."""
    print(_journal())
    with contextlib.suppress(AssertionError, ValueError):
        for run in where.ask("ps", "--all"):
            print(json.dumps({key: run[key] for key in ("ticket", "state", "reason", "by", "supervised")}))
            print(where.call("events", run["ticket"])[-1500:])
    pid = _main_pid()
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            print(thread.name, (thread / "comm").read_text().strip(), (thread / "wchan").read_text())
            print((thread / "stack").read_text())


def _journal() -> str:
    return subprocess.run(
        ["journalctl", "-u", SERVICE, "-n", "25", "-o", "cat"], capture_output=True, text=True
    ).stdout


def _main_pid() -> int:
    shown = subprocess.run(["systemctl", "show", "-P", "MainPID", SERVICE], capture_output=True, text=True)
    return int(shown.stdout.strip() or 0)


def _groups() -> list[Path]:
    """Folders for runs anywhere on this machine."""
    return list(CGROUPS.rglob("sidecar-supervisor/*/*/"))


def _members(group: Path) -> list[int]:
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _tree_of(where: Place, ticket: str) -> list[int]:
    """Host pids of a running tree, once all of it is there."""

    def found() -> list[int]:
        return next((_members(group) for group in where.groups(ticket)), [])

    wait_until(
        f"the tree of {ticket}",
        lambda: len(found()) == 52,
        lambda: f"{len(found())} of 52; {_groups()} {where.call('logs', ticket)[-500:]}",
    )
    return found()


def _detached(where: Place, *tickets: str) -> dict[str, list[int]]:
    for ticket in tickets:
        tree = where.worktree(ticket)
        where.call(
            "run", "--detach", "--ticket", ticket, "--profile", "coding", "--", "sh", "-c", TREE, cwd=tree
        )
    return {ticket: _tree_of(where, ticket) for ticket in tickets}


def _nothing_lives(pids: list[int]) -> None:
    alive = sorted(set(pids) - set(dead(pids)))
    check(not alive, f"alive: {alive}")


def _ended(where: Place, ticket: str, reason: str, by: str) -> dict[str, Any]:
    wait_until(
        f"the end of {ticket}", lambda: where.status(ticket)["state"] == "ended", lambda: where.status(ticket)
    )
    found = where.status(ticket)
    check((found["reason"], found["by"]) == (reason, by), f"{ticket}: {found['reason']} by {found['by']}")
    return found


# ---------------------------------------------------------------- scenarios


def run_once(_: str) -> str:
    """A run without a daemon: the agent's exit code, one object, the host's tree as before."""
    with place() as where:
        tree = where.worktree("T-1")
        script = "echo changed > file; echo said; exit 3"
        options = ("run", "--json", "--ticket", "T-1", "--profile", "coding", "--", "sh", "-c", script)
        ended = json.loads(where.call(*options, cwd=tree, code=3))
        check(ended["reason"] == "failed" and ended["exit_status"] == 3, ended)
        check(ended["kill"]["survivors"] == 0, ended)
        check((tree / "file").read_text() == "as it was\n", "the host's tree changed")
        check("said" in where.call("logs", "T-1"), "the log lacks what the agent said")
        return f"armed in {ended['attestation'].get('armed_ms')} ms (emulated)"


def doctor(_: str) -> str:
    """What a person is told first; exit code and text have to agree."""
    with place() as where:
        process = where.start("doctor", "--json")
        out, err = process.communicate(timeout=2 * PATIENCE_S)
        check(process.returncode in (0, 1) and out, f"{process.returncode} {err[-900:]}")
        found = json.loads(out)
        check(found["ok"] == (process.returncode == 0), found)
        lacking = {row["name"]: row["detail"] for row in found["controls"] if not row["armed"]}
        return f"ok {found['ok']}; not armed: {lacking}; problem: {found['problem']}"


def out_of_memory(_: str) -> str:
    """A run that takes too much ends as out_of_memory, and says so in its exit code."""
    with place() as where:
        tree = where.worktree("T-1")
        profile = where.folder / "small.toml"
        profile.write_text(
            'schema = 1\nname = "small"\nextends = "coding"\n[limits]\nmemory = "96MiB"\ntmp = "16MiB"\n'
        )
        script = "sleep 1000 & python3 -c 'a = []\nwhile True: a.append(bytes(4 << 20))'; sleep 1000"
        options = ("run", "--json", "--ticket", "T-1", "--profile", str(profile), "--", "sh", "-c", script)
        process = where.start(*options, cwd=tree)
        out, err = process.communicate(timeout=2 * PATIENCE_S)
        check(out, f"{process.returncode} {err[-900:]}")
        ended = json.loads(out)
        check(ended["reason"] == "out_of_memory", ended)
        check(process.returncode >= 64, f"exit code {process.returncode}")
        return f"exit code {process.returncode}"


def three_kills(_: str) -> str:
    """Command, stop-file, database flag: three hostile trees in one daemon, each gone in its own way."""
    with place() as where, daemon(where):
        trees = _detached(where, "T-1", "T-2", "T-3")
        state = where.folder / "state"
        (killed,) = where.ask("kill", "T-1", "--reason", "by hand")
        check(killed["dead"] and killed["survivors"] == 0 and killed["processes"] == 52, killed)
        _nothing_lives(trees["T-1"])
        check(len(dead(trees["T-2"] + trees["T-3"])) == 0, "others were hit")
        (state / "stop" / "T-2").write_text("the pager went\n")
        _ended(where, "T-2", "killed", "stop_file")
        _nothing_lives(trees["T-2"])
        with contextlib.closing(sqlite3.connect(state / "supervisor.db", timeout=30)) as database, database:
            database.execute(
                "INSERT INTO tickets (key, stop_requested, updated_at) VALUES ('T-3', 1, '') "
                "ON CONFLICT (key) DO UPDATE SET stop_requested = 1"
            )
        _ended(where, "T-3", "killed", "database_flag")
        _nothing_lives(trees["T-3"])
        for ticket in trees:
            left = [group for group in where.groups(ticket) if group.exists()]
            check(not left, f"{ticket} left {left}")
    return "156 processes, 0 left"


def daemon_lost(_: str) -> str:
    """SIGKILL to the daemon: its runs die with it; the next one records supervisor_lost."""
    with place() as where, daemon(where):
        trees = _detached(where, "T-1", "T-2")
        pids = trees["T-1"] + trees["T-2"]
        os.kill(_main_pid(), signal.SIGKILL)
        wait_until("their end", lambda: len(dead(pids)) == len(pids))
        unit = CGROUPS / "system.slice" / SERVICE
        wait_until("the end of the unit's group", lambda: not unit.exists())
        _start_daemon(where)
        for ticket in trees:
            check(not any(group.exists() for group in where.groups(ticket)), f"{ticket} left its group")
            _ended(where, ticket, "supervisor_lost", "supervisor")
        extra = where.worktree("T-3")
        where.call("run", "--ticket", "T-3", "--profile", "coding", "--", "true", cwd=extra)
    return "104 processes dead, both recorded as supervisor_lost, new runs start"


def service_stopped(_: str) -> str:
    """systemctl stop ends every run first, and each has its reason."""
    with place() as where, daemon(where):
        trees = _detached(where, "T-1", "T-2")
        done = subprocess.run(["systemctl", "stop", SERVICE], capture_output=True, text=True)
        check(done.returncode == 0, done.stderr)
        _nothing_lives(trees["T-1"] + trees["T-2"])
        for ticket in trees:
            _ended(where, ticket, "killed", "supervisor")
        check(not (CGROUPS / "system.slice" / SERVICE).exists(), "the unit's group is still there")
    return "104 processes dead, reasons recorded"


def daemon_hung(_: str) -> str:
    """The daemon is stopped in its tracks: kill --force needs nobody, and the reason is kept."""
    with place() as where, daemon(where):
        trees = _detached(where, "T-1")
        pid = _main_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            (killed,) = where.ask("kill", "T-1", "--force", "--reason", "hung")
            check(killed["dead"] and killed["survivors"] == 0, killed)
            running = [p for p in set(trees["T-1"]) - set(dead(trees["T-1"])) if _state(p) != "Z"]
            check(not running, f"alive: {running}")
        finally:
            os.kill(pid, signal.SIGCONT)
        found = _ended(where, "T-1", "killed", "operator")
        check(found["note"] == "hung", found)
        wait_until("its groups to go", lambda: not any(group.exists() for group in where.groups("T-1")))
    return f"{killed['processes']} processes, 0 left, reason kept"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def foreground_lost(_: str) -> str:
    """SIGKILL to a supervisor in a shell: nothing lives on, and the next command says what happened."""
    with place() as where:
        tree = where.worktree("T-1")
        process = where.start(
            "run", "--ticket", "T-1", "--profile", "coding", "--", "sh", "-c", TREE, cwd=tree
        )
        wait_until("the run", lambda: _known(where, "T-1"))
        pids = _tree_of(where, "T-1")
        process.kill()
        process.communicate()
        wait_until("their end", lambda: len(dead(pids)) == len(pids))
        second = where.worktree("T-2")
        where.call("run", "--ticket", "T-2", "--profile", "coding", "--", "true", cwd=second)
        _ended(where, "T-1", "supervisor_lost", "supervisor")
        wait_until("all groups to go", lambda: not _groups(), _groups)
    return f"{len(pids)} dead, recorded as supervisor_lost"


def _known(where: Place, ticket: str) -> bool:
    process = where.start("status", ticket, "--json")
    out, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode == 0 and json.loads(out)["state"] == "running"
