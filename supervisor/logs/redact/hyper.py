"""Owns the fast engine: every gate in one hyperscan database, one pass over a buffer.
May touch the hyperscan package, and a thread to compile in.
Never is needed: the plain engine finds the same, only slower.
"""

from __future__ import annotations

from typing import Any

from supervisor.logs.redact.anchors import as_regex
from supervisor.logs.redact.gates import CASED, SHAPES, TAIL, Enough, Event, anchored, hidden
from supervisor.logs.redact.table import Rule


class HyperEngine:
    """Raises ImportError where the package or the processor is not fit for it."""

    name = "hyperscan"

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        import hyperscan

        expressions: list[bytes] = []
        flags: list[int] = []
        self._rows: list[tuple[int, int, int]] = []
        for row in (*anchored(rules), *hidden(rules)):
            expressions.append(as_regex(row.anchor).encode())
            flags.append(hyperscan.HS_FLAG_DOTALL)
            self._rows.append((int(row.gate), row.which, len(row.anchor)))
        for gate, shape in SHAPES:
            expressions.append(shape.replace(b"/", b"\\/"))
            caseless = 0 if gate in CASED else hyperscan.HS_FLAG_CASELESS
            flags.append(hyperscan.HS_FLAG_DOTALL | caseless)
            self._rows.append((int(gate), 0, TAIL.get(shape, 1)))
        self._enough = hyperscan.ScanTerminated
        self._database: Any = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(expressions=expressions, ids=list(range(len(expressions))), flags=flags)

    def scan(self, data: bytes, most: int) -> list[Event]:
        """All events, in no order. Raises Enough when there are more than most."""
        found: set[tuple[int, int]] = set()
        add = found.add

        def on_match(which: int, _start: int, end: int, _flags: int, _context: object) -> bool:
            add((which, end))
            return len(found) > most

        try:
            self._database.scan(data, match_event_handler=on_match)
        except self._enough:
            raise Enough from None
        rows = self._rows
        return [Event(rows[i][0], rows[i][1], end - rows[i][2]) for i, end in found]
