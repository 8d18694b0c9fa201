"""Owns the measure "first": how much later the first byte of an answer comes through the gateway.
May touch the processes of a rig, and a database on the disk that temporary files are kept on.
Never adds where it can subtract: direct, ours and the peer take turns within each round.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench import litellm, place, report, rig
from bench.idle import cpu_s
from bench.report import Row

_BODY_BYTES = 8_000
_LARGE_BODY_BYTES = 200_000
_AT_MOST_OF_PEER = 0.2
_SYNCS = 200


@dataclass(slots=True)
class _Way:
    """One way to the upstream. added_ms: of each call, above the median of the round's direct ones."""

    process: rig.Process
    calls: int
    added_ms: list[float] = field(default_factory=list)
    medians_ms: list[float] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def p(self, share: float) -> float:
        return report.quantile(self.added_ms, share)


def measure(quick: bool) -> list[Row]:
    rounds = 3 if quick else 9
    version = litellm.install()
    with place.scratch() as folder, ExitStack() as stack:
        upstream = stack.enter_context(rig.upstream())
        gateway = stack.enter_context(rig.gateway(folder / "ours", upstream.port))
        peer = stack.enter_context(litellm.running(folder / "peer", upstream.port))
        clients = stack.enter_context(rig.clients())
        rows = []
        for count, size in ((1, _BODY_BYTES), (8, _BODY_BYTES), (1, _LARGE_BODY_BYTES)):
            ways = {
                "direct": _Way(upstream, 400),
                "ours": _Way(gateway, 400 if count == 1 else 1200),
                "peer": _Way(peer, 40 if count == 1 else 80),
            }
            body = rig.body(folder, size)
            for number in range(1 + rounds):
                report.progress(f"first byte, {count} clients: round {number} of {rounds}")
                _round(ways, clients, count, body, warm_up=number == 0)
            rows += _rows(ways, count, size, litellm.NOTE.format(version=version))
        return [*rows, _disk(folder)]


def _round(ways: Mapping[str, _Way], clients: rig.Clients, count: int, body: Path, *, warm_up: bool) -> None:
    direct_ms = 0.0
    for name, way in ways.items():
        before_s = cpu_s(way.process.pid)
        found = clients.do(
            kind="closed_loop",
            port=way.process.port,
            clients=count,
            calls=way.calls,
            body=str(body),
            key=rig.KEY,
        )
        if name == "direct":
            direct_ms = statistics.median(found["first_ms"])
        if warm_up:
            continue
        added = [first - direct_ms for first in found["first_ms"]]
        way.added_ms += added
        way.medians_ms.append(statistics.median(added))
        way.per_s.append(found["per_s"])
        way.cpu_ms.append((cpu_s(way.process.pid) - before_s) * 1000 / way.calls)


def _rows(ways: Mapping[str, _Way], count: int, size: int, note: str) -> list[Row]:
    ours, peer = ways["ours"], ways["peer"]
    name = f"first byte added, {count} client{'s' if count > 1 else ''}"
    if size != _BODY_BYTES:
        name += f", body of {size // 1000} kB"
    seen = (
        f"n={len(ours.added_ms)} in {len(ours.medians_ms)} rounds whose medians are "
        f"{min(ours.medians_ms):.2f}..{max(ours.medians_ms):.2f}; "
        f"{statistics.median(ours.per_s):.0f} calls/s, "
        f"{statistics.median(ours.cpu_ms):.2f} ms of a core each; {report.load()}"
    )
    if size != _BODY_BYTES:
        return [Row(f"{name}: p50, ms", round(ours.p(0.5), 3), round(peer.p(0.5), 3), note=seen)]
    target_ms = 1.0 if count == 1 else 3.0
    rows = [report.bounded(f"{name}: p50, ms", ours.p(0.5), target_ms, seen)]
    if count == 1:
        noise = f"p99 of the direct calls themselves {ways['direct'].p(0.99):.2f}"
        rows.append(report.bounded(f"{name}: p99, ms", ours.p(0.99), 3.0, noise))
    ratio = ours.p(0.5) / peer.p(0.5)
    rows.append(
        Row(
            f"{name}: p50 beside LiteLLM's, ms",
            round(ours.p(0.5), 3),
            round(peer.p(0.5), 3),
            round(ratio, 3),
            f"ratio <= {_AT_MOST_OF_PEER:g}",
            ratio <= _AT_MOST_OF_PEER,
            f"{note}; its p99 {peer.p(0.99):.1f}, {statistics.median(peer.per_s):.0f} calls/s",
        )
    )
    return rows


def _disk(folder: Path) -> Row:
    """What the disk itself takes to keep 12 KiB: each durable reservation waits for it once at least."""
    series = []
    file = os.open(folder / "disk", os.O_WRONLY | os.O_CREAT)
    for _ in range(_SYNCS):
        begun = time.perf_counter()
        os.write(file, b"x" * 12_288)
        os.fdatasync(file)
        series.append((time.perf_counter() - begun) * 1000)
    os.close(file)
    return report.alone("… the disk alone: 12 KiB written and synced, ms", series)
