"""Owns the measure "kill": a tree of 51 ended by the box and by the daemon, beside bare cgroup.kill.
May touch a launcher and a supervisor of its own, and one plain control group.
Never counts a process as dead that its pidfd does not show dead.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench import place, report, tree51
from bench.report import Row
from sandbox.client import LauncherClient, Streams
from supervisor.config import Config
from supervisor.daemon import Supervisor
from supervisor.logs.book import LogLine
from supervisor.paths import Paths, prepare
from supervisor.profile.load import load
from supervisor.runs.order import Order, Step
from supervisor.runs.reasons import kill_request
from supervisor.workspace.tree import Tree, inspect

_PATIENCE_S = 20.0
_WARM_UP = 3


@dataclass(slots=True)
class _Times:
    """Milliseconds per way of killing; survivors are counted at the moment "empty" was said."""

    bare: list[float] = field(default_factory=list)
    box: list[float] = field(default_factory=list)
    daemon: list[float] = field(default_factory=list)
    recorded: list[float] = field(default_factory=list)
    survivors: dict[str, int] = field(default_factory=lambda: {"bare": 0, "box": 0, "daemon": 0})


def measure(quick: bool) -> list[Row]:
    with place.scratch() as folder:
        return asyncio.run(_measure(folder, 10 if quick else 100))


async def _measure(folder: Path, repetitions: int) -> list[Row]:
    tree = place.make_worktree(folder / "tree")
    times = _Times()
    steps: dict[Step, float] = {}
    paths = prepare(Paths(str(folder / "state"), str(folder / "run")))
    supervisor = Supervisor(
        paths, Config(), "foreground", on_step=lambda step: steps.update({step: time.perf_counter()})
    )
    async with LauncherClient(place.key()) as client, supervisor:
        plans = place.Plans(client, tree, folder)
        look = inspect(str(tree))
        with place.plain_group(client.capabilities.cgroup_v2, "kill") as group:
            for number in range(_WARM_UP + repetitions):
                report.progress(f"kill: {number} of {repetitions}")
                one = _Times()
                _bare(group, one)
                await _box(client, plans, one)
                await _daemon(supervisor, look, steps, one, f"KILL-{number}")
                if number >= _WARM_UP:
                    _add(times, one)
    total = f"survivors of {tree51.SIZE} in {repetitions} kills"
    ours = times.survivors["box"] + times.survivors["daemon"]
    return [
        report.compared("Box.kill to observed empty, ms", times.box, times.bare, 1.5, "bare cgroup.kill"),
        report.compared("daemon: request to observed empty, ms", times.daemon, times.bare, 1.5),
        report.compared("… to ended and recorded on disk, ms", times.recorded, times.bare, None),
        report.bounded(f"{total}, both ways", ours, 0, other=times.survivors["bare"]),
    ]


def _add(times: _Times, one: _Times) -> None:
    times.bare += one.bare
    times.box += one.box
    times.daemon += one.daemon
    times.recorded += one.recorded
    for way, count in one.survivors.items():
        times.survivors[way] += count


def _watch(group: str, others: int) -> place.Watched:
    """Everything in the group but the box's own init, if there is one."""
    watched = place.Watched([pid for pid in place.members(group) if pid != others])
    if len(watched.held) != tree51.SIZE:
        raise RuntimeError(f"a tree of {len(watched.held)} processes, not {tree51.SIZE}")
    return watched


def _bare(group: str, times: _Times) -> None:
    """The kernel's own way, without anything around it."""
    with subprocess.Popen(
        place.in_group(group, tree51.argv()), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as root:
        assert root.stdout is not None
        root.stdout.readline()
        watched = _watch(group, -1)
        begun = time.perf_counter()
        file = os.open(f"{group}/cgroup.kill", os.O_WRONLY)
        os.write(file, b"1")
        os.close(file)
        place.wait_unpopulated(group)
        times.bare.append((time.perf_counter() - begun) * 1000)
        times.survivors["bare"] += len(watched.alive())
    place.reap([pid for pid in watched.held if pid != root.pid])
    watched.close()


async def _box(client: LauncherClient, plans: place.Plans, times: _Times) -> None:
    """Box.kill and wait_dead, as the daemon uses them, without the daemon."""
    plan = plans.next()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        box = await client.start(plan.spec, Streams(null, write_end, null), tree51.argv(), plans.environment)
    finally:
        os.close(null)
        os.close(write_end)
    try:
        with os.fdopen(read_end, "rb") as output:
            await box.release()
            await asyncio.to_thread(output.readline)
        assert box.group.v2 is not None
        watched = _watch(box.group.v2, box.pid)
        begun = time.perf_counter()
        await box.kill()
        dead = await box.wait_dead(_PATIENCE_S)
        times.box.append((time.perf_counter() - begun) * 1000)
        times.survivors["box"] += len(watched.alive()) if dead else tree51.SIZE
        await box.wait_empty(_PATIENCE_S)
    except BaseException:
        await box.abandon()
        raise
    watched.close()
    box.close()
    plans.forget(plan)


async def _daemon(
    supervisor: Supervisor, tree: Tree, steps: dict[Step, float], times: _Times, ticket: str
) -> None:
    """A whole run of the supervisor: output, record, verdict."""
    ready = asyncio.Event()

    def on_lines(lines: list[LogLine]) -> None:
        if any(line.t.strip() == tree51.READY.decode() for line in lines):
            ready.set()

    order = Order(
        ticket=ticket,
        loaded=load(place.PROFILE),
        tree=tree,
        argv=tree51.argv(),
        caller_environment={},
        secrets={},
        on_lines=on_lines,
    )
    live = await supervisor.launch(order)
    await live.started.wait()
    if live.problem is not None or live.box is None or live.box.group.v2 is None:
        raise RuntimeError(f"the run did not start: {live.problem}")
    async with asyncio.timeout(_PATIENCE_S):
        await ready.wait()
    watched = _watch(live.box.group.v2, live.box.pid)
    begun = time.perf_counter()
    live.request_stop(kill_request("operator", who="bench"))
    await live.ended.wait()
    ended = time.perf_counter()
    times.survivors["daemon"] += len(watched.alive())
    times.daemon.append((steps[Step.EMPTY] - begun) * 1000)
    times.recorded.append((ended - begun) * 1000)
    watched.close()
