"""Owns the scenarios of the command line without a daemon, and what all scenarios do with it.
May touch a state folder of its own, and the agents that it started.
Never looks inside: what it knows it has from the program's output, from /proc and from the cgroups.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guest_common import PATIENCE_S, check, dead, make_worktree, wait_until

PROGRAM = "/opt/supervisor/bin/supervisorctl"
CGROUPS = Path("/sys/fs/cgroup")
TREE = "trap '' TERM; for i in $(seq 5); do sleep 1000 & setsid sleep 1000 & done; echo ready; wait"
TREE_SIZE = 12
"""11 processes of the agent, half of them in sessions of their own, and init."""


@dataclass(frozen=True, slots=True)
class Place:
    """Working copies below one folder, and the state beside them; or the installed daemon's own."""

    folder: Path
    installed: bool = False
    program: str = PROGRAM

    @property
    def state(self) -> Path:
        return Path("/var/lib/sidecar-supervisor") if self.installed else self.folder / "state"

    @property
    def environment(self) -> dict[str, str]:
        """None for the installed daemon: its places are those that root's commands look at anyway."""
        if self.installed:
            return {}
        return {"SUPERVISOR_STATE_DIR": str(self.state), "SUPERVISOR_RUN_DIR": str(self.folder / "run")}

    def worktree(self, name: str) -> Path:
        return make_worktree(self.folder / name)

    def start(self, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program, *arguments],
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
        with contextlib.closing(sqlite3.connect(self.state / "supervisor.db", timeout=30)) as database:
            rows = database.execute("SELECT cgroups FROM runs WHERE ticket = ? ORDER BY run_id", (ticket,))
            return [Path(folder) for (listed,) in rows.fetchall()[-1:] for folder in json.loads(listed)]

    def status(self, ticket: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("status", ticket)
        return found


@contextlib.contextmanager
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="place-", dir="/var/tmp") as name:
        yield Place(Path(name))


def groups() -> list[Path]:
    """Folders for runs anywhere on this machine."""
    return list(CGROUPS.rglob("sidecar-supervisor/*/*/"))


def _members(group: Path) -> list[int]:
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def tree_of(where: Place, ticket: str) -> list[int]:
    """Host pids of a running tree, once all of it is there."""

    def found() -> list[int]:
        return next((_members(group) for group in where.groups(ticket)), [])

    wait_until(
        f"the tree of {ticket}",
        lambda: len(found()) == TREE_SIZE,
        lambda: f"{len(found())} of {TREE_SIZE}; {groups()} {where.call('logs', ticket)[-500:]}",
    )
    return found()


def ended_as(where: Place, ticket: str, reason: str, by: str) -> dict[str, Any]:
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
        check(found["ok"] or os.geteuid() != 0, f"root's doctor is not content: {lacking}")
        return f"ok {found['ok']}; not armed: {lacking}; problem: {found['problem']}"


def verified(_: str) -> str:
    """Every attempt to get out that the product knows, on this kernel: none succeeds."""
    with place() as where:
        process = where.start("profile", "verify", "coding", "--json")
        out, err = process.communicate(timeout=4 * PATIENCE_S)
        check(out, f"{process.returncode} {err[-900:]}")
        found = json.loads(out)
        failed = [probe for probe in found["probes"] if probe["pass"] is False]
        check(not failed and not found["escapes"], f"{process.returncode} {failed} {found['escapes']}")
        check(process.returncode == 0, f"{process.returncode} {err[-900:]}")
        open_ = [claim["id"] for claim in found["claims"] if claim["state"] != "proved"]
        return f"{len(found['probes'])} probes, 0 escapes, not proved here: {open_}"


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


def foreground_lost(_: str) -> str:
    """SIGKILL to a supervisor in a shell: nothing lives on, and the next command says what happened."""
    with place() as where:
        tree = where.worktree("T-1")
        process = where.start(
            "run", "--ticket", "T-1", "--profile", "coding", "--", "sh", "-c", TREE, cwd=tree
        )
        wait_until("the run", lambda: _known(where, "T-1"))
        pids = tree_of(where, "T-1")
        process.kill()
        process.communicate()
        wait_until("their end", lambda: len(dead(pids)) == len(pids))
        second = where.worktree("T-2")
        where.call("run", "--ticket", "T-2", "--profile", "coding", "--", "true", cwd=second)
        ended_as(where, "T-1", "supervisor_lost", "supervisor")
        wait_until("all groups to go", lambda: not groups(), groups)
    return f"{len(pids)} dead, recorded as supervisor_lost"


def _known(where: Place, ticket: str) -> bool:
    process = where.start("status", ticket, "--json")
    out, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode == 0 and json.loads(out)["state"] == "running"
