"""Owns what tests of the gateway stand on: a scripted upstream, a real ledger, a gateway, a raw client.
May touch loopback sockets and a database in the test's own folder.
Never replaces a part of the gateway.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from scripted_upstream import Asked, Reply, ScriptedUpstream, good, running

from supervisor.booking import BookingClock
from supervisor.clock import SystemClock
from supervisor.gateway.connections import Connections
from supervisor.gateway.metering import Done, Owner, Problem, RecorderLedger
from supervisor.gateway.server import RunGateway
from supervisor.gateway.settings import Allowed, GatewaySettings
from supervisor.gateway.upstreams import Upstream, resolve
from supervisor.limits.budget import Balances, Caps, Refusal
from supervisor.limits.charges import Booking, Charge
from supervisor.limits.pricing import Price, Rates
from supervisor.store.recorder import Recorder
from supervisor.store.store import open_store

KEY = "sk-test-Zm9vYmFy+/quux=0123456789"
MODEL = "model-a"
BOOKING = Booking(run_id="run-1", ticket="T-1", project="p", worker_id="w-1")
USD = 1_000_000_000
APIS = ("anthropic-messages", "openai-chat", "openai-responses", "gemini")
PRICES = {
    # $1 a million in, $10 out: one nano-dollar in a thousandth of a token, so sums are easy to read.
    "model-a": Price(
        provider="p",
        model="model-a",
        rates=Rates(
            input=USD, output=10 * USD, cache_read=USD // 10, cache_write_5m=USD, cache_write_1h=2 * USD
        ),
    ),
    "model-b": Price(
        provider="p",
        model="model-b",
        rates=Rates(
            input=2 * USD,
            output=20 * USD,
            cache_read=USD // 5,
            cache_write_5m=2 * USD,
            cache_write_1h=4 * USD,
        ),
    ),
    "model-free": Price(
        provider="p",
        model="model-free",
        rates=Rates(input=0, output=0, cache_read=0, cache_write_5m=0, cache_write_1h=0),
    ),
}
for _known in ("gpt-4o", "gpt-5", "o4-mini"):
    PRICES[_known] = msgspec.structs.replace(PRICES["model-a"], model=_known)


class FixedPrices:
    """Whatever the provider is called."""

    def find(self, _provider: str, model: str) -> Price | None:
        return PRICES.get(model)


@dataclass(slots=True)
class Answered:
    """What a client got. whole: the framing came to its end."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Stand:
    """Everything of one test."""

    upstream: ScriptedUpstream
    gateway: RunGateway
    connections: Connections
    port: int
    database: Path
    done: list[Done] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    limits: list[Refusal] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    async def ask(
        self, api: str = "anthropic-messages", *, stream: bool = False, headers: Any = None, **changes: Any
    ) -> Answered:
        target, body = request_of(api, stream=stream, **changes)
        return await self.send("POST", target, body, headers)

    async def send(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answered:
        """One request on a connection of its own, as raw as it is written here."""
        async with self.talk() as talk:
            talk.request(method, target, body, headers)
            return await talk.answer(to=method)

    @asynccontextmanager
    async def talk(self) -> AsyncIterator[Talk]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Talk(reader, writer)
        finally:
            writer.close()

    async def booked(self, count: int) -> list[Done]:
        """Until that many calls were told of."""
        async with asyncio.timeout(20):
            while len(self.done) < count:
                await asyncio.sleep(0.002)
        return self.done

    async def reached(self, count: int = 1) -> None:
        """Until the upstream has so many requests."""
        async with asyncio.timeout(20):
            while len(self.upstream.asked) < count:
                await asyncio.sleep(0.002)

    async def quiet(self) -> None:
        """Until no call is under way."""
        async with asyncio.timeout(20):
            while self.gateway.calls:
                await asyncio.sleep(0.002)

    def charges(self) -> list[Charge]:
        store = open_store(str(self.database))
        try:
            return store.ledger.charges(BOOKING.run_id)
        finally:
            store.close()

    def balances(self) -> Balances:
        store = open_store(str(self.database))
        try:
            return store.ledger.balances(BOOKING, store.ledger.latest_day())
        finally:
            store.close()

    def codes(self) -> list[str]:
        return [problem.code for problem in self.problems]


class Talk:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def request(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        given = {"Host": "gateway", "Content-Length": str(len(body)), **(headers or {})}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *lines = head.split("\r\n")[:-2]
        headers = {}
        for one in lines:
            name, _, value = one.partition(":")
            headers[name.lower()] = value.strip()
        return int(line.split(" ")[1]), headers

    async def chunk(self) -> bytes | None:
        """The next chunk; None when the connection broke, b"" for the last one."""
        try:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return data[:-2]

    async def answer(self, to: str = "POST") -> Answered:
        async with asyncio.timeout(30):
            status, headers = await self.head()
            if to == "HEAD":
                return Answered(status, headers, b"", whole=True)
            if "chunked" not in headers.get("transfer-encoding", ""):
                try:
                    body = await self.reader.readexactly(int(headers.get("content-length", "0")))
                except (asyncio.IncompleteReadError, ConnectionError):
                    return Answered(status, headers, b"", whole=False)
                return Answered(status, headers, body, whole=True)
            body = b""
            while chunk := await self.chunk():
                body += chunk
            return Answered(status, headers, body, whole=chunk is not None)


def request_of(api: str, *, stream: bool = False, **changes: Any) -> tuple[str, bytes]:
    """Target and body of a small request. Keyword arguments replace fields; model is one of them."""
    model = changes.pop("model", MODEL)
    said = [{"role": "user", "content": "hi"}]
    body: dict[str, Any]
    match api:
        case "anthropic-messages":
            target, body = "/v1/messages", {"model": model, "max_tokens": 100, "messages": said}
        case "openai-chat":
            target, body = "/v1/chat/completions", {"model": model, "max_tokens": 100, "messages": said}
        case "openai-responses":
            target, body = "/v1/responses", {"model": model, "max_output_tokens": 100, "input": "hi"}
        case _:
            method = "streamGenerateContent?alt=sse" if stream else "generateContent"
            target = f"/v1beta/models/{model}:{method}"
            body = {
                "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
                "generationConfig": {"maxOutputTokens": 100},
            }
    if stream and api != "gemini":
        body["stream"] = True
    return target, json.dumps(body | changes).encode()


def listener() -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.bind(("127.0.0.1", 0))
    found.listen(128)
    return found


def upstreams(port: int, key: str, url: str = "") -> dict[str, Upstream]:
    """The same scripted server under each of the APIs."""
    url = url or f"http://127.0.0.1:{port}"
    return {
        "anthropic": Upstream(url=url, key=key),
        "openai": Upstream(url=f"{url}/v1", key=key),
        "gemini": Upstream(url=url, key=key),
    }


@asynccontextmanager
async def stand(
    folder: Path,
    script: Callable[[Asked], Reply] = good,
    *,
    caps: Caps | None = None,
    settings: GatewaySettings | None = None,
    models: Sequence[str] = ("model-*",),
    configured: dict[str, Upstream] | None = None,
    output_tokens_per_call: int = 1000,
    least_output_tokens: int = 1,
    known_models: tuple[str, ...] = (),
) -> AsyncIterator[Stand]:
    """A gateway that is served and an upstream behind it. caps None: ten dollars for the run."""
    key_file = folder / "key"
    if not key_file.exists():
        key_file.write_text(KEY + "\n")
    database = folder / "db"
    recorder = Recorder(str(database))
    clock = BookingClock(SystemClock(), "boot", ZoneInfo("UTC"), {})
    try:
        async with running(script) as upstream:
            names = configured or upstreams(upstream.port, f"file:{key_file}")
            async with Connections(resolve(names)) as connections:
                made: list[Stand] = []
                owner = Owner(
                    on_call=lambda done: made[0].done.append(done),
                    on_refusal=lambda refusal: made[0].refusals.append(refusal),
                    on_limit=lambda refusal: made[0].limits.append(refusal),
                    on_problem=lambda problem: made[0].problems.append(problem),
                )
                ear = listener()
                port = ear.getsockname()[1]
                gateway = RunGateway(
                    ear,
                    allowed=Allowed(
                        upstreams=tuple(names),
                        models=tuple(models),
                        output_tokens_per_call=output_tokens_per_call,
                        least_output_tokens=least_output_tokens,
                        known_models=known_models,
                    ),
                    lines=connections.lines(names),
                    booking=BOOKING,
                    caps=caps or Caps(run_nanos=10 * USD),
                    ledger=RecorderLedger(recorder),
                    prices=FixedPrices(),
                    clock=clock,
                    owner=owner,
                    settings=settings,
                )
                made.append(Stand(upstream, gateway, connections, port, database))
                async with gateway:
                    yield made[0]
    finally:
        recorder.close()
