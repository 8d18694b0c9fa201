"""Owns being a supervisor that a test can kill: starts boxes full of processes, says so, and waits.
May touch what boxlab touches.
Never cleans up by itself when it is killed: that is what is tested.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from boxlab import PYTHON, Lab, edited_profile

from sandbox.client import Streams
from supervisor.runs import boxing

CODE = """
import os, signal, time
for number in (15, 1, 2): signal.signal(number, signal.SIG_IGN)
for _ in range(10):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(600)
        os._exit(0)
for _ in range(10): os.wait()
if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)
print("ready", flush=True)
time.sleep(600)
"""


async def main(lab: Lab, tree: Path, boxes: int, armed_only: bool) -> None:
    async with lab.fresh_client() as client:
        uids, groups, kept = [], [], []
        for _ in range(boxes):
            plan = lab.plan(tree, edited_profile(), client)
            read_end, write_end = os.pipe()
            null = os.open("/dev/null", os.O_RDWR)
            box = await client.start(
                plan.spec,
                Streams(null, write_end, null),
                [PYTHON, "-c", CODE],
                boxing.environment(edited_profile(), {}, {}),
            )
            kept.append(box)
            if not armed_only:
                await box.release()
                os.read(read_end, 10)
            uids.append(box.uid)
            groups += box.group.folders
        facts = {"launcher": client.pid, "key": client.namespace_key, "uids": uids, "groups": groups}
        print(json.dumps(facts), flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    tree = Path(sys.argv[1])
    overlays = tree.parent / f"overlays-{os.getpid()}"
    overlays.mkdir()
    asyncio.run(main(Lab(overlays), tree, int(sys.argv[2]), sys.argv[3] == "armed"))
