"""Owns that dead means dead: whatever a box forks, ignores or freezes, nothing of it is alive.
May touch boxes it makes; survivors are looked for on the host, by the uid that only the run has.
Never takes the launcher's word for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from boxlab import (
    PYTHON,
    Killing,
    Lab,
    edited_profile,
    host_mounts,
    processes_of,
    without_filters,
)

from sandbox.client import Box

REPEAT = int(os.environ.get("BOX_REPEAT", "20"))
_START = "import os, signal, sys, time\ndef ready(): print('ready', flush=True)\n"

PLAIN = """
for _ in range(50):
    if os.fork() == 0: time.sleep(600); os._exit(0)
"""
SETSID = """
for _ in range(50):
    if os.fork() == 0: os.setsid(); time.sleep(600); os._exit(0)
"""
DOUBLE = """
for _ in range(50):
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(600)
        os._exit(0)
    os.waitpid(child, 0)
"""
CHAINS = """
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                if os.fork(): os._exit(0)
            except OSError: pass
"""
DEAF = """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
""" + PLAIN.replace("50", "5")
FROZEN = """
for _ in range(10):
    if os.fork() == 0: os.setsid(); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600); os._exit(0)
time.sleep(0.1)
"""
TRACED = """
import ctypes
for _ in range(3):
    if os.fork() == 0:
        assert ctypes.CDLL(None).ptrace(0, 0, None, None) == 0
        os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)
time.sleep(0.1)
"""
VFORKED = """
import ctypes, mmap, threading
code = bytes.fromhex('b83a0000000f0585c07401c3b8220000000f05ebf7')  # vfork; the child pauses
memory = mmap.mmap(-1, 4096, prot=7); memory.write(code)
vfork = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
if os.fork() == 0: vfork()
for _ in range(20): threading.Thread(target=time.sleep, args=(600,)).start()
"""
_WAIT = "\nready()\nwhile True: time.sleep(600)\n"


def check(killing: Killing, least: int, *, seconds: float = 5.0) -> None:
    assert killing.line == "ready"
    assert killing.before >= least
    assert killing.survivors == []
    assert killing.finished is not None and killing.finished.left == []
    assert killing.seconds < seconds


@pytest.mark.parametrize(
    ("code", "least"),
    [
        pytest.param(PLAIN, 51, id="plain"),
        pytest.param(SETSID, 51, id="setsid"),
        pytest.param(DOUBLE, 51, id="double fork"),
        pytest.param(CHAINS, 2, id="fork chains"),
        pytest.param(DEAF, 6, id="signals ignored and blocked"),
        pytest.param(FROZEN, 11, id="stopped"),
        pytest.param(VFORKED, 1, id="vfork and threads"),
    ],
)
def test_kill_leaves_nothing(lab: Lab, worktree: Path, code: str, least: int) -> None:
    check(lab.killed(worktree, _START + code + _WAIT), least)


def test_kill_leaves_nothing_that_is_stopped_by_a_tracer(lab: Lab, worktree: Path) -> None:
    check(lab.killed(worktree, _START + TRACED + _WAIT, weaken=without_filters), 4)


def test_a_strike_needs_no_launcher(lab: Lab, worktree: Path) -> None:
    async def strike(box: Box) -> None:
        os.kill(box.launcher.pid, signal.SIGSTOP)
        try:
            struck.append(box.strike())
            assert await box.wait_dead(10.0)
        finally:
            os.kill(box.launcher.pid, signal.SIGCONT)

    struck: list[int] = []
    check(lab.killed(worktree, _START + PLAIN + _WAIT, how=strike), 51)
    assert struck == [52], "the tree and the box's init"


def test_control_group_signals_leave_what_has_left_the_group(lab: Lab, worktree: Path) -> None:
    """Why the box has other handles: TERM to the agent and its group does not reach a new session."""

    async def terminate(box: Box) -> None:
        await box.terminate()
        await asyncio.sleep(0.3)
        alive.append(len(processes_of(box.uid)))
        await box.kill()

    alive: list[int] = []
    code = _START + "signal.signal(15, signal.SIG_IGN)\n" + SETSID + _WAIT
    check(lab.killed(worktree, code, how=terminate), 51)
    assert alive[0] >= 51


def test_kill_again_and_again(lab: Lab, worktree: Path) -> None:
    """All shapes of tree at once, many times: a race that is lost once in fifty shows here."""
    code = _START + "\n".join(part.replace("50", "8") for part in (PLAIN, SETSID, DOUBLE, CHAINS)) + _WAIT
    for _ in range(REPEAT):
        check(lab.killed(worktree, code), 10)


def test_term_ends_an_agent_that_listens_in_well_under_two_seconds(lab: Lab, worktree: Path) -> None:
    killing = lab.killed(worktree, _START + _WAIT, how=Box.terminate)
    check(killing, 1, seconds=2.0)


def test_a_thousand_orphans_are_reaped(lab: Lab, worktree: Path) -> None:
    code = """
for _ in range(1000):
    child = os.fork()
    if child == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
time.sleep(0.2)
print('ready' if len([n for n in os.listdir('/proc') if n.isdigit()]) < 10 else 'zombies', flush=True)
time.sleep(600)
"""
    check(lab.killed(worktree, _START + code, how=Box.terminate), 1, seconds=2.0)


def test_a_fork_bomb_is_held_by_the_limit_and_ends(lab: Lab, worktree: Path) -> None:
    code = """
ready()
while True:
    try: os.fork()
    except OSError: pass
"""

    async def later(box: Box) -> None:
        await asyncio.sleep(1.0)
        peak.append(len(processes_of(box.uid)))
        await box.kill()

    peak: list[int] = []
    killing = lab.killed(worktree, _START + code, profile=edited_profile(pids=64), how=later)
    check(killing, 1, seconds=10.0)
    assert peak[0] <= 64
    assert killing.finished is not None and killing.finished.counters["pids_refused"] > 0
    assert killing.finished.counters["pids_peak"] == 64


def test_a_memory_bomb_is_ended_and_counted(lab: Lab, worktree: Path) -> None:
    limit = 64 << 20
    code = "kept = []\nwhile True: kept.append(bytearray(1 << 20))"
    outcome = lab.run(worktree, [PYTHON, "-c", code], profile=edited_profile(memory_bytes=limit))
    assert outcome.code in (-9, None)
    assert outcome.finished is not None and outcome.finished.counters["oom_kills"] >= 1
    assert outcome.finished.counters["memory_peak_bytes"] <= limit
    assert processes_of(outcome.uid) == []


def test_what_fills_tmp_counts_as_memory(lab: Lab, worktree: Path) -> None:
    code = "open('/tmp/x', 'wb').write(b'x' * (20 << 20))"
    outcome = lab.run(worktree, [PYTHON, "-c", code], profile=edited_profile(tmp_bytes=8 << 20))
    assert "No space left on device" in outcome.err
    assert outcome.finished is not None and outcome.finished.counters["memory_peak_bytes"] > 8 << 20


def test_the_box_ends_with_the_agent_though_a_grandchild_holds_the_pipes(lab: Lab, worktree: Path) -> None:
    code = _START + DOUBLE.replace("50", "3") + "os._exit(7)"
    outcome = lab.run(worktree, [PYTHON, "-c", code], seconds=5.0)
    assert outcome.code == 7
    assert processes_of(outcome.uid) == []


def test_kills_leave_no_mount_on_the_host(lab: Lab, worktree: Path) -> None:
    before = host_mounts()
    for _ in range(3):
        lab.killed(worktree, _START + FROZEN + _WAIT)
    assert host_mounts() == before
