"""Owns the connections to one upstream: made when needed, used one call at a time, kept for a while.
May touch the network towards that upstream, or the socket that it listens on.
Never sends a request twice, and never uses a connection again on which something was not as expected.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections import deque
from collections.abc import Iterable

from yarl import URL

from supervisor.gateway.http1 import AnswerReader, BadAnswer
from supervisor.gateway.upstreams import Service

_HIGH_BYTES = 256 << 10
"""More than this waits for its reader before the connection is read on."""

_PIECE_BYTES = 256 << 10
"""A longer body is sent piece by piece, so that other calls are not kept waiting."""

_UNPACKED_BYTES = 1 << 20
_SECOND_ADDRESS_S = 0.25
_PACKED = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class Unreachable(Exception):
    """No connection could be made, so nothing was sent; the message names the kind of error."""


class BrokenOff(Exception):
    """It ended before the answer did: nobody knows what the upstream did; the message says how."""


class _Connection(asyncio.Protocol):
    """One connection. reader is there while a call is under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.reader: AnswerReader | None = None
        self.error = ""
        self.idle_since_s = 0.0
        self._came: deque[bytes] = deque()
        self._came_bytes = 0
        self._waiting: asyncio.Future[None] | None = None
        self._is_full = False
        self._reading = True

    def begin(self) -> None:
        self.reader = AnswerReader()

    # ------------------------------------------------------------ called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.reader is None:
            # Nobody asked.
            self.transport.abort()
            return
        try:
            body = self.reader.feed(data)
        except BadAnswer as error:
            self._fail(str(error))
            self.transport.abort()
            return
        if body:
            self._came.append(body)
            self._came_bytes += len(body)
            if self._came_bytes > _HIGH_BYTES and self._reading:
                self._reading = False
                self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._over()

    def connection_lost(self, error: BaseException | None) -> None:
        self._over(type(error).__name__ if error else "")

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._wake()

    def _over(self, why: str = "") -> None:
        if self.reader is not None and not self.reader.complete and not self.error:
            try:
                self.reader.end()
            except BadAnswer as error:
                self._fail(why or str(error))
        self._wake()

    def _fail(self, why: str) -> None:
        self.error = self.error or why
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # ------------------------------------------------------------ called by who makes a call

    async def send(self, head: bytes, body: bytes) -> None:
        """All of it, unless the answer comes before."""
        assert self.reader is not None
        if len(body) <= _PIECE_BYTES:
            self.transport.write(head + body)
            return
        self.transport.write(head)
        left = memoryview(body)
        while left and not self.error and not self.reader.status:
            self.transport.write(left[:_PIECE_BYTES])
            left = left[_PIECE_BYTES:]
            if self._is_full:
                await self._something()
            else:
                await asyncio.sleep(0)
        if left:
            self.reader.reusable = False

    async def head(self) -> AnswerReader:
        assert self.reader is not None
        while not self.reader.status:
            if self.error:
                raise BrokenOff(self.error)
            await self._something()
        return self.reader

    async def body(self) -> bytes:
        """What of it has come by now; b"" at its end. Raises BrokenOff once all that came was given out."""
        assert self.reader is not None
        while not self._came:
            if self.error:
                raise BrokenOff(self.error)
            if self.reader.complete:
                return b""
            await self._something()
        data = self._came.popleft() if len(self._came) == 1 else b"".join(self._came)
        self._came.clear()
        self._came_bytes = 0
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()
        return data

    @property
    def has_more(self) -> bool:
        return bool(self._came or self.error or (self.reader is not None and self.reader.complete))

    @property
    def is_over(self) -> bool:
        return not self._came and self.reader is not None and self.reader.complete

    async def _something(self) -> None:
        """Until something happens."""
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def finish(self) -> bool:
        """The call is over; True when another one can follow."""
        reader, self.reader = self.reader, None
        self._came.clear()
        if reader is not None and reader.complete and reader.reusable and not self.error:
            return self._reading and not self._is_full and not self.transport.is_closing()
        return False


