"""Owns that an answer is read alike however it was cut on the way, and that what is no answer is an error.
May touch nothing.
Never times anything.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.http1 import AnswerReader, BadAnswer

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-One: a\r\nx-one:  b \r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;name=value\r\n \r\n00A\r\nwonderful \r\n5 \r\nworld\r\n0\r\nX-Trailer: 1\r\n\r\n"
)
SIZED = b"HTTP/1.1 429 Too Many\r\nContent-Length: 11\r\n\r\nhello world"
UNTIL_THE_END = b"HTTP/1.0 200\r\n\r\nhello world"


def read(pieces: list[bytes]) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader()
    return reader, b"".join([reader.feed(piece) for piece in pieces])


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=8))
def test_a_cut_anywhere_changes_nothing(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(CHUNKED)]
    reader, body = read([CHUNKED[a:b] for a, b in pairwise(at)])
    assert (reader.status, body) == (200, b"hello wonderful world")
    assert reader.headers.getall("x-one") == ["a", "b"]
    assert reader.complete and reader.reusable


def test_byte_by_byte() -> None:
    reader, body = read([CHUNKED[at : at + 1] for at in range(len(CHUNKED))])
    assert body == b"hello wonderful world" and reader.complete and reader.reusable


def test_a_length() -> None:
    reader, body = read([SIZED])
    assert (reader.status, body, reader.complete, reader.reusable) == (429, b"hello world", True, True)
    reader, body = read([SIZED[:-1]])
    assert body == b"hello worl" and not reader.complete
    with pytest.raises(BadAnswer, match="early"):
        reader.end()


def test_one_that_lasts_until_the_connection_ends() -> None:
    reader, body = read([UNTIL_THE_END])
    assert body == b"hello world" and not reader.complete and not reader.reusable
    reader.end()
    assert reader.complete and not reader.reusable


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_a_status_without_a_body(status: bytes) -> None:
    reader, body = read([b"HTTP/1.1 " + status + b"\r\nContent-Length: 5\r\n\r\n"])
    assert reader.complete and body == b""


def test_nothing_may_follow() -> None:
    reader, body = read([SIZED + b"HTTP/1.1 200 OK\r\n\r\n"])
    assert body == b"hello world" and reader.complete and not reader.reusable


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: Close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nConnection: x, close\r\n", False),
        (b"HTTP/1.0 200 OK\r\n", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", True),
        (b"HTTP/1.1 200 OK\r\n", True),
    ],
)
def test_who_wants_to_close_is_let(head: bytes, reusable: bool) -> None:
    reader, _ = read([head + b"Content-Length: 0\r\n\r\n"])
    assert reader.complete and reader.reusable is reusable


CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 2OO OK\r\n\r\n",
        b"HTTP/1.1 099 Low\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName: a\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName: a\nb: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName: a\0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
        CHUNKS + b"xyz\r\n",
        CHUNKS + b"-1\r\n",
        CHUNKS + b"0x5\r\nhello\r\n",
        CHUNKS + b"\r\n",
        CHUNKS + b"4\r\nhello\r\n",
        CHUNKS + b"1" * 16 + b"\r\n",
        CHUNKS + b"1;" + b"x" * 20_000,
        CHUNKS + b"0\r\n" + b"a: b\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        read([data])
    with pytest.raises(BadAnswer):
        read([data[at : at + 1] for at in range(len(data))])


@given(
    st.binary(max_size=200), st.sampled_from([b"", CHUNKS, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"])
)
def test_any_bytes_are_read_or_refused(data: bytes, head: bytes) -> None:
    reader = AnswerReader()
    try:
        reader.feed(head + data)
        reader.end()
    except BadAnswer:
        return
    assert reader.complete
