"""Owns one scenario's process: finds its function, runs it, says PASSED and a fact as its last line.
May touch nothing itself.
Never turns a failure into anything but a traceback and a non-zero exit.
"""

from __future__ import annotations

import asyncio
import inspect
import sys

import guest_boxes
import guest_commands


def main() -> None:
    function, context = sys.argv[1:3]
    scenario = getattr(guest_boxes, function, None) or getattr(guest_commands, function)
    said = scenario(context)
    if inspect.iscoroutine(said):
        said = asyncio.run(said)
    print("PASSED", " ".join(str(said).split()), flush=True)


if __name__ == "__main__":
    main()
