"""Owns that a kill works while the supervisor, its launcher or the database hang, die or are away.
May touch the stands' processes with signals, and hold locks on their databases.
Never leaves a process stopped or a lock held.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from stand import Stand, until

from supervisor.runs.force import kill_leftover
from supervisor.runs.order import Step
from supervisor.runs.reasons import StopReason
from supervisor.store.records import RunState

pytest_plugins = ["stand_fixtures"]

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Another process holds a transaction open that lets nobody write."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdin is not None
    try:
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def away(state: Path) -> Iterator[None]:
    """The database and its companions are somewhere else for a while."""
    names = [name for name in os.listdir(state) if name.startswith("supervisor.db")]
    elsewhere = state / "away"
    elsewhere.mkdir()
    for name in names:
        (state / name).rename(elsewhere / name)
    try:
        yield
    finally:
        for name in names:
            (elsewhere / name).rename(state / name)
        elsewhere.rmdir()


def supervisor_of(stand: Stand) -> int:
    with stand.store() as store:
        (worker,) = store.workers()
    return worker.pid


def launcher_of(stand: Stand) -> int:
    """Whose parent is the supervisor, and who is called so."""
    parent = supervisor_of(stand)
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            said = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        if "(box-launcher)" in said and int(said.rpartition(")")[2].split()[1]) == parent:
            found.append(int(name))
    (launcher,) = found
    return launcher


def check_forced(stand: Stand, ticket: str, note: str) -> None:
    run = stand.ended(ticket)
    assert (run.reason, run.reason_by, run.reason_who) == (StopReason.KILLED, "operator", "0:root")
    assert run.reason_note == note
    ended = [event for event in stand.events(ticket) if event["kind"] == "run_ended"]
    assert len(ended) == 1


@pytest.mark.parametrize("also_launcher", [False, True], ids=["supervisor", "and launcher"])
def test_force_with_a_hung_supervisor(anywhere: Stand, also_launcher: bool) -> None:
    ticket = anywhere.start()
    pids = [supervisor_of(anywhere), *([launcher_of(anywhere)] if also_launcher else [])]
    with stopped(*pids):
        done = anywhere.ctl("kill", "--force", ticket, "--reason", "hung", "--json")
        assert anywhere.survivors() == []
        assert done.code == 0
        (said,) = done.json
        assert said["dead"] and said["survivors"] == 0 and said["processes"] >= 11
        assert anywhere.ctl("status", ticket).code == 0, "looking never waits for a supervisor"
    check_forced(anywhere, ticket, "hung")


def driven(place: Stand, step: str, how: str) -> subprocess.Popen[str]:
    words = [step, how, "0", str(place.tree), place.profile(), place.marker]
    return place.spawn_program([sys.executable, str(Path(__file__).with_name("crash_driver.py")), *words])


@pytest.mark.parametrize("step", [Step.CREATED, Step.BOX_MADE])
def test_force_says_not_yet_dead_of_a_run_that_is_only_being_started(place: Stand, step: Step) -> None:
    """It said dead, as there was nothing to kill; and then the run started."""
    process = driven(place, step, "hangs")
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    refused = place.ctl("kill", "--force", "T-crash")
    assert refused.code == 4 and refused.clear_error() and "only being started" in refused.err
    os.kill(process.pid, signal.SIGCONT)
    process.wait(60)
    run = place.ended("T-crash")
    assert (run.reason, place.survivors()) == (StopReason.NOT_STARTED, [])
    assert place.lines("T-crash") == []


def test_a_kill_that_the_launcher_refuses_is_made_without_it(place: Stand) -> None:
    process = driven(place, "none", "refused")
    process.wait(60)
    run = place.ended("T-crash")
    assert (run.reason, run.reason_by, place.survivors()) == (StopReason.KILLED, "operator", [])
    assert run.kill is not None and run.kill.elapsed_ms > 0 and run.kill.survivors == 0


def test_force_during_a_grace_is_what_ended_it(served: Stand) -> None:
    """The supervisor is not hung, only patient: it may not write its own reason over ours."""
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('UP', flush=True); time.sleep(600)"
    ticket = served.start(deaf)
    asking = served.spawn("stop", ticket, "--grace", "30s")
    until(lambda: "signal_sent" in [event["kind"] for event in served.events(ticket)])
    assert served.ctl("kill", "--force", ticket, "--reason", "now").code == 0
    asking.wait(60)
    check_forced(served, ticket, "now")


def test_force_writes_to_control_groups_alone(place: Stand) -> None:
    """What a row names may be anybody's word who can write the database."""
    place.ctl("run", "--ticket", "T-1", "--profile", "offline", "--", "true")
    elsewhere, target = place.folder / "sidecar-supervisor", place.folder / "target"
    target.write_text("text")
    elsewhere.mkdir()
    (elsewhere / "cgroup.kill").symlink_to(target)
    (elsewhere / "cgroup.events").write_text("populated 0")
    (elsewhere / "cgroup.procs").write_text(f"{os.getpid()}")
    run = place.ended("T-1")
    forged = msgspec.structs.replace(run, state=RunState.RUNNING, ended_at=None, cgroups=[str(elsewhere)])
    assert kill_leftover(forged) == 0
    assert target.read_text() == "text"


