"""Owns attacks on the money: by the agent in the box, by its provider, by whoever fills the queue.
May touch loopback sockets, fresh databases, and runs of the tests' own supervisors.
Never asserts a time: what must not wait for the attacker is seen to go on elsewhere.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import resource
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from gateway_stand import APIS, BOOKING, KEY, MODEL, request_of, stand
from models import gateway_profile, with_model
from scripted_upstream import Act, Asked, Piece, Reply, Tokens, Until, events, good, sse, stream, whole
from stand import Stand as Supervised
from stand import until

from supervisor.config import DailySettings
from supervisor.events import EventKind
from supervisor.gateway.metering import Done, Problem
from supervisor.gateway.requests import read_call
from supervisor.gateway.settings import GatewaySettings
from supervisor.gateway.strict import MAX_VALUES, VALUE_BYTES, has_more_values
from supervisor.gateway.usage import figures
from supervisor.gateway.wire import UpstreamAnswer
from supervisor.limits.budget import Ask, Caps, Grant
from supervisor.limits.charges import NewCall, Settlement
from supervisor.limits.pricing import Price, Rates
from supervisor.limits.usage import TokenUsage, UsageSource
from supervisor.profile.load import load
from supervisor.queue_worker import Assignment
from supervisor.runs.reasons import StopReason
from supervisor.runs.spending import Spending, _said_count, _said_nanos
from supervisor.store.records import Ticket, TicketState
from supervisor.store.store import Store
from supervisor.store.tickets import Claimed

if TYPE_CHECKING:
    from supervisor.booking import BookingClock
    from supervisor.gateway.hub import GatewayHub
    from supervisor.runs.row import RunRow
    from supervisor.store.recorder import Recorder

pytest_plugins = ["stand_fixtures"]

DAY, AT = "2026-12-01", "2026-12-01T10:00:00.000Z"

# ---------------------------------------------------------------- bodies that are nothing but structure

MANY = MAX_VALUES + 1
STRUCTURES: dict[str, tuple[str, Any]] = {
    "lists": ("x", [[]] * MANY),
    "objects": ("x", [{}] * MANY),
    "numbers": ("metadata", {"x": [1] * MANY}),
    "texts": ("x", [","] * MANY),
    "messages": ("messages", [{"role": "user", "content": ""}] * (MANY // 3 + 1)),
    "blocks": (
        "messages",
        [{"role": "user", "content": [{"type": "text", "text": '",'}] * (MANY // 3 + 1)}],
    ),
}


@pytest.mark.parametrize("kind", STRUCTURES)
@pytest.mark.parametrize("api", APIS)
async def test_a_body_of_too_many_values_is_refused_before_they_are_made(
    tmp_path: Path, api: str, kind: str
) -> None:
    """A megabyte of empty objects held the loop, and with it every kill, for seconds."""
    name, value = STRUCTURES[kind]
    async with stand(tmp_path) as s:
        answered = await s.ask(api, **{name: value})
        assert answered.status == 400 and b"values" in answered.body
        assert s.upstream.asked == [] and s.charges() == []


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (b"[" * 9, True),
        (b'"' + b"[,{" * 9 + b'"', False),
        (b'"' + b'\\"' * 9 + b",,,,,,,,,,", False),
        (b'"\\' + b"," * 20, False),
        (b'["a",' + b'"\\\\",' * 9, True),
        (b'["' + b"," * 20 + b'"' + b",1" * 9 + b"]", True),
        (b'["' + b"," * 20 + b'"' + b",1" * 3 + b"]", False),
    ],
)
def test_values_are_counted_outside_of_strings(text: bytes, more: bool) -> None:
    assert has_more_values(text, 8) is more


async def test_control_a_long_text_full_of_commas_is_one_value(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "[{,}]" * MANY}]
    async with stand(tmp_path, lambda asked: good(asked)) as s:
        assert (await s.ask(messages=said)).status == 200


async def test_what_is_made_of_the_bodies_is_bounded_with_them(tmp_path: Path) -> None:
    """Thirty bytes of memory for each byte of an empty list, kept until the provider has answered."""
    dense: dict[str, Any] = {"metadata": {"x": [[]] * 1000}}
    settings = GatewaySettings(bodies_bytes=VALUE_BYTES * 5000)
    asked = asyncio.Event()

    def script(call: Asked) -> Reply:
        reply = good(call)
        reply.before = [Until(asked)]
        return reply

    async with stand(tmp_path, script, settings=settings) as s:
        first = [asyncio.create_task(s.ask(**dense)) for _ in range(2)]
        await s.reached(2)
        third = await s.ask(**dense)
        assert (third.status, third.headers["x-supervisor-reason"]) == (429, "too_many_bytes")
        asked.set()
        assert [(await one).status for one in first] == [200, 200]
        assert (await s.ask(**dense)).status == 200


@pytest.mark.parametrize("api", APIS)
async def test_a_heavy_request_is_not_read_in_the_loop(
    tmp_path: Path, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        readers.append(threading.current_thread())
        return read_call(*args, **kwargs)

    monkeypatch.setattr("supervisor.gateway.forward.read_call", watched)
    async with stand(tmp_path) as s:
        heavy = await s.ask(api, metadata={"x": [[]] * 10_000}, labels={"x": [[]] * 10_000})
        assert heavy.status == 200, heavy.body
        assert (await s.ask(api)).status == 200
    main = threading.main_thread()
    assert [reader is main for reader in readers] == [False, True]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_heavy_answer_is_not_read_in_the_loop_and_charged_as_it_says(
    tmp_path: Path, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []
    decode = msgspec.json.decode

    def watched(data: bytes) -> Any:
        readers.append(threading.current_thread())
        return decode(data)

    def script(asked: Asked) -> Reply:
        answer = whole("openai-chat", MODEL, ["Hello"], Tokens())
        answer["choices"][0]["logprobs"] = [{"token": "a", "bytes": [97]}] * 10_000
        return (
            stream([sse(answer), b"data: [DONE]\n\n"]) if streamed else Reply([json.dumps(answer).encode()])
        )

    async with stand(tmp_path, script) as s:
        monkeypatch.setattr(msgspec.json, "decode", watched)
        assert (await s.ask("openai-chat", stream=streamed)).status == 200
        (done,) = await s.booked(1)
        assert done.source is UsageSource.PROVIDER
    assert threading.main_thread() not in readers and readers


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_an_answer_of_too_many_values_is_charged_at_the_hold(
    tmp_path: Path, api: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MAX_VALUES", 1000)

    def script(asked: Asked) -> Reply:
        answer = {**whole(api, MODEL, ["Hello"], Tokens()), "x": [[]] * 1000}
        return stream([sse(answer)]) if streamed else Reply([json.dumps(answer).encode()])

    async with stand(tmp_path, script) as s:
        await s.ask(api, stream=streamed)
        (done,) = await s.booked(1)
        assert (done.source, done.nanos) == (UsageSource.HOLD, done.held_nanos)


async def test_a_run_that_ends_while_a_heavy_request_is_read_owes_nothing(tmp_path: Path) -> None:
    target, body = request_of("anthropic-messages", metadata={"x": [[]] * 100_000})
    async with stand(tmp_path) as s:
        async with s.talk() as talk:
            talk.request("POST", target, body)
            await talk.writer.drain()
            async with asyncio.timeout(20):
                while not s.gateway.calls:
                    await asyncio.sleep(0)
            assert await s.gateway.close(10)
        assert s.upstream.asked == [] and s.balances().run.held_nanos == 0


# ---------------------------------------------------------------- connections that never let go of the loop

FLOOD = """
import os, socket, urllib.parse
where = urllib.parse.urlparse(os.environ["ANTHROPIC_BASE_URL"])
def opened():
    line = socket.create_connection((where.hostname, where.port))
    line.sendall(b"POST /v1/messages HTTP/1.1\\r\\nHost: a\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
    line.setblocking(False)
    return line
lines = [opened() for _ in range(200)]
print("UP", flush=True)
chunks = b"1\\r\\n \\r\\n" * 20_000
while True:
    for number, line in enumerate(lines):
        try: line.send(chunks)
        except BlockingIOError: pass
        except OSError: lines[number] = opened()
"""
"""Two hundred bodies in chunks of one byte: a turn of the loop took seconds, and kill gave up."""


def test_a_run_that_floods_its_gateway_can_be_killed(place: Supervised) -> None:
    with_model(place)
    place.serve()
    ticket = place.start(FLOOD, profile=gateway_profile(place))
    assert place.ctl("kill", ticket).code == 0
    assert place.ended(ticket).reason is StopReason.KILLED


async def test_all_connections_share_what_is_read_in_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, read = 0, Counter[int]()
    received = web.RequestHandler.data_received

    def counted(self: web.RequestHandler, data: bytes) -> None:
        read[turn] += len(data)
        received(self, data)

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(web.RequestHandler, "data_received", counted)
    target, body = request_of("anthropic-messages", messages=[{"role": "user", "content": "x" * 100_000}])
    async with stand(tmp_path, lambda asked: good(asked)) as s:
        ticking = asyncio.create_task(turns())
        answers = await asyncio.gather(*(s.send("POST", target, body) for _ in range(100)))
        ticking.cancel()
    assert {answered.status for answered in answers} == {200}
    # A quarter of a kilobyte each, if they are very many.
    assert sum(read.values()) > 100 * len(body) and max(read.values()) <= 64 << 10


async def test_unpacking_lets_the_loop_come_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty kilobytes that are thirty megabytes are all there at once."""
    packed = gzip.compress(b" " * (16 << 20))
    sizes: list[int] = []
    readany = aiohttp.StreamReader.readany

    async def counted(self: aiohttp.StreamReader) -> bytes:
        chunk = await readany(self)
        sizes.append(len(chunk))
        return chunk

    turn, seen = 0, set[int]()

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            seen.add(len(sizes))
            await asyncio.sleep(0)

    monkeypatch.setattr(aiohttp.StreamReader, "readany", counted)
    async with stand(tmp_path) as s:
        ticking = asyncio.create_task(turns())
        assert (await s.send("POST", "/v1/messages", packed, {"Content-Encoding": "gzip"})).status == 400
        ticking.cancel()
    pieces = len([size for size in sizes if size])
    assert pieces > 8 and max(sizes) <= 1 << 20
    # Between any two pieces somebody else had a turn.
    assert len(seen & set(range(1, pieces))) == pieces - 1


async def test_a_client_that_resets_is_no_failure_of_ours(tmp_path: Path) -> None:
    """Each would be an event of the run, as often as the agent likes."""
    async with stand(tmp_path) as s:
        for _ in range(3):
            async with s.talk() as talk:
                talk.writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n{")
                await talk.writer.drain()
                async with asyncio.timeout(20):
                    while not s.gateway.calls:
                        await asyncio.sleep(0.001)
                talk.writer.transport.abort()
            await s.quiet()
        assert s.codes() == []


# ---------------------------------------------------------------- what a provider can make us write down


@pytest.mark.parametrize("name", ["m\ud800", "\x1b[2Jm", "a\0b", "a\nb", "x" * 300])
@pytest.mark.parametrize("api", APIS)
async def test_a_name_that_cannot_be_written_down_is_none(tmp_path: Path, api: str, name: str) -> None:
    """Half a surrogate pair made the booking fail, so that the call stayed held as long as its run lived."""

    def script(asked: Asked) -> Reply:
        return Reply([json.dumps(whole(api, name, ["Hello"], Tokens())).encode()])

    async with stand(tmp_path, script) as s:
        assert (await s.ask(api)).status == 200
        (done,) = await s.booked(1)
        (charge,) = s.charges()
        assert (charge.model, charge.usage_source) == (MODEL, UsageSource.PROVIDER)
        assert s.codes() == [] and s.balances().run.held_nanos == 0 and done.nanos > 0


@pytest.mark.parametrize(
    "used", [{"a\ud800_requests": 1}, {"\x1b[2J": 1}, {f"t{n}": 1 for n in range(1000)}, {"": 1}]
)
async def test_tools_that_cannot_be_written_down_are_charged_at_the_hold(
    tmp_path: Path, used: dict[str, int]
) -> None:
    answer = whole("anthropic-messages", MODEL, ["Hello"], Tokens())
    answer["usage"]["server_tool_use"] = used
    async with stand(tmp_path, lambda _: Reply([json.dumps(answer).encode()])) as s:
        await s.ask()
        (done,) = await s.booked(1)
        (charge,) = s.charges()
        assert (done.source, charge.spent_nanos) == (UsageSource.HOLD, done.held_nanos)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("packing", ["compress", "gzip, gzip", "x-gzip", "aes128gcm"])
async def test_an_answer_that_nobody_can_look_into_is_not_passed_on(
    tmp_path: Path, packing: str, streamed: bool
) -> None:
    """The agent could unpack it, and find the key in it that the gateway did not."""
    packed = gzip.compress(gzip.compress(KEY.encode()))
    kind = {"Content-Type": "text/event-stream" if streamed else "application/json"}

    async with stand(tmp_path, lambda _: Reply([packed], headers=kind | {"Content-Encoding": packing})) as s:
        answered = await s.ask(stream=streamed)
        assert answered.status == 502 and packed not in answered.body
        (done,) = await s.booked(1)
        assert (done.source, done.nanos) == (UsageSource.HOLD, done.held_nanos)


async def test_a_switch_of_protocols_is_no_answer(tmp_path: Path) -> None:
    async with stand(tmp_path, lambda _: Reply([b"{}"], status=101)) as s:
        assert (await s.ask()).status == 502
        (done,) = await s.booked(1)
        assert (done.source, done.nanos) == (UsageSource.HOLD, done.held_nanos)


# ---------------------------------------------------------------- requests that are read in two ways


@pytest.mark.parametrize(
    "fields",
    [
        {"MAX_TOKENS": 100_000},
        {"Max_Completion_Tokens": 100_000},
        {"max_output_token\u017f": 100_000},
        {"N": 16},
        {"Stream": True},
        {"Web_Search_Options": {"user_location": 1}},
        {"messages": [{"role": "user", "Content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "", "TYPE": "image"}]}]},
        {"tools": [{"Type": "web_search_20250305", "type": "custom", "name": "x", "input_schema": {}}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("api", ["anthropic-messages", "openai-chat", "openai-responses"])
async def test_a_field_in_other_letters_is_refused(tmp_path: Path, api: str, fields: dict[str, Any]) -> None:
    """Readers written in Go take it for the field: the bound that we set was not the one that held."""
    async with stand(tmp_path) as s:
        answered = await s.ask(api, **fields)
        assert answered.status == 400 and b"small letters" in answered.body
        assert s.upstream.asked == []


async def test_control_names_of_the_agents_own_are_free(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"MaxTokens": {"type": "integer"}}}
    tools = [{"name": "Read", "input_schema": schema}]
    said = [{"role": "assistant", "content": [{"type": "tool_use", "input": {"MaxTokens": 1}}]}]
    async with stand(tmp_path) as s:
        assert (await s.ask(tools=tools, messages=said, metadata={"Name": "x"})).status == 200


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        ("openai-chat", {"n_cmpl": 16}),
        ("openai-chat", {"data_sources": [{"type": "azure_search"}]}),
        ("openai-chat", {"fallbacks": ["dear"]}),
        ("openai-responses", {"fallbacks": ["dear"]}),
        ("openai-responses", {"models": ["dear"]}),
        ("openai-responses", {"plugins": [{"id": "web"}]}),
        ("openai-responses", {"provider": {"order": ["dear"]}}),
    ],
    ids=str,
)
async def test_what_proxies_read_and_nobody_priced_is_refused(
    tmp_path: Path, api: str, fields: dict[str, Any]
) -> None:
    async with stand(tmp_path) as s:
        answered = await s.ask(api, **fields)
        assert answered.status == 400 and s.upstream.asked == []


# ---------------------------------------------------------------- thinking that nobody sees


@pytest.mark.parametrize(
    ("api", "asked", "said"),
    [
        ("anthropic-messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {}),
        ("anthropic-messages", {"thinking": {"type": "adaptive"}}, {}),
        ("openai-chat", {"reasoning_effort": "high"}, {}),
        ("openai-chat", {"reasoning": {"max_tokens": 5}}, {}),
        ("openai-chat", {"model": "gpt-5"}, {}),
        ("openai-chat", {"model": "o4-mini"}, {}),
        ("openai-responses", {"reasoning": {"effort": "low"}}, {}),
        ("openai-responses", {"reasoning": {"summary": "auto"}}, {}),
        ("openai-responses", {}, {"reasoning": {"effort": "medium", "summary": None}}),
    ],
    ids=str,
)
async def test_a_cut_answer_that_may_have_thought_unseen_costs_all_its_output(
    tmp_path: Path, api: str, asked: dict[str, Any], said: dict[str, Any]
) -> None:
    """It was charged the few bytes that went by: hanging up was the way past every cap."""
    done = await _cut_after_a_word(tmp_path, api, asked, said)
    assert done.source is UsageSource.ESTIMATE
    assert done.usage.output == 2000 and 2000 * 10_000 < done.nanos <= done.held_nanos


@pytest.mark.parametrize(
    ("api", "asked", "said"),
    [
        ("anthropic-messages", {"thinking": {"type": "disabled"}}, {}),
        ("openai-chat", {"reasoning_effort": "none"}, {}),
        ("openai-chat", {"model": "gpt-5", "reasoning_effort": "none"}, {}),
        ("openai-chat", {"model": "gpt-4o"}, {}),
        ("openai-responses", {"reasoning": {"effort": "none"}}, {"reasoning": {"effort": None}}),
    ],
    ids=str,
)
async def test_control_one_that_shows_all_it_writes_costs_what_went_by(
    tmp_path: Path, api: str, asked: dict[str, Any], said: dict[str, Any]
) -> None:
    done = await _cut_after_a_word(tmp_path, api, asked, said)
    assert (done.source, done.usage.output) == (UsageSource.ESTIMATE, 2)


async def _cut_after_a_word(tmp_path: Path, api: str, asked: dict[str, Any], said: dict[str, Any]) -> Done:
    bound = "max_output_tokens" if api == "openai-responses" else "max_tokens"
    sent: list[Piece] = []
    for event in events(api, MODEL, ["Hello"], Tokens())[:3]:
        if b'"response": {' in event:
            event = event.replace(b'"response": {', b'"response": {"reasoning": ' + _reasoning(said) + b", ")
        sent.append(event)
        if b"Hello" in event:
            break
    models = ("model-*", "gpt-*", "o*")
    async with stand(
        tmp_path, lambda _: stream([*sent, Act.CLOSE]), output_tokens_per_call=10_000, models=models
    ) as s:
        answered = await s.ask(api, stream=True, **{bound: 2000}, **asked)
        assert not answered.whole and b"Hello" in answered.body
        (done,) = await s.booked(1)
        return done


def _reasoning(said: dict[str, Any]) -> bytes:
    return json.dumps(said.get("reasoning")).encode()


# ---------------------------------------------------------------- what costs nothing has no limit


async def test_what_costs_nothing_does_not_fill_the_database(tmp_path: Path) -> None:
    """Calls that the provider refuses are free and count as none: each was an event, without end."""
    told: Counter[str] = Counter()

    class Row:
        def tell(self, kind: EventKind, _: dict[str, Any]) -> None:
            told[kind] += 1

    spending = Spending(
        profile=load("coding").profile,
        booking=BOOKING,
        row=cast("RunRow", Row()),
        recorder=cast("Recorder", None),
        clock=cast("BookingClock", None),
        daily=DailySettings(),
        hub=lambda: cast("GatewayHub", None),
        lease_s=60.0,
        seconds_left=lambda: 1.0,
        request_stop=lambda _: None,
    )
    async with stand(tmp_path, lambda _: Reply([b"{}"], status=400)) as s:
        await s.ask()
        (unbilled,) = await s.booked(1)
        s.upstream.script = lambda asked: good(asked)
        await s.ask()
        billed = (await s.booked(2))[1]
    for _ in range(1000):
        spending._called(unbilled)
        spending._had_problem(Problem("unreachable", "the upstream cannot be reached"))
    assert told[EventKind.ITERATION] == told[EventKind.METER_PROBLEM] == 200
    spending._called(billed)
    assert told[EventKind.ITERATION] == 201


# ---------------------------------------------------------------- descriptors

MANY_LINES = """
import os, socket, time, urllib.parse
where = urllib.parse.urlparse(os.environ["ANTHROPIC_BASE_URL"])
lines = [socket.create_connection((where.hostname, where.port)) for _ in range(250)]
print("UP", flush=True)
time.sleep(600)
"""


def test_connections_of_agents_do_not_use_up_the_supervisors_descriptors(place: Supervised) -> None:
    """With the usual soft limit the supervisor of four such runs could not even accept a kill."""
    with_model(place)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most > 600, "this test needs a hard limit above the soft one that it sets"

    def usual() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, most))

    place.daemon = place.spawn("serve", preexec_fn=usual)
    until(place.answers, "no daemon came up")
    tickets = [place.start(MANY_LINES, profile=gateway_profile(place)) for _ in range(2)]
    assert place.ctl("kill", *tickets).code == 0
    assert {place.ended(ticket).reason for ticket in tickets} == {StopReason.KILLED}


# ---------------------------------------------------------------- the command line, and who fills the queue

BROKEN = os.fsdecode(b"p\xff")


@pytest.mark.parametrize(
    "words",
    [
        ("tickets", "add", "A", "--priority", "99999999999999999999"),
        ("tickets", "add", "A", "--priority", "2147483648"),
        ("tickets", "add", "A", "--goal", BROKEN),
        ("tickets", "add", "A", "--goal", "x" * 110_000),
        ("tickets", "add", "A", "--project", BROKEN),
        ("tickets", "add", "A", "--project", "\x1b[2J"),
        ("tickets", "add", "A", "--project", "x" * 200),
        ("tickets", "list", "--project", BROKEN),
        ("pause", "--project", BROKEN),
        ("resume", "--project", "\x1b[2J"),
        ("run", "--profile", "offline", "--project", BROKEN, "--", "true"),
        ("spend", "--day", "9999-12-31"),
        ("spend", "--day", BROKEN),
    ],
    ids=ascii,
)
def test_words_that_mean_nothing_are_a_clear_error(place: Supervised, words: tuple[str, ...]) -> None:
    done = place.ctl(*words)
    assert done.code == 2 and done.clear_error(), done
    assert place.ctl("tickets", "list", "--json").json == []


@pytest.mark.parametrize(
    "text",
    [
        "iterations = " + "9" * 5000,
        "#" * (1 << 16),
        ".".join(["a"] * 40_000) + " = 1",
        "a = " + "[" * 20_000,
    ],
    ids=["digits", "long", "dots", "deep"],
)
@pytest.mark.parametrize("command", ["explain", "lint"])
def test_a_profile_of_an_enemy_is_a_clear_error(place: Supervised, command: str, text: str) -> None:
    path = place.folder / "enemy.toml"
    path.write_text(f'schema = 1\nname = "x"\nextends = "offline"\n[limits]\n{text}\n')
    done = place.ctl("profile", command, str(path))
    assert done.code == 2 and done.clear_error(), done


def test_a_goal_that_speaks_of_marks_is_left_as_it_is() -> None:
    ticket = Ticket(
        key="K", project="P", goal="{project} {ticket} {goal}", state=TicketState.CLAIMED, updated_at=""
    )
    given = Assignment(
        profile="", worktree="", argv=["{goal}", "{ticket}/{project}", "{goals}"], environment={}
    )
    assert given.words(Claimed("R", ticket)) == ["{project} {ticket} {goal}", "K/P", "{goals}"]


# ---------------------------------------------------------------- figures that no sum can hold


def _told_calls() -> list[Settlement]:
    said = [99_999_999.0, "999999999.999999999", 10**8 - 1, 1e7, "1e9"]
    return [
        Settlement(
            nanos=_said_nanos(cost),
            usage=TokenUsage(input=_said_count((1 << 40) - 1), output=_said_count(1 << 30)),
            source=UsageSource.SELF_REPORTED,
            outcome="self-reported",
            model="m",
            at=AT,
        )
        for cost in said
    ]


def test_an_agent_that_tells_of_fortunes_does_not_break_everybodys_day(store: Store) -> None:
    """A hundred lines of its log overflowed the balance of the day: nobody could book on it, or read it."""
    for number, told in enumerate(_told_calls() * 20):
        store.ledger.record(_call(f"told-{number}"), told)
    day = store.ledger.balances(BOOKING, DAY).global_day
    # Five thousand lines of a log are read as events, of a thousand runs a day.
    assert 5000 * 1000 * max(day.spent_nanos, day.tokens) // day.calls < 1 << 63
    assert store.ledger.spend(DAY)[0].calls == 100 and store.ledger.costs("day", "")[0].calls == 100
    free = Price(
        provider="p",
        model="m",
        rates=Rates(input=0, output=0, cache_read=0, cache_write_5m=0, cache_write_1h=0),
    )
    ask = Ask(input_bound=10, output_wanted=10, output_least=1, price=free)
    assert isinstance(store.ledger.reserve(_call("another"), Caps(), ask), Grant)


def _call(charge_id: str) -> NewCall:
    return NewCall(
        charge_id=charge_id, booking=BOOKING, provider="p", model="m", day=DAY, at=AT, lease_until=AT
    )


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 10**9, "output_tokens": 1},
        {"input_tokens": 10, "output_tokens": 10**9},
        {"input_tokens": 10, "output_tokens": 1, "server_tool_use": {"web_search_requests": 10**6}},
        {
            "input_tokens": 10,
            "output_tokens": 1,
            "iterations": [{"type": "compaction", "input_tokens": 10**6, "output_tokens": 1}] * 50,
        },
    ],
    ids=["input", "output", "tools", "rounds"],
)
async def test_a_provider_that_reports_fortunes_gets_the_hold(tmp_path: Path, usage: dict[str, Any]) -> None:
    answer = whole("anthropic-messages", MODEL, ["Hello"], Tokens()) | {"usage": usage}
    async with stand(tmp_path, lambda _: Reply([json.dumps(answer).encode()])) as s:
        await s.ask()
        (done,) = await s.booked(1)
        assert (done.source, done.nanos) == (UsageSource.HOLD, done.held_nanos)
        assert s.codes() == ["unusable_usage"]


# ---------------------------------------------------------------- a kill that is seen before it is looked for


def test_a_run_that_was_struck_dead_did_not_end_by_itself(place: Supervised, tmp_path: Path) -> None:
    """On a busy machine the end is there before anybody looks: it was called the agent's own."""
    # The stand-in of a busy machine: between the blow and the look, a supervisor that is held up.
    held_up = tmp_path / "sitecustomize.py"
    held_up.write_text(
        "import sys\n"
        "if any('supervisorctl' in word for word in sys.argv[:1]):\n"
        "    import asyncio\n"
        "    from supervisor.runs.life import LiveRun\n"
        "    look = LiveRun._request_of_others\n"
        "    async def later(self):\n"
        "        await asyncio.sleep(0.5)\n"
        "        return await look(self)\n"
        "    LiveRun._request_of_others = later\n"
    )
    place.environment["PYTHONPATH"] = str(tmp_path)
    place.serve()
    ticket = place.start()
    assert place.ctl("kill", ticket).code == 0
    run = place.ended(ticket)
    assert run.kill is not None and run.kill.stage == "kill" and run.reason is StopReason.KILLED


# ---------------------------------------------------------------- packed answers that nobody asked for


@pytest.mark.parametrize("streamed", [False, True])
async def test_unpacking_an_answer_lets_the_loop_come_round(tmp_path: Path, streamed: bool) -> None:
    """Its client may be gone, and nothing else waits then."""
    kind = {"Content-Type": "text/event-stream" if streamed else "application/json"}
    packed = gzip.compress((b": " + b"x" * 1020 + b"\n\n" if streamed else b" " * 1024) * (16 << 10))
    turn = 0

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with stand(tmp_path, lambda _: Reply([packed], headers=kind | {"Content-Encoding": "gzip"})) as s:
        unpacked: list[int] = []
        readany = UpstreamAnswer.readany

        async def counted(self: UpstreamAnswer) -> bytes:
            data = await readany(self)
            unpacked.append(turn)
            return data

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(UpstreamAnswer, "readany", counted)
            ticking = asyncio.create_task(turns())
            await s.ask(stream=streamed)
            ticking.cancel()
    assert len(unpacked) > 8 and max(Counter(unpacked).values()) <= 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_what_follows_a_packed_answer_is_not_collected(tmp_path: Path, streamed: bool) -> None:
    kind = {"Content-Type": "text/event-stream" if streamed else "application/json"}
    said = b"data: {}\n\n" if streamed else b"{}"
    pieces: list[Piece] = [gzip.compress(said), b"x" * 1000, b"x" * 1000, Act.HANG]
    reply = Reply(pieces, headers=kind | {"Content-Encoding": "gzip"}, framing="chunked")
    async with stand(tmp_path, lambda _: reply) as s:
        answered = await s.ask(stream=streamed)
        assert answered.status == 502 or not answered.whole
        (done,) = await s.booked(1)
        assert done.outcome == "cut: upstream broke off: something follows the packed body"
        assert (done.source, done.nanos) == (UsageSource.HOLD, done.held_nanos)
