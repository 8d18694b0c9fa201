"""Owns measuring the way of log lines: read, split, redact, seal and write, and what the trail costs.
May touch temporary folders.
Never counts reading the input from a disk: it is in the page cache, as a pipe's bytes would be in memory.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import report
from bench.report import Row
from supervisor.audit.records import Draft, RecordKind
from supervisor.audit.verify import verify
from supervisor.audit.writer import TrailWriter
from supervisor.logs.book import LogBook
from supervisor.logs.redact.known import KnownSecrets
from supervisor.logs.redact.redactor import Redactor
from supervisor.logs.tail.files import FileTail
from supervisor.logs.tail.lines import LineSplitter

_TARGET_MB_S = 200
_INPUT_BYTES = 64 << 20
_RECORDS = 20_000
_CHUNK = 1 << 18
_SECRETS = {"TOKEN": "a-secret-that-is-not-there"}
_WORDS = "def return import self assert error test file line the of and to is for with as src lib ok".split()


def measure(quick: bool) -> list[Row]:
    """MB/s for the way of lines, with the parts beside it; records per second for the trail."""
    rounds = 3 if quick else 7
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        source = Path(folder) / "source.ndjson"
        source.write_bytes(agent_lines(_INPUT_BYTES // (4 if quick else 1)))
        ways: dict[str, Callable[[Path, Path], int]] = {
            "logs: read, split, redact, seal, write": lambda a, b: _through_the_book(a, b, _SECRETS),
            "logs: the same with nothing to redact": lambda a, b: _through_the_book(a, b, {}),
            "logs: and without the seal": lambda a, b: _through_the_book(a, b, {}, seal=False),
            "logs: a file through the tail, to lines": _through_the_tail,
        }
        series: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                series[name].append(_speed(way, source, Path(folder) / "out"))
        rows = [report.alone(name, found, "MB/s") for name, found in series.items()]
        rows[0] = _judged(rows[0])
        rows += _trail(Path(folder), rounds)
    return rows


def _judged(row: Row) -> Row:
    ok = row.ours >= _TARGET_MB_S
    return Row(row.measure, row.ours, None, None, f">= {_TARGET_MB_S} MB/s", ok, row.note)


def agent_lines(size: int) -> bytes:
    """NDJSON as agents write it: prompts, listings and command output of very different lengths."""
    chance = random.Random(4)
    lines, length = [], 0
    while length < size:
        words = chance.choices(_WORDS, k=min(2000, int(chance.lognormvariate(5.3, 1.1)) + 5))
        text = " ".join(words).replace(" the ", "\n")
        raw = json.dumps({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}})
        lines.append(raw.encode())
        length += len(raw) + 1
    return b"\n".join(lines) + b"\n"


def _speed(way: Callable[[Path, Path], int], source: Path, target: Path) -> float:
    target.unlink(missing_ok=True)
    """MB per second of this process's own time: others on the machine do not count."""
    began_s = time.process_time()
    size = way(source, target)
    return size / (time.process_time() - began_s) / 1e6


def _through_the_book(source: Path, target: Path, secrets: dict[str, str], *, seal: bool = True) -> int:
    pieces: list[dict[str, Any]] = []
    redactor = Redactor(KnownSecrets(secrets))
    book = LogBook(str(target), redactor, 1 << 40, 1 << 20, pieces.append).open()
    if not seal:
        book._sealer = None
    splitter, size, now = LineSplitter(1 << 20), 0, datetime.now(UTC)
    with source.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            book.add("out", splitter.feed(chunk), now)
    book.close()
    return size


def _through_the_tail(source: Path, _: Path) -> int:
    folder = os.open(source.parent, os.O_RDONLY | os.O_DIRECTORY)
    tail = FileTail(folder, ["/run/agent/source.ndjson"], 1 << 20)
    size = sum(len(line) + 1 for found in tail.finish() for line in found.lines)
    os.close(folder)
    return size


def _trail(folder: Path, rounds: int) -> list[Row]:
    """Records per second where many wait together, and the time of one that waits alone."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    detail = {"iteration": 7, "tokens_in": 12480, "cost_usd": "0.045120", "outcome": "ok"}
    draft = Draft(kind=RecordKind.EVENT, what="iteration", at=at, run_id="R", ticket="T", detail=detail)
    together, alone, checked = [], [], []
    for number in range(rounds):
        made = TrailWriter(str(folder / f"audit{number}"))
        began_s = time.perf_counter()
        for _ in range(_RECORDS // 250):
            made.append([draft] * 250)
        together.append(_RECORDS / (time.perf_counter() - began_s))
        for _ in range(50):
            began_s = time.perf_counter()
            made.append([draft])
            alone.append((time.perf_counter() - began_s) * 1000)
        made.close()
        began_s = time.perf_counter()
        verdict = verify(str(folder / f"audit{number}"), bytes.fromhex(_key(folder / f"audit{number}")))
        assert verdict.ok, verdict.message
        checked.append(verdict.records / (time.perf_counter() - began_s))
    return [
        report.alone("trail: records written, 250 at a time", together, "records/s"),
        report.alone("trail: one record, no disk to wait for", alone, "ms"),
        report.alone("trail: records verified with the key", checked, "records/s"),
    ]


def _key(folder: Path) -> str:
    return (folder / "initial.key").read_text().split()[1]


if __name__ == "__main__":
    print(report.table(measure(quick=False)))
