"""Owns the daemon's command: serve until told to end.
May touch the control socket and everything the supervisor may.
Never forks into the background: that is systemd's work.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import click

from supervisor.cli import output
from supervisor.errors import StateError


@click.command()
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def serve(quiet: bool) -> None:
    """Be the daemon: take runs, watch stop-files and flags, keep the record.

    Ends on TERM or Ctrl-C, and every run of it ends first.
    """
    asyncio.run(_serve_watched(quiet))


async def _serve_watched(quiet: bool) -> None:
    """Signs of life from the first moment to the last: ending many runs may take longer than one is due."""
    from supervisor.systemd import keep_watchdog_quiet

    pings = asyncio.create_task(keep_watchdog_quiet())
    try:
        await _serve(quiet)
    finally:
        pings.cancel()


async def _serve(quiet: bool) -> None:
    from supervisor.config import load_config
    from supervisor.control.server import ControlServer
    from supervisor.daemon import Supervisor
    from supervisor.paths import locate, prepare
    from supervisor.systemd import inherited_socket, notify

    paths = prepare(locate())
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    handed_over = inherited_socket("control")
    async with (
        Supervisor(paths, load_config(), "daemon") as supervisor,
        ControlServer(supervisor, handed_over),
    ):
        if not quiet:
            for run in supervisor.lost:
                output.say(f"{run.ticket}  {run.reason} (found at start; its supervisor had died)")
            output.say(f"serving · state {paths.state} · socket {paths.control_socket}")
        notify("READY=1")
        await _first(end.wait(), supervisor.launcher.wait_gone())
        notify("STOPPING=1")
        if not end.is_set():
            raise StateError(
                "the launcher has ended, and every run with it",
                hint="start the daemon again; see its journal",
            )
        if not quiet and supervisor.runs:
            output.say(f"ending {len(supervisor.runs)} runs")


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Until one of them is over; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
