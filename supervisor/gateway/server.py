"""Owns one run's gateway: the listener in its box, who may be answered, and the end of it all.
May touch that listener and the connections that come through it.
Never asks who is calling: being reached through this listener is the run's identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from supervisor.booking import BookingClock
from supervisor.gateway.calls import Api, CallRefused
from supervisor.gateway.connections import Line
from supervisor.gateway.forward import Forwarder, Refused
from supervisor.gateway.metering import Books, Ledger, Owner, Prices, Problem
from supervisor.gateway.refusals import Answer, Pace, error_answer, limit_answer
from supervisor.gateway.routes import Local, LocalRoute, ModelRoute, api_of, find
from supervisor.gateway.settings import Allowed, GatewaySettings
from supervisor.gateway.strict import MAX_VALUES, VALUE_BYTES, values_at_most
from supervisor.gateway.upstreams import matches
from supervisor.limits.budget import Caps
from supervisor.limits.charges import Booking

_BACKLOG = 1024
_LINGER_S = 1.0
_LINE_BYTES = 8190
_HEADERS = 128
_READ_BYTES = 1 << 18
_TURN_BYTES = 32 << 10
"""Of all connections of a run in one turn of the loop: six bytes can be a chunk that takes microseconds."""
_LEAST_BYTES = 256
_CLOSE_PATIENCE_S = 1.0

# What a client sends is an agent's words; the library would write some of it to the terminal.
_SILENT = logging.Logger("gateway", logging.CRITICAL + 1)


class RunGateway:
    """Serves one run on a socket that listens already. Use start and close, or as an async context manager.

    listener: a socket object, which is taken over, or a descriptor, which is duplicated. Everything is
    called from one event loop.
    """

    def __init__(
        self,
        listener: socket.socket | int,
        *,
        allowed: Allowed,
        lines: Sequence[Line],
        booking: Booking,
        caps: Caps,
        ledger: Ledger,
        prices: Prices,
        clock: BookingClock,
        owner: Owner,
        settings: GatewaySettings | None = None,
    ) -> None:
        """lines: of allowed.upstreams, from Connections.lines. caps: of this run, the smaller of each two."""
        self._listener = _as_socket(listener)
        self._allowed = allowed
        self._owner = owner
        self._settings = settings or GatewaySettings()
        self._books = Books(ledger, clock, prices, booking, caps, owner, self._settings.lease_s)
        self._forwarder = Forwarder(allowed, lines, self._books, prices, owner, self._settings)
        self._pace = Pace(self._settings.refusals, self._settings.refusals_within_s, self._settings.slow_s)
        self._stopped = ""
        self._walks: set[asyncio.Task[object]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._calls = 0
        self._body_bytes = 0
        self._web: _Web | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> RunGateway:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to answer. Connections that were made before wait in the listener's queue."""
        self._web = _Web(
            self._handle,
            keepalive_timeout=self._settings.keep_alive_s,
            lingering_time=_LINGER_S,
            logger=_SILENT,
            access_log=None,
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
            max_headers=_HEADERS,
        )
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connected, sock=self._listener, backlog=_BACKLOG)

    @property
    def calls(self) -> int:
        """How many are under way."""
        return self._calls

    def refuse_all(self, reason: str, *, cut: bool = False) -> None:
        """From now on every call is refused; reason is a word or two for the agent. May be called again.

        cut: calls under way are cut at once, and settled as cut ones.
        """
        self._stopped = self._stopped or reason
        if cut:
            for walk in list(self._walks):
                walk.cancel()

    async def close(self, patience_s: float = _CLOSE_PATIENCE_S) -> bool:
        """Refuse, close the listener, cut what is under way, and wait until all of it is booked.

        False when the database did not take everything within patience_s: what is missing stays held
        in it, and is still written if it comes back.
        """
        self.refuse_all("stopped", cut=True)
        self._end_listener()
        if self._walks:
            await asyncio.wait(self._walks)
        self._forwarder.close()
        # One whose client has gone may still read what was left of a refused request.
        for task in list(self._serving):
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        if self._web is not None:
            self._web.pre_shutdown()
            await self._web.shutdown(_CLOSE_PATIENCE_S)
            self._web = None
        return await self._books.booked(patience_s)

    def _end_listener(self) -> None:
        if self._listener.fileno() < 0:
            return
        # Others may hold a descriptor of it; this ends it for all of them.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        if self._server is not None:
            self._server.close()
        self._listener.close()

    # ------------------------------------------------------------ a connection, a request

    def _connected(self) -> asyncio.Protocol:
        """The protocol of a new connection; one too many is closed at once."""
        assert self._web is not None
        if self._web.open >= self._settings.connections:
            return _OneTooMany()
        self._web.open += 1
        return self._web()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        walk = asyncio.current_task()
        assert walk is not None
        self._walks.add(walk)
        walk.add_done_callback(self._walks.discard)
        self._serving.add(request.task)
        request.task.add_done_callback(self._serving.discard)
        api = api_of(request.raw_path, request.headers)
        try:
            return await self._answer(request)
        except CallRefused as refused:
            return await self._refuse(request, error_answer(api, refused, _retry_after(refused)))
        except Refused as refused:
            return await self._limit(request, api, refused)
        except Exception as error:
            self._owner.on_problem(Problem("failure", f"a call failed in the gateway: {error!r}"))
            failed = CallRefused(500, "gateway_failure", "the supervisor's gateway failed")
            return await self._refuse(request, error_answer(api, failed))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._stopped:
            raise CallRefused(403, "stopped", f"the run is being stopped: {self._stopped}")
        if "upgrade" in request.headers:
            raise CallRefused(426, "no_upgrade", "the gateway speaks HTTP/1.1 and nothing else")
        route = find(request.method, request.raw_path, request.headers)
        if isinstance(route, LocalRoute):
            return self._local(route)
        if self._calls >= self._settings.calls:
            raise CallRefused(429, "too_many_calls", f"{self._calls} model calls of this run are under way")
        self._calls += 1
        try:
            return await self._call(request, route)
        finally:
            self._calls -= 1

    async def _call(self, request: web.BaseRequest, route: ModelRoute) -> web.StreamResponse:
        body = bytearray()
        objects = 0
        try:
            await self._read(request, body)
            # As long as the call is under way, what was read of it is kept: thirty times its bytes at worst.
            objects = VALUE_BYTES * min(values_at_most(body), MAX_VALUES)
            self._body_bytes += objects
            self._bound_bodies()
            if self._stopped:
                raise CallRefused(403, "stopped", f"the run is being stopped: {self._stopped}")
            return await self._forwarder.forward(request, route, bytes(body))
        finally:
            self._body_bytes -= len(body) + objects

    async def _read(self, request: web.BaseRequest, body: bytearray) -> None:
        """The whole request, decompressed, into body. Raises CallRefused: too long, too slow, broken."""
        limits = self._settings
        if (request.content_length or 0) > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        if request.headers.get("expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        request.content.set_read_chunk_size(_READ_BYTES)
        try:
            async with asyncio.timeout(limits.body_s):
                while chunk := await request.content.readany():
                    # What is packed a thousand to one is there at once, so reading it never waits.
                    await asyncio.sleep(0)
                    body += chunk
                    self._body_bytes += len(chunk)
                    if len(body) > limits.body_bytes:
                        raise _too_large(limits.body_bytes)
                    self._bound_bodies()
        except TimeoutError:
            raise CallRefused(408, "too_slow", "the request did not arrive in time") from None
        except (
            aiohttp.ClientError,
            aiohttp.http_exceptions.HttpProcessingError,
            web.RequestPayloadError,
            ConnectionError,
        ):
            raise CallRefused(400, "bad_body", "the body of the request cannot be read") from None

    def _bound_bodies(self) -> None:
        if self._body_bytes > self._settings.bodies_bytes:
            raise CallRefused(429, "too_many_bytes", "too many large requests are under way")

    def _local(self, route: LocalRoute) -> web.StreamResponse:
        if route.what is Local.ALIVE:
            return web.Response(text="model gateway\n", headers={"Server": "sidecar-supervisor"})
        named = [name for name in self._allowed.models if not set(name) & set("*?[")]
        known = (name for name in self._allowed.known_models if matches(name, self._allowed.models))
        models = list(dict.fromkeys([*named, *known]))
        if route.what is Local.MODEL:
            if route.model not in models:
                raise CallRefused(404, "no_such_model", f"there is no model {route.model[:80]!r} here")
            return _json(_model(route.api, route.model))
        return _json(_models(route.api, models))

    # ------------------------------------------------------------ saying no

    async def _limit(self, request: web.BaseRequest, api: Api, refused: Refused) -> web.StreamResponse:
        refusal = refused.refusal
        if request.transport is not None:
            self._owner.on_refusal(refusal)
            if refusal.reason is not None:
                self._owner.on_limit(refusal)
        return await self._refuse(request, limit_answer(api, refusal, self._books.day_left_s()))

    async def _refuse(self, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        delay_s = self._pace.delay_s(asyncio.get_running_loop().time())
        if delay_s and not self._stopped:
            await asyncio.sleep(delay_s)
        headers = {"Server": "sidecar-supervisor", **answer.headers}
        response = web.Response(status=answer.status, headers=headers, body=answer.body)
        if answer.status in (408, 413, 426) or not request.content.is_eof():
            # What is left of the request is not read: the next one cannot be told from it.
            response.force_close()
        return response


class _Web(web.Server):
    """Knows how many connections there are from the moment they are accepted, not begun.

    They share what may be read in one turn of the loop: however many an agent opens and whatever it
    writes, the loop comes round, and the run can be killed.
    """

    open = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._options = kwargs
        self._buffer = memoryview(bytearray(_TURN_BYTES))

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self._options)

    def buffer(self) -> memoryview:
        """Where a connection is to read to, as much as is its share. It is empty again at once."""
        return self._buffer[: max(_LEAST_BYTES, _TURN_BYTES // max(1, self.open))]

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self.open -= 1
        super().connection_lost(handler, exc)


class _Connection(web.RequestHandler, asyncio.BufferedProtocol):
    """One connection, which reads no more at a time than it is told to."""

    def __init__(self, web_server: _Web, **options: Any) -> None:
        super().__init__(web_server, **options)
        self._web_server = web_server
        self._buffer = memoryview(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        self._buffer = self._web_server.buffer()
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))


class _OneTooMany(asyncio.Protocol):
    """A connection above the bound: closed, so that an agent cannot use up the supervisor's descriptors."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _as_socket(listener: socket.socket | int) -> socket.socket:
    return socket.socket(fileno=socket.dup(listener)) if isinstance(listener, int) else listener


def _too_large(limit: int) -> CallRefused:
    return CallRefused(413, "too_large", f"the request is larger than {limit} bytes")


def _retry_after(refused: CallRefused) -> int | None:
    return {429: 1, 503: 5}.get(refused.status)


def _json(value: object) -> web.Response:
    headers = {"Content-Type": "application/json", "Server": "sidecar-supervisor"}
    return web.Response(body=msgspec.json.encode(value), headers=headers)


def _model(api: Api, name: str) -> dict[str, object]:
    """One model as the vendor's own list has it; what only the vendor knows is left out or empty."""
    if api is Api.ANTHROPIC_MESSAGES:
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    if api is Api.GEMINI:
        methods = ["generateContent", "streamGenerateContent"]
        return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}
    return {"id": name, "object": "model", "created": 0, "owned_by": "sidecar-supervisor"}


def _models(api: Api, names: list[str]) -> dict[str, object]:
    listed = [_model(api, name) for name in names]
    if api is Api.ANTHROPIC_MESSAGES:
        ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
        return {"data": listed, "has_more": False, **ends}
    if api is Api.GEMINI:
        return {"models": listed}
    return {"object": "list", "data": listed}
