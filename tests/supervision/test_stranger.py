"""Owns what somebody met who used the command line without knowing it.
May touch runs in a state folder of its own, and a group's socket for one of them.
Never compares whole outputs; an exit code, a reason or a name is what counts.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from stand import CTL, Stand, until

from supervisor.errors import UsageError
from supervisor.runs.reasons import StopReason
from supervisor.workspace import tree


def test_a_reason_given_with_force_survives_a_kill_that_was_queued_before(daemon: Stand) -> None:
    ticket = daemon.start()
    assert daemon.daemon is not None
    os.kill(daemon.daemon.pid, signal.SIGSTOP)
    asked = daemon.spawn("kill", ticket)
    until(lambda: _has_spoken(asked), "the kill was not sent")
    done = daemon.ctl("kill", "--force", ticket, "--reason", "hung")
    assert done.code == 0
    os.kill(daemon.daemon.pid, signal.SIGCONT)
    run = daemon.ended(ticket)
    assert (run.reason, run.reason_note) == (StopReason.KILLED, "hung")
    assert run.kill is not None and run.kill.stage == "kill"


def _has_spoken(process: subprocess.Popen[str]) -> bool:
    """It is connected and waits for an answer: its socket is among its descriptors."""
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(entry).startswith("socket:"):
                return True
    return False


def test_a_run_that_was_never_started_changed_nothing(place: Stand) -> None:
    profile = place.profile()
    assert place.ctl("run", "--ticket", "T-1", "--profile", profile, "--", "no-such-program").code == 64
    done = place.ctl("diff", "T-1")
    assert done.code == 2
    assert "never started" in done.err


@pytest.mark.parametrize("command", ["diff", "apply", "discard", "status", "logs", "events", "kill", "stop"])
def test_no_such_ticket_is_3_everywhere(place: Stand, command: str) -> None:
    assert place.ctl(command, "T-404").code == 3


def test_a_reader_that_goes_is_no_unexpected_error(place: Stand) -> None:
    run = place.run_to_end("for i in range(20000): print('line', i)")
    assert run.reason is StopReason.DONE
    script = f"set -o pipefail; {CTL} logs {run.ticket} | head -n 1"
    done = subprocess.run(
        ["bash", "-c", script], env=place.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 141
    assert done.stdout == "line 0\n"
    assert done.stderr == ""


@pytest.mark.parametrize("value", ["true", "1", "yes", "on", "t"])
def test_whatever_is_not_plainly_false_is_a_pause(place: Stand, value: str) -> None:
    place.run_to_end("print(1)")
    with place.store() as store:
        store.set_setting("paused", value)
    done = place.ctl("run", "--", "true")
    assert done.code == 2
    assert "paused" in done.err
    with place.store() as store:
        store.set_setting("paused", "false")
    assert place.ctl("run", "--", "true").code == 0


def test_nobodys_home_is_a_worktree() -> None:
    with pytest.raises(UsageError, match="more than one project"):
        tree.inspect(os.path.expanduser("~root"))
