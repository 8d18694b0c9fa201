"""Owns that lines come out of the splitter the same, wherever the bytes were cut on their way.
May touch nothing but memory.
Never lets the held back bytes grow past the limit.
"""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.logs.tail.lines import NUL_RUN, LineSplitter, MarkedLine, cut_bytes

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
NULS = re.compile(rb"\0{%d,}" % NUL_RUN)


def split(text: bytes, pieces: list[bytes]) -> list[tuple[bytes, int, bool]]:
    """The lines with what is said of each: bytes cut off, and whether it was partial."""
    splitter = LineSplitter(LIMIT)
    lines: list[bytes] = []
    for piece in pieces:
        lines += splitter.feed(piece)
        assert len(splitter.held) <= LIMIT
    assert b"".join(pieces) == text
    return [
        (bytes(line), line.cut, line.partial) if isinstance(line, MarkedLine) else (line, 0, False)
        for line in lines + splitter.rest()
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_split_at_every_position(text: bytes) -> None:
    whole = split(text, [text])
    for position in range(len(text) + 1):
        assert split(text, [text[:position], text[position:]]) == whole
    assert split(text, [bytes([byte]) for byte in text]) == whole


@settings(deadline=None)
@given(
    text=st.lists(st.sampled_from([b"a", b"\n", b"\0", b"\0" * 9, b"\xe4", b"bcd"]), max_size=60).map(
        b"".join
    ),
    cuts=st.lists(st.integers(0, 200)),
)
def test_split_anywhere(text: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    lines = split(text, [text[a:b] for a, b in itertools.pairwise(edges)])
    assert lines == split(text, [text])
    ends = text.count(b"\n")
    wanted = text.split(b"\n") if text and not text.endswith(b"\n") else text.split(b"\n")[:-1]
    assert [line for line, _, _ in lines] == [NULS.sub(b"", line)[:LIMIT] for line in wanted]
    assert sum(cut + len(line) for line, cut, _ in lines) + ends == len(text)
    assert [partial for _, _, partial in lines] == [False] * ends + [True] * (len(lines) - ends)


def test_a_long_line_says_how_much_is_missing() -> None:
    assert split(b"a" * 25 + b"\nb\n", [b"a" * 25 + b"\nb\n"]) == [(b"a" * 10, 15, False), (b"b", 0, False)]


@pytest.mark.parametrize("count", [NUL_RUN - 1, NUL_RUN, 1000, 1 << 20])
def test_a_run_of_nuls_is_counted_and_a_few_are_text(count: int) -> None:
    text = b"\0" * count + b"x\n"
    splitter = LineSplitter(1 << 10)
    (line,) = splitter.feed(text)
    if count < NUL_RUN:
        assert line == text[:-1] and not isinstance(line, MarkedLine)
    else:
        assert isinstance(line, MarkedLine) and (line, line.cut) == (b"x", count)
    skipped = LineSplitter(1 << 10)
    skipped.skip_nuls(count)
    assert skipped.feed(b"x\n") == [line]


def test_a_line_that_is_squeezed_keeps_what_is_held_and_no_more() -> None:
    splitter = LineSplitter(100)
    splitter.feed(b"12345")
    splitter.squeeze()
    first, second = splitter.feed(b"6789\n6789\n")
    assert (first, cut_bytes([first]), second) == (b"12345", 4, b"6789")
