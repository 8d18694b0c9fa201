"""Owns money and tickets under concurrency: threads, processes, a fleet, and sudden death.
May touch an empty database of each kind, and the processes that it starts.
Never lets one nano-dollar above a cap through, at any instant.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit import AT, DAY, MUCH_LATER, ask, booking, call, check_cap, check_sums, reserve, rows, used

from supervisor.limits.budget import Caps, Grant, Scope
from supervisor.limits.usage import UsageSource
from supervisor.store.store import Store, open_store

HERE = Path(__file__).parent
PROCESSES, WORKERS = 3, 4


class Fleet:
    """Supervisors in processes of their own, ready to begin at the same moment."""

    def __init__(self, location: str, what: str, processes: int, workers: int, **given: Any) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, HERE / "fleet.py", location, f"S{n}", what, str(workers), json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
            )
            for n in range(processes)
        ]
        for process in self.processes:
            assert process.stdout is not None and "ready" in process.stdout.readline()

    def begin(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def said(self) -> list[dict[str, Any]]:
        """What all of them said until their end."""
        with ThreadPoolExecutor(len(self.processes)) as threads:
            texts = list(threads.map(lambda process: process.communicate()[0], self.processes))
        return [json.loads(line) for text in texts for line in text.splitlines() if line.endswith("}")]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@contextmanager
def fleet(
    location: str, what: str, *, processes: int = PROCESSES, workers: int = WORKERS, **given: Any
) -> Iterator[Fleet]:
    made = Fleet(location, what, processes, workers, **given)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("name", ["run_nanos", "ticket_nanos", "project_day_nanos", "global_day_nanos"])
def test_64_at_once_on_the_last_cents(location: str, name: str) -> None:
    """Each call has a connection and a thread of its own, and there is money for 14 of them."""
    caps = Caps(**{name: 1000})
    first = open_store(location)
    charge, _ = reserve(first, booking(), 900)
    first.ledger.settle(charge, used(900))
    together = threading.Barrier(64)

    def one(number: int) -> bool:
        store = open_store(location)
        try:
            together.wait()
            return isinstance(store.ledger.reserve(call(booking()), caps, ask(7)), Grant)
        finally:
            store.close()

    with ThreadPoolExecutor(64) as threads:
        granted = list(threads.map(one, range(64)))
    assert sum(granted) == 14
    assert check_sums(first)[Scope.GLOBAL_DAY, "", DAY].held_nanos == 98
    first.close()


@pytest.mark.parametrize(
    "given", [{"global_day_nanos": 3000, "project_day_nanos": 1200}, {"ticket_nanos": 900}]
)
def test_a_fleet_spends_what_there_is_and_not_more(location: str, given: dict[str, int]) -> None:
    """Projects in any order within shared commits; looked at from outside all the while."""
    watching = open_store(location)
    scopes = {Scope[name.removesuffix("_nanos").upper()]: cap for name, cap in given.items()}
    with fleet(location, "spend", caps=given, rounds=60) as running:
        running.begin()
        with ThreadPoolExecutor(1) as thread:
            listening = thread.submit(running.said)
            while not listening.done():
                for scope, cap in scopes.items():
                    check_cap(watching, scope, cap)
        said = listening.result()
        assert [process.returncode for process in running.processes] == [0] * PROCESSES
    for scope, cap in scopes.items():
        check_cap(watching, scope, cap)
    granted = {line["charge"]: line["granted"] for line in said if "granted" in line}
    settled = {line["charge"]: line["settled"] for line in said if "settled" in line}
    assert len(granted) > 100 and len(settled) > 50, "control: there was something to check"
    booked = {row["charge_id"]: row for row in rows(watching, "SELECT * FROM charges")}
    assert {charge: row["held_nanos"] for charge, row in booked.items()} == granted
    for charge, row in booked.items():
        assert row["spent_nanos"] == settled.get(charge, 0)
        assert (row["state"] == "held") == (charge not in settled)
    check_sums(watching)
    watching.close()


def test_a_fleet_claims_each_ticket_once_and_holds_no_more_than_the_cap(location: str) -> None:
    store = open_store(location)
    for number in range(60):
        project = f"P{number % 4}"
        store.tickets.add(f"T{number}", project=project, goal="", priority=number % 3, at=AT)
    caps = {"project_day_nanos": 1000, "global_day_nanos": 3500}
    with fleet(location, "claim", caps=caps, ceiling=100) as running:
        running.begin()
        said = running.said()
    claimed = [line["claimed"] for line in said if "claimed" in line]
    assert len(claimed) == len(set(claimed)) == 35
    assert {line["fence"] for line in said if "fence" in line} == {1}
    assert [line["nothing"] for line in said if "nothing" in line] == ["daily_cap"] * PROCESSES * WORKERS
    assert {found.key for found in store.tickets.listed(state="claimed")} == set(claimed)
    check_cap(store, Scope.PROJECT_DAY, 1000)
    assert check_sums(store)[Scope.GLOBAL_DAY, "", DAY].held_nanos == 3500
    store.close()


# ------------------------------------------------------------ sudden death

KILLED = """
import sys
from kit import booking, reserve
from supervisor.store.store import open_store
store = open_store(sys.argv[1])
charge, _ = reserve(store, booking(), 100)
print(charge, flush=True)
sys.stdin.read()
"""


def test_killed_between_reserve_and_settle(location: str) -> None:
    """The provider may have billed the call, so it is charged, once, whoever comes first."""
    store = open_store(location)
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, location],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdout is not None
        charge = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
    assert store.ledger.balances(booking(), DAY).global_day.held_nanos == 100
    (lost,) = store.ledger.reap(MUCH_LATER, AT)
    assert (lost.charge_id, lost.spent_nanos, lost.usage_source) == (charge, 100, UsageSource.HOLD)
    assert store.ledger.settle_run("R1", "supervisor lost", AT) == []
    assert store.ledger.settle(charge, used(1)) is None
    assert check_sums(store)[Scope.GLOBAL_DAY, "", DAY].spent_nanos == 100
    store.close()


@pytest.mark.parametrize("after", [1, 20, 70])
def test_killed_at_any_moment_leaves_no_lock_and_no_half(location: str, after: int) -> None:
    store: Store = open_store(location)
    caps = {"global_day_nanos": 10**12}
    with fleet(location, "spend", processes=2, caps=caps, rounds=100_000) as running:
        running.begin()
        told: list[dict[str, Any]] = []
        out = running.processes[0].stdout
        assert out is not None
        while len(told) < after:
            told.append(json.loads(out.readline()))
        running.processes[0].send_signal(signal.SIGKILL)
        told += [json.loads(line) for line in out.read().splitlines() if line.endswith("}")]
        running.processes[0].wait()
        reserve(store, booking("mine"), 5)
        running.processes[1].send_signal(signal.SIGKILL)
        running.processes[1].wait()
    check_sums(store)
    booked = {row["charge_id"]: row for row in rows(store, "SELECT * FROM charges")}
    for line in told:
        row = booked[line["charge"]]
        if "settled" in line:
            assert row["state"] != "held" and row["spent_nanos"] == line["settled"]
    held = {charge for charge, row in booked.items() if row["state"] == "held"}
    lost = store.ledger.reap("2027-01-01T00:00:00.000Z")
    assert {row.charge_id for row in lost} == held
    assert all(balance.held_nanos == 0 for balance in check_sums(store).values())
    store.close()
