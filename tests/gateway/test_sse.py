"""Owns that a stream passes the splitter unchanged, however it was cut on the way.
May touch nothing.
Never times anything.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.gateway.sse import EventTooLong, SseEvent, SseSplitter

STREAM = (
    b"\xef\xbb\xbfdata: first\n\n"
    b": a comment\n\n"
    b'event: x\r\ndata: {"a":1}\r\n\r\n'
    b"data: one\ndata:two\ndata\ndata:  four\n\n"
    b"id: 7\rdata: cr\r\r"
    b"data: mixed\r\n\n"
    b"\n\n\n"
    b"database: no field of ours\nxdata: nor this\n\n"
    b"data: \xc3\xa9\xf0\x9f\x98\x80\n\n"
    b"data: [DONE]"
)
DATA = [
    b"first",
    b'{"a":1}',
    b"one\ntwo\n\n four",
    b"cr",
    b"mixed",
    "é😀".encode(),
    b"[DONE]",
]


def split(chunks: list[bytes], limit: int = 1 << 20) -> list[SseEvent]:
    splitter = SseSplitter(limit)
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return events + splitter.close()


def data_of(events: list[SseEvent]) -> list[bytes]:
    return [event.data for event in events if event.data is not None]


def test_all_line_ends_comments_many_lines_a_bom_and_no_final_newline() -> None:
    events = split([STREAM])
    assert data_of(events) == DATA
    assert b"".join(event.raw for event in events) == STREAM


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_a_cut_at_any_byte_changes_nothing(at: int) -> None:
    events = split([STREAM[:at], STREAM[at:]])
    assert data_of(events) == DATA
    assert b"".join(event.raw for event in events) == STREAM


def test_one_byte_at_a_time() -> None:
    events = split([STREAM[i : i + 1] for i in range(len(STREAM))])
    assert data_of(events) == DATA
    assert b"".join(event.raw for event in events) == STREAM


def test_an_event_is_given_as_soon_as_its_blank_line_is_there() -> None:
    for end in (b"\n\n", b"\r\r", b"\r\n\r\n", b"\r\n\n", b"\n\r"):
        splitter = SseSplitter()
        assert splitter.feed(b"data: x") == []
        assert data_of(splitter.feed(end)) == [b"x"]


def test_one_line_end_of_two_bytes_is_no_blank_line() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: a\r") == []
    assert splitter.feed(b"\ndata: b\r\n") == []
    assert data_of(splitter.feed(b"\r\n")) == [b"a\nb"]


def test_an_event_without_an_end_does_not_fill_the_memory() -> None:
    splitter = SseSplitter(100)
    assert splitter.feed(b"data: " + b"x" * 94) == []
    with pytest.raises(EventTooLong):
        splitter.feed(b"y")
    with pytest.raises(EventTooLong):
        SseSplitter(100).feed(b"data: " + b"x" * 200 + b"\n\n")
    assert len(SseSplitter(100).feed(b"data: x\n\n" * 100)) == 100, "many small ones are no large one"


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from([b"data", b":", b" ", b"\r", b"\n", b"x", b"\r\n", b"id", b"\xef\xbb\xbf", b"\xff"])
    ),
    st.lists(st.integers(0, 40)),
)
def test_any_bytes_in_any_chunks_come_out_the_same(parts: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(parts)
    at = sorted({min(cut, len(whole)) for cut in cuts})
    chunks = [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]
    events = split(chunks)
    assert b"".join(event.raw for event in events) == whole
    assert data_of(events) == data_of(split([whole]))
