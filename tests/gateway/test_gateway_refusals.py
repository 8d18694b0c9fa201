"""Owns that the gateway says no in time, in the vendor's words, for free, and only when it must.
May touch loopback sockets and a fresh database.
Never accepts that a refused request reached the upstream.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from pathlib import Path

import pytest
from gateway_stand import APIS, USD, request_of, stand
from scripted_upstream import Asked, Reply, Until, good, stream

from supervisor.gateway.refusals import Pace
from supervisor.gateway.settings import GatewaySettings
from supervisor.limits.budget import Caps
from supervisor.runs.reasons import StopReason

MONEY = 10_000  # nano-dollars: far below what the small request of these tests can cost


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_cap_is_a_402_in_the_vendors_shape(tmp_path: Path, api: str, streamed: bool) -> None:
    async with stand(tmp_path, caps=Caps(run_nanos=MONEY)) as s:
        answered = await s.ask(api, stream=streamed)
        assert s.upstream.asked == [] and s.charges() == [] and s.done == []
    assert answered.status == 402
    assert answered.headers["x-should-retry"] == "false"
    assert answered.headers["x-supervisor-reason"] == "max_cost"
    assert int(answered.headers["retry-after"]) == 86_400
    error = answered.document["error"]
    if api == "anthropic-messages":
        assert answered.document["type"] == "error" and error["type"] == "billing_error"
    elif api == "gemini":
        assert (error["code"], error["status"]) == (402, "RESOURCE_EXHAUSTED")
        assert error["details"][0]["reason"] == "BUDGET_EXCEEDED"
    else:
        assert error["code"] == "budget_exceeded" and error["param"] is None
    assert "this run's limit is $0.000010; the call could cost up to $" in error["message"]
    assert "and $0.000010 is left" in error["message"] and "limits.usd" in error["message"]
    assert [refusal.reason for refusal in s.limits] == [StopReason.MAX_COST] == [r.reason for r in s.refusals]


@pytest.mark.parametrize(
    ("caps", "reason", "says"),
    [
        (Caps(iterations=0), StopReason.MAX_ITERATIONS, "limits.iterations"),
        (Caps(tokens=5), StopReason.MAX_TOKENS, "limits.tokens"),
        (Caps(ticket_nanos=MONEY), StopReason.MAX_COST, "limits.ticket_usd"),
        (Caps(project_day_nanos=MONEY), StopReason.DAILY_CAP, "daily.project_usd"),
        (Caps(global_day_nanos=0), StopReason.DAILY_CAP, "daily.global_usd"),
    ],
)
async def test_every_cap_has_its_reason(tmp_path: Path, caps: Caps, reason: StopReason, says: str) -> None:
    async with stand(tmp_path, caps=caps) as s:
        answered = await s.ask()
        assert s.upstream.asked == []
    assert answered.status == 402 and answered.headers["x-supervisor-reason"] == reason
    assert says in answered.document["error"]["message"]
    if reason is StopReason.DAILY_CAP:
        assert 0 < int(answered.headers["retry-after"]) <= 86_400
    assert [refusal.reason for refusal in s.limits] == [reason]


async def test_control_the_same_call_under_caps_that_hold_it(tmp_path: Path) -> None:
    roomy = Caps(
        iterations=1,
        tokens=10_000,
        run_nanos=USD,
        ticket_nanos=USD,
        project_day_nanos=USD,
        global_day_nanos=USD,
    )
    async with stand(tmp_path, caps=roomy) as s:
        assert (await s.ask()).status == 200
        (done,) = await s.booked(1)
        assert (done.left_iterations, done.left_nanos) == (0, USD - done.nanos)
        assert done.left_tokens == 10_000 - 110
        assert (await s.ask()).headers["x-supervisor-reason"] == "max_iterations"


async def test_the_output_is_lowered_to_what_is_left(tmp_path: Path) -> None:
    """The call asks for 100 tokens; the run can pay about 40 after its input."""
    async with stand(tmp_path, caps=Caps(run_nanos=3_000_000)) as s:
        await s.ask(max_tokens=100_000)
        await s.booked(1)
        lowered = s.upstream.asked[0].document["max_tokens"]
        assert 1 < lowered <= 300
        assert s.done[0].held_nanos <= 3_000_000
    (tmp_path / "db").unlink()
    async with stand(tmp_path, output_tokens_per_call=77) as s:
        await s.ask(max_tokens=100_000)
        await s.ask("openai-responses", max_output_tokens=None)
        assert s.upstream.asked[0].document["max_tokens"] == 77
        assert s.upstream.asked[1].document["max_output_tokens"] == 77


async def test_below_the_floor_it_refuses(tmp_path: Path) -> None:
    async with stand(tmp_path, caps=Caps(run_nanos=3_000_000), least_output_tokens=500) as s:
        assert (await s.ask(max_tokens=1000)).status == 402
        assert (await s.ask(max_tokens=10)).status == 200


@pytest.mark.parametrize("model", ["other", "Model-a", "model-a\n", "xmodel-a"])
@pytest.mark.parametrize("api", APIS)
async def test_a_model_that_is_not_allowed(tmp_path: Path, api: str, model: str) -> None:
    async with stand(tmp_path) as s:
        answered = await s.ask(api, model=model.strip() if api == "gemini" else model)
        if api == "gemini" and model.strip() == "model-a":
            assert answered.status == 200
            return
        assert answered.status in (400, 403) and s.upstream.asked == []
        assert s.limits == [] and s.refusals == []


async def test_a_model_without_a_price_needs_a_run_without_money_caps(tmp_path: Path) -> None:
    async with stand(tmp_path) as s:
        answered = await s.ask(model="model-unknown")
        assert answered.status == 403 and s.upstream.asked == [] and s.limits == []
        assert answered.headers["x-supervisor-reason"] == "model_not_priced"
        assert "price" in answered.document["error"]["message"]
    async with stand(tmp_path, caps=Caps(iterations=9)) as s:
        assert (await s.ask(model="model-unknown")).status == 200


NOT_FORWARDED = [
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/messages/batches"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/images/generations"),
    ("POST", "/v1/files"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/realtime"),
    ("POST", "/v1/responses/r1/cancel"),
    ("GET", "/v1/responses/r1"),
    ("DELETE", "/v1/responses/r1"),
    ("POST", "/v1beta/models/model-a:countTokens"),
    ("POST", "/v1beta/models/model-a:batchGenerateContent"),
    ("POST", "/v1beta/models/model-a:generateContent/../x"),
    ("POST", "/v1beta/cachedContents"),
    ("POST", "/v1//messages"),
    ("POST", "//v1/messages"),
    ("POST", "/v1/messages/"),
    ("POST", "/v1/./messages"),
    ("POST", "/v1/x/../messages"),
    ("POST", "/v1/%6dessages"),
    ("POST", "/v1/messages%2f"),
    ("POST", "/v1/messages%2e"),
    ("POST", "/v1/messages;x=1"),
    ("POST", "/V1/messages"),
    ("POST", "/v1/messages#x"),
    ("POST", "http://elsewhere/v1/messages"),
    ("PUT", "/v1/messages"),
    ("PATCH", "/v1/messages"),
    ("OPTIONS", "/v1/messages"),
    ("GET", "/v1/messages"),
    ("GET", "/admin"),
    ("POST", "/v1beta/models/..:generateContent"),
    ("POST", "/v1beta/models/a/b:generateContent"),
    ("POST", "/v1beta/models/%2e%2e:generateContent"),
]


@pytest.mark.parametrize(("method", "target"), NOT_FORWARDED)
async def test_what_has_no_meter_is_not_forwarded(tmp_path: Path, method: str, target: str) -> None:
    async with stand(tmp_path) as s:
        _, body = request_of("anthropic-messages")
        answered = await s.send(method, target, body)
        assert answered.status in (400, 404) and s.upstream.asked == []
        if answered.status == 404 and answered.body:
            assert answered.headers["x-supervisor-reason"] == "not_forwarded"


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("/v1/messages?beta=true", "/v1/messages?beta=true"),
        ("/v1beta/models/model-a:generateContent?key=abc", "/v1beta/models/model-a:generateContent"),
        (
            "/v1beta/models/model-a:streamGenerateContent?alt=sse&key=abc",
            "/v1beta/models/model-a:streamGenerateContent?alt=sse",
        ),
        ("/v1/models/model-a:generateContent", "/v1/models/model-a:generateContent"),
        ("/v1/chat/completions", "/v1/chat/completions"),
    ],
)
async def test_control_what_is_forwarded(tmp_path: Path, target: str, sent: str) -> None:
    api = "gemini" if "models" in target else "openai-chat" if "chat" in target else "anthropic-messages"
    async with stand(tmp_path) as s:
        _, body = request_of(api)
        assert (await s.send("POST", target, body)).status == 200
        assert s.upstream.asked[0].target == sent


@pytest.mark.parametrize(
    "target",
    ["/v1/messages?beta=false", "/v1/messages?x", "/v1/messages?beta=true&beta=true", "/v1/responses?a=b"],
)
async def test_a_query_that_is_not_known(tmp_path: Path, target: str) -> None:
    async with stand(tmp_path) as s:
        answered = await s.send("POST", target, request_of("anthropic-messages")[1])
        assert answered.status == 400 and s.upstream.asked == []


async def test_what_is_answered_without_an_upstream(tmp_path: Path) -> None:
    async with stand(tmp_path, models=("model-a", "m*"), known_models=("mega", "other")) as s:
        assert (await s.send("HEAD", "/")).status == 200
        assert (await s.send("GET", "/")).status == 200
        openai = (await s.send("GET", "/v1/models")).document
        claude = (await s.send("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"})).document
        google = (await s.send("GET", "/v1beta/models")).document
        one = (await s.send("GET", "/v1/models/mega")).document
        none = await s.send("GET", "/v1/models/other")
        assert s.upstream.asked == []
    assert [model["id"] for model in openai["data"]] == ["model-a", "mega"] and openai["object"] == "list"
    assert [model["id"] for model in claude["data"]] == ["model-a", "mega"] and claude["last_id"] == "mega"
    assert [model["name"] for model in google["models"]] == ["models/model-a", "models/mega"]
    assert one["id"] == "mega" and none.status == 404


async def test_an_upgrade_is_answered_426(tmp_path: Path) -> None:
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    async with stand(tmp_path) as s:
        assert (await s.send("GET", "/v1/responses", headers=headers)).status == 426
        assert (await s.ask("openai-responses")).status == 200


async def test_a_body_that_is_too_long(tmp_path: Path) -> None:
    async with stand(tmp_path, settings=GatewaySettings(body_bytes=2000)) as s:
        said = [{"role": "user", "content": "x" * 1000}]
        assert (await s.ask(messages=said)).status == 200
        said[0]["content"] *= 2
        assert (await s.ask(messages=said)).status == 413
        target, body = request_of("anthropic-messages", messages=said)
        chunks = b"".join(
            b"%x\r\n%b\r\n" % (len(body[at : at + 100]), body[at : at + 100])
            for at in range(0, len(body), 100)
        )
        async with s.talk() as talk:
            talk.writer.write(
                f"POST {target} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks
            )
            assert (await talk.answer()).status == 413
        assert len(s.upstream.asked) == 1


async def test_a_body_that_is_long_only_when_it_is_unpacked(tmp_path: Path) -> None:
    _, body = request_of("anthropic-messages", messages=[{"role": "user", "content": "x" * (4 << 20)}])
    packed = gzip.compress(body)
    async with stand(tmp_path, settings=GatewaySettings(body_bytes=1 << 20)) as s:
        assert len(packed) < 1 << 20
        answered = await s.send("POST", "/v1/messages", packed, {"Content-Encoding": "gzip"})
        assert answered.status == 413 and s.upstream.asked == []


async def test_a_request_that_never_arrives(tmp_path: Path) -> None:
    async with stand(tmp_path, settings=GatewaySettings(body_s=0.05, keep_alive_s=0.1)) as s:
        async with s.talk() as talk:
            talk.writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            assert (await talk.answer()).status == 408
        async with s.talk() as talk:
            talk.writer.write(b"POST /v1/mess")
            assert await talk.reader.read() == b""
        assert s.gateway.calls == 0


async def test_two_lengths_and_other_tricks_are_no_request(tmp_path: Path) -> None:
    tricks = [
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ]
    async with stand(tmp_path) as s:
        for trick in tricks:
            async with s.talk() as talk:
                talk.writer.write(trick + b"\r\n\r\n")
                assert (await talk.answer()).status == 400
        assert s.upstream.asked == [] and s.problems == []


async def test_calls_and_connections_are_bounded(tmp_path: Path) -> None:
    go = asyncio.Event()
    settings = GatewaySettings(calls=2, connections=3)
    async with stand(tmp_path, lambda asked: stream([Until(go)]), settings=settings) as s:
        walks = [asyncio.create_task(s.ask(stream=True)) for _ in range(2)]
        await s.reached(2)
        third = await s.ask(stream=True)
        assert (third.status, third.headers["retry-after"]) == (429, "1")
        pairs = [await asyncio.open_connection("127.0.0.1", s.port) for _ in range(6)]
        reads = [asyncio.create_task(reader.read()) for reader, _ in pairs]
        for _, read in zip(range(5), asyncio.as_completed(reads), strict=False):
            assert await read == b""
        assert sum(read.done() for read in reads) >= 5
        for read, (_, writer) in zip(reads, pairs, strict=True):
            read.cancel()
            writer.close()
        go.set()
        await asyncio.gather(*walks)
        assert len(s.upstream.asked) == 2


async def test_refusals_are_slow_when_they_are_all_a_client_wants(tmp_path: Path) -> None:
    pace = Pace(3, 10.0, 2.0)
    assert [pace.delay_s(at) for at in (0.0, 1.0, 2.0, 3.0, 3.1, 30.0, 31.0)] == [0, 0, 0, 2.0, 2.0, 0, 0]
    settings = GatewaySettings(refusals=2, refusals_within_s=1000.0, slow_s=1000.0)
    async with stand(tmp_path, settings=settings) as s:
        assert (await s.send("POST", "/a")).status == 404
        assert (await s.send("POST", "/a")).status == 404
        slow = asyncio.create_task(s.send("POST", "/a"))
        assert (await s.ask()).status == 200
        assert not slow.done()
        await s.gateway.close()
        assert (await asyncio.gather(slow, return_exceptions=True))[
            0
        ].__class__ is asyncio.IncompleteReadError


async def test_a_limit_that_only_open_calls_fill_is_waited_for(tmp_path: Path) -> None:
    """Both calls would like 100 tokens; together their holds are above the cap, what they use is not."""
    go = asyncio.Event()

    def script(asked: Asked) -> Reply:
        reply = good(asked)
        reply.before = [Until(go)]
        return reply

    caps = Caps(run_nanos=1_900_000, iterations=2)
    async with stand(tmp_path, script, caps=caps, least_output_tokens=100) as s:
        first = asyncio.create_task(s.ask())
        await s.reached(1)
        second = asyncio.create_task(s.ask())
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert len(s.upstream.asked) == 1 and not second.done() and s.limits == []
        go.set()
        assert [(await first).status, (await second).status] == [200, 200]
        await s.booked(2)
        third, fourth = await asyncio.gather(s.ask(), s.ask())
        assert (
            third.headers["x-supervisor-reason"] == fourth.headers["x-supervisor-reason"] == "max_iterations"
        )


async def test_after_a_stop_everything_is_refused(tmp_path: Path) -> None:
    async with stand(tmp_path) as s:
        async with s.talk() as talk:
            talk.request("POST", *request_of("anthropic-messages"))
            assert (await talk.answer()).status == 200
            s.gateway.refuse_all("operator")
            talk.request("POST", *request_of("anthropic-messages"))
            refused = await talk.answer()
        assert refused.status == 403 and refused.headers["x-supervisor-reason"] == "stopped"
        assert "operator" in refused.document["error"]["message"]
        assert len(s.upstream.asked) == 1
        held = socket.create_connection(("127.0.0.1", s.port))
        await s.gateway.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", s.port)
        held.close()


async def test_a_broken_body_is_a_400(tmp_path: Path) -> None:
    async with stand(tmp_path) as s:
        for body in (b"", b"{", b"[]", b'{"model":"model-a","model":"model-b"}', b"\xff"):
            answered = await s.send("POST", "/v1/messages", body)
            assert answered.status == 400
            assert json.loads(answered.body)["error"]["type"] == "invalid_request_error"
        bad = await s.send("POST", "/v1/messages", b"not gzip", {"Content-Encoding": "gzip"})
        assert bad.status == 400 and s.upstream.asked == []
