"""Owns what happens to a run when the terminal it was started from stops, hangs up or speaks bytes.
May touch runs in a state folder of its own.
Never lets a reader that does not read keep a limit or a kill from working.
"""

from __future__ import annotations

import os
import signal
import subprocess

from stand import CTL, Stand, until

from supervisor.runs.reasons import StopReason
from supervisor.store.records import RunState

_PATIENCE_S = 30.0
_PRINTS = "while True: print('x' * 1000, flush=True)"


def test_a_reader_that_does_not_read_stops_no_limit_and_no_kill(place: Stand) -> None:
    profile = place.profile(wall_clock="2s", stop_grace="100ms")
    read_end, write_end = os.pipe()
    client = place.foreground(_PRINTS, ticket="T-1", profile=profile, stdout=write_end)
    os.close(write_end)
    try:
        until(lambda: place.row("T-1") is not None, "no run")
        assert place.ended("T-1").reason is StopReason.MAX_SECONDS
        assert place.survivors() == []
    finally:
        os.close(read_end)
        client.wait(_PATIENCE_S)


def test_a_closed_terminal_ends_the_run_of_the_daemon_it_was_started_from(daemon: Stand) -> None:
    code = "import time\nprint('UP', flush=True)\ntime.sleep(600)"
    client = daemon.foreground(code, ticket="T-1", profile=daemon.profile(), stdout=subprocess.DEVNULL)
    daemon.wait_for_line("T-1", "UP")
    os.killpg(client.pid, 0)  # the control: it waits for the run
    until(lambda: _handles(client.pid, signal.SIGHUP), "the client does not handle HUP")
    client.send_signal(signal.SIGHUP)
    assert client.wait(_PATIENCE_S) == 128 + signal.SIGHUP
    assert daemon.ended("T-1").reason in (StopReason.STOPPED, StopReason.KILLED)
    assert daemon.survivors() == []


def _handles(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        caught = next(line for line in file if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_a_daemon_whose_launcher_dies_says_so_and_ends(daemon: Stand) -> None:
    ticket = daemon.start()
    assert daemon.daemon is not None
    children = f"/proc/{daemon.daemon.pid}/task/{daemon.daemon.pid}/children"
    with open(children, encoding="ascii") as file:
        launcher = int(file.read().split()[0])
    os.kill(launcher, signal.SIGKILL)
    assert daemon.daemon.wait(_PATIENCE_S) == 6
    assert daemon.daemon.stderr is not None
    assert "the launcher has ended" in daemon.daemon.stderr.read()
    run = daemon.ended(ticket)
    assert (run.state, run.reason) == (RunState.ENDED, StopReason.SUPERVISOR_LOST)
    assert daemon.survivors() == []


def test_words_that_are_no_text_are_refused(place: Stand) -> None:
    commands: list[list[bytes]] = [
        [b"run", b"--", b"echo", b"a\xff"],
        [b"status", b"\xff"],
        [b"logs", b"\xff"],
    ]
    for words in commands:
        done = subprocess.run(
            [CTL.encode(), *words], env=place.environment, cwd=place.tree, capture_output=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert b"hint:" in done.stderr and b"unexpected" not in done.stderr
