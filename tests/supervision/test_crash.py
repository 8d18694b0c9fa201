"""Owns that a run ends with its supervisor and its launcher, at whatever step they die.
May touch supervisors of its own, which kill themselves.
Never lets the dying side tidy up; the next start must, and must say what it found.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from boxlab import fingerprint, host_mounts
from stand import Stand, stand, until

from supervisor.runs.order import Step
from supervisor.runs.reasons import StopReason
from supervisor.store.records import Run

DRIVER = Path(__file__).with_name("crash_driver.py")
VICTIMS = ("supervisor", "launcher", "both")
BEFORE_RELEASE = (Step.CREATED, Step.BOX_MADE, Step.ATTESTED)
GRACE_S = 0.2
ASKED = (Step.STOP_WRITTEN, Step.TERM_SENT, Step.KILL_SENT, Step.EMPTY)


def crash(there: Stand, step: Step, victims: str, grace_s: float = GRACE_S) -> subprocess.Popen[str]:
    words = [step, victims, str(grace_s), str(there.tree), there.profile(), there.marker]
    process = subprocess.Popen(
        [sys.executable, str(DRIVER), *words],
        env=there.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    there.processes.append(process)
    return process


def expected(step: Step, victims: str) -> set[StopReason]:
    if step is Step.CLOSED:
        return {StopReason.KILLED}
    if victims != "launcher":
        return {StopReason.SUPERVISOR_LOST}
    if step in BEFORE_RELEASE:
        return {StopReason.NOT_STARTED, StopReason.SUPERVISOR_LOST}
    return {StopReason.KILLED} if step in ASKED else {StopReason.SUPERVISOR_LOST}


@pytest.mark.parametrize("step", list(Step))
def test_death_at_every_step(step: Step) -> None:
    """CREATED, BOX_MADE, ATTESTED, RELEASED, STOP_WRITTEN, TERM_SENT, KILL_SENT, EMPTY, CLOSED."""
    die(step, GRACE_S)


@pytest.mark.parametrize("step", [Step.KILL_SENT, Step.STOP_WRITTEN, Step.EMPTY, Step.CLOSED])
def test_death_at_every_step_of_a_kill_without_grace(step: Step) -> None:
    """It is sent while its intent is stored: a supervisor that dies in between leaves either, or both."""
    die(step, 0.0)


def die(step: Step, grace_s: float) -> None:
    with ExitStack() as stack:
        stands = {victims: stack.enter_context(stand()) for victims in VICTIMS}
        trees = {victims: fingerprint(there.tree) for victims, there in stands.items()}
        processes = {victims: crash(there, step, victims, grace_s) for victims, there in stands.items()}
        for victims, process in processes.items():
            _, said = process.communicate(timeout=60)
            died = process.returncode == -9
            assert died == (victims != "launcher"), said
            assert "Traceback" not in said or victims == "both"
        for there in stands.values():
            before = there.row("T-crash")
            assert before is not None
            until(lambda there=there: not there.survivors(), "alive after its supervisor")  # type: ignore[misc]
        starts = {
            v: there.spawn("run", "--ticket", "T-next", "--", "/bin/true") for v, there in stands.items()
        }
        for victims, process in starts.items():
            out, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
            check(stands[victims], step, victims, out)
            assert fingerprint(stands[victims].tree) == trees[victims]


def check(there: Stand, step: Step, victims: str, said: str) -> None:
    run = there.row("T-crash")
    assert run is not None and run.ended_at is not None and run.kill is not None
    assert run.reason in expected(step, victims), (victims, run)
    assert run.kill.survivors == 0
    if run.reason is StopReason.SUPERVISOR_LOST:
        assert run.reason_by == "supervisor"
        assert run.exit_status is None, "unknown is never success"
        assert ("T-crash: closed as supervisor_lost" in said) == (victims != "launcher")
    assert [event["kind"] for event in there.events("T-crash")].count("run_ended") == 1
    check_nothing_left(there, run)


def check_nothing_left(there: Stand, run: Run) -> None:
    assert there.groups() == []
    assert there.survivors() == []
    assert [line for line in host_mounts() if str(there.folder) in line] == []
    with there.store() as store:
        assert store.workers() == [] and store.live_runs() == []
    assert list((there.folder / "run/workers").iterdir()) == []
    assert list((there.state / "workers").iterdir()) == []


def test_a_crash_does_not_touch_another_supervisors_run(place: Stand) -> None:
    """Control for the sweep: what belongs to a live supervisor stays."""
    place.foreground(
        "print('UP', flush=True); import time; time.sleep(600)", ticket="T-lives", profile="offline"
    )
    until(lambda: place.row("T-lives") is not None)
    place.wait_for_line("T-lives", "UP")
    lives = place.survivors()
    crash(place, Step.RELEASED, "both").wait(timeout=60)
    assert place.ctl("run", "--ticket", "T-next", "--", "/bin/true").code == 0
    assert place.survivors() == lives and lives
    crashed = place.ended("T-crash")
    assert crashed.reason is StopReason.SUPERVISOR_LOST
    run = place.row("T-lives")
    assert run is not None and run.ended_at is None
    assert place.ctl("kill", "T-lives").code == 0


pytest_plugins = ["stand_fixtures"]
