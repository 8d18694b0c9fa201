"""Owns the daemon's command: serve until told to end.
May touch the control socket and everything the supervisor may.
Never forks into the background: that is systemd's work.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
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
    asyncio.run(_serve(quiet))


async def _serve(quiet: bool) -> None:
    from supervisor.config import load_config
    from supervisor.control.server import ControlServer
    from supervisor.daemon import Supervisor
    from supervisor.paths import locate, prepare

    paths = prepare(locate())
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    async with Supervisor(paths, load_config(), "daemon") as supervisor, ControlServer(supervisor):
        if not quiet:
            for run in supervisor.lost:
                output.say(f"{run.ticket}  {run.reason} (found at start; its supervisor had died)")
            output.say(f"serving · state {paths.state} · socket {paths.control_socket}")
        _notify("READY=1")
        await _first(end.wait(), supervisor.launcher.wait_gone())
        _notify("STOPPING=1")
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


def _notify(text: str) -> None:
    """sd_notify(3): one datagram to the socket systemd names; nothing without systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
        try:
            notifier.sendto(text.encode(), address)
        except OSError:
            return
