"""Owns that a kill works whichever way it is asked for, and that the record says who asked and how.
May touch the stands' processes, files and databases.
Never believes a result: survivors are looked for on the host after each.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from pathlib import Path
from subprocess import DEVNULL

import pytest
from stand import HOSTILE, POLITE, Stand, until

from supervisor.runs.reasons import StopReason

pytest_plugins = ["stand_fixtures"]

OPERATOR = "0:root"


def set_flag(stand: Stand, ticket: str, value: object = 1) -> None:
    """As an operator's own tool would: a connection of another kind, another process's view."""
    connection = sqlite3.connect(stand.paths.database, timeout=10)
    connection.execute("UPDATE tickets SET stop_requested = ? WHERE key = ?", (value, ticket))
    connection.commit()
    connection.close()


def check(stand: Stand, ticket: str, *, by: str, who: str = "", note: str | None = None) -> None:
    run = stand.ended(ticket)
    assert stand.survivors() == []
    assert (run.reason, run.reason_by, run.reason_who) == (StopReason.KILLED, by, who)
    if note is not None:
        assert run.reason_note == note
    assert run.kill is not None
    assert (run.kill.survivors, run.kill.stage) == (0, "kill")
    assert run.kill.processes >= 11
    kinds = [event["kind"] for event in stand.events(ticket)]
    assert kinds[:3] == ["run_created", "box_armed", "run_started"]
    assert kinds[3:] == ["stop_requested", "box_empty", "run_ended"]


def test_control_a_hostile_run_is_alive_and_stays(anywhere: Stand) -> None:
    ticket = anywhere.start()
    anywhere.row(ticket)  # by its uid the init of the box is counted too
    try:
        # Those that only forked once more and ended may still be there when the others have spoken.
        until(lambda: len(anywhere.survivors()) == 12, "the tree does not stand")
        for pid in anywhere.survivors():
            os.kill(pid, signal.SIGTERM)
        run = anywhere.row(ticket)
        assert run is not None and run.ended_at is None
        assert len(anywhere.survivors()) == 12
    finally:
        assert anywhere.ctl("kill", ticket).code == 0


def test_by_command(anywhere: Stand) -> None:
    ticket = anywhere.start()
    done = anywhere.ctl("kill", ticket, "--reason", "wrong branch", "--json")
    assert anywhere.survivors() == [], "nothing may be alive when it returns"
    assert done.code == 0
    (said,) = done.json
    assert (said["ticket"], said["dead"], said["survivors"], said["stage"]) == (ticket, True, 0, "kill")
    assert (said["reason"], said["already"]) == ("killed", False)
    check(anywhere, ticket, by="operator", who=OPERATOR, note="wrong branch")
    again = anywhere.ctl("kill", ticket)
    assert again.code == 0 and "had ended already" in again.out


def make_file(path: Path) -> str:
    path.write_text("bar says stop\nsecond line\n")
    return "bar says stop"


def make_empty(path: Path) -> str:
    path.touch()
    return ""


def make_by_rename(path: Path) -> str:
    beside = path.parent.parent / "prepared"
    beside.write_text("renamed")
    beside.rename(path)
    return "renamed"


def make_dangling(path: Path) -> str:
    path.symlink_to("/nonexistent/nowhere")
    return ""


def make_link_to_secret(path: Path) -> str:
    """What a symlink points to is not read: its first line would go into the record."""
    path.symlink_to("/etc/hostname")
    return ""


def make_folder(path: Path) -> str:
    path.mkdir()
    return ""


def make_fifo(path: Path) -> str:
    os.mkfifo(path)
    return ""


def make_with_control_characters(path: Path) -> str:
    path.write_bytes(b"\x1b[31mred\x1b[0m \xff\xfe bell\x07" + b"x" * 1000)
    return "[31mred[0m \ufffd\ufffd bell" + "x" * (400 - 21)


WAYS = [
    make_file,
    make_empty,
    make_by_rename,
    make_dangling,
    make_link_to_secret,
    make_folder,
    make_fifo,
    make_with_control_characters,
]


def test_by_stop_file_whatever_it_is(anywhere: Stand) -> None:
    tickets = {anywhere.start(): make for make in WAYS}
    notes = {ticket: make(anywhere.state / "stop" / ticket) for ticket, make in tickets.items()}
    runs = {ticket: anywhere.ended(ticket) for ticket in tickets}
    for ticket, make in tickets.items():
        check(anywhere, ticket, by="stop_file", note=notes[ticket])
        assert runs[ticket].reason_note.isprintable(), make


@pytest.mark.parametrize("how", ["removed", "renamed away"])
def test_by_stop_file_in_a_folder_that_was_made_anew(anywhere: Stand, how: str) -> None:
    ticket = anywhere.start()
    folder = anywhere.state / "stop"
    old = anywhere.state / f"stop-{ticket}"
    if how == "removed":
        shutil.rmtree(folder)
    else:
        folder.rename(old)
        (old / ticket).write_text("not looked at any more")
    anywhere.survivors()
    folder.mkdir()
    (folder / ticket).write_text("made anew")
    check(anywhere, ticket, by="stop_file", note="made anew")


def test_by_stop_file_before_the_start_nothing_is_executed(anywhere: Stand) -> None:
    ticket = anywhere.ticket()
    (anywhere.state / "stop").mkdir(exist_ok=True, parents=True)
    (anywhere.state / "stop" / ticket).write_text("not today")
    words = ("run", "--ticket", ticket, "--profile", anywhere.profile(), "--", "/usr/bin/touch", "ran")
    done = anywhere.ctl(*words)
    assert done.code == 64 and done.clear_error() and "not today" in done.err and "hint: remove" in done.err
    run = anywhere.ended(ticket)
    assert (run.reason, run.reason_by) == (StopReason.NOT_STARTED, "stop_file")
    assert run.started_at is None and run.exit_status is None
    assert not os.path.exists(f"{run.overlay}/upper/ran")
    (anywhere.state / "stop" / ticket).unlink()
    assert anywhere.ctl(*words).code == 0, "without the file it runs"
    assert os.path.exists(f"{anywhere.ended(ticket).overlay}/upper/ran")


def test_stop_for_everything(daemon: Stand) -> None:
    tickets = [daemon.start() for _ in range(3)]
    (daemon.state / "STOP").write_text("all of it")
    try:
        for ticket in tickets:
            check(daemon, ticket, by="stop_file", note="all of it")
        refused = daemon.ctl("run", "--profile", daemon.profile(), "--", "/bin/true")
        assert refused.code == 64 and "all of it" in refused.err and "STOP" in refused.err
    finally:
        (daemon.state / "STOP").unlink()
    assert daemon.ctl("run", "--profile", daemon.profile(), "--", "/bin/true").code == 0


@pytest.mark.parametrize("value", [1, "true", "yes", "t"])
def test_by_database_flag(daemon: Stand, value: object) -> None:
    ticket = daemon.start()
    set_flag(daemon, ticket, value)
    check(daemon, ticket, by="database_flag", note="tickets.stop_requested")


@pytest.mark.parametrize("value", [0, "false", "", "no"])
def test_control_a_flag_that_is_not_set_stops_nothing(daemon: Stand, value: object) -> None:
    ticket = daemon.start("print('UP', flush=True); import time; time.sleep(2.5)")
    set_flag(daemon, ticket, value)
    assert daemon.ended(ticket).reason is StopReason.DONE


def test_by_database_flag_in_the_foreground_and_cleared_by_resume(anywhere: Stand) -> None:
    ticket = anywhere.start()
    set_flag(anywhere, ticket)
    check(anywhere, ticket, by="database_flag")
    words = ("run", "--ticket", ticket, "--profile", anywhere.profile(), "--", "/bin/true")
    refused = anywhere.ctl(*words)
    assert refused.code == 64 and f"supervisorctl resume {ticket}" in refused.err
    assert "cleared" in anywhere.ctl("resume", ticket).out
    assert "had no stop flag" in anywhere.ctl("resume", ticket).out
    assert anywhere.ctl(*words).code == 0
    unknown = anywhere.ctl("resume", "T-unknown")
    assert unknown.code == 3 and unknown.clear_error()


def test_by_the_operators_own_query(place: Stand) -> None:
    queue = place.folder / "queue.db"
    connection = sqlite3.connect(queue, isolation_level=None)
    connection.execute("CREATE TABLE jobs (jira_key TEXT, halt TEXT)")
    connection.execute("INSERT INTO jobs VALUES ('T-own', 'false'), ('T-other', 'true')")
    config = place.folder / "config.toml"
    sql = "SELECT halt FROM jobs WHERE jira_key = :ticket"
    config.write_text(f"[stop]\ndatabase = {json.dumps(str(queue))}\nquery = {json.dumps(sql)}\n")
    place.environment["SUPERVISOR_CONFIG"] = str(config)
    place.serve()
    ticket = place.start(ticket="T-own")
    before = place.row(ticket)
    assert before is not None and before.ended_at is None, "the flag of another ticket is not ours"
    connection.execute("UPDATE jobs SET halt = 'true' WHERE jira_key = 'T-own'")
    connection.close()
    check(place, ticket, by="database_flag", note="the operator's query")


def test_an_operators_query_that_cannot_run_starts_nothing(place: Stand) -> None:
    config = place.folder / "config.toml"
    config.write_text('[stop]\ndatabase = "/nonexistent/queue.db"\nquery = "SELECT 1"\n')
    place.environment["SUPERVISOR_CONFIG"] = str(config)
    done = place.ctl("run", "--", "/bin/true")
    assert done.code == 6 and done.clear_error() and "[stop]" in done.err


def test_by_wall_clock(anywhere: Stand) -> None:
    ticket = anywhere.start(profile=anywhere.profile(wall_clock="1s"))
    run = anywhere.ended(ticket)
    assert anywhere.survivors() == []
    assert (run.reason, run.reason_by, run.reason_who) == (StopReason.MAX_SECONDS, "limit", "wall_clock")
    assert run.figures["limit_s"] == 1.0
    assert float(run.figures["used_s"]) >= 1.0
    assert run.kill is not None and run.kill.stage == "kill", "it ignored TERM"


def test_by_wall_clock_and_it_obeys(anywhere: Stand) -> None:
    profile = anywhere.profile(wall_clock="1500ms", stop_grace="1400ms")
    run = anywhere.ended(anywhere.start(POLITE, profile=profile))
    assert (run.reason, run.stage) == (StopReason.MAX_SECONDS, "term")


def test_kill_all(anywhere: Stand) -> None:
    tickets = [anywhere.start() for _ in range(3)]
    done = anywhere.ctl("kill", "--all", "--json")
    assert anywhere.survivors() == []
    assert done.code == 0
    assert sorted(row["ticket"] for row in done.json) == sorted(tickets)
    for ticket in tickets:
        check(anywhere, ticket, by="operator", who=OPERATOR)
    nothing = anywhere.ctl("kill", "--all")
    assert nothing.code == 0 and "nothing is running" in nothing.out


def test_stop_obeyed(anywhere: Stand) -> None:
    ticket = anywhere.start(POLITE, profile=anywhere.profile(stop_grace="30s"))
    done = anywhere.ctl("stop", ticket, "--reason", "enough")
    assert done.code == 0 and anywhere.survivors() == []
    run = anywhere.ended(ticket)
    assert (run.reason, run.stage, run.reason_who) == (StopReason.STOPPED, "term", OPERATOR)
    assert (run.reason_note, run.exit_status) == ("enough", 0)
    assert "signal_sent" in [event["kind"] for event in anywhere.events(ticket)]


def test_stop_ignored_is_forced(anywhere: Stand) -> None:
    ticket = anywhere.start()
    done = anywhere.ctl("stop", ticket, "--grace", "300ms", "--json")
    assert done.code == 0 and anywhere.survivors() == []
    (said,) = done.json
    assert (said["reason"], said["stage"], said["survivors"]) == ("killed", "kill", 0)
    assert anywhere.ended(ticket).reason is StopReason.KILLED


@pytest.mark.parametrize("second", ["kill", "stop-file", "flag"])
def test_a_second_request_shortens_a_long_grace(anywhere: Stand, second: str) -> None:
    ticket = anywhere.start()
    asking = anywhere.spawn("stop", ticket, "--grace", "10m")
    until(lambda: (row := anywhere.row(ticket)) and row.state == "stopping")
    assert len(anywhere.survivors()) >= 11
    if second == "kill":
        assert anywhere.ctl("kill", ticket).code == 0
    elif second == "stop-file":
        (anywhere.state / "stop" / ticket).touch()
    else:
        set_flag(anywhere, ticket)
    assert anywhere.ended(ticket).reason is StopReason.KILLED
    assert anywhere.survivors() == []
    assert asking.wait(timeout=30) == 0


def test_a_long_grace_does_not_outlive_the_wall_clock(anywhere: Stand) -> None:
    ticket = anywhere.start(profile=anywhere.profile(wall_clock="2s"))
    asking = anywhere.spawn("stop", ticket, "--grace", "10m")
    run = anywhere.ended(ticket)
    assert anywhere.survivors() == [] and run.kill is not None and run.kill.stage == "kill"
    assert asking.wait(timeout=30) == 0


@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize("code", ["polite", "hostile"])
def test_ctrl_c(anywhere: Stand, presses: int, code: str) -> None:
    """For a run of the daemon and for one of its own alike: once asks, twice forces."""
    ticket = anywhere.ticket()
    grace = "10m" if presses == 2 and code == "hostile" else "20s" if code == "polite" else "300ms"
    profile = anywhere.profile(wall_clock="20m", stop_grace=grace)
    text = POLITE if code == "polite" else HOSTILE
    process = anywhere.foreground(text, ticket=ticket, profile=profile, stdout=DEVNULL, stderr=DEVNULL)
    anywhere.wait_for_line(ticket, "UP")
    process.send_signal(signal.SIGINT)
    if presses == 2 and code == "hostile":
        until(lambda: (row := anywhere.row(ticket)) and row.state == "stopping")
        process.send_signal(signal.SIGINT)
    exit_code = process.wait(timeout=60)
    run = anywhere.ended(ticket)
    assert anywhere.survivors() == []
    assert (run.reason_by, run.reason_note) == ("operator", "Ctrl-C")
    assert run.reason is (StopReason.STOPPED if code == "polite" else StopReason.KILLED)
    assert exit_code == (73 if code == "polite" else 74)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_foreground_run_ends_with_its_shell(place: Stand, number: signal.Signals) -> None:
    process = place.foreground(
        HOSTILE, ticket="T-sig", profile=place.profile(), stdout=DEVNULL, stderr=DEVNULL
    )
    place.wait_for_line("T-sig", "UP")
    process.send_signal(number)
    process.wait(timeout=60)
    run = place.ended("T-sig")
    assert place.survivors() == []
    assert (run.reason, run.reason_by) == (StopReason.KILLED, "operator")


def test_the_daemon_ends_its_runs_first(place: Stand) -> None:
    process = place.serve()
    tickets = [place.start() for _ in range(2)]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert place.survivors() == []
    for ticket in tickets:
        run = place.ended(ticket)
        assert (run.reason, run.reason_by) == (StopReason.KILLED, "supervisor")
    assert place.groups() == []
    assert not os.path.exists(place.paths.control_socket)
