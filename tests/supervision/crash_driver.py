"""Owns being a supervisor that dies or hangs at a named step of a run's life, or whose launcher fails it.
May touch the state and run folders named in its environment.
Never cleans up: that is what the next start is tested for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from stand import HOSTILE, PYTHON

from sandbox.client import Box, BoxError
from supervisor.config import Config
from supervisor.control.server import make_order
from supervisor.daemon import Supervisor
from supervisor.paths import locate, prepare
from supervisor.runs.life import LiveRun
from supervisor.runs.order import Step
from supervisor.runs.reasons import stop_request


async def refused(self: Box) -> int:
    """A launcher that does not kill, on a host without cgroup.kill."""
    raise BoxError("Input/output error", number="EIO")


async def main(step: str, victims: str, grace_s: str, tree: str, profile: str, marker: str) -> None:
    async def ask(live: LiveRun) -> None:
        """As soon as the tree of processes stands; the steps of an end are only reached by one."""
        log = Path(supervisor.paths.logs(live.run.run_id))
        while "UP" not in log.read_text() and not live.ended.is_set():
            await asyncio.sleep(0.02)
        live.request_stop(stop_request("operator", float(grace_s), who="0:test", note="crash"))

    def on_step(reached: Step) -> None:
        if reached != step:
            return
        if victims in ("launcher", "both"):
            os.kill(supervisor.launcher.pid, signal.SIGKILL)
        if victims in ("supervisor", "both"):
            os.kill(os.getpid(), signal.SIGKILL)
        if victims == "hangs":
            os.kill(os.getpid(), signal.SIGSTOP)

    if victims == "refused":
        Box.kill = refused  # type: ignore[method-assign]
        Box.strike = lambda self: 0  # type: ignore[method-assign]

    supervisor = Supervisor(prepare(locate()), Config(), "foreground", on_step=on_step)
    order = {"ticket": "T-crash", "profile": profile, "worktree": tree, "environment": {}}
    async with supervisor:
        live = await supervisor.launch(make_order({**order, "argv": [PYTHON, "-c", HOSTILE, marker]}))
        await live.started.wait()
        if not live.ended.is_set():
            await ask(live)
        await live.ended.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
