"""Owns that an answer of the Messages API is charged for what it used, once, and never for less.
May touch nothing.
Never takes a figure that is wrong for one that is missing.
"""

from __future__ import annotations

from typing import Any

import pytest
from provider_answers import anthropic_stream, call, read_body, read_stream, sse

from supervisor.gateway.calls import Api, Reported
from supervisor.limits.pricing import CacheWrite
from supervisor.limits.usage import TokenUsage

CALL = call(Api.ANTHROPIC_MESSAGES)
START = {
    "input_tokens": 25,
    "cache_creation_input_tokens": 300,
    "cache_read_input_tokens": 4000,
    "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
    "output_tokens": 1,
    "service_tier": "standard",
}
USAGE = TokenUsage(input=25, cache_read=4000, cache_write_5m=100, cache_write_1h=200, output=15)


def streamed(start: dict[str, Any] | None, *deltas: dict[str, Any] | None, **how: Any) -> Reported:
    return read_stream(CALL, [sse(*anthropic_stream(start, *deltas, **how), named=True)])[0]


def test_the_opening_and_the_running_total_make_one_usage() -> None:
    reported = streamed(START, {"output_tokens": 15})
    assert reported == Reported(
        usage=USAGE,
        complete=True,
        model="claude-x",
        input_known=True,
        output_bytes=len("Hello wörld".encode()),
    )


def test_a_cut_at_any_byte_changes_nothing() -> None:
    stream = sse(*anthropic_stream(START, {"output_tokens": 15}), named=True)
    for at in range(len(stream)):
        reported, seen = read_stream(CALL, [stream[:at], stream[at:]])
        assert reported.usage == USAGE and seen == stream


def test_several_running_totals_are_not_added() -> None:
    again = {"input_tokens": 25, "cache_read_input_tokens": 4000, "cache_creation_input_tokens": 300}
    reported = streamed(START, {"output_tokens": 3}, again | {"output_tokens": 9}, {"output_tokens": 15})
    assert reported.usage == USAGE


def test_the_total_grows_with_a_loop_at_the_provider_and_what_has_no_lifetime_is_the_long_one() -> None:
    more = {"input_tokens": 60, "cache_creation_input_tokens": 350, "output_tokens": 20}
    used = {"server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 0}}
    assert streamed(START, more | used).usage == TokenUsage(
        input=60, cache_read=4000, cache_write_5m=100, cache_write_1h=250, output=20, tools={"web_search": 2}
    )


@pytest.mark.parametrize(
    ("asked", "short", "long"),
    [(CacheWrite.NONE, 0, 300), (CacheWrite.ONE_HOUR, 0, 300), (CacheWrite.FIVE_MINUTES, 300, 0)],
)
def test_without_the_split_a_write_has_the_longest_lifetime_the_request_allows(
    asked: CacheWrite, short: int, long: int
) -> None:
    message = {
        "type": "message",
        "usage": {"input_tokens": 1, "cache_creation_input_tokens": 300, "output_tokens": 2},
    }
    usage = read_body(call(Api.ANTHROPIC_MESSAGES, cache_write=asked), message).usage
    assert usage == TokenUsage(input=1, cache_write_5m=short, cache_write_1h=long, output=2)


def test_compaction_and_advisors_are_not_in_the_totals() -> None:
    iterations = [
        {"type": "message", "input_tokens": 10, "output_tokens": 5},
        {"type": "compaction", "input_tokens": 1000, "output_tokens": 70, "cache_read_input_tokens": 9},
        {"type": "advisor_message", "model": "other", "input_tokens": 200, "output_tokens": 30},
        {"type": "message", "input_tokens": 15, "output_tokens": 10},
    ]
    usage = streamed(
        START,
        {"output_tokens": 2, "iterations": iterations[:2]},
        {"output_tokens": 15, "iterations": iterations},
    ).usage
    assert usage == TokenUsage(
        input=1225, cache_read=4009, cache_write_5m=100, cache_write_1h=200, output=115
    )


def test_a_body_is_read_as_a_stream_is() -> None:
    body = {"type": "message", "model": "claude-x", "content": [{"type": "text", "text": "hi"}]}
    body["usage"] = START | {"output_tokens": 15, "output_tokens_details": {"thinking_tokens": 4}}  # type: ignore[assignment]
    reported = read_body(CALL, body)
    assert reported.usage is not None and reported.usage.reasoning == 4
    assert reported.usage.output == 15 and reported.complete and reported.output_bytes == 2


def test_a_stream_cut_short_tells_its_input_and_what_went_by() -> None:
    reported = streamed(START, stop=False)
    assert not reported.complete and reported.input_known and reported.output_bytes == 12
    assert reported.usage is not None and reported.usage.total_input == 4325


def test_thoughts_and_arguments_are_output_too() -> None:
    deltas = [
        {"type": "thinking_delta", "thinking": "abc"},
        {"type": "input_json_delta", "partial_json": '{"é":'},
    ]
    events = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    start = {"type": "content_block_start", "content_block": {"type": "redacted_thinking", "data": "12345"}}
    assert read_stream(CALL, [sse(start, *events)])[0].output_bytes == 5 + 3 + len('{"é":'.encode())


@pytest.mark.parametrize(
    "start",
    [
        None,
        {},
        {"output_tokens": 1},
        {"input_tokens": None, "output_tokens": 1},
        {"input_tokens": 0, "output_tokens": 1},
    ],
)
def test_absent_is_not_zero(start: dict[str, Any] | None) -> None:
    reported = streamed(start, {"output_tokens": 15})
    assert reported.usage is None and not reported.input_known and reported.complete


def test_an_answer_without_its_final_output_is_charged_at_the_hold() -> None:
    assert streamed(START, None).usage is None
    assert streamed(START).usage is None
    assert streamed(START | {"output_tokens": 0}, {"output_tokens": 0}).usage is None, "text went by"


@pytest.mark.parametrize("wrong", [-1, 1.5, "25", True, [], {}, 10**10, float("nan"), float("inf"), 10**40])
@pytest.mark.parametrize("field", ["input_tokens", "cache_read_input_tokens", "output_tokens"])
def test_a_figure_that_cannot_be_makes_all_unusable(field: str, wrong: object) -> None:
    assert streamed(START | {field: wrong}, {"output_tokens": 15}).usage is None
    assert streamed(START, {"output_tokens": 15, field: wrong}).usage is None


@pytest.mark.parametrize("usage", [[], "x", 3, True])
def test_a_usage_that_is_no_object_is_unusable(usage: object) -> None:
    assert streamed(usage, {"output_tokens": 15}).usage is None  # type: ignore[arg-type]


def test_a_figure_given_twice_is_unusable() -> None:
    ended = '"type":"message_delta","delta":{"stop_reason":"end_turn"}'
    doubled = f'{{{ended},"usage":{{"output_tokens":15,"output_tokens":1}}}}'
    reported, _ = read_stream(CALL, [sse(*anthropic_stream(START, stop=False), doubled)])
    assert reported.usage is None and not reported.input_known


def test_an_error_in_the_stream_is_no_end() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    reported, seen = read_stream(CALL, [sse(*anthropic_stream(START, stop=False), error)])
    assert not reported.complete and reported.input_known and b"Overloaded" in seen


def test_nothing_a_server_sends_raises() -> None:
    for data in (b"", b"{", b"\xff", b"null", b"[]", b'"x"', b"[" * 100_000, b'{"type":[]}', b"9" * 5000):
        reported, _ = read_stream(CALL, [b"data: " + data + b"\n\n"])
        assert reported.usage is None
        assert read_body(CALL, data).usage is None
