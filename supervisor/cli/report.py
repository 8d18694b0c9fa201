"""Owns the command report: bars for how runs ended, a line of cost per day, tables for the rest.
May touch what Access reaches, and standard output.
Never needs colour or more than 80 columns to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from supervisor.cli import output
from supervisor.cli.access import open_access
from supervisor.cli.look import json_option
from supervisor.cli.money_text import show_count
from supervisor.errors import UsageError
from supervisor.limits.money import show_usd
from supervisor.profile.units import show_duration

_BAR = 20
_TOP = 5
_LABEL = 15
_STEPS = "▁▂▃▄▅▆▇█"


@click.command()
@click.option("--since", default="7d", show_default=True, help='A span like "12h" or an instant.')
@click.option("--csv", "as_csv", is_flag=True, help="Print one table for spreadsheets.")
@json_option
def report(since: str, as_csv: bool, as_json: bool) -> None:
    """How runs ended, what they cost by day, project and ticket, what was refused and redacted."""
    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other")
    with open_access() as access:
        found = access.query("report", since=since)
    if as_json:
        output.print_json(found)
    elif as_csv:
        from supervisor.observe.report import as_csv as table

        click.echo(table(found), nl=False)
    else:
        for line in as_lines(found):
            output.say(output.visible(line, always=True))


def as_lines(found: dict[str, Any]) -> list[str]:
    """The report as people read it, at most 80 columns."""
    if not found["runs"] and not found["calls"]:
        return [f"no run ended since {found['since']}"]
    lines = [" · ".join(_head(found))]
    longest = max((row["runs"] for row in found["reasons"]), default=1)
    for row in found["reasons"]:
        lines += _reason(row, longest)
    if found["days"] and found["spent_nanos"]:
        lines += ["", *_per_day(found["days"])]
    for title, rows in (("by project", found["projects"]), ("by ticket", found["by_ticket"])):
        lines += _costs(title, [row for row in rows if row["spent_nanos"] or row["tokens"]])
    lines += _counts("refused calls", found["refusals"], sum(row["count"] for row in found["refusals"]))
    lines += _counts("redacted", found["redactions"], found["redacted"])
    return lines


def _head(found: dict[str, Any]) -> list[str]:
    runs, tickets = found["runs"], found["tickets"]
    parts = ["1 run" if runs == 1 else f"{runs} runs", "1 ticket" if tickets == 1 else f"{tickets} tickets"]
    if found["calls"]:
        parts += [show_usd(found["spent_nanos"]), f"{show_count(found['tokens'])} tokens"]
    return [*parts, show_duration(found["seconds"])]


def _reason(row: dict[str, Any], longest: int) -> list[str]:
    blocks = "▇" * max(1, round(_BAR * row["runs"] / longest))
    cost = f"{show_usd(row['median_nanos'])} · " if row["median_nanos"] is not None else ""
    usual = f"median {cost}{show_duration(row['median_seconds'])}"
    lines = [f"{row['reason']:<19} {row['runs']:>4}  {blocks:<{_BAR}} {row['share'] * 100:>3.0f} %  {usual}"]
    said = [f"{count} {by}" for by, count in row["by"].items() if by not in ("agent", "limit", "")]
    name, most = next(iter(row["projects"].items()), ("", 0))
    if len(row["projects"]) > 1 and most * 2 >= row["runs"] and row["runs"] > 1:
        said.append(f"{most} of them in {name!r}")
    if said:
        lines.append(output.shorten(f"{'':<26}{', '.join(said)}", 80))
    return lines


def _per_day(days: Sequence[dict[str, Any]]) -> list[str]:
    """A column per day; of a long span the last that fit."""
    shown = days[-40:]
    most = max(day["spent_nanos"] for day in shown)
    line = sparkline([day["spent_nanos"] for day in shown])
    first = f"{'cost per day':<{_LABEL}}{line}  most {show_usd(most)}"
    return [first, f"{'':<{_LABEL}}{shown[0]['name']} to {shown[-1]['name']}"]


def sparkline(values: Sequence[int]) -> str:
    """One character each, the largest the highest; a dot where there is nothing."""
    most = max(values, default=0)
    return "".join(_STEPS[(value * 7 + most - 1) // most] if value > 0 else "·" for value in values)


def _costs(title: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for number, row in enumerate(rows[:_TOP]):
        label = title if number == 0 else ""
        name = output.shorten(row["name"] or "(none)", 24)
        calls = "1 call" if row["calls"] == 1 else f"{row['calls']} calls"
        used = f"{show_count(row['tokens']):>7} tokens  {calls:>10}"
        lines.append(f"{label:<{_LABEL}}{name:<24}  {show_usd(row['spent_nanos']):>10}  {used}")
    if len(rows) > _TOP:
        rest = sum(row["spent_nanos"] for row in rows[_TOP:])
        lines.append(f"{'':<{_LABEL}}{f'{len(rows) - _TOP} more':<24}  {show_usd(rest):>10}")
    return ["", *lines] if lines else []


def _counts(title: str, rows: Sequence[dict[str, Any]], total: int) -> list[str]:
    if not total:
        return []
    parts = [f"{output.shorten(row['rule'], 24)} {row['count']}" for row in rows[:_TOP]]
    other = sum(row["count"] for row in rows[_TOP:])
    said = " · ".join([*parts, f"other {other}"] if other else parts)
    return ["", output.shorten(f"{title:<{_LABEL}}{total:>4}  {said}".rstrip(), 80)]
