"""Owns the measure "work": the same programs in a box and outside of it, timed by themselves.
May touch a launcher of its own and two equal worktrees in the scratch folder.
Never counts making the box: that is the measure "start".
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Literal

from bench import place, report, tree51
from bench.report import Row
from sandbox.client import LauncherClient, Streams

_PATIENCE_S = 60.0
_FILES = 5000
_PER_FOLDER = 100

_TIMED = """
import time
begun = time.perf_counter()
work()
print(time.perf_counter() - begun)
"""

_CPU = """
import hashlib, json
def work():
    digest = b""
    for number in range(500_000):
        digest = hashlib.sha256(digest + str(number).encode()).digest()
        if number % 50 == 0:
            json.loads(json.dumps({"n": number, "d": digest.hex(), "l": list(range(20))}))
"""

_OWN = """
import os
def work():
    names = []
    for _ in range(3):
        names = [os.path.join(f, n) for f, _, ns in os.walk("files") for n in ns]
        for name in names:
            os.stat(name)
    os.mkdir("files/copies")
    for number, name in enumerate(names):
        with open(name, "rb") as file:
            text = file.read()
        if number % 5 == 0:
            with open(f"files/copies/{number}", "wb") as file:
                file.write(text)
    for name in os.listdir("files/copies"):
        os.unlink(f"files/copies/{name}")
    os.rmdir("files/copies")
"""

_TOOLS = """
import subprocess, shutil
def work():
    for _ in range(5):
        subprocess.run(["git", "status", "--porcelain"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["grep", "-rc", "measured", "files"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run("mkdir files/out && tar cf - files/? | tar xf - -C files/out", shell=True, check=True)
    shutil.rmtree("files/out")
"""

_PROGRAMS: tuple[tuple[str, str, str, float], ...] = (
    ("cpu", "hashing and JSON in Python, s", _CPU, 1.03),
    ("files", f"stat, read and copy of {_FILES} files, s", _OWN, 1.10),
    ("tools", "git status and grep -r 5 times, tar of 1000 files, s", _TOOLS, 1.10),
)
_MODES: tuple[Literal["overlay", "direct"], ...] = ("overlay", "direct")
"""An overlay is what profiles have by default; direct shows what the box costs without overlayfs."""


def measure(quick: bool) -> list[Row]:
    with place.scratch() as folder:
        return asyncio.run(_measure(folder, 5 if quick else 25))


async def _measure(folder: Path, repetitions: int) -> list[Row]:
    files = {"README": "a worktree to be measured in\n"}
    for number in range(_FILES):
        files[f"files/{number // _PER_FOLDER}/{number}.txt"] = f"line {number} is measured\n" * 40
    tree = place.make_worktree(folder / "tree", files)
    twin = place.make_worktree(folder / "twin", files)
    rows: list[Row] = []
    async with LauncherClient(place.key()) as client:
        plans = {mode: place.Plans(client, tree, folder, mode) for mode in _MODES}
        for name, title, code, at_most in _PROGRAMS:
            argv = [tree51.PYTHON, "-ISc", code + _TIMED]
            for mode in _MODES if name != "cpu" else _MODES[:1]:
                rows.append(
                    report.paired(
                        title if mode == "overlay" else f"… in a direct worktree: {name}, s",
                        *await _pairs(client, plans[mode], twin, argv, repetitions, f"{name} {mode}"),
                        at_most,
                        "in a box, and outside",
                    )
                )
    return rows


async def _pairs(
    client: LauncherClient, plans: place.Plans, twin: Path, argv: list[str], repetitions: int, name: str
) -> tuple[list[float], list[float]]:
    """Seconds inside and outside, by turns; the first pair is a warm-up."""
    inside: list[float] = []
    outside: list[float] = []
    for number in range(1 + repetitions):
        report.progress(f"work: {name} {number} of {repetitions}")
        if number % 2:
            pair = (await _inside(client, plans, argv), await _outside(twin, plans, argv))
        else:
            pair = (await _outside(twin, plans, argv), await _inside(client, plans, argv))[::-1]
        if number:
            inside.append(pair[0])
            outside.append(pair[1])
    return inside, outside


async def _inside(client: LauncherClient, plans: place.Plans, argv: list[str]) -> float:
    """The overlay is new each time, as it is for a run."""
    plan = plans.next()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        box = await client.start(plan.spec, Streams(null, write_end, 2), argv, plans.environment)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(null)
        os.close(write_end)
    try:
        with os.fdopen(read_end, "rb") as output:
            await box.release()
            printed = await asyncio.to_thread(output.read)
        await box.wait_exited()
        await box.wait_empty(_PATIENCE_S)
    except BaseException:
        await box.abandon()
        raise
    box.close()
    plans.forget(plan)
    return float(printed)


async def _outside(twin: Path, plans: place.Plans, argv: list[str]) -> float:
    """The worktree's owner, in the worktree's equal, with the same environment."""
    environment = {**plans.environment, "HOME": "/nonexistent", "TMPDIR": "/tmp"}

    def run() -> bytes:
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        done = subprocess.run(
            argv, cwd=twin, env=environment, stdin=null, stdout=pipe, check=True, **place.as_owner()
        )
        return bytes(done.stdout)

    return float(await asyncio.to_thread(run))
