"""Owns that good calls go through: every API, streamed and whole, byte for byte, charged as reported.
May touch loopback sockets and a fresh database.
Never accepts a charge that differs from what the upstream said.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from gateway_stand import APIS, KEY, MODEL, request_of, stand
from scripted_upstream import Asked, Reply, Tokens, events, good, stream, zipped

from supervisor.limits.charges import ChargeState
from supervisor.limits.usage import UsageSource

COST = 100 * 1000 + 10 * 10_000  # 100 tokens in, 10 out, at $1 and $10 a million


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_is_passed_on_and_charged(tmp_path: Path, api: str, streamed: bool) -> None:
    async with stand(tmp_path) as s:
        direct = good(Asked("POST", *_target(api, streamed)))
        answered = await s.ask(api, stream=streamed)
        (done,) = await s.booked(1)
    assert answered.status == 200 and answered.whole
    expected = [piece for piece in direct.pieces if isinstance(piece, bytes)]
    if api == "openai-chat" and streamed:
        assert b'"usage": {' not in answered.body and answered.body.endswith(b"data: [DONE]\n\n")
    else:
        assert answered.body == b"".join(expected)
    assert (done.nanos, done.source, done.outcome, done.iteration) == (COST, UsageSource.PROVIDER, "ok", 1)
    assert (done.usage.total_input, done.usage.output, done.model) == (100, 10, MODEL)
    (charge,) = s.charges()
    assert charge.state is ChargeState.SETTLED and charge.spent_nanos == COST
    assert s.balances().run.held_nanos == 0 and s.balances().global_day.spent_nanos == COST
    assert s.problems == []


def _target(api: str, streamed: bool) -> tuple[str, tuple[tuple[str, str], ...], bytes]:
    target, body = request_of(api, stream=streamed)
    return target, (), body


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
async def test_events_may_be_split_anywhere(tmp_path: Path, api: str, newline: bytes) -> None:
    whole = b": a comment\n\n" + b"".join(events(api, MODEL, ["a", "b"], Tokens()))
    whole = whole.replace(b"\n", newline)
    size = [1]

    def script(_: Asked) -> Reply:
        return stream([whole[at : at + size[0]] for at in range(0, len(whole), size[0])])

    async with stand(tmp_path, script) as s:
        for size[0] in (1, 2, 7, 64, len(whole)):
            answered = await s.ask(api, stream=True)
            assert answered.whole
            if api != "openai-chat":
                assert answered.body == whole
        done = await s.booked(5)
    assert [one.nanos for one in done] == [COST] * 5


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_is_unpacked_although_none_was_wanted(
    tmp_path: Path, api: str, streamed: bool
) -> None:
    async with stand(tmp_path, lambda asked: zipped(good(asked))) as s:
        answered = await s.ask(api, stream=streamed, headers={"Accept-Encoding": "gzip, br"})
        (done,) = await s.booked(1)
        assert s.upstream.asked[0].header("accept-encoding") == "identity"
    assert answered.whole and "content-encoding" not in answered.headers
    assert b"world" in answered.body and done.nanos == COST


async def test_the_client_that_asked_for_usage_sees_it(tmp_path: Path) -> None:
    async with stand(tmp_path) as s:
        hidden = await s.ask("openai-chat", stream=True)
        shown = await s.ask("openai-chat", stream=True, stream_options={"include_usage": True})
        assert all(a.document["stream_options"] == {"include_usage": True} for a in s.upstream.asked)
    assert b'"prompt_tokens"' not in hidden.body
    assert b'"prompt_tokens": 100' in shown.body


async def test_only_what_is_needed_is_sent_on(tmp_path: Path) -> None:
    sent = {
        "Authorization": "Bearer the-agents-own",
        "X-Api-Key": "the-agents-own",
        "Cookie": "a=b",
        "X-Forwarded-For": "1.2.3.4",
        "X-HTTP-Method-Override": "DELETE",
        "OpenAI-Organization": "org-of-somebody",
        "X-Goog-User-Project": "project-of-somebody",
        "Connection": "keep-alive, X-Private",
        "X-Private": "1",
        "Proxy-Authorization": "Basic x",
        "Content-Encoding": "identity",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "context-1m-2025-08-07",
        "X-Stainless-Lang": "python",
        "User-Agent": "agent/1",
    }
    async with stand(tmp_path) as s:
        await s.ask("anthropic-messages", headers=sent)
        await s.ask("openai-chat", headers=sent)
        await s.ask("gemini", headers=sent)
        asked = s.upstream.asked
    for one in asked:
        names = {name.lower() for name, _ in one.headers}
        kept = {"anthropic-version", "anthropic-beta", "x-stainless-lang", "user-agent"}
        own = {"host", "content-length", "content-type", "accept-encoding"}
        key = names - kept - own
        assert len(key) == 1
        assert [value for _, value in one.headers if KEY in value] == [one.header(key.pop())]
        assert "the-agents-own" not in str(one.headers)
    assert asked[0].header("x-api-key") == KEY
    assert asked[1].header("authorization") == f"Bearer {KEY}"
    assert asked[2].header("x-goog-api-key") == KEY


async def test_control_the_upstream_sees_all_headers_without_the_gateway(tmp_path: Path) -> None:
    async with stand(tmp_path) as s:
        s.port = s.upstream.port
        await s.ask("anthropic-messages", headers={"Cookie": "a=b", "X-Forwarded-For": "1.2.3.4"})
        assert s.upstream.asked[0].header("cookie") == "a=b"


async def test_calls_share_connections_and_answers_name_no_cookie(tmp_path: Path) -> None:
    def script(asked: Asked) -> Reply:
        reply = good(asked)
        reply.headers |= {"Set-Cookie": "a=b", "request-id": "req_1", "Retry-After": "7", "X-Hop": "1"}
        reply.headers |= {"Connection": "keep-alive, x-hop", "anthropic-organization-id": "o"}
        return reply

    async with stand(tmp_path, script) as s, s.talk() as talk:
        for _ in range(3):
            talk.request("POST", *request_of("anthropic-messages"))
            answered = await talk.answer()
        assert s.upstream.connections == 1
    assert answered.headers["request-id"] == "req_1" and answered.headers["retry-after"] == "7"
    assert not {"set-cookie", "x-hop", "anthropic-organization-id"} & set(answered.headers)


async def test_a_body_of_many_megabytes_goes_through(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "x" * (8 << 20)}]
    async with stand(tmp_path) as s:
        answered = await s.ask("anthropic-messages", messages=said)
        assert answered.status == 200
        assert s.upstream.asked[0].document["messages"] == said


async def test_a_compressed_request_is_read(tmp_path: Path) -> None:
    target, body = request_of("openai-responses")
    async with stand(tmp_path) as s:
        answered = await s.send("POST", target, gzip.compress(body), {"Content-Encoding": "gzip"})
        assert answered.status == 200
        assert s.upstream.asked[0].document["input"] == "hi"
        assert s.upstream.asked[0].header("content-encoding") is None
