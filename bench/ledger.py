"""Owns the measure of the ledger: reserve and settle, durable, with few charges stored and with many.
May touch databases in folders of its own, and a PostgreSQL server that it starts and ends.
Never judges a time, and never turns off what makes a write durable.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import report
from bench.report import Row

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "store"))

from pgserver import Server, running

from supervisor.limits.budget import Ask, Caps, Grant
from supervisor.limits.charges import Booking, NewCall, Settlement
from supervisor.limits.pricing import Price, Rates
from supervisor.limits.usage import TokenUsage, UsageSource
from supervisor.store.recorder import Recorder
from supervisor.store.store import Store, open_store

FEW, MANY = 1_000, 1_000_000
_TARGET_MS = {"SQLite": 0.6, "PostgreSQL": 2.5}
_CALLERS = 8
_DAY, _AT, _LEASE = "2026-09-01", "2026-09-01T10:00:00.000Z", "2026-09-01T10:01:00.000Z"
_RATES = Rates(
    input=3_000_000_000,
    output=15_000_000_000,
    cache_read=300_000_000,
    cache_write_5m=3_750_000_000,
    cache_write_1h=6_000_000_000,
)
_ASK = Ask(
    input_bound=12_000,
    output_wanted=4_000,
    output_least=1,
    price=Price(provider="p", model="m", rates=_RATES),
)
_PLENTY = 1 << 60
_CAPS = Caps(
    iterations=1 << 40,
    tokens=1 << 50,
    run_nanos=_PLENTY,
    ticket_nanos=_PLENTY,
    project_day_nanos=_PLENTY,
    global_day_nanos=_PLENTY,
)
_SETTLED = Settlement(
    nanos=20_000_000,
    usage=TokenUsage(input=2_000, cache_read=9_000, output=500),
    source=UsageSource.PROVIDER,
    outcome="ok",
    model="m",
    at=_AT,
)

# As a few months leave it: 40 calls a run, 2 runs a ticket, 20 projects, 40 days before today.
_CHARGES = """
INSERT INTO charges (charge_id, run_id, ticket, project, worker_id, day, state, provider, model,
    output_tokens, held_nanos, held_tokens, spent_nanos, tokens, usage_source, outcome,
    reserved_at, lease_until, settled_at)
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count}),
    named (i, run, ticket, project, day) AS (SELECT i,
        'R' || CAST(100000 + i / 40 AS TEXT), 'T' || CAST(100000 + i / 80 AS TEXT),
        'P' || CAST(10 + i / 80 - i / 1600 * 20 AS TEXT),
        '2026-0' || CAST(7 + i / 20 - i / 40 * 2 AS TEXT) || '-' || CAST(10 + i - i / 20 * 20 AS TEXT)
        FROM n)
SELECT 'A' || CAST(10000000 + i AS TEXT), run, ticket, project, 'W', day, 'settled', 'p', 'm',
    4000, 96000000, 16000, 20000000, 11500, 'provider', 'ok',
    day || 'T10:00:00.000Z', day || 'T10:01:00.000Z', day || 'T10:00:05.000Z'
