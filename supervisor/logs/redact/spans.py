"""Owns what was found in one text: where, by which rule, and what becomes of overlaps.
May touch nothing.
Never lets two finds that overlap uncover what lies between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """start, end in bytes; the rule's id; rank: of two that overlap the lower one names both."""

    start: int
    end: int
    rule: str
    rank: int


def merged(spans: Iterable[Span]) -> list[Span]:
    """In their order, none overlapping."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.start < found[-1].end:
            last = found[-1]
            name = last if last.rank <= span.rank else span
            found[-1] = Span(last.start, max(last.end, span.end), name.rule, name.rank)
        elif span.end > span.start:
            found.append(span)
    return found
