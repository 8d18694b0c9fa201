"""Owns the walk of one model call: read, price, reserve, send, relay, settle.
May touch the ledger through Books, and the upstreams through their lines.
Never sends a call that nothing is held for, and never leaves one without its end in the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from multidict import CIMultiDict

from supervisor.errors import SupervisorError, UsageError
from supervisor.gateway.aside import Aside
from supervisor.gateway.calls import Api, CallRefused, ModelCall, Reported, UsageReader
from supervisor.gateway.connections import Line
from supervisor.gateway.metering import Books, Hold, Owner, Prices, Problem
from supervisor.gateway.relay import Answer, Client, Cut, Patience
from supervisor.gateway.requests import BoundMemory, read_call, rewrite
from supervisor.gateway.routes import ModelRoute
from supervisor.gateway.settings import Allowed, GatewaySettings
from supervisor.gateway.sse import EventTooLong
from supervisor.gateway.upstreams import Service, matches
from supervisor.gateway.usage.readers import reader_for
from supervisor.gateway.wire import BrokenOff, Unreachable, UpstreamAnswer
from supervisor.limits.budget import Ask, Refusal

_ERROR_BYTES = 1 << 20
_READABLE = frozenset({"", "identity", "gzip", "deflate"})
"""Encodings that are undone, or are an error, before anything is looked at."""

_PASSED = frozenset(
    "accept user-agent anthropic-version anthropic-beta openai-beta x-app originator session_id version "
    "x-goog-api-client x-client-request-id idempotency-key".split()
)
_PASSED_PREFIX = "x-stainless-"


class Refused(Exception):
    """The ledger did not let a call through."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(slots=True)
class _Attempt:
    """One reservation and one request that is sent for it."""

    call: ModelCall
    hold: Hold
    reader: UsageReader
    status: int = 0
    handed_over: asyncio.Task[None] | None = None
    settled_total: int = 0


