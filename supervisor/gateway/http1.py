"""Owns reading one HTTP/1.1 answer out of the bytes of a connection: its head, and where its body ends.
May touch nothing: bytes in, bytes out.
Never guesses: what could be read in two ways is an error, and what follows an answer spoils the connection.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from multidict import CIMultiDict

HEAD_BYTES = 64 << 10
_LINE_BYTES = 16 << 10
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n\0]*)?")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?")
_LENGTH = re.compile(r"\d{1,15}", re.ASCII)


class BadAnswer(Exception):
    """This is not HTTP, or not all of it; the message says what is wrong."""


class _Next(Enum):
    HEAD = auto()
    LENGTH = auto()
    CLOSE = auto()
    SIZE = auto()
    CHUNK = auto()
    AFTER_CHUNK = auto()
    TRAILER = auto()
    NOTHING = auto()


class AnswerReader:
    """Reads one answer to a POST (RFC 9112). status is 0 until the head is there.

    complete: the body has come to its end. reusable: and the connection can carry another request.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.reusable = False
        self._next = _Next.HEAD
        self._kept = b""
        self._left = 0
        self._trailer_bytes = 0

    @property
    def complete(self) -> bool:
        return self._next is _Next.NOTHING

    def feed(self, data: bytes) -> bytes:
        """The part of the body that is in there. Raises BadAnswer."""
        if self._kept:
            data = self._kept + data
        found: list[bytes] = []
        at, size = 0, len(data)
        while at < size:
            match self._next:
                case _Next.LENGTH | _Next.CHUNK:
                    piece = data[at : at + self._left] if at or self._left < size else data
                    found.append(piece)
                    at += len(piece)
                    self._left -= len(piece)
                    if not self._left:
                        self._next = _Next.AFTER_CHUNK if self._next is _Next.CHUNK else _Next.NOTHING
                case _Next.AFTER_CHUNK:
                    if size - at < 2:
                        break
                    if data[at : at + 2] != b"\r\n":
                        raise BadAnswer("a chunk is longer than it says")
                    at += 2
                    self._next = _Next.SIZE
                case _Next.SIZE | _Next.TRAILER:
                    end = data.find(b"\r\n", at)
                    if end < 0 or end - at > _LINE_BYTES:
                        if size - at > _LINE_BYTES:
                            raise BadAnswer("a line is too long")
                        break
                    self._line(data[at:end])
                    at = end + 2
                case _Next.HEAD:
                    end = data.find(b"\r\n\r\n", at)
                    if end < 0 or end - at > HEAD_BYTES:
                        if size - at > HEAD_BYTES:
                            raise BadAnswer("the head is too long")
                        break
                    self._head(data[at:end])
                    at = end + 4
                case _Next.CLOSE:
                    found.append(data[at:])
                    at = size
                case _Next.NOTHING:
                    self.reusable = False
                    at = size
        self._kept = data[at:]
        return found[0] if len(found) == 1 else b"".join(found)

    def end(self) -> None:
        """The connection has ended. Raises BadAnswer where the answer has not."""
        self.reusable = False
        if self._next is _Next.CLOSE:
            self._next = _Next.NOTHING
        if self._next is not _Next.NOTHING:
            raise BadAnswer("the connection ended early")

    # ------------------------------------------------------------ lines

    def _line(self, line: bytes) -> None:
        if self._next is _Next.TRAILER:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > HEAD_BYTES:
                raise BadAnswer("the trailer is too long")
            if not line:
                self._next = _Next.NOTHING
            return
        found = _SIZE.fullmatch(line)
        if found is None:
            raise BadAnswer("a chunk has no size")
        self._left = int(found[1], 16)
        self._next = _Next.CHUNK if self._left else _Next.TRAILER

    def _head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        status = _STATUS.fullmatch(first)
        if status is None:
            raise BadAnswer("it is not HTTP/1.1")
        headers: CIMultiDict[str] = CIMultiDict()
        for line in lines:
            field = _FIELD.fullmatch(line)
            if field is None:
                raise BadAnswer("a header cannot be read")
            headers.add(field[1].decode("ascii"), field[2].decode("latin-1"))
        number = int(status[2])
        if number == 101:
            raise BadAnswer("it wants to speak something else")
        if number < 200:
            # An interim answer; the one that counts follows.
            return
        self.status, self.headers = number, headers
        said = {
            word.strip().lower() for value in headers.getall("Connection", ()) for word in value.split(",")
        }
        self.reusable = "close" not in said and (status[1] == b"1" or "keep-alive" in said)
        self._next = self._framing(number, headers)

    def _framing(self, status: int, headers: CIMultiDict[str]) -> _Next:
        """RFC 9112, section 6.3, without what only servers must bear."""
        codings = ",".join(headers.getall("Transfer-Encoding", ())).lower()
        lengths = {value.strip() for value in headers.getall("Content-Length", ())}
        if status in (204, 304):
            return _Next.NOTHING
        if codings:
            if codings.strip() != "chunked" or lengths:
                raise BadAnswer("where the body ends can be read in two ways")
            return _Next.SIZE
        if lengths:
            length = lengths.pop()
            if lengths or not _LENGTH.fullmatch(length):
                raise BadAnswer("where the body ends can be read in two ways")
            self._left = int(length)
            return _Next.LENGTH if self._left else _Next.NOTHING
        self.reusable = False
        return _Next.CLOSE
