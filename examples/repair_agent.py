"""Owns a small agent without a model: it repairs failing tests by trying small changes to the code.
May touch the folder it is started in, and $SUPERVISOR_LOG_DIR for its own log.
Never needs a network; that it cannot reach one is part of what it shows.

usage: python3 repair_agent.py FILE    (tests are found by unittest in the same folder)
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_SWAPS: dict[type, list[type]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt],
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt],
}
_SYMBOL: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
}
_OPERATOR = re.compile(r"\s*(>=|<=|>|<|\+|-)\s*")


class Journal:
    """One NDJSON line per step, in the shape that supervisors read (docs/events.md)."""

    def __init__(self) -> None:
        folder = os.environ.get("SUPERVISOR_LOG_DIR")
        self._path = Path(folder, "steps.ndjson") if folder else None
        self._iteration = 0

    def step(self, tool: str, args: dict[str, str], outcome: str, began_s: float) -> None:
        self._iteration += 1
        line = {
            "kind": "iteration",
            "iteration": self._iteration,
            "tool": tool,
            "args": args,
            "outcome": outcome,
            "duration_ms": round((time.monotonic() - began_s) * 1000),
        }
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                print(json.dumps(line), file=file)


def run_tests(journal: Journal) -> int:
    """How many tests fail."""
    began_s = time.monotonic()
    command = [sys.executable, "-B", "-m", "unittest", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"(?:failures|errors)=(\d+)", done.stderr)
    failing = int(found[1]) if found else int(done.returncode != 0)
    journal.step("run", {"cmd": "python3 -m unittest"}, f"{failing} failing", began_s)
    return failing


def candidates(source: str) -> Iterator[tuple[int, str, str]]:
    """Every source with one operator exchanged: (line, what was done, new source)."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        pairs: list[tuple[ast.expr, ast.AST, ast.expr]] = []
        if isinstance(node, ast.BinOp):
            pairs = [(node.left, node.op, node.right)]
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            pairs = [(node.left, node.ops[0], node.comparators[0])]
        for left, operator, right in pairs:
            if left.end_lineno != right.lineno or left.end_col_offset is None:
                continue
            line = lines[right.lineno - 1]
            between = line[left.end_col_offset : right.col_offset]
            for new in _SWAPS.get(type(operator), []):
                if _OPERATOR.fullmatch(between.strip("() ")) is None:
                    continue
                changed = between.replace(_SYMBOL[type(operator)], _SYMBOL[new], 1)
                edited = line[: left.end_col_offset] + changed + line[right.col_offset :]
                whole = "".join([*lines[: right.lineno - 1], edited, *lines[right.lineno :]])
                yield right.lineno, f"{_SYMBOL[type(operator)]} to {_SYMBOL[new]}", whole


def look_around() -> None:
    """What any curious agent tries first; in the box each of these fails with a plain error."""
    import socket

    try:
        socket.create_connection(("192.0.2.1", 80), timeout=2).close()
        print("I have a network")
    except OSError as error:
        print(f"no network here: {error.strerror}")
    try:
        Path(".git/hooks/pre-commit").write_text("#!/bin/sh\ntouch /tmp/ran-outside\n", encoding="utf-8")
        print("I planted a git hook")
    except OSError as error:
        print(f"no git hook planted: {error.strerror}")


def main() -> int:
    path = Path(sys.argv[1])
    journal = Journal()
    look_around()
    failing = run_tests(journal)
    print(f"{failing} tests fail")
    while failing:
        source = path.read_text(encoding="utf-8")
        for line, what, changed in candidates(source):
            began_s = time.monotonic()
            path.write_text(changed, encoding="utf-8")
            journal.step("write", {"path": path.name}, f"line {line}: {what}", began_s)
            now = run_tests(journal)
            if now < failing:
                print(f"line {line}: {what} helps, {now} still fail")
                failing = now
                break
            path.write_text(source, encoding="utf-8")
        else:
            print("nothing I know helps")
            return 1
    print("all tests pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
