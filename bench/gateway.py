"""Owns a run's gateway in a process of its own, of the same parts as the daemon's: only the box is missing.
May touch the state folder, the listener and the configuration that it is given.
Never leaves out what a real call writes: reservation, settlement, event, its record in the trail.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from zoneinfo import ZoneInfo

from supervisor.audit.trail import Trail
from supervisor.booking import BookingClock
from supervisor.clock import SystemClock, boot_id
from supervisor.config import load_config
from supervisor.events import EventKind
from supervisor.gateway.hub import GatewayHub
from supervisor.identifiers import new_ulid
from supervisor.limits.charges import Booking
from supervisor.profile.load import load
from supervisor.runs.row import RunRow
from supervisor.runs.spending import Spending
from supervisor.store.recorder import Recorder
from supervisor.store.records import Run, RunState

_LOOK_EVERY_S = 1.0


async def _serve(folder: Path, listener: int) -> None:
    config, loaded, clock = load_config(), load(str(folder / "profile.toml")), SystemClock()
    recorder = Recorder(config.store_location(str(folder / "state.db")))
    booking = BookingClock(clock, boot_id(), ZoneInfo(config.daily.zone), {})
    run = Run(
        run_id=new_ulid(),
        ticket="BENCH-1",
        project="bench",
        profile=loaded.profile.name,
        profile_digest=loaded.digest,
        command=["agent"],
        worktree=str(folder),
        host="bench",
        boot_id=boot_id(),
        worker_id=new_ulid(),
        state=RunState.CREATED,
        created_at=booking.now(),
    )
    trail = Trail(str(folder / "audit"))
    row = RunRow(run, recorder, clock, lambda _: None, trail.event)
    created = row.make_event(EventKind.RUN_CREATED, {"profile": run.profile})
    await recorder.call(lambda store: store.create_run(run, created))
    async with AsyncExitStack() as stack:
        stack.callback(recorder.close)
        stack.callback(trail.close)
        hub = GatewayHub(config, recorder)
        stack.push_async_callback(hub.close)
        spending = Spending(
            profile=loaded.profile,
            booking=Booking(
                run_id=run.run_id, ticket=run.ticket, project=run.project, worker_id=run.worker_id
            ),
            row=row,
            recorder=recorder,
            clock=booking,
            daily=config.daily,
            hub=lambda: hub,
            lease_s=config.queue.lease_s,
            seconds_left=lambda: 3600.0,
            request_stop=lambda _: None,
        )
        await spending.prepare()
        await spending.open(listener, stack)
        print("ready", flush=True)
        over = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, over.set)
        while not over.is_set():
            # As the daemon does once a second.
            await recorder.call(lambda store: store.settings())
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await over.wait()
            except TimeoutError:
                continue


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.gateway")
    parser.add_argument("folder", type=Path)
    parser.add_argument("listener", type=int)
    given = parser.parse_args()
    asyncio.run(_serve(given.folder, given.listener))