class Forwarder:
    """The model calls of one run."""

    def __init__(
        self,
        allowed: Allowed,
        lines: Sequence[Line],
        books: Books,
        prices: Prices,
        owner: Owner,
        settings: GatewaySettings,
    ) -> None:
        self._allowed = allowed
        self._lines = lines
        self._books = books
        self._prices = prices
        self._owner = owner
        self._settings = settings
        self._memory = BoundMemory()
        self._aside = Aside()

    def close(self) -> None:
        """Once no call is under way."""
        self._aside.close()

    async def forward(self, request: web.BaseRequest, route: ModelRoute, body: bytes) -> web.StreamResponse:
        """The answer, streamed or whole. Raises CallRefused and Refused while nothing was sent back."""
        reading = partial(
            read_call,
            route.api,
            body,
            model=route.model,
            stream=route.stream,
            memory=self._memory,
            allow=self._allowed.inputs,
        )
        call = await self._aside.read(reading, body)
        line = self._line(call)
        key = await self._key(line)
        ask = self._ask(call, line.service)
        response = await self._attempt(request, route, call, ask, line, key)
        if response is None:
            # The key was refused and there is a new one by now: another attempt, with a row of its own.
            response = await self._attempt(request, route, call, ask, line, line.key.value, last=True)
        assert response is not None
        return response

    def _line(self, call: ModelCall) -> Line:
        if matches(call.model, self._allowed.models):
            for line in self._lines:
                if line.service.serves(call.api, call.model):
                    return line
        raise CallRefused(
            403,
            "model_not_allowed",
            f"the model {call.model[:80]!r} is not among those that this run may use: "
            f"{', '.join(self._allowed.models) or 'none'}",
        )

    async def _key(self, line: Line) -> str:
        try:
            return await line.key.current()
        except UsageError as error:
            self._owner.on_problem(Problem("no_key", error.message))
            raise CallRefused(503, "no_key", "the supervisor has no key for this upstream") from None

    def _ask(self, call: ModelCall, service: Service) -> Ask:
        price = self._prices.find(service.provider, service.own_name(call.model))
        wanted = self._allowed.output_tokens_per_call
        if call.output_asked is not None:
            wanted = min(wanted, call.output_asked)
        if price is not None and price.max_output_tokens:
            wanted = min(wanted, price.max_output_tokens)
        return Ask(
            input_bound=call.input_bound,
            output_wanted=wanted,
            output_least=max(call.output_least, self._allowed.least_output_tokens),
            answers=call.answers,
            cache_write=call.cache_write,
            tools=dict(call.tools),
            price=price,
        )

    async def _attempt(
        self,
        request: web.BaseRequest,
        route: ModelRoute,
        call: ModelCall,
        ask: Ask,
        line: Line,
        key: str,
        *,
        last: bool = False,
    ) -> web.StreamResponse | None:
        """None: the upstream refused the key, and there is another one now."""
        try:
            held = await self._books.reserve(call, ask, line.service, lambda: request.transport is not None)
        except SupervisorError as error:
            self._owner.on_problem(Problem("no_ledger", f"no reservation could be made: {error.message}"))
            raise CallRefused(503, "no_ledger", "the supervisor cannot book calls at the moment") from None
        if isinstance(held, Refusal):
            raise Refused(held)
        if request.transport is None:
            self._books.release(held, outcome="not sent")
            raise CallRefused(400, "client_gone", "the client hung up before the call was sent")
        attempt = _Attempt(call, held, reader_for(call))
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        limits = self._settings
        try:
            async with asyncio.timeout_at(now_s + min(limits.first_byte_s, limits.call_s)) as timeout:
                patience = Patience(timeout, limits.between_bytes_s, now_s + limits.call_s)
                client = Client(request, patience, limits.client_s, limits.drain_s)
                return await self._exchange(attempt, route, line, key, patience, client, last=last)
        except TimeoutError:
            self._cut(attempt, "cut: upstream stalled")
            if client.began:
                return client.break_off()
            raise CallRefused(504, "upstream_stalled", "the upstream did not answer in time") from None
        except (Cut, EventTooLong) as cut:
            self._cut(attempt, f"cut: {cut}")
            if client.began:
                return client.break_off()
            raise CallRefused(502, "upstream_broke_off", "the upstream's answer broke off") from None
        except asyncio.CancelledError:
            self._cut(attempt, "cut: stopped")
            raise
        except CallRefused:
            raise
        except BaseException:
            self._cut(attempt, "cut: failure of the gateway")
            raise

    async def _exchange(
        self,
        attempt: _Attempt,
        route: ModelRoute,
        line: Line,
        key: str,
        patience: Patience,
        client: Client,
        *,
        last: bool,
    ) -> web.StreamResponse | None:
        hold = attempt.hold
        response = await self._send(attempt, route, line, key, client)
        try:
            attempt.status = response.status
            packed = ", ".join(response.headers.getall("Content-Encoding", ())).strip().lower()
            if response.status < 200 or packed not in _READABLE:
                # No answer, or one in which nobody finds what it used, or our key.
                raise Cut("an answer that cannot be read")

            def echoed() -> None:
                what = f"the upstream {hold.upstream} sent its key back; it was taken out"
                self._owner.on_problem(Problem("key_echoed", what, hold.charge_id))

            answer = Answer(response, attempt.reader, line.key.secrets, patience, echoed, self._aside)
            if response.status >= 300:
                return await self._error(attempt, answer, line, key, last=last)
            if answer.streams(attempt.call.stream):
                await client.begin(response.status, answer.headers())
                await answer.stream(
                    client, lambda: self._first_byte(attempt), lambda: self._end_seen(attempt)
                )
                self._finish(attempt)
                return await client.end()
            body = await answer.whole(self._settings.answer_bytes)
            self._first_byte(attempt)
            await self._aside.read(partial(attempt.reader.body, body), body)
            sent = web.Response(status=response.status, headers=answer.headers(), body=answer.clean(body))
            await client.send(sent)
            # In the turn of the last write: the client's next call is read, and so booked, after it.
            self._finish(attempt)
            return sent
        finally:
            # Of an answer that was read to its end this is nothing; any other ends here.
            response.close()

    async def _send(
        self, attempt: _Attempt, route: ModelRoute, line: Line, key: str, client: Client
    ) -> UpstreamAnswer:
        call, service = attempt.call, line.service
        own = service.own_name(call.model)
        body = rewrite(
            call,
            attempt.hold.terms.grant.output_tokens,
            own if own != call.model else None,
            chat_bound=service.chat_bound,
        )
        path = route.path
        if call.api is Api.GEMINI and own != call.model:
            path = path.replace(f"/models/{call.model}:", f"/models/{own}:", 1)
        attempt.hold.sent = True
        try:
            return await line.wire.post(path, _sent_on(client.headers, service, key).items(), body)
        except Unreachable as error:
            why = f"the upstream {service.name} cannot be reached: {error}"
            self._owner.on_problem(Problem("unreachable", why, attempt.hold.charge_id))
            self._books.release(attempt.hold, outcome="unreachable")
            raise CallRefused(502, "upstream_unreachable", "the upstream cannot be reached") from None
        except BrokenOff as error:
            # It may have been read and answered: nobody knows, so it is not free.
            raise Cut(f"upstream broke off: {error}") from error

    async def _error(
        self, attempt: _Attempt, answer: Answer, line: Line, key: str, *, last: bool
    ) -> web.StreamResponse | None:
        """Passed on as it is, but for the key. It is not billed unless it says so itself."""
        body = b""
        with contextlib.suppress(Cut):
            body = await answer.whole(_ERROR_BYTES)
        await self._aside.read(partial(attempt.reader.body, body), body)
        self._books.close(
            attempt.hold, attempt.reader.reported(), status=answer.status, outcome=f"error {answer.status}"
        )
        if answer.status in (401, 403) and key:
            if not last and answer.status == 401 and await line.key.changed_since(key):
                return None
            what = f"the upstream {attempt.hold.upstream} refuses the key ({answer.status})"
            self._owner.on_problem(Problem("key_refused", what, attempt.hold.charge_id))
        if answer.status < 400:
            raise CallRefused(502, "upstream_redirects", "the upstream wants to send the call elsewhere")
        return web.Response(status=answer.status, headers=answer.headers(), body=answer.clean(body))

    # ------------------------------------------------------------ the end of a call

    def _first_byte(self, attempt: _Attempt) -> None:
        attempt.hold.first_byte_s = asyncio.get_running_loop().time()

    def _end_seen(self, attempt: _Attempt) -> None:
        """Settle as soon as the client has seen the end: it may go on before the stream is over."""
        reported = attempt.reader.reported()
        if attempt.handed_over is None and reported.complete and reported.usage is not None:
            self._settle(attempt, reported)

    def _finish(self, attempt: _Attempt) -> None:
        """The answer came to its end."""
        reported = attempt.reader.reported()
        if attempt.handed_over is None:
            self._settle(attempt, reported)
            return
        more = (reported.usage.total if reported.usage else 0) - attempt.settled_total
        if more > 0:
            what = f"{more} tokens were reported after the end of the answer"
            self._owner.on_problem(Problem("late_usage", what, attempt.hold.charge_id))

    def _settle(self, attempt: _Attempt, reported: Reported) -> None:
        outcome = "ok" if reported.complete else "cut: the stream ended early"
        attempt.settled_total = reported.usage.total if reported.usage else 0
        attempt.handed_over = self._books.close(
            attempt.hold, reported, status=attempt.status, outcome=outcome
        )
        if reported.usage is not None and reported.complete:
            self._memory.learn(attempt.call, reported.usage.total_input)

    def _cut(self, attempt: _Attempt, outcome: str) -> None:
        """It was ended, by whomever; one that had said all that it cost is as good as whole."""
        reported = attempt.reader.reported()
        if reported.complete and reported.usage is not None:
            outcome = "ok"
        self._books.close(attempt.hold, reported, status=attempt.status, outcome=outcome)


def _sent_on(asked: Mapping[str, str], service: Service, key: str) -> CIMultiDict[str]:
    """The headers of the request upstream: a few of the client's, then ours; never its credentials."""
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in asked.items():
        lower = name.lower()
        if (lower in _PASSED or lower.startswith(_PASSED_PREFIX)) and value.isascii() and value.isprintable():
            headers.add(lower, value)
    headers.update(service.headers)
    headers["content-type"] = "application/json"
    # An answer that is read on its way should not have to be unpacked.
    headers["accept-encoding"] = "identity"
    if key:
        headers[service.key_header] = service.key_prefix + key
    return headers
