"""Owns the report: what is counted, what is summed, and how it looks on 80 columns, as JSON and as CSV.
May touch a database of its own, of both kinds.
Never compares an amount as a float.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from kit import AT, booking, call, used
from runs_kit import ended, make_event, make_run

from supervisor.cli.report import as_lines, sparkline
from supervisor.errors import UsageError
from supervisor.events import Event, EventKind
from supervisor.observe.report import CSV_COLUMNS, as_csv, report
from supervisor.runs.reasons import StopReason
from supervisor.store.store import Store

SINCE = "2026-08-01"
RUNS: list[tuple[StopReason, str, str, int, float]] = [
    (StopReason.DONE, "agent", "billing", 200_000_000, 60.0),
    (StopReason.DONE, "agent", "billing", 100_000_000, 30.0),
    (StopReason.DONE, "agent", "search", 400_000_000, 90.0),
    (StopReason.KILLED, "operator", "search", 50_000_000, 5.0),
    (StopReason.KILLED, "stop_file", "search", 50_000_000, 7.0),
    (StopReason.MAX_COST, "limit", "billing", 500_000_000, 600.0),
]


@pytest.fixture
def found(store: Store) -> dict[str, Any]:
    for number, (reason, by, project, nanos, seconds) in enumerate(RUNS, 1):
        run = msgspec.structs.replace(make_run(number, f"T-{number}"), project=project)
        store.create_run(run, make_event(run))
        totals: dict[str, int | float] = {"seconds": seconds, "spent_nanos": nanos, "redacted": 2}
        totals |= {"redacted:github-pat": 1, "redacted:TOKEN": 1}
        over = msgspec.structs.replace(ended(run), reason=reason, reason_by=by, totals=totals)
        refused = Event(
            at=AT,
            run_id=run.run_id,
            ticket=run.ticket,
            kind=EventKind.CALL_REFUSED,
            detail={"code": "max_cost" if number % 2 else "no_such_model", "message": "…"},
        )
        store.update_run(over, refused)
        who = booking(run.run_id, run.ticket, project)
        store.ledger.record(call(who, day=f"2026-09-{number * 2:02}"), used(nanos))
    return report(store, SINCE)


def test_what_is_counted_and_summed(found: dict[str, Any]) -> None:
    assert (found["runs"], found["tickets"], found["calls"]) == (6, 6, 6)
    assert (found["spent_nanos"], found["cost_usd"]) == (1_300_000_000, "1.3")
    assert found["tokens"] == 1_300_000_000 and found["redacted"] == 12
    done, killed, cost = found["reasons"]
    assert (done["reason"], done["runs"], done["share"]) == ("done", 3, 0.5)
    assert (done["median_seconds"], done["median_nanos"]) == (60.0, 200_000_000)
    assert killed["by"] == {"operator": 1, "stop_file": 1} and killed["median_seconds"] == 7.0
    assert (cost["reason"], cost["projects"]) == ("max_cost", {"billing": 1})
    assert [(row["name"], row["spent_nanos"]) for row in found["projects"]] == [
        ("billing", 800_000_000),
        ("search", 500_000_000),
    ]
    assert found["by_ticket"][0]["name"] == "T-6"
    assert found["refusals"] == [{"rule": "max_cost", "count": 3}, {"rule": "no_such_model", "count": 3}]
    assert found["redactions"] == [{"rule": "github-pat", "count": 6}, {"rule": "TOKEN", "count": 6}]


def test_a_day_without_calls_is_there_all_the_same(found: dict[str, Any]) -> None:
    days = [(day["name"], day["spent_nanos"]) for day in found["days"]]
    assert days[:3] == [("2026-09-02", 200_000_000), ("2026-09-03", 0), ("2026-09-04", 100_000_000)]
    assert len(days) == 11


def test_on_a_terminal_nothing_is_wider_than_80_columns(found: dict[str, Any]) -> None:
    lines = as_lines(found)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert text.startswith("6 runs · 6 tickets · $1.30 · ")
    assert "done                   3  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇  50 %  median $0.20 · 1 min" in text
    assert "1 operator, 1 stop_file" in text
    assert "2 of them in 'billing'" in text
    assert "refused calls     6  max_cost 3 · no_such_model 3" in text
    assert "redacted         12  github-pat 6 · TOKEN 6" in text
    assert "cost per day   ▄·▃·▇·▂·▂·█  most $0.50" in text


def test_long_names_and_many_rows_are_cut_and_summed_up(found: dict[str, Any]) -> None:
    wide = [{**found["projects"][0], "name": "p" * 100}] * 9
    rules = [{"rule": "r" * 100, "count": 10**9}] * 9
    reasons = [{**found["reasons"][0], "projects": {"x" * 200: 3, "y": 1}}]
    lines = as_lines({**found, "projects": wide, "refusals": rules, "reasons": reasons})
    assert max(map(len, lines)) <= 80
    assert any("4 more" in line for line in lines)


def test_the_csv_holds_every_section(found: dict[str, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert tuple(rows[0]) == CSV_COLUMNS
    sections = {row["section"] for row in rows}
    assert sections == {"total", "reason", "project", "ticket", "model", "day", "refusal", "redaction"}
    (total,) = [row for row in rows if row["section"] == "total"]
    assert (total["runs"], total["cost_usd"]) == ("6", "1.3")
    formula = {**found, "by_ticket": [{**found["by_ticket"][0], "name": "=1+1"}]}
    assert "'=1+1" in as_csv(formula)


def test_nothing_at_all(store: Store) -> None:
    found = report(store, "7d")
    assert (found["runs"], found["days"], found["reasons"]) == (0, [], [])
    assert as_lines(found) == [f"no run ended since {found['since']}"]
    assert len(as_csv(found).splitlines()) == 2
    for wrong in ("yesterday", "", "7", "9999999999999d"):
        with pytest.raises(UsageError):
            report(store, wrong)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([], ""), ([0, 0], "··"), ([5], "█"), ([0, 1, 1000], "·▂█"), ([1, 2, 3, 4], "▃▅▇█")],
)
def test_a_line_of_columns(values: Sequence[int], wanted: str) -> None:
    assert sparkline(values) == wanted
