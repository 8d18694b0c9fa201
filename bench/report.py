"""Owns what a measure found, and showing it: rows, medians, the table, the JSON file, progress.
May touch stdout, stderr and bench/results/.
Never judges a time: a missed target is shown and the exit code stays 0.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).resolve().parent / "results"
_KEYS = ("measure", "ours", "other", "ratio", "target", "ok")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. other, ratio, target and ok are None where there is nothing to compare with.

    note: what the other one is, how often it was measured, the spread.
    """

    measure: str
    ours: float
    other: float | None = None
    ratio: float | None = None
    target: str | None = None
    ok: bool | None = None
    note: str = ""


def compared(
    measure: str, ours: Sequence[float], other: Sequence[float], at_most: float | None, note: str = ""
) -> Row:
    """Medians of two series that were measured in turn, and how often the one is the other."""
    ratio = statistics.median(ours) / statistics.median(other)
    # On a busy machine the quickest of each say more than the medians do.
    minima = f"of the minima {min(ours) / min(other):.2f}" if min(other) > 0 else ""
    return Row(
        measure,
        round(statistics.median(ours), 3),
        round(statistics.median(other), 3),
        round(ratio, 3),
        None if at_most is None else f"ratio <= {at_most:g}",
        None if at_most is None else ratio <= at_most,
        "; ".join(
            filter(None, (note, f"n={len(ours)}", f"ours {spread(ours)}", f"other {spread(other)}", minima))
        ),
    )


def paired(
    measure: str, ours: Sequence[float], other: Sequence[float], at_most: float, note: str = ""
) -> Row:
    """Like compared, for two that take turns at the same work: the ratio is the median of each pair's own.

    A machine that gets slower or faster meanwhile does so for both of a pair, and not for the ratio.
    """
    ratios = sorted(mine / its for mine, its in zip(ours, other, strict=True))
    ratio = statistics.median(ratios)
    quarters = f"half of the pairs {ratios[len(ratios) // 4]:.2f}..{ratios[(3 * len(ratios)) // 4]:.2f}"
    return Row(
        measure,
        round(statistics.median(ours), 3),
        round(statistics.median(other), 3),
        round(ratio, 3),
        f"ratio <= {at_most:g}",
        ratio <= at_most,
        "; ".join(filter(None, (note, f"{len(ratios)} pairs", quarters, f"ours {spread(ours)}"))),
    )


def alone(measure: str, ours: Sequence[float], note: str = "") -> Row:
    """A median of ours that is shown for information."""
    text = "; ".join(filter(None, (note, f"n={len(ours)}", spread(ours))))
    return Row(measure, round(statistics.median(ours), 3), note=text)


def bounded(measure: str, ours: float, at_most: float, note: str = "", other: float | None = None) -> Row:
    """One figure with a bound of its own."""
    return Row(measure, round(ours, 3), other, None, f"<= {at_most:g}", ours <= at_most, note)


def quantile(series: Sequence[float], share: float) -> float:
    ordered = sorted(series)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(series: Sequence[float]) -> str:
    ordered = sorted(series)
    return f"{ordered[0]:.2f}..{ordered[int(0.95 * (len(ordered) - 1))]:.2f} (min..p95)"


def progress(text: str) -> None:
    """On a terminal one line that is written over; otherwise nothing but the ends of measures."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def say(text: str) -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    print(text, file=sys.stderr, flush=True)


def load() -> str:
    """How busy the machine is, so that a figure can be judged."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{key: getattr(row, key) for key in _KEYS} for row in rows]


def write(rows: Sequence[Row], part: str) -> Path:
    _RESULTS.mkdir(exist_ok=True)
    path = _RESULTS / f"{part}.json"
    path.write_text(json.dumps(plain(rows), indent=2) + "\n", encoding="utf-8")
    return path


def table(rows: Sequence[Row]) -> str:
    """Fixed columns, the note on a line of its own."""
    width = max((len(row.measure) for row in rows), default=0)
    lines = [f"{'':2} {'measure':{width}} {'ours':>10} {'other':>10} {'ratio':>7}  target"]
    for row in rows:
        mark = {True: "✓", False: "✗", None: "·"}[row.ok]
        lines.append(
            f"{mark:2} {row.measure:{width}} {_number(row.ours):>10} {_number(row.other):>10} "
            f"{_number(row.ratio):>7}  {row.target or ''}".rstrip()
        )
        if row.note:
            lines.append(f"     {row.note}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if float(value).is_integer() and abs(value) >= 10 else f"{value:.2f}"