FROM named
"""
_BALANCES = """
INSERT INTO balances (scope, key, day, spent_nanos, tokens, calls)
SELECT {scope}, {key}, {day}, SUM(spent_nanos), SUM(tokens), COUNT(*) FROM charges GROUP BY 1, 2, 3
"""
_SCOPES = (
    ("'run'", "run_id", "''"),
    ("'ticket'", "ticket", "''"),
    ("'project_day'", "project", "day"),
    ("'global_day'", "''", "day"),
)


def measure(quick: bool) -> list[Row]:
    """Both databases, each with few and with many charges, in turn."""
    many, rounds = (20_000, 200) if quick else (MANY, 1_000)
    with ExitStack() as stack:
        server = stack.enter_context(running(durable=True))
        kinds: dict[str, Callable[[], Iterator[str]]] = {
            "SQLite": _a_file,
            "PostgreSQL": _database_of(server),
        }
        rows = []
        for kind, place in kinds.items():
            places = [stack.enter_context(contextmanager(place)()) for _ in range(2)]
            stores = [stack.enter_context(_filled(places[n], count)) for n, count in enumerate((FEW, many))]
            few, lots = _in_turn(stores, rounds)
            at_most = _TARGET_MS[kind]
            name = f"reserve + settle, durable, {kind}"
            for count, series in ((FEW, few), (many, lots)):
                note = f"n={rounds}, {report.spread(series)}, {report.load()}"
                rows.append(
                    report.bounded(f"{name}, {count} charges, ms", statistics.median(series), at_most, note)
                )
            rows.append(report.compared(f"{name}, {many} beside {FEW}", lots, few, 1.25, "1 is flat"))
            rows.append(
                report.alone(
                    f"{name}, per call with {_CALLERS} callers and one commit for all that wait, ms",
                    _together(places[1], rounds // _CALLERS),
                )
            )
    return rows


def _a_file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield f"{folder}/state.db"


def _database_of(server: Server) -> Callable[[], Iterator[str]]:
    def place() -> Iterator[str]:
        with server.database() as url:
            yield url

    return place


@contextmanager
def _filled(location: str, count: int) -> Iterator[Store]:
    """A store with so many settled charges, and balances that agree with them."""
    report.say(f"filling {count} charges")
    store = open_store(location)
    store.hurry(600)
    with store.transaction():
        store._db.change(_CHARGES.format(count=count))
        for scope, key, day in _SCOPES:
            store._db.change(_BALANCES.format(scope=scope, key=key, day=day))
    store._db.rows("ANALYZE")
    # Nothing of the filling is still to be written when the measure begins.
    if "://" in location:
        store._db.rows("CHECKPOINT")
    else:
        store._db.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        os.sync()
    store.hurry(5)
    try:
        yield store
    finally:
        store.close()


def _in_turn(stores: list[Store], rounds: int) -> list[list[float]]:
    """Milliseconds of each pair, one store after the other."""
    series: list[list[float]] = [[] for _ in stores]
    for number in range(rounds + 20):
        for store, found in zip(stores, series, strict=True):
            begun = time.perf_counter()
            _pair(store, f"Z{number:09}", "RZ")
            if number >= 20:
                found.append((time.perf_counter() - begun) * 1000)
    return series


def _pair(store: Store, charge: str, run: str) -> None:
    assert isinstance(store.ledger.reserve(_call(charge, run), _CAPS, _ASK), Grant)
    assert store.ledger.settle(charge, _SETTLED) is not None


def _call(charge: str, run: str) -> NewCall:
    who = Booking(run_id=run, ticket=f"T{run}", project="P10", worker_id="W")
    return NewCall(
        charge_id=charge, booking=who, provider="p", model="m", day=_DAY, at=_AT, lease_until=_LEASE
    )


def _together(location: str, rounds: int) -> list[float]:
    """Milliseconds of the whole, by calls: callers share the recorder, and so its commits."""
    recorder = Recorder(location)

    def caller(number: int) -> None:
        for turn in range(rounds):
            charge = f"Y{number}-{turn:06}"
            call = _call(charge, f"RY{number}")
            recorder.write(lambda store: store.ledger.reserve(call, _CAPS, _ASK)).result()  # noqa: B023
            recorder.write(lambda store: store.ledger.settle(charge, _SETTLED)).result()  # noqa: B023

    begun = time.perf_counter()
    with ThreadPoolExecutor(_CALLERS) as threads:
        list(threads.map(caller, range(_CALLERS)))
    took_ms = (time.perf_counter() - begun) * 1000
    recorder.close()
    return [took_ms / rounds / _CALLERS]


if __name__ == "__main__":
    print(report.table(measure("--quick" in sys.argv)))
