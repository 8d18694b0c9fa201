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
import guest_host


def main() -> None:
    function, context = sys.argv[1:3]
    (scenario,) = (
        getattr(module, function)
        for module in (guest_boxes, guest_commands, guest_host)
        if getattr(getattr(module, function, None), "__module__", "") == module.__name__
    )
    said = scenario(context)
    if inspect.iscoroutine(said):
        said = asyncio.run(said)
    print("PASSED", " ".join(str(said).split()), flush=True)


if __name__ == "__main__":
    main()
