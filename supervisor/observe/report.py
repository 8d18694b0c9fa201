"""Owns the report over a span of time: how runs ended, what they cost, what was refused and redacted.
May touch the store, read-only.
Never adds up floats: money is nano-dollars until it is shown.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any

from supervisor.events import EventKind
from supervisor.limits.money import usd_text
from supervisor.observe.span import since_instant
from supervisor.store.ledger import CostRow
from supervisor.store.records import Run
from supervisor.store.store import Store

REDACTED = "redacted:"
"""A run's totals count redactions by rule under this and the rule's name."""

_MAX_DAYS = 400
_COSTS = ("project", "ticket", "model", "day")


def report(store: Store, since: str) -> dict[str, Any]:
    """Everything from a span ("7d", "12h") or an instant on. Raises UsageError for neither.

    Runs count by their end, charges by the time they were reserved. Money is in nano-dollars and, for
    readers of JSON, as text in US dollars; durations are seconds, shares are 0 to 1.
    """
    start = since_instant(since)
    runs = store.ended_runs(start)
    costs = {by: store.ledger.costs(by, start) for by in _COSTS}
    spent = sum(row.spent_nanos for row in costs["day"])
    refused = Counter(_rule(detail) for detail in store.event_details(EventKind.CALL_REFUSED, start))
    return {
        "since": start,
        "runs": len(runs),
        "tickets": len({run.ticket for run in runs}),
        "seconds": round(sum(_seconds(run) for run in runs), 1),
        "spent_nanos": spent,
        "cost_usd": usd_text(spent),
        "tokens": sum(row.tokens for row in costs["day"]),
        "calls": sum(row.calls for row in costs["day"]),
        "redacted": sum(int(run.totals.get("redacted", 0)) for run in runs),
        "reasons": [_reason(reason, runs) for reason in _by_count(str(run.reason) for run in runs)],
        "projects": [_cost(row) for row in costs["project"]],
        "by_ticket": [_cost(row) for row in costs["ticket"]],
        "models": [_cost(row) for row in costs["model"]],
        "days": _days(costs["day"]),
        "refusals": [{"rule": rule, "count": count} for rule, count in refused.most_common()],
        "redactions": [{"rule": rule, "count": count} for rule, count in _redactions(runs).most_common()],
    }


def _by_count(names: Iterable[str]) -> list[str]:
    return [name for name, _ in Counter(names).most_common()]


def _reason(reason: str, runs: Sequence[Run]) -> dict[str, Any]:
    those = [run for run in runs if run.reason == reason]
    metered = [int(run.totals["spent_nanos"]) for run in those if "spent_nanos" in run.totals]
    nanos = round(statistics.median_low(metered)) if metered else None
    return {
        "reason": reason,
        "runs": len(those),
        "share": round(len(those) / len(runs), 4),
        "median_seconds": statistics.median_high([_seconds(run) for run in those]),
        "median_nanos": nanos,
        "median_usd": None if nanos is None else usd_text(nanos),
        "by": dict(sorted(Counter(run.reason_by for run in those).items(), key=lambda i: (-i[1], i[0]))),
        "projects": dict(Counter(run.project for run in those if run.project).most_common(10)),
    }


def _seconds(run: Run) -> float:
    return float(run.totals.get("seconds", 0))


def _cost(row: CostRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "spent_nanos": row.spent_nanos,
        "cost_usd": usd_text(row.spent_nanos),
        "tokens": row.tokens,
        "calls": row.calls,
    }


def _days(rows: Sequence[CostRow]) -> list[dict[str, Any]]:
    """Every day from the first that anything was booked on to the last; those between may have none."""
    known = {row.name: row for row in rows}
    if not known:
        return []
    day, last = date.fromisoformat(min(known)), date.fromisoformat(max(known))
    found: list[dict[str, Any]] = []
    while day <= last and len(found) < _MAX_DAYS:
        name = day.isoformat()
        found.append(_cost(known.get(name) or CostRow(name=name, spent_nanos=0, calls=0)))
        day += timedelta(days=1)
    return found


def _rule(detail: dict[str, Any]) -> str:
    return str(detail.get("rule") or detail.get("code") or "unknown")


def _redactions(runs: Sequence[Run]) -> Counter[str]:
    found: Counter[str] = Counter()
    for run in runs:
        for name, count in run.totals.items():
            if name.startswith(REDACTED):
                found[name.removeprefix(REDACTED)] += int(count)
    return found


CSV_COLUMNS = ("section", "name", "runs", "share", "seconds", "cost_usd", "tokens", "calls", "count")
"""One table for all sections; what a section does not have is empty. seconds of a reason is the median."""


def as_csv(found: dict[str, Any]) -> str:
    """As spreadsheets read it (RFC 4180). Names that begin like a formula get a leading quote mark."""
    text = io.StringIO()
    table = csv.DictWriter(text, CSV_COLUMNS, restval="", lineterminator="\r\n")
    table.writeheader()
    sums = {key: found[key] for key in ("runs", "seconds", "cost_usd", "tokens", "calls")}
    table.writerow({"section": "total", "name": found["since"], **sums})
    for row in found["reasons"]:
        values = {"runs": row["runs"], "share": row["share"], "seconds": row["median_seconds"]}
        usd = row["median_usd"]
        table.writerow(
            {"section": "reason", "name": row["reason"], **values, "cost_usd": "" if usd is None else usd}
        )
    for section, rows in (
        ("project", found["projects"]),
        ("ticket", found["by_ticket"]),
        ("model", found["models"]),
        ("day", found["days"]),
    ):
        for row in rows:
            values = {key: row[key] for key in ("cost_usd", "tokens", "calls")}
            table.writerow({"section": section, "name": _plain(row["name"]), **values})
    for section, rows in (("refusal", found["refusals"]), ("redaction", found["redactions"])):
        for row in rows:
            table.writerow({"section": section, "name": _plain(row["rule"]), "count": row["count"]})
    return text.getvalue()


def _plain(name: str) -> str:
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name
