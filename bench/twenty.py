"""Owns the measure of twenty agents that print at once: is anything left behind, and what does it take?
May touch pipes, a temporary folder, and one process that writes.
Never counts the writer's own time, nor lets it write faster than an agent of the measure.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

from bench import report
from bench.agent_log import agent_lines
from bench.report import Row
from supervisor.clock import SystemClock
from supervisor.logs.agent_events import AgentEvents
from supervisor.logs.book import LogBook
from supervisor.logs.redact.engines import Engines
from supervisor.logs.redact.known import KnownSecrets
from supervisor.logs.redact.redactor import Redactor
from supervisor.logs.tail.pipes import PipeCapture, make_pipe

_AGENTS = 20
_BYTES_PER_S = 5_000_000
_TICK_S = 0.02
_LOOK_EVERY_S = 0.02
_MAX_LINE = 64 << 10


def measure(engines: Engines, quick: bool) -> list[Row]:
    seconds = 3 if quick else 10
    with tempfile.TemporaryDirectory() as folder:
        busy, backlog, late_ms, size = asyncio.run(_measure(Path(folder), engines, seconds))
    wanted = _AGENTS * _BYTES_PER_S / 1e6
    note = f"{size / 1e6 / seconds:.0f} of {wanted:.0f} MB/s for {seconds} s, read, redacted, hashed, written"
    waited = f"the most at one moment; the last byte was read {late_ms:.0f} ms after it was written"
    return [
        report.bounded("20 agents at 5 MB/s each: cores", busy, 1.0, note),
        # What a pipe holds by itself: past it an agent would have to wait.
        report.bounded("… unread of one agent, MB", backlog / 1e6, 1.0, waited),
    ]


async def _measure(folder: Path, engines: Engines, seconds: float) -> tuple[float, int, float, int]:
    ends = [make_pipe() for _ in range(_AGENTS)]
    tell, told = os.pipe2(os.O_CLOEXEC)
    writer = os.fork()
    if writer == 0:
        _write([write_end for _, write_end in ends], told, seconds)
    for fd in (*(write_end for _, write_end in ends), told):
        os.close(fd)
    captures = [_capture(folder, number, engines, read_end) for number, (read_end, _) in enumerate(ends)]
    most, began_s, used_s = 0, time.monotonic(), time.process_time()
    for capture in captures:
        capture.start()
    while not all(capture.closed.is_set() for capture in captures):
        most = max(most, *(_unread(capture.fd) for capture in captures))
        await asyncio.sleep(_LOOK_EVERY_S)
    over_s = time.monotonic()
    busy = (time.process_time() - used_s) / (over_s - began_s)
    with os.fdopen(tell, "rb") as file:
        size, written_s = file.read().split()
    os.waitpid(writer, 0)
    for capture in captures:
        capture.book.close()
    kept = sum(capture.book.totals.bytes + capture.book.totals.dropped_bytes for capture in captures)
    if kept < int(size):
        raise RuntimeError(f"{int(size) - kept} bytes were lost")
    return busy, most, max(0.0, (over_s - float(written_s)) * 1000), int(size)


def _capture(folder: Path, number: int, engines: Engines, read_end: int) -> PipeCapture:
    redactor = Redactor(KnownSecrets({"TOKEN": f"a-secret-of-agent-{number:02}"}), engines=engines)
    book = LogBook(str(folder / f"{number}.ndjson"), redactor, 1 << 40, _MAX_LINE, _forget).open()
    events = AgentEvents(redactor, lambda _kind, _detail: None)

    def heard(lines: Any) -> None:
        events.take(lines)

    return PipeCapture(read_end, "out", book, SystemClock(), heard)


def _forget(_: dict[str, Any]) -> None:
    """Where the trail would be: one record for each 4 MiB."""


def _unread(fd: int) -> int:
    if fd < 0:
        return 0
    count = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, count)
    return count[0]


def _write(fds: list[int], told: int, seconds: float) -> None:
    """The agents: each writes its share of every tick, whole lines or not."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # whoever measures may keep to one core
    text = b"\n".join(agent_lines(8_000_000)) + b"\n"
    share = int(_BYTES_PER_S * _TICK_S)
    size, begun_s, at = 0, time.monotonic(), [number * 371_003 for number in range(len(fds))]
    for tick in range(int(seconds / _TICK_S)):
        for number, fd in enumerate(fds):
            start = at[number] % (len(text) - share)
            size += os.write(fd, text[start : start + share])
            at[number] = start + share
        time.sleep(max(0.0, begun_s + (tick + 1) * _TICK_S - time.monotonic()))
    os.write(told, f"{size} {time.monotonic()}".encode())
    os._exit(0)
