"""Owns that every call is charged once and by the rules, however its answer, its client or its run ends.
May touch loopback sockets and a fresh database.
Never accepts a call that is free, or charged twice, or held for ever.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_stand import APIS, MODEL, USD, Stand, request_of, stand
from scripted_upstream import (
    Act,
    Asked,
    Document,
    Pause,
    Piece,
    Reply,
    Tokens,
    Until,
    events,
    good,
    sse,
    stream,
    usage_of,
    whole,
)

from supervisor.gateway.metering import Done
from supervisor.gateway.settings import GatewaySettings
from supervisor.limits.budget import Caps
from supervisor.limits.charges import ChargeState
from supervisor.limits.usage import UsageSource
from supervisor.store.store import open_store

COST = 100 * 1000 + 10 * 10_000
CHUNKS = {api: len(events(api, MODEL, ["Hello", " world"], Tokens())) for api in APIS}


def once(s: Stand) -> Done:
    """The one call there was: told of once, in one row, and nothing is held any more."""
    (done,) = s.done
    (charge,) = s.charges()
    assert charge.charge_id == done.charge_id
    assert charge.spent_nanos == done.nanos and charge.usage_source == done.source
    balances = s.balances()
    for balance in (balances.run, balances.ticket, balances.project_day, balances.global_day):
        assert (balance.held_nanos, balance.held_tokens) == (0, 0)
        assert balance.spent_nanos == done.nanos and balance.tokens == done.usage.total
    return done


def charged_at_hold(s: Stand) -> Done:
    done = once(s)
    assert done.source is UsageSource.HOLD and done.nanos == done.held_nanos > 0
    return done


def released(s: Stand) -> Done:
    done = once(s)
    assert (done.source, done.nanos, done.iteration) == (UsageSource.UNBILLED, 0, 0)
    assert s.charges()[0].state is ChargeState.RELEASED and s.balances().run.calls == 0
    return done


# ---------------------------------------------------------------- hang-ups and kills, at every chunk


@pytest.mark.parametrize(("api", "after"), [(api, n) for api in APIS for n in range(CHUNKS[api] + 1)])
async def test_the_client_hangs_up_after_every_chunk(tmp_path: Path, api: str, after: int) -> None:
    gone = asyncio.Event()

    def script(asked: Asked) -> Reply:
        sent = [piece for piece in good(asked).pieces if isinstance(piece, bytes)]
        return stream([*sent[:after], Until(gone), *sent[after:]])

    async with stand(tmp_path, script) as s:
        async with s.talk() as talk:
            talk.request("POST", *request_of(api, stream=True))
            await s.reached()
            if after:
                await talk.head()
                seen = 0
                while seen < min(after, CHUNKS[api] - 2):
                    seen += (await talk.chunk() or b"").count(b"data:")
            talk.writer.transport.abort()
        await asyncio.sleep(0.01)
        gone.set()
        await s.booked(1)
        await s.quiet()
        done = once(s)
    assert (done.nanos, done.source, done.outcome) == (COST, UsageSource.PROVIDER, "ok")


@pytest.mark.parametrize("api", APIS)
async def test_the_client_hangs_up_before_a_whole_answer(tmp_path: Path, api: str) -> None:
    gone = asyncio.Event()

    def script(asked: Asked) -> Reply:
        reply = good(asked)
        reply.before = [Until(gone)]
        return reply

    async with stand(tmp_path, script) as s:
        async with s.talk() as talk:
            talk.request("POST", *request_of(api))
            await s.reached()
            talk.writer.transport.abort()
        await asyncio.sleep(0.01)
        gone.set()
        await s.booked(1)
        done = once(s)
    assert (done.nanos, done.outcome) == (COST, "ok")


@pytest.mark.parametrize(("api", "after"), [(api, n) for api in APIS for n in range(CHUNKS[api] + 1)])
async def test_the_run_is_killed_after_every_chunk(tmp_path: Path, api: str, after: int) -> None:
    sent = events(api, MODEL, ["Hello", " world"], Tokens())
    relayed = sent[:after]

    async with stand(tmp_path, lambda _: stream([*relayed, Act.HANG])) as s:
        async with s.talk() as talk:
            talk.request("POST", *request_of(api, stream=True))
            await s.reached()
            visible = sum(b'"choices": []' not in one for one in relayed)
            if after:
                await talk.head()
            seen = 0
            while seen < visible:
                seen += (await talk.chunk() or b"").count(b"data:")
            assert await s.gateway.close(10)
            left = await talk.reader.read()
            assert b"data:" not in left and b"0\r\n" not in left
        done = once(s)
        await asyncio.wait_for(s.upstream.hung_up.wait(), 5)
    _as_cut(api, after, done)


def _as_cut(api: str, after: int, done: Done) -> None:
    """What a call costs whose answer was seen up to there; never more than the hold."""
    text = [
        word for word, at in (("Hello", _first_word(api)), (" world", _first_word(api) + 1)) if at < after
    ]
    written = -(-len("".join(text)) // 3)
    complete = after > {"anthropic-messages": 5, "openai-chat": 3, "openai-responses": 3, "gemini": 1}[api]
    if complete:
        assert (done.source, done.nanos, done.outcome) == (UsageSource.PROVIDER, COST, "ok")
        return
    assert done.outcome == "cut: stopped"
    if api == "anthropic-messages" and after > 0:
        # The input was reported, and one token of output.
        assert (done.source, done.nanos) == (UsageSource.ESTIMATE, 100_000 + max(1, written) * 10_000)
    elif text:
        bound = done.usage.input
        assert (done.source, done.nanos) == (UsageSource.ESTIMATE, bound * 1000 + written * 10_000)
        assert done.nanos < done.held_nanos
    else:
        assert (done.source, done.nanos) == (UsageSource.HOLD, done.held_nanos)


def _first_word(api: str) -> int:
    return {"anthropic-messages": 2, "openai-chat": 0, "openai-responses": 1, "gemini": 0}[api]


@pytest.mark.parametrize("api", APIS)
async def test_the_run_is_killed_before_a_whole_answer(tmp_path: Path, api: str) -> None:
    async with stand(tmp_path, lambda asked: Reply([b'{"id"', Act.HANG], framing="chunked")) as s:
        walk = asyncio.create_task(s.ask(api))
        await s.reached()
        assert await s.gateway.close(10)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await walk
        assert charged_at_hold(s).outcome == "cut: stopped"


async def test_killed_while_it_reserves_costs_nothing(tmp_path: Path) -> None:
    async with stand(tmp_path) as s:
        async with s.talk() as talk:
            talk.request("POST", *request_of("anthropic-messages"))
            await talk.writer.drain()
            while not s.gateway.calls:
                await asyncio.sleep(0)
            s.gateway.refuse_all("killed", cut=True)
            assert await s.gateway.close(10)
        assert s.upstream.asked == [] and s.done == []
        assert s.balances().run.held_nanos == 0 and s.balances().run.spent_nanos == 0
        assert [charge.state for charge in s.charges()] in ([], [ChargeState.RELEASED])


# ---------------------------------------------------------------- the upstream ends early


@pytest.mark.parametrize("act", [Act.RESET, Act.CLOSE])
@pytest.mark.parametrize(("api", "after"), [(api, n) for api in APIS for n in range(CHUNKS[api])])
async def test_the_upstream_breaks_off_in_the_middle_of_every_event(
    tmp_path: Path, api: str, after: int, act: Act
) -> None:
    sent = events(api, MODEL, ["Hello", " world"], Tokens())
    half = sent[after][: len(sent[after]) // 2]
    # A pause, since a reset throws away what the other side has not read yet.
    pieces: list[Piece] = [*sent[:after], half, Pause(0.1 if act is Act.RESET else 0), act]
    async with stand(tmp_path, lambda _: stream(pieces)) as s:
        answered = await s.ask(api, stream=True)
        assert answered.status == 200 and not answered.whole and not answered.body.endswith(half)
        await s.booked(1)
        done = once(s)
    assert 0 < done.nanos <= done.held_nanos
    if done.outcome != "ok":
        assert done.outcome.startswith("cut: upstream broke off")
        assert done.source in (UsageSource.ESTIMATE, UsageSource.HOLD)


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_upstream_hangs_up_without_an_answer(tmp_path: Path, streamed: bool) -> None:
    async with stand(tmp_path, lambda _: Reply(before=[Act.CLOSE])) as s:
        answered = await s.ask(stream=streamed)
        assert answered.status == 502
        assert answered.headers["x-supervisor-reason"] == "upstream_broke_off"
        await s.booked(1)
        assert charged_at_hold(s).outcome.startswith("cut: upstream broke off")


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_upstream_does_not_begin(tmp_path: Path, streamed: bool) -> None:
    settings = GatewaySettings(first_byte_s=0.05)
    async with stand(tmp_path, lambda _: Reply(before=[Act.HANG]), settings=settings) as s:
        answered = await s.ask(stream=streamed)
        assert (answered.status, answered.document["error"]["type"]) == (504, "timeout_error")
        await s.booked(1)
        assert charged_at_hold(s).outcome == "cut: upstream stalled"


async def test_the_upstream_stalls(tmp_path: Path) -> None:
    sent = events("anthropic-messages", MODEL, ["Hello"], Tokens())[:3]
    settings = GatewaySettings(between_bytes_s=0.4)
    async with stand(tmp_path, lambda _: stream([*sent, Act.HANG]), settings=settings) as s:
        answered = await s.ask(stream=True)
        assert not answered.whole and answered.body == b"".join(sent)
        await s.booked(1)
        done = once(s)
    assert (done.outcome, done.source) == ("cut: upstream stalled", UsageSource.ESTIMATE)


async def test_control_a_slow_upstream_is_waited_for(tmp_path: Path) -> None:
    def script(asked: Asked) -> Reply:
        reply = good(asked, interval_s=0.03)
        reply.before = [Pause(0.1)]
        return reply

    settings = GatewaySettings(between_bytes_s=5, first_byte_s=5)
    async with stand(tmp_path, script, settings=settings) as s:
        assert (await s.ask(stream=True)).whole
        await s.booked(1)
        assert once(s).nanos == COST


async def test_nobody_listens(tmp_path: Path) -> None:
    async with stand(tmp_path) as s:
        await s.upstream.close()
        answered = await s.ask()
        assert answered.status == 502 and "x-should-retry" not in answered.headers
        assert answered.headers["x-supervisor-reason"] == "upstream_unreachable"
        await s.booked(1)
        assert released(s).outcome == "unreachable"
        assert s.codes() == ["unreachable"]


async def test_an_answer_that_nobody_reads_any_more_is_read_to_its_end(tmp_path: Path) -> None:
    """And not for ever: what is left after drain_s is cut."""
    settings = GatewaySettings(drain_s=0.05)
    begun = events("anthropic-messages", MODEL, ["x" * 1000], Tokens())[:3]
    ticking: list[Piece] = [b": tick\n\n", Pause(0.005)] * 2000
    async with stand(tmp_path, lambda _: stream([*begun, *ticking]), settings=settings) as s:
        async with s.talk() as talk:
            talk.request("POST", *request_of("anthropic-messages", stream=True))
            await talk.head()
            talk.writer.transport.abort()
        await s.booked(1)
        assert once(s).outcome == "cut: upstream stalled"


async def test_a_client_that_does_not_read_is_given_up(tmp_path: Path) -> None:
    words = ["x" * 100_000] * 200
    settings = GatewaySettings(client_s=0.05)
    async with stand(tmp_path, lambda asked: good(asked, words=words), settings=settings) as s:
        async with s.talk() as talk:
            talk.request("POST", *request_of("anthropic-messages", stream=True))
            await s.booked(1)
        assert (once(s).nanos, once(s).outcome) == (COST, "ok")


async def test_a_whole_answer_that_is_not_read_is_charged_as_reported(tmp_path: Path) -> None:
    settings = GatewaySettings(first_byte_s=2, between_bytes_s=0.3)
    async with stand(tmp_path, lambda asked: good(asked, words=["x" * (20 << 20)]), settings=settings) as s:
        async with s.talk() as talk:
            talk.request("POST", *request_of("anthropic-messages"))
            await s.booked(1)
        assert (once(s).nanos, once(s).outcome) == (COST, "ok")


# ---------------------------------------------------------------- errors of the upstream


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 503, 529])
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_error_passes_as_it_is_and_is_not_billed(
    tmp_path: Path, status: int, streamed: bool
) -> None:
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    headers = {"Content-Type": "application/json", "Retry-After": "17", "x-should-retry": "true"}
    async with stand(tmp_path, lambda _: Reply([body], status, headers)) as s:
        answered = await s.ask(stream=streamed)
        assert (answered.status, answered.body) == (status, body)
        assert answered.headers["retry-after"] == "17" and answered.headers["x-should-retry"] == "true"
        await s.booked(1)
        assert released(s).outcome == f"error {status}"
        assert len(s.upstream.asked) == 1
        assert s.codes() == (["key_refused"] if status in (401, 403) else [])


async def test_an_error_that_reports_usage_is_billed(tmp_path: Path) -> None:
    body = whole("anthropic-messages", MODEL, ["x"], Tokens())
    async with stand(tmp_path, lambda _: Reply([_json(body)], 500)) as s:
        assert (await s.ask()).status == 500
        await s.booked(1)
        assert (once(s).nanos, once(s).outcome) == (COST, "error 500")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(tmp_path: Path, status: int) -> None:
    moved = {"Location": "http://127.0.0.1:1/elsewhere", "Content-Type": "text/plain"}
    async with stand(tmp_path, lambda _: Reply([b"moved"], status, moved)) as s:
        answered = await s.ask()
        assert answered.status == 502 and "location" not in answered.headers
        await s.booked(1)
        released(s)
        assert len(s.upstream.asked) == 1


# ---------------------------------------------------------------- what the upstream reports


def _json(document: Document) -> bytes:
    return json.dumps(document).encode()


BAD = [
    None,
    {},
    "null",
    {"input_tokens": None, "output_tokens": None},
    {"input_tokens": 0, "output_tokens": 0},
    {"input_tokens": -5, "output_tokens": 10},
    {"input_tokens": 5, "output_tokens": -10},
    {"input_tokens": "5", "output_tokens": 10},
    {"input_tokens": 1e30, "output_tokens": 10},
    {"input_tokens": 5},
]


@pytest.mark.parametrize("usage", BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("streamed", [False, True])
async def test_usage_that_cannot_be_believed_is_charged_at_the_hold(
    tmp_path: Path, usage: Any, streamed: bool
) -> None:
    def script(_: Asked) -> Reply:
        answer = whole("anthropic-messages", MODEL, ["x"], Tokens()) | {"usage": usage}
        if not streamed:
            return Reply([_json(answer)])
        sent = events("anthropic-messages", MODEL, ["x"], Tokens())
        start = sse({"type": "message_start", "message": answer | {"content": []}}, named=True)
        ended: Document = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
        return stream([start, *sent[1:-2], sse(ended, named=True), sent[-1]])

    async with stand(tmp_path, script) as s:
        answered = await s.ask(stream=streamed)
        assert answered.status == 200 and answered.whole
        await s.booked(1)
        charged_at_hold(s)
        assert s.codes() == ["unusable_usage"]


async def test_totals_that_run_are_not_added(tmp_path: Path) -> None:
    sent = events("anthropic-messages", MODEL, ["a", "b"], Tokens())
    early: Document = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 6}}
    async with stand(tmp_path, lambda _: stream([*sent[:4], sse(early, named=True), *sent[4:]])) as s:
        await s.ask(stream=True)
        await s.booked(1)
        assert once(s).nanos == COST


async def test_usage_on_every_chunk_is_a_total_too(tmp_path: Path) -> None:
    def script(asked: Asked) -> Reply:
        pieces = []
        for number, event in enumerate(events("openai-chat", MODEL, ["a", "b", "c"], Tokens())):
            running = usage_of("openai-chat", Tokens(100, min(10, 2 * number + 1)))
            pieces.append(event.replace(b'"usage": null', b'"usage": ' + _json(running)))
        return stream(pieces)

    async with stand(tmp_path, script) as s:
        answered = await s.ask("openai-chat", stream=True)
        assert answered.body.count(b'"content"') == 3
        await s.booked(1)
        assert once(s).nanos == COST


async def test_cache_figures_have_their_own_rates(tmp_path: Path) -> None:
    tokens = Tokens(input=1000, output=10, cache_read=400, cache_5m=100, cache_1h=200)
    for streamed in (False, True):
        (tmp_path / str(streamed)).mkdir()
        async with stand(tmp_path / str(streamed), lambda asked: good(asked, tokens)) as s:
            said = [{"type": "text", "text": "x" * 3000, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
            await s.ask(stream=streamed, system=said)
            (done,) = await s.booked(1)
            assert done.nanos == 300 * 1000 + 400 * 100 + 100 * 1000 + 200 * 2000 + 10 * 10_000
            assert (done.usage.cache_read, done.usage.cache_write_5m, done.usage.cache_write_1h) == (
                400,
                100,
                200,
            )


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_dearer_of_two_models_is_charged(tmp_path: Path, streamed: bool) -> None:
    async with stand(tmp_path, lambda asked: good(asked, model="model-b")) as s:
        await s.ask(stream=streamed)
        await s.booked(1)
        assert once(s).nanos == 2 * COST
        assert s.charges()[0].model == "model-b"
    (tmp_path / "db").unlink()
    async with stand(tmp_path, lambda asked: good(asked, model="model-a")) as s:
        await s.ask(stream=streamed, model="model-b")
        await s.booked(1)
        assert once(s).nanos == 2 * COST


async def test_an_unknown_model_that_answers_is_told(tmp_path: Path) -> None:
    async with stand(tmp_path, lambda asked: good(asked, model="model-secret")) as s:
        await s.ask()
        await s.booked(1)
        assert once(s).nanos == COST and s.codes() == ["answer_not_priced"]


async def test_more_than_was_held_is_charged_in_full_and_told(tmp_path: Path) -> None:
    async with stand(tmp_path, lambda asked: good(asked, Tokens(1_000_000, 5000))) as s:
        await s.ask()
        await s.booked(1)
        done = once(s)
    assert done.nanos == 1_000_000 * 1000 + 5000 * 10_000 > done.held_nanos
    assert s.codes() == ["above_bound"]


async def test_a_price_of_zero_is_a_price(tmp_path: Path) -> None:
    async with stand(tmp_path) as s:
        await s.ask(model="model-free")
        await s.booked(1)
        assert (once(s).nanos, once(s).source, s.codes()) == (0, UsageSource.PROVIDER, [])


async def test_what_comes_after_the_end_is_told(tmp_path: Path) -> None:
    sent = events("anthropic-messages", MODEL, ["a"], Tokens())
    more: Document = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": 99},
    }
    async with stand(tmp_path, lambda _: stream([*sent, Pause(0.3), sse(more, named=True)])) as s:
        await s.ask(stream=True)
        await s.quiet()
        await s.booked(1)
        assert s.codes() == ["late_usage"] and once(s).nanos == COST


async def test_somebody_else_closed_the_charge(tmp_path: Path) -> None:
    """A reaper that took us for dead has charged the hold; nothing is charged twice."""
    go = asyncio.Event()

    def script(asked: Asked) -> Reply:
        reply = good(asked)
        reply.before = [Until(go)]
        return reply

    async with stand(tmp_path, script) as s:
        walk = asyncio.create_task(s.ask())
        await s.reached()
        store = open_store(str(s.database))
        assert len(store.ledger.reap("9999-01-01T00:00:00.000Z")) == 1
        store.close()
        go.set()
        assert (await walk).status == 200
        await s.booked(1)
        assert s.codes() == ["closed_before"]
        assert s.charges()[0].spent_nanos == s.done[0].held_nanos


# ---------------------------------------------------------------- all together


async def test_nothing_is_free_and_nothing_is_charged_twice(tmp_path: Path) -> None:
    """Many calls at once, well and badly ended; what is booked is what was reported, or more where cut."""
    reported: list[int] = []

    def script(asked: Asked) -> Reply:
        number = len(reported)
        tokens = Tokens(50 + number % 7, 1 + number % 5)
        match number % 6:
            case 4:
                reported.append(0)
                return Reply([b"{}"], 529)
            case 5:
                reported.append(-1)
                return stream([events("anthropic-messages", MODEL, ["x"], tokens)[0], Act.CLOSE])
            case _:
                reported.append(tokens.input * 1000 + tokens.output * 10_000)
                return good(asked, tokens)

    async def client(s: Stand, number: int) -> None:
        for turn in range(10):
            async with s.talk() as talk:
                talk.request("POST", *request_of("anthropic-messages", stream=turn % 2 == 0))
                if (number + turn) % 5 == 0:
                    await talk.head()
                    talk.writer.transport.abort()
                else:
                    await talk.answer()

    caps = Caps(run_nanos=100 * USD, iterations=10_000)
    async with stand(tmp_path, script, caps=caps) as s:
        await asyncio.gather(*(client(s, number) for number in range(16)))
        await s.quiet()
        await s.booked(len(s.upstream.asked))
        assert len(s.done) == len(s.upstream.asked) == 160 == len(s.charges())
        exact = [done for done in s.done if done.source is UsageSource.PROVIDER]
        cut = [done for done in s.done if done.source not in (UsageSource.PROVIDER, UsageSource.UNBILLED)]
        assert sum(done.nanos for done in exact) == sum(nanos for nanos in reported if nanos > 0)
        assert len(cut) == reported.count(-1) and all(done.nanos > 0 for done in cut)
        balances = s.balances()
        assert (
            balances.run.spent_nanos == sum(done.nanos for done in s.done) == balances.global_day.spent_nanos
        )
        assert balances.run.held_nanos == 0 and balances.run.calls == 160 - reported.count(0)
        assert sorted(d.iteration for d in s.done if d.iteration)[-1] >= balances.run.calls


async def test_no_cap_is_passed_by_many_calls_at_once(tmp_path: Path) -> None:
    caps = Caps(run_nanos=3_000_000)

    def script(asked: Asked) -> Reply:
        return good(asked, Tokens(100, int(asked.document["max_tokens"])))

    async with stand(tmp_path, script, caps=caps) as s:
        answers = await asyncio.gather(*(s.ask() for _ in range(32)))
        await s.booked(len(s.upstream.asked))
        spent = s.balances().run.spent_nanos
    assert {answer.status for answer in answers} == {200, 402}
    assert 0 < spent <= 3_000_000 and spent == sum(done.nanos for done in s.done)
    assert len(s.limits) == sum(answer.status == 402 for answer in answers)