def test_force_with_a_dead_daemon(place: Stand) -> None:
    process = place.serve()
    tickets = [place.start() for _ in range(2)]
    process.kill()
    process.wait()
    until(lambda: not place.survivors(), "runs outlive their daemon")
    refused = place.ctl("kill", tickets[0])
    assert refused.code == 5 and refused.clear_error() and "kill --force" in refused.err
    assert "supervisor gone" in place.ctl("ps").out
    assert place.ctl("kill", "--force", tickets[0], "--reason", "cleaning").code == 0
    check_forced(place, tickets[0], "cleaning")
    place.daemon = None
    assert "closed as supervisor_lost" in place.ctl("run", "--", "/bin/true").out
    assert place.ended(tickets[1]).reason is StopReason.SUPERVISOR_LOST
    check_forced(place, tickets[0], "cleaning")


def test_force_all_with_a_hung_daemon(served: Stand) -> None:
    tickets = [served.start() for _ in range(2)]
    with stopped(supervisor_of(served)):
        assert served.ctl("kill", "--force", "--all", "--reason", "fire").code == 0
        assert served.survivors() == []
    for ticket in tickets:
        check_forced(served, ticket, "fire")


def test_force_on_what_is_not_there(anywhere: Stand) -> None:
    unknown = anywhere.ctl("kill", "--force", "T-unknown")
    assert unknown.code == 3 and unknown.clear_error()
    ticket = anywhere.start("print('UP')")
    anywhere.ended(ticket)
    done = anywhere.ctl("kill", "--force", ticket, "--json")
    assert done.code == 0 and done.json[0]["already"] is True
    assert anywhere.ended(ticket).reason is StopReason.DONE, "a late kill does not rewrite history"


@pytest.mark.parametrize("how", ["command", "stop-file", "force"])
def test_kill_while_the_database_is_locked(anywhere: Stand, how: str) -> None:
    ticket = anywhere.start()
    with locked(anywhere.paths.database):
        if how == "stop-file":
            (anywhere.state / "stop" / ticket).write_text("locked out")
        else:
            words = ("kill", ticket, *(["--force"] if how == "force" else []))
            assert anywhere.ctl(*words).code == 0
        until(lambda: not anywhere.survivors(), "a lock on the database keeps a run alive")
    run = anywhere.ended(ticket)
    assert run.reason is StopReason.KILLED or how == "force"
    assert run.exit_status != 0


def test_kill_while_the_database_is_away(anywhere: Stand) -> None:
    ticket = anywhere.start()
    with away(anywhere.state):
        done = anywhere.ctl("kill", ticket)
        assert anywhere.survivors() == []
        assert done.code == 0, done
        assert not os.path.exists(anywhere.paths.database), "no second truth is made beside the first"
    assert anywhere.ended(ticket).reason is StopReason.KILLED


def test_kill_while_the_database_is_damaged(served: Stand) -> None:
    ticket = served.start()
    with away(served.state):
        database = Path(served.paths.database)
        database.write_bytes(b"this is no database at all" * 100)
        done = served.ctl("kill", ticket)
        assert served.survivors() == []
        assert done.code == 0, done
        assert database.read_bytes().startswith(b"this is no database"), "kept as evidence"
    assert served.ended(ticket).reason is StopReason.KILLED


def test_an_ended_run_is_never_opened_again(anywhere: Stand) -> None:
    """kill --force read the row before the run ended, and writes its intent after: the end stays."""
    ticket = anywhere.start("print('UP')")
    run = anywhere.ended(ticket)
    with anywhere.store() as store:
        store.update_run(msgspec.structs.replace(run, state=RunState.STOPPING, ended_at=None, reason=None))
    again = anywhere.row(ticket)
    assert again == run


def test_stop_folder_mounted_over() -> None:
    here, outside = Path(__file__).with_name("mounted_over.py"), os.readlink("/proc/self/ns/mnt")
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, str(here), outside],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "killed stop_file mounted over\n", done.stderr


def test_exit_codes(anywhere: Stand) -> None:
    ticket = anywhere.start()
    for words, code in {
        ("kill",): 2,
        ("kill", ticket, "--all"): 2,
        ("kill", "../etc/passwd"): 2,
        ("stop", ticket, "--grace", "soon"): 2,
        ("kill", "T-unknown"): 3,
        ("stop", "T-unknown"): 3,
        ("kill", "T-unknown", ticket): 3,
        ("kill", ticket): 0,
        ("stop", ticket): 0,
    }.items():
        done = anywhere.ctl(*words)
        assert done.code == code, (words, done)
        assert code == 0 or done.clear_error(), done
        assert code == 0 or "hint:" in done.err or len(words) > 2, done


def test_no_supervisor_is_exit_code_5(served: Stand) -> None:
    ticket = served.start()
    os.unlink(served.paths.control_socket)
    done = served.ctl("kill", ticket)
    assert done.code == 5 and done.clear_error() and "hint:" in done.err
    assert served.survivors(), "it says so because it is true"
    assert served.ctl("kill", "--force", ticket).code == 0
    assert served.survivors() == []


def test_sqlite_flag_by_another_library_is_seen_with_wal(daemon: Stand) -> None:
    """The WAL of a foreign writer that comes and goes does not hide our own writes (howtocorrupt 2.2)."""
    ticket = daemon.start("print('UP', flush=True); import time; time.sleep(600)")
    for _ in range(5):
        connection = sqlite3.connect(daemon.paths.database)
        assert connection.execute("SELECT count(*) FROM runs").fetchone()[0] >= 1
        connection.close()
    assert daemon.ctl("kill", ticket).code == 0
    assert daemon.ended(ticket).reason is StopReason.KILLED
