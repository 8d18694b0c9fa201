"""Owns the command that shows what a day has cost, what is held, and what is left.
May touch what Access reaches, and standard output.
Never counts anything itself.
"""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import click

from supervisor.cli import output
from supervisor.cli.access import open_access
from supervisor.cli.look import json_option
from supervisor.clock import parse_rfc3339
from supervisor.limits.money import show_usd
from supervisor.profile.units import show_duration

_BAR = 16


@click.command()
@click.option("--day", default="", help="A date like 2026-12-01; today if left out.")
@json_option
def spend(day: str, as_json: bool) -> None:
    """What a day has cost: spent, held by calls under way, left, and the caps.

    Held is money that is reserved and not spent yet: the worst case of calls under way, and what
    claimed runs may still spend. Nothing is ever reset; a new day begins at midnight of its zone.
    """
    with open_access() as access:
        found = access.query("spend", day=day)
    if as_json:
        output.print_json(found)
        return
    output.say(f"day {found['day']} ({found['zone']}, {_when(found)})")
    if found["clock_jump_s"]:
        output.say(
            output.bad(
                f"the clock jumped {show_duration(found['clock_jump_s'])} ahead and is not believed: "
                "claims are paused until `supervisorctl resume`"
            )
        )
    rows = [["", "spent", "held", "left", "cap", ""]]
    rows += [_row(row) for row in found["scopes"]]
    if found["scopes"]:
        output.table(rows, right=frozenset({1, 2, 3, 4}))
    else:
        output.say("nothing was spent")
    if not found["capped"]:
        output.say(output.dim("no daily cap is set · daily.global_usd in the configuration sets one"))


def _when(day: dict[str, Any]) -> str:
    if day["left_s"] <= 0:
        return "over"
    end, start = parse_rfc3339(day["end"]), parse_rfc3339(day["start"])
    if day["left_s"] > (end - start).total_seconds():
        return "not begun"
    here = end.astimezone()
    zoned = end.astimezone(ZoneInfo(day["zone"]))
    elsewhere = "" if here.utcoffset() == zoned.utcoffset() else f", here {here:%H:%M %Z}"
    return f"{show_duration(day['left_s'])} left; resets {zoned:%H:%M %Z}{elsewhere}"


def _row(row: dict[str, Any]) -> list[str]:
    cap = row["cap_nanos"]
    name = "global" if row["scope"] == "global_day" else row["project"] or "(no project)"
    if cap is None:
        return [name, show_usd(row["spent_nanos"]), show_usd(row["held_nanos"]), output.NONE, output.NONE, ""]
    share = (row["spent_nanos"] + row["held_nanos"]) / cap if cap else 1.0
    return [
        name,
        show_usd(row["spent_nanos"]),
        show_usd(row["held_nanos"]),
        show_usd(row["left_nanos"]),
        show_usd(cap),
        f"{output.bar(share, _BAR)} {share * 100:.0f} %",
    ]
