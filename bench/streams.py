"""Owns the measures "chunk" and "streams": chunks on their way through the gateway, of one stream and of 100.
May touch the processes of a rig.
Never takes a lost chunk for a fast one: each carries its number and the time it was written at.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

from bench import place, report, rig
from bench.idle import cpu_s, memory_mb
from bench.report import Row

_PER_S = 50
_STREAMS = 100
_LOOK_EVERY_S = 0.2


def measure_chunks(quick: bool) -> list[Row]:
    """One stream through each, at the same time, so that both meet the same machine."""
    rounds, chunks = (2, 100) if quick else (5, 500)
    with place.scratch() as folder, ExitStack() as stack:
        upstream = stack.enter_context(rig.upstream(chunks, 1 / _PER_S))
        gateway = stack.enter_context(rig.gateway(folder / "ours", upstream.port))
        one, other = stack.enter_context(rig.clients()), stack.enter_context(rig.clients())
        body = str(rig.body(folder, 8_000))
        direct: list[float] = []
        ours: list[float] = []
        for number in range(rounds):
            report.progress(f"chunk: round {number} of {rounds}")
            job = {"kind": "streams", "clients": 1, "interval_s": 1 / _PER_S, "body": body, "key": rig.KEY}
            one.begin(port=upstream.port, **job)
            # Half an interval later, so that they do not wait for each other.
            time.sleep(0.5 / _PER_S)
            other.begin(port=gateway.port, **job)
            direct += one.figures()["delays_ms"]
            ours += other.figures()["delays_ms"]
    base = report.quantile(direct, 0.5)
    note = (
        f"n={len(ours)}, p50 {report.quantile(ours, 0.5) - base:.3f}; direct p50 {base:.3f}, "
        f"p99 {report.quantile(direct, 0.99):.3f}; above the direct p50; {report.load()}"
    )
    added = report.quantile(ours, 0.99) - base
    return [report.bounded("delay added per streamed chunk: p99, ms", added, 0.5, note)]


def measure_streams(quick: bool) -> list[Row]:
    chunks = _PER_S * (5 if quick else 20)
    with place.scratch() as folder, ExitStack() as stack:
        upstream = stack.enter_context(rig.upstream(chunks, 1 / _PER_S))
        gateway = stack.enter_context(rig.gateway(folder / "ours", upstream.port))
        clients = stack.enter_context(rig.clients())
        job = {
            "kind": "streams",
            "clients": _STREAMS,
            "interval_s": 1 / _PER_S,
            "body": str(rig.body(folder, 8_000)),
            "key": rig.KEY,
        }
        direct = clients.do(port=upstream.port, **job)
        before_s, begun = cpu_s(gateway.pid), time.monotonic()
        with _Watched(gateway.pid) as watched:
            ours = clients.do(port=gateway.port, **job)
        took_s = time.monotonic() - begun
        share = 100 * (cpu_s(gateway.pid) - before_s) / took_s
    name = f"{_STREAMS} streams of {_PER_S} chunks/s"
    base = report.quantile(direct["delays_ms"], 0.5)
    delay = (
        f"p50 {report.quantile(ours['delays_ms'], 0.5):.2f}, "
        f"p99 {report.quantile(ours['delays_ms'], 0.99):.2f}; "
        f"direct p50 {base:.2f}, p99 {report.quantile(direct['delays_ms'], 0.99):.2f}"
    )
    lost = _STREAMS * chunks - ours["chunks"]
    return [
        report.bounded(f"{name}: chunks lost", lost, 0, f"of {_STREAMS * chunks}; {report.load()}"),
        report.bounded(f"{name}: % of a core", share, 100, f"over {took_s:.0f} s"),
        report.bounded(f"{name}: memory, MB RSS", watched.most_mb, 200, "the most that was seen"),
        Row(
            f"{name}: delay added at p99, ms",
            round(report.quantile(ours["delays_ms"], 0.99) - base, 3),
            note=delay,
        ),
    ]


class _Watched:
    """The most memory that a process has while this lasts."""

    def __init__(self, pid: int) -> None:
        self.most_mb = 0.0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self.most_mb = max(self.most_mb, memory_mb(self._pid)["Rss"])
            if self._over.wait(_LOOK_EVERY_S):
                return
