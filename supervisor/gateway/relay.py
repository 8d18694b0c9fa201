"""Owns carrying one answer from an upstream to the client, event by event, and what was seen on the way.
May touch the two connections of its call.
Never holds an event back once it is whole, and never shows one that the client did not ask for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import partial

from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from supervisor.gateway.aside import Aside
from supervisor.gateway.calls import UsageReader
from supervisor.gateway.sse import SseEvent, SseSplitter
from supervisor.gateway.wire import BrokenOff, UpstreamAnswer
from supervisor.logs.redact.known import KnownSecrets

_UNWATCHED_BYTES = 32 << 10
"""While less than this waits for the client, a write cannot block."""

_LIGHT_BYTES = 64 << 10
"""An event up to there is read where it is, whatever it holds: there are thousands of them."""

_DROPPED = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade content-length content-encoding set-cookie set-cookie2 server alt-svc "
    "strict-transport-security nel report-to location www-authenticate "
    # Whose account it is concerns nobody in the box.
    "openai-organization openai-project anthropic-organization-id".split()
)
_END = re.compile(rb'"(?:message_stop|response\.(?:completed|incomplete|failed))"')
"""In an event after which a client does not wait for more; inside a text the quotes would be escaped."""


class Cut(Exception):
    """An answer did not come to its end; the message says why, in a few words."""


class Patience:
    """The deadline of one call, moved on while it is alive; without a timer for every chunk."""

    def __init__(self, timeout: asyncio.Timeout, idle_s: float, ends_at_s: float) -> None:
        self._timeout = timeout
        self._idle_s = idle_s
        self._ends_at_s = ends_at_s
        self._next_s = 0.0

    def alive(self, now_s: float) -> None:
        """Something came."""
        if now_s >= self._next_s:
            self._next_s = now_s + self._idle_s / 16
            self._timeout.reschedule(min(now_s + self._idle_s, self._ends_at_s))

    def pause(self) -> None:
        """We are not waiting for the upstream now."""
        self._next_s = 0.0
        self._timeout.reschedule(self._ends_at_s)

    def end_by(self, at_s: float) -> None:
        """From now on it has to end by then."""
        self._ends_at_s = min(self._ends_at_s, at_s)
        self._next_s = 0.0


class _Chunked(web.StreamResponse):
    """An answer in chunks to a client that speaks HTTP/1.1, framed here: by the library it costs thrice
    as much. The library asks for its beginning and its end too."""

    def __init__(self, request: web.BaseRequest, status: int, headers: CIMultiDict[str]) -> None:
        super().__init__(status=status, headers=headers)
        self._asked = request
        self._held = b""
        self._is_over = False
        self._has_ended = False

    @property
    def keep_alive(self) -> bool | None:
        return self._asked.keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """The head is written with the first chunk, or nobody is there any more."""

    def begin(self) -> None:
        """Nothing is written before flush or write: each time costs a call of the kernel."""
        lines = [f"HTTP/1.1 {self.status} {self.reason}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if "Date" not in self.headers:
            lines.append(f"Date: {formatdate(usegmt=True)}")
        if not self.keep_alive:
            lines.append("Connection: close")
        lines += ["Transfer-Encoding: chunked", "", ""]
        self._held = "\r\n".join(lines).encode("ascii")

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        self._held += b"%x\r\n%b\r\n" % (len(data), bytes(data))
        self.flush()
        await self._asked.writer.drain()

    def end_with_next(self) -> None:
        """What is written next is the last."""
        self._is_over = True

    async def write_eof(self, data: bytes = b"") -> None:
        self._is_over = True
        self.flush()

    def flush(self) -> None:
        data, self._held = self._held, b""
        if self._is_over and not self._has_ended:
            self._has_ended = True
            data += b"0\r\n\r\n"
        if not data:
            return
        if self._asked.transport is None or self._asked.transport.is_closing():
            raise ConnectionResetError("the client has gone")
        self._asked.transport.write(data)


class Client:
    """The side of the agent. It can go away at any time; then nothing is written any more."""

    def __init__(self, request: web.BaseRequest, patience: Patience, client_s: float, drain_s: float) -> None:
        self._request = request
        self._patience = patience
        self._client_s = client_s
        self._drain_s = drain_s
        self._response: web.StreamResponse | None = None
        self._gone = False

    @property
    def headers(self) -> Mapping[str, str]:
        """As the agent sent them."""
        return self._request.headers

    @property
    def began(self) -> bool:
        """Was anything sent?"""
        return self._response is not None

    def began_with(self) -> web.StreamResponse:
        assert self._response is not None
        return self._response

    async def send(self, response: web.Response) -> web.StreamResponse:
        """A whole answer at once."""
        self._response = response
        try:
            await response.prepare(self._request)
            await response.write_eof()
        except ConnectionError:
            self._lost()
        return response

    async def begin(self, status: int, headers: CIMultiDict[str]) -> None:
        try:
            if self._request.version == HttpVersion11:
                self._response = chunked = _Chunked(self._request, status, headers)
                chunked.begin()
            else:
                self._response = web.StreamResponse(status=status, headers=headers)
                await self._response.prepare(self._request)
        except ConnectionError:
            self._lost()

    def flush(self) -> None:
        """What waits for the first chunk does not wait any longer."""
        if isinstance(self._response, _Chunked) and not self._gone:
            try:
                self._response.flush()
            except ConnectionError:
                self._lost()

    async def write(self, data: bytes, *, last: bool = False) -> None:
        response, transport = self._response, self._request.transport
        if self._gone or response is None:
            return
        if transport is None:
            self._lost()
            return
        if last and isinstance(response, _Chunked):
            response.end_with_next()
        try:
            if transport.get_write_buffer_size() + len(data) < _UNWATCHED_BYTES:
                await response.write(data)
            else:
                self._patience.pause()
                async with asyncio.timeout(self._client_s):
                    await response.write(data)
                self._patience.alive(asyncio.get_running_loop().time())
        except (ConnectionError, TimeoutError):
            self._lost()

    async def end(self) -> web.StreamResponse:
        response = self.began_with()
        if not self._gone:
            try:
                await response.write_eof()
            except ConnectionError:
                self._lost()
        return response

    def break_off(self) -> web.StreamResponse:
        """The client sees that the answer is not whole: what was written arrives, its end does not."""
        self.flush()
        if self._request.transport is not None:
            self._request.transport.close()
        return self.began_with()

    def _lost(self) -> None:
        """The answer is read to its end nevertheless, for a while: only its end says what it cost."""
        if self._gone:
            return
        self._gone = True
        now_s = asyncio.get_running_loop().time()
        self._patience.end_by(now_s + self._drain_s)
        self._patience.alive(now_s)
        if self._request.transport is not None:
            self._request.transport.abort()


class Answer:
    """One answer of an upstream, read once."""

    def __init__(
        self,
        answer: UpstreamAnswer,
        reader: UsageReader,
        secrets: KnownSecrets,
        patience: Patience,
        on_echo: Callable[[], None],
        aside: Aside,
    ) -> None:
        self.status = answer.status
        self._answer = answer
        self._reader = reader
        self._secrets = secrets
        self._patience = patience
        self._on_echo = on_echo
        self._aside = aside

    def headers(self) -> CIMultiDict[str]:
        """What the client gets of them."""
        return passed_back(self._answer.headers, self._secrets, self._on_echo)

    def streams(self, wanted: bool) -> bool:
        """Are these server-sent events? wanted: the client asked for a stream."""
        kind = self._answer.content_type
        return kind == "text/event-stream" or (wanted and kind != "application/json")

    async def whole(self, limit: int) -> bytes:
        """The body, decoded. Raises Cut for one that is too long or breaks off."""
        body = bytearray()
        while chunk := await self._next():
            body += chunk
            if len(body) > limit:
                raise Cut(f"an answer of more than {limit} bytes")
        return bytes(body)

    async def stream(self, client: Client, on_byte: Callable[[], None], on_end: Callable[[], None]) -> None:
        """To the end. on_byte: at the first. on_end: the client has seen what looks like it.

        Raises Cut, and EventTooLong.
        """
        splitter = SseSplitter()
        first = True
        while True:
            if not self._answer.has_more:
                client.flush()
            chunk = await self._next()
            if not chunk:
                break
            if first:
                first = False
                on_byte()
            events = splitter.feed(chunk)
            over = self._answer.is_over
            if over:
                events += splitter.close()
            if events:
                await self._pass_on(events, client, on_end, last=over)
        await self._pass_on(splitter.close(), client, on_end)

    async def _pass_on(
        self, events: list[SseEvent], client: Client, on_end: Callable[[], None], *, last: bool = False
    ) -> None:
        shown = []
        ended = False
        for raw, data in events:
            if data is not None:
                if len(data) <= _LIGHT_BYTES:
                    visible = self._reader.event(data)
                else:
                    client.flush()
                    visible = await self._aside.read(partial(self._reader.event, data), data)
                ended = ended or data == b"[DONE]" or _END.search(data) is not None
                if not visible:
                    continue
            shown.append(raw)
        if shown:
            await client.write(self.clean(shown[0] if len(shown) == 1 else b"".join(shown)), last=last)
        if ended:
            # After the write, which settling would delay; a next request is only read in a later turn.
            on_end()

    def clean(self, data: bytes) -> bytes:
        """The same without the upstream's key, in whichever form it is written."""
        cleaned, found = self._secrets.redact(data)
        if found:
            self._on_echo()
        return cleaned

    async def _next(self) -> bytes:
        try:
            chunk = await self._answer.readany()
        except BrokenOff as error:
            raise Cut(f"upstream broke off: {error}") from error
        self._patience.alive(asyncio.get_running_loop().time())
        return chunk


def passed_back(
    headers: Mapping[str, str], secrets: KnownSecrets, on_echo: Callable[[], None]
) -> CIMultiDict[str]:
    """The headers of an answer that a client gets: end to end, without cookies, accounts and keys."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    found: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower in _DROPPED or lower in named or not value.isascii() or not value.isprintable():
            continue
        if secrets.redact(value.encode())[1]:
            on_echo()
            continue
        found.add(name, value)
    found["Server"] = "sidecar-supervisor"
    return found
