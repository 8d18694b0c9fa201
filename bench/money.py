"""Owns `python -m bench.money`: which measures run, in which order, and where their rows go.
May touch stdout, stderr and the results file; the measures touch the rest.
Never fails because of a missed target, only because something could not be measured.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from bench import calls, ledger, report, streams
from bench.report import Row

_MEASURES: dict[str, Callable[[bool], list[Row]]] = {
    "first": calls.measure,
    "chunk": streams.measure_chunks,
    "streams": streams.measure_streams,
    "ledger": ledger.measure,
}


def main() -> None:
    arguments = _parse()
    signal.signal(signal.SIGTERM, _leave)
    rows: list[Row] = []
    before = report.load()
    for name in arguments.only or _MEASURES:
        report.say(f"{name} … ({report.load()})")
        begun = time.monotonic()
        rows += _MEASURES[name](arguments.quick)
        report.say(f"{name} took {time.monotonic() - begun:.0f} s")
    written = report.write(rows, "money")
    if arguments.json:
        print(json.dumps(report.plain(rows), indent=2))
        return
    print(report.table(rows))
    print(f"\nmedians, measured in turn · {before} at the start, {report.load()} at the end · {written.name}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.money", description="Measure the gateway and the ledger."
    )
    parser.add_argument("--only", action="append", choices=list(_MEASURES), help="one measure; repeatable")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser.parse_args()


def _leave(number: int, _: FrameType | None) -> None:
    """Unwinds like Ctrl-C, so that everything is cleaned up."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
