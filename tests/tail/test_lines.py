"""Owns that lines come out of the splitter the same, wherever the bytes were cut on their way.
May touch nothing but memory.
Never lets the held back bytes grow past the limit.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.logs.tail.lines import LineSplitter

TEXTS = [
    b"",
    b"\n",
    b"\n\n\n",
    b"one\ntwo\nthree",
    b"one\ntwo\n",
    b"a" * 50 + b"\nshort\n",
    b"short\n" + b"b" * 50,
    b"c" * 10 + b"\n" + b"d" * 11 + b"\n" + b"e" * 9 + b"\n",
    b"\0\xff\xfe\n\xe4\n",
    b"carriage\rreturn\r\nend",
]
LIMIT = 10


def split(text: bytes, pieces: list[bytes]) -> tuple[list[bytes], int]:
    splitter = LineSplitter(LIMIT)
    lines: list[bytes] = []
    dropped = 0
    for piece in pieces:
        more, lost = splitter.feed(piece)
        lines += more
        dropped += lost
        assert len(splitter.held) <= LIMIT
    assert b"".join(pieces) == text
    return lines + splitter.rest(), dropped


@pytest.mark.parametrize("text", TEXTS)
def test_split_at_every_position(text: bytes) -> None:
    whole = split(text, [text])
    for position in range(len(text) + 1):
        assert split(text, [text[:position], text[position:]]) == whole
    assert split(text, [bytes([byte]) for byte in text]) == whole


@settings(deadline=None)
@given(
    text=st.binary(max_size=200).map(lambda raw: raw.replace(b"x", b"\n")), cuts=st.lists(st.integers(0, 200))
)
def test_split_anywhere(text: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    lines, dropped = split(text, [text[a:b] for a, b in itertools.pairwise(edges)])
    wanted = text.split(b"\n")
    expected = [line[:LIMIT] for line in wanted[:-1]] + ([wanted[-1][:LIMIT]] if wanted[-1] else [])
    assert lines == expected
    assert dropped == sum(max(0, len(line) - LIMIT) for line in wanted)