class UpstreamAnswer:
    """An answer whose head is there. close() at the end, whatever came of it."""

    def __init__(self, wire: Wire, connection: _Connection, reader: AnswerReader) -> None:
        self.status = reader.status
        self.headers = reader.headers
        self._wire = wire
        self._connection: _Connection | None = connection
        self._unpacker, self._packed = _unpacker(reader.headers.get("Content-Encoding", "")), b""

    @property
    def content_type(self) -> str:
        """Without parameters, in lower case; "" where there is none."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def has_more(self) -> bool:
        """Is there something to read, or its end, without waiting?"""
        return self._connection is None or bool(self._packed) or self._connection.has_more

    @property
    def is_over(self) -> bool:
        """Was everything read, and is nothing to come?"""
        return self._unpacker is None and self._connection is not None and self._connection.is_over

    async def readany(self) -> bytes:
        """What has come by now, unpacked; b"" at the end. Raises BrokenOff."""
        if self._connection is None:
            return b""
        if self._unpacker is None:
            return await self._connection.body()
        while True:
            packed = self._packed or await self._connection.body()
            if not packed:
                if not self._unpacker.eof:
                    raise BrokenOff("the packed body ends early")
                return b""
            if self._unpacker.eof:
                # It would be collected there, as long as it comes.
                raise BrokenOff("something follows the packed body")
            # A piece of what came can be a thousand pieces: each waits for its turn.
            await asyncio.sleep(0)
            try:
                data = self._unpacker.decompress(packed, _UNPACKED_BYTES)
            except zlib.error:
                raise BrokenOff("the body cannot be unpacked") from None
            self._packed = self._unpacker.unconsumed_tail
            if data:
                return data

    def close(self) -> None:
        """Keep the connection where all of the answer was read, else end it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._wire.take_back(connection)


def _unpacker(coding: str) -> zlib._Decompress | None:
    """For what an upstream packs although it was asked not to. Raises BrokenOff for what we cannot read."""
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in _PACKED:
        raise BrokenOff("the body is packed in a way that nobody asked for")
    return zlib.decompressobj(wbits=_PACKED[coding])


class Wire:
    """The way to one upstream. There is no bound on how many connections: each call has its own."""

    def __init__(self, service: Service, connect_s: float) -> None:
        self._service = service
        self._connect_s = connect_s
        base = URL(service.base, encoded=True)
        self._host, self._port = base.raw_host or "", base.port or 0
        self._authority = base.host_port_subcomponent or ""
        self._origin = f"{base.scheme}://{base.raw_authority}"
        self._tls = base.scheme == "https"
        self._context: ssl.SSLContext | None = None
        self._idle: list[_Connection] = []
        self._sweep: asyncio.TimerHandle | None = None

    async def post(self, path: str, headers: Iterable[tuple[str, str]], body: bytes) -> UpstreamAnswer:
        """path: as of a route. Raises Unreachable and BrokenOff; when cancelled, the connection ends."""
        lines = [f"POST {self._service.url(path).removeprefix(self._origin)} HTTP/1.1"]
        lines += [f"host: {self._authority}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1:
            raise ValueError("a header holds the end of a line")
        connection = self._kept() or await self._connect()
        try:
            connection.begin()
            await connection.send(head, body)
            return UpstreamAnswer(self, connection, await connection.head())
        except BaseException:
            connection.transport.abort()
            raise

    def take_back(self, connection: _Connection) -> None:
        """A call is over: keep its connection if it can be used again."""
        if not connection.finish():
            connection.transport.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since_s = loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(self._service.keep_alive_s, self._end_old)

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in self._idle:
            connection.transport.close()
        self._idle.clear()

    def _kept(self) -> _Connection | None:
        """The one that was used last, if the upstream can still be expected to keep it too."""
        oldest_s = asyncio.get_running_loop().time() - self._service.keep_alive_s
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing() and connection.idle_since_s > oldest_s:
                return connection
            connection.transport.close()
        return None

    def _end_old(self) -> None:
        loop = asyncio.get_running_loop()
        oldest_s = loop.time() - self._service.keep_alive_s
        kept = [one for one in self._idle if one.idle_since_s > oldest_s and not one.transport.is_closing()]
        for connection in self._idle:
            if connection not in kept:
                connection.transport.close()
        self._idle = kept
        self._sweep = loop.call_later(self._service.keep_alive_s, self._end_old) if kept else None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                if self._service.socket:
                    _, made = await loop.create_unix_connection(
                        _Connection,
                        self._service.socket,
                        ssl=self._tls_context(),
                        server_hostname=self._host if self._tls else None,
                    )
                else:
                    _, made = await loop.create_connection(
                        _Connection,
                        self._host,
                        self._port,
                        ssl=self._tls_context(),
                        happy_eyeballs_delay=_SECOND_ADDRESS_S,
                    )
        except OSError as error:
            # TimeoutError and the errors of TLS are among them.
            raise Unreachable(type(error).__name__) from None
        return made

    def _tls_context(self) -> ssl.SSLContext | None:
        """Made once: reading the system's certificates takes some hundredths of a second."""
        if self._tls and self._context is None:
            self._context = ssl.create_default_context()
            self._context.set_alpn_protocols(["http/1.1"])
        return self._context
