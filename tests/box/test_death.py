"""Owns that boxes end with their launcher and their supervisor, and what the next one finds.
May touch supervisors and launchers that it starts as processes, and signals only those.
Never needs the dying side to do anything: SIGKILL and SIGSTOP are how it dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from boxlab import PYTHON, Lab, edited_profile, end, host_mounts, processes_of

from sandbox.client import LauncherClient, LauncherGone, Streams
from supervisor.runs import boxing

_HERE = Path(__file__).parent
_PATIENCE_S = 10.0


@dataclass
class Supervisor:
    """A supervisor process of our own with released boxes."""

    process: subprocess.Popen[bytes]
    launcher: int
    key: str
    uids: list[int]
    groups: list[str]

    def survivors(self) -> list[int]:
        """Zombies are dead: a stopped launcher cannot collect its boxes' inits."""
        return [pid for uid in self.uids for pid in processes_of(uid, zombies=False)]


@contextmanager
def supervisor(tree: Path, boxes: int = 2, state: str = "released") -> Iterator[Supervisor]:
    search = os.pathsep.join([str(_HERE.parent.parent), str(_HERE)])
    process = subprocess.Popen(
        [sys.executable, str(_HERE / "driver.py"), str(tree), str(boxes), state],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": search},
    )
    assert process.stdout is not None
    found: Supervisor | None = None
    try:
        facts = json.loads(process.stdout.readline())
        found = Supervisor(process, **facts)
        yield found
    finally:
        end(process)
        process.stdout.close()
        if found is not None:
            for number in (signal.SIGCONT, signal.SIGKILL):
                if alive(found.launcher):
                    os.kill(found.launcher, number)
            asyncio.run(sweep_and_remove(found.key))


def alive(pid: int) -> bool:
    """A launcher of ours that is no zombie; its name tells it from a reused number."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "(box-launcher)" in state and state.rpartition(")")[2].split()[0] not in "ZX"


async def sweep_and_remove(key: str) -> dict[str, int]:
    """What the next supervisor with the same state does first; it leaves no empty folders."""
    async with LauncherClient(key) as client:
        reply, _ = await client.request("sweep", namespace_key=key, keep=[])
    ended: dict[str, int] = reply["ended"]
    assert reply["left"] == []
    return ended


def until_gone(there: Supervisor) -> float:
    begun = time.monotonic()
    while there.survivors():
        assert time.monotonic() - begun < _PATIENCE_S, there.survivors()
        time.sleep(0.01)
    return time.monotonic() - begun


def test_control_boxes_of_a_living_supervisor_are_full(worktree: Path) -> None:
    with supervisor(worktree) as there:
        assert len(there.survivors()) >= 2 * 12
        assert alive(there.launcher)
        assert all(os.path.isdir(group) for group in there.groups)


@pytest.mark.parametrize("state", ["released", "armed"])
def test_killing_the_supervisor_ends_everything(worktree: Path, state: str) -> None:
    mounts = host_mounts()
    with supervisor(worktree, state=state) as there:
        there.process.kill()
        there.process.wait()
        until_gone(there)
        deadline = time.monotonic() + _PATIENCE_S
        while alive(there.launcher) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not alive(there.launcher)
        assert host_mounts() == mounts
        assert [group for group in there.groups if os.path.exists(group)] == []


def test_killing_the_launcher_ends_everything_and_the_sweep_removes_the_rest(worktree: Path) -> None:
    mounts = host_mounts()
    with supervisor(worktree) as there:
        os.kill(there.launcher, signal.SIGKILL)
        until_gone(there)
        assert host_mounts() == mounts
        left = {group for group in there.groups if os.path.exists(group)}
        assert left == set(there.groups), "nobody was there to remove them"
        ended = asyncio.run(sweep_and_remove(there.key))
        assert set(ended) >= {os.path.basename(group) for group in there.groups}
        assert [group for group in there.groups if os.path.exists(group)] == []


def test_a_stopped_launcher_and_a_dead_supervisor_end_everything(worktree: Path) -> None:
    with supervisor(worktree) as there:
        os.kill(there.launcher, signal.SIGSTOP)
        there.process.kill()
        there.process.wait()
        until_gone(there)


def test_a_stopped_launcher_is_no_way_to_live_on_when_it_is_killed(worktree: Path) -> None:
    with supervisor(worktree) as there:
        os.kill(there.launcher, signal.SIGSTOP)
        os.kill(there.launcher, signal.SIGKILL)
        until_gone(there)


def test_both_killed_at_once(worktree: Path) -> None:
    with supervisor(worktree, boxes=4) as there:
        there.process.kill()
        os.kill(there.launcher, signal.SIGKILL)
        there.process.wait()
        until_gone(there)
        assert len(asyncio.run(sweep_and_remove(there.key))) >= 4


def test_a_sweep_leaves_the_runs_of_others_alone(worktree: Path) -> None:
    with supervisor(worktree) as there:
        before = len(there.survivors())

        async def sweep() -> dict[str, int]:
            async with LauncherClient(there.key) as client:
                reply, _ = await client.request("sweep", namespace_key=there.key, keep=["lab"])
                ended: dict[str, int] = reply["ended"]
                return ended

        assert asyncio.run(sweep()) == {}
        assert len(there.survivors()) == before


def test_closing_the_socket_ends_everything(lab: Lab, worktree: Path) -> None:
    async def leave() -> tuple[int, int, list[str]]:
        null = os.open("/dev/null", os.O_RDWR)
        async with lab.fresh_client() as client:
            spec = lab.plan(worktree, edited_profile(), client).spec
            box = await client.start(
                spec,
                Streams(null, null, null),
                [PYTHON, "-c", "import os, time; os.fork(); time.sleep(600)"],
                boxing.environment(edited_profile(), {}, {}),
            )
            await box.release()
        os.close(null)
        folders = box.group.folders
        uid = box.uid
        box.close()
        return uid, client.pid, folders

    uid, pid, folders = lab.wait(leave())
    assert processes_of(uid) == []
    assert not alive(pid)
    assert [folder for folder in folders if os.path.exists(folder)] == []


def test_requests_after_the_launcher_has_gone_say_so(lab: Lab) -> None:
    async def ask() -> None:
        async with lab.fresh_client() as client:
            os.kill(client.pid, signal.SIGKILL)
            with pytest.raises(LauncherGone):
                await client.request("hello", namespace_key=client.namespace_key)
        await sweep_and_remove(client.namespace_key)

    lab.wait(ask())
