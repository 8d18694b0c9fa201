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

_PROGRAM = "/usr/bin/true"
_WARM_UP = 5
_PATIENCE_S = 10.0


@dataclass(slots=True)
class _Stages:
    """Milliseconds of each part, and in total."""

    total: list[float] = field(default_factory=list)
    armed: list[float] = field(default_factory=list)
    attested: list[float] = field(default_factory=list)
    ran: list[float] = field(default_factory=list)
    emptied: list[float] = field(default_factory=list)


def measure(quick: bool) -> list[Row]:
    with place.scratch() as folder:
        return asyncio.run(_measure(folder, 20 if quick else 100))


async def _measure(folder: Path, repetitions: int) -> list[Row]:
    tree = place.make_worktree(folder / "tree")
    twin = place.make_worktree(folder / "twin")
    stages = _Stages()
    exited: list[float] = []
    gone: list[float] = []
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        async with LauncherClient(place.key()) as client:
            plans = place.Plans(client, tree, folder)
            peer = bwrap.command(plans.next().spec, twin, folder, plans.environment, [_PROGRAM])
            try:
                for number in range(_WARM_UP + repetitions):
                    report.progress(f"start: {number} of {repetitions}")
                    ours = await _start(client, plans, null)
                    theirs = bwrap.run_once(peer)
                    if number >= _WARM_UP:
                        _add(stages, ours)
                        exited.append(theirs[0])
                        gone.append(theirs[1])
            finally:
                peer.close()
    finally:
        os.close(null)
    return [
        report.compared("box around true, ms", stages.total, exited, 1.0, "against bwrap"),
        report.compared("… bwrap until its box is empty, ms", stages.total, gone, None),
        report.alone("… request to armed, ms", stages.armed),
        report.alone("… attest and compare, ms", stages.attested),
        report.alone("… release to exit, ms", stages.ran),
        report.alone("… exit to observed empty, ms", stages.emptied),
        report.alone("planning a box (not in the above), ms", plans.planned_ms),
    ]


async def _start(client: LauncherClient, plans: place.Plans, null: int) -> list[float]:
    """The instants of one whole run, in seconds."""
    plan = plans.next()
    required = frozenset(plan.spec.required)
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
        finished = await box.wait_empty(_PATIENCE_S)
        instants.append(time.perf_counter())
    except BaseException:
        await box.abandon()
        raise
    box.close()
    if wrong or status != 0 or finished is None or finished.left:
        raise RuntimeError(f"not a box as it should be: {wrong}, status {status}, {finished}")
    plans.forget(plan)
    return instants


def _add(stages: _Stages, instants: list[float]) -> None:
    parts = [(after - before) * 1000 for before, after in itertools.pairwise(instants)]
    for series, value in zip((stages.armed, stages.attested, stages.ran, stages.emptied), parts, strict=True):
        series.append(value)
    stages.total.append(sum(parts))
