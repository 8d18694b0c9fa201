"""Owns the measure "start": a box around `true`, from the request to observed empty, beside bubblewrap.
May touch a launcher of its own and the scratch folder.
Never counts planning or tidying up of overlay folders: both happen outside of a start.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench import bwrap, place, report
from bench.report import Row
from sandbox import attest
from sandbox.client import LauncherClient, Streams
from supervisor.runs import boxing

_PROGRAM = "/usr/bin/true"
_WARM_UP = 5
_PAUSE_S = 0.03
_IN_A_ROW = 10
_PATIENCE_S = 10.0


@dataclass(slots=True)
class _Stages:
    """Milliseconds of each part, and in total; tidying up of the dead box is not in it, as it is not in
    the other's: what is left of its namespaces the kernel takes away later."""

    total: list[float] = field(default_factory=list)
    armed: list[float] = field(default_factory=list)
    attested: list[float] = field(default_factory=list)
    ran: list[float] = field(default_factory=list)
    emptied: list[float] = field(default_factory=list)
    removed: list[float] = field(default_factory=list)


def measure(quick: bool) -> list[Row]:
    with place.scratch() as folder:
        return asyncio.run(_measure(folder, quick))


async def _measure(folder: Path, quick: bool) -> list[Row]:
    tree = place.make_worktree(folder / "tree")
    twin = place.make_worktree(folder / "twin")
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        async with LauncherClient(place.key()) as client:
            plans = place.Plans(client, tree, folder)
            peer = bwrap.command(plans.next().spec, twin, folder, plans.environment, [_PROGRAM])
            try:
                rows = await _in_turn(client, plans, peer, null, 20 if quick else 100)
                rows += await _rows_of_ten(client, plans, peer, null, 3 if quick else 15)
                rows.append(report.alone("planning a box (not in the above), ms", plans.planned_ms))
            finally:
                peer.close()
        first = [await _first(tree, folder, null) for _ in range(3 if quick else 10)]
    finally:
        os.close(null)
    rows.append(report.alone("first box of a launcher, ms", first, "nothing is prepared"))
    return rows


async def _in_turn(
    client: LauncherClient, plans: place.Plans, peer: bwrap.Command, null: int, repetitions: int
) -> list[Row]:
    """One of ours, one of theirs; a pause before each, so that neither has the other's tidying beside it."""
    stages = _Stages()
    exited: list[float] = []
    gone: list[float] = []
    for number in range(_WARM_UP + repetitions):
        report.progress(f"start: {number} of {repetitions}")
        await asyncio.sleep(_PAUSE_S)
        ours = await _start(client, plans.next(), plans, null)
        await asyncio.sleep(_PAUSE_S)
        theirs = bwrap.run_once(peer)
        if number >= _WARM_UP:
            _add(stages, ours)
            exited.append(theirs[0])
            gone.append(theirs[1])
    return [
        report.compared("box around true, ms", stages.total, exited, 1.0, "against bwrap"),
        report.compared("… bwrap until its box is empty, ms", stages.total, gone, None),
        report.alone("… request to armed, ms", stages.armed),
        report.alone("… attest and compare, ms", stages.attested),
        report.alone("… release to exit, ms", stages.ran),
        report.alone("… exit to observed empty, ms", stages.emptied),
        report.alone("… then counters read and groups removed, ms", stages.removed, "not in the above"),
    ]


async def _rows_of_ten(
    client: LauncherClient, plans: place.Plans, peer: bwrap.Command, null: int, repetitions: int
) -> list[Row]:
    """Ten without a pause: what is prepared ahead is paid for here, in time and on both cores."""
    ours: list[float] = []
    theirs: list[float] = []
    our_cpu: list[float] = []
    their_cpu: list[float] = []
    for number in range(repetitions):
        report.progress(f"start, ten at a time: {number} of {repetitions}")
        planned = [plans.next() for _ in range(_IN_A_ROW)]
        await asyncio.sleep(_PAUSE_S)
        begun, cpu = time.perf_counter(), _cpu_ms(client.pid)
        for plan in planned:
            await _start(client, plan, plans, null)
        ours.append((time.perf_counter() - begun) * 1000 / _IN_A_ROW)
        our_cpu.append((_cpu_ms(client.pid) - cpu) / _IN_A_ROW)
        await asyncio.sleep(_PAUSE_S)
        begun, cpu = time.perf_counter(), _cpu_ms()
        for _ in range(_IN_A_ROW):
            bwrap.run_once(peer)
        theirs.append((time.perf_counter() - begun) * 1000 / _IN_A_ROW)
        their_cpu.append((_cpu_ms() - cpu) / _IN_A_ROW)
    return [
        report.compared("… each of ten in a row, ms", ours, theirs, None, "against bwrap, no pause between"),
        report.compared(
            "… CPU time of each, ms", our_cpu, their_cpu, None, "with preparing and all children"
        ),
    ]


def _cpu_ms(launcher: int = 0) -> float:
    """CPU time of this process and its dead children, and of the launcher and what it has reaped."""
    own = os.times()
    total_s = own.user + own.system + own.children_user + own.children_system
    if launcher:
        words = Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()
        total_s += sum(int(word) for word in words[11:15]) / os.sysconf("SC_CLK_TCK")
    return total_s * 1000


async def _first(tree: Path, folder: Path, null: int) -> float:
    """With a launcher that is up, and has made no box yet."""
    async with LauncherClient(place.key()) as client:
        plans = place.Plans(client, tree, folder)
        instants = await _start(client, plans.next(), plans, null)
    return (instants[-2] - instants[0]) * 1000


async def _start(client: LauncherClient, plan: boxing.BoxPlan, plans: place.Plans, null: int) -> list[float]:
    """The instants of one whole run, in seconds."""
    required = frozenset(plan.spec.base.required)
    instants = [time.perf_counter()]
    box = await client.start(plan.spec, Streams(null, null, null), [_PROGRAM], plans.environment)
    try:
        instants.append(time.perf_counter())
        wrong = attest.disagreements(
            await box.attest(), uid=box.uid, seccomp_sha256=plan.seccomp_sha256, required=required
        )
        instants.append(time.perf_counter())
        await box.release()
        status = await box.wait_exited()
        instants.append(time.perf_counter())
        dead = await box.wait_dead(_PATIENCE_S)
        instants.append(time.perf_counter())
        finished = await box.wait_empty(_PATIENCE_S)
        instants.append(time.perf_counter())
    except BaseException:
        await box.abandon()
        raise
    box.close()
    if wrong or status != 0 or not dead or finished is None or finished.left:
        raise RuntimeError(f"not a box as it should be: {wrong}, status {status}, {finished}")
    plans.forget(plan)
    return instants


def _add(stages: _Stages, instants: list[float]) -> None:
    parts = [(after - before) * 1000 for before, after in itertools.pairwise(instants)]
    named = (stages.armed, stages.attested, stages.ran, stages.emptied, stages.removed)
    for series, value in zip(named, parts, strict=True):
        series.append(value)
    stages.total.append(sum(parts[:-1]))
