"""Owns that answers of the Chat Completions and Responses APIs are charged for what they used.
May touch nothing.
Never lets a client see a chunk that it did not ask for, nor miss one that says anything else.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from provider_answers import CHAT_USAGE, call, chat_chunk, chat_delta, read_body, read_stream, sse

from supervisor.gateway.calls import Api, Reported
from supervisor.limits.pricing import CacheWrite
from supervisor.limits.usage import TokenUsage

CALL = call(Api.OPENAI_CHAT)
HIDING = call(Api.OPENAI_CHAT, hides_usage=True)
RESPONSES = call(Api.OPENAI_RESPONSES)
USAGE = TokenUsage(input=300, cache_read=600, cache_write_1h=100, output=50, reasoning=20)
LAST = chat_chunk(choices=[], usage=CHAT_USAGE)
STREAM = [
    chat_delta("Hel", usage=None),
    chat_delta("lo", usage=None),
    chat_delta("", "stop", usage=None),
    LAST,
]


def chat(*events: Any, hidden: bool = False) -> tuple[Reported, bytes]:
    return read_stream(HIDING if hidden else CALL, [sse(*events)])


def test_the_last_chunk_has_the_usage_and_cached_tokens_are_inside_the_prompt() -> None:
    reported, seen = chat(*STREAM, "[DONE]")
    assert reported == Reported(usage=USAGE, complete=True, model="gpt-x", input_known=True, output_bytes=5)
    assert seen == sse(*STREAM, "[DONE]")


def test_the_chunk_we_asked_for_is_hidden_from_a_client_that_did_not() -> None:
    reported, seen = chat(*STREAM, "[DONE]", hidden=True)
    assert reported.usage == USAGE
    assert seen == sse(*STREAM[:-1], "[DONE]")


@pytest.mark.parametrize(
    "chunk",
    [
        chat_delta("more", usage=CHAT_USAGE),
        chat_chunk(choices=[], usage=CHAT_USAGE, timings={"prompt_ms": 3}),
        chat_chunk(choices=[], usage=None, prompt_filter_results=[{"a": 1}]),
        chat_chunk(choices=[]),
        chat_chunk(usage=CHAT_USAGE),
    ],
)
def test_a_chunk_that_says_anything_else_is_not_hidden(chunk: dict[str, Any]) -> None:
    assert chat(chunk, hidden=True)[1] == sse(chunk)


def test_a_cut_at_any_byte_changes_nothing() -> None:
    stream = sse(*STREAM, "[DONE]")
    for at in range(len(stream)):
        reported, seen = read_stream(HIDING, [stream[:at], stream[at:]])
        assert reported.usage == USAGE and seen == sse(*STREAM[:-1], "[DONE]")


def test_running_totals_on_every_chunk_are_not_added() -> None:
    def so_far(n: int) -> dict[str, int]:
        return {"prompt_tokens": 10, "completion_tokens": n, "total_tokens": 10 + n}

    events = [
        chat_delta("a", usage=so_far(1)),
        chat_delta("b", usage=so_far(2)),
        chat_delta("c", "stop", usage=so_far(3)),
    ]
    reported, seen = chat(*events, hidden=True)
    assert reported.usage == TokenUsage(input=10, output=3) and reported.complete
    assert seen == sse(*events)
    cut, _ = chat(*events[:2])
    assert cut.usage == TokenUsage(input=10, output=2) and not cut.complete and cut.input_known


def test_a_stream_without_usage_is_charged_at_the_hold() -> None:
    reported, _ = chat(chat_delta("Hel", usage=None), chat_delta("lo", "stop"), "[DONE]")
    assert reported.usage is None and reported.complete and not reported.input_known
    assert not chat(chat_delta("Hel"))[0].complete


def test_reasoning_left_out_of_the_completion_is_output() -> None:
    figures = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 34}
    details = {"completion_tokens_details": {"reasoning_tokens": 20}}
    assert read_body(CALL, {"choices": [], "usage": figures | details}).usage == TokenUsage(
        input=10, output=24, reasoning=20
    )


def test_a_cache_hit_by_its_other_name() -> None:
    figures = {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "prompt_cache_hit_tokens": 7,
        "prompt_cache_miss_tokens": 3,
    }
    assert read_body(CALL, {"choices": [], "usage": figures}).usage == TokenUsage(
        input=3, cache_read=7, output=4
    )


def test_a_write_has_the_lifetime_the_request_asked_for() -> None:
    short = call(Api.OPENAI_CHAT, cache_write=CacheWrite.FIVE_MINUTES)
    usage = read_body(short, {"choices": [{"message": {"content": "x"}}], "usage": CHAT_USAGE}).usage
    assert usage is not None and (usage.cache_write_5m, usage.cache_write_1h) == (100, 0)


@pytest.mark.parametrize(
    "usage",
    [
        {},
        [],
        "x",
        {"prompt_tokens": 10},
        {"completion_tokens": 10},
        {"prompt_tokens": 0, "completion_tokens": 3},
        {"prompt_tokens": -5, "completion_tokens": 3},
        {"prompt_tokens": "10", "completion_tokens": 3},
        {"prompt_tokens": True, "completion_tokens": 3},
        {"prompt_tokens": 10.5, "completion_tokens": 3},
        {"prompt_tokens": 10, "completion_tokens": 10**10},
        {"prompt_tokens": 10, "completion_tokens": 0},
        {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 11}},
        {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"audio_tokens": 2}},
        {"prompt_tokens": 10, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 9}},
    ],
)
def test_a_usage_that_cannot_be_is_charged_at_the_hold(usage: object) -> None:
    body = {"choices": [{"message": {"content": "hello"}}], "usage": usage}
    reported = read_body(CALL, body)
    assert reported.usage is None and reported.complete and reported.output_bytes == 5
    assert chat(chat_delta("hello", "stop"), chat_chunk(choices=[], usage=usage), "[DONE]")[0].usage is None


def test_a_whole_number_written_as_a_float_is_one() -> None:
    assert read_body(
        CALL, b'{"choices":[],"usage":{"prompt_tokens":10.0,"completion_tokens":3.0}}'
    ).usage == TokenUsage(input=10, output=3)


@pytest.mark.parametrize(
    "data",
    [
        '{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3,"completion_tokens":1}}',
        '{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3},"usage":null}',
        '{"choices":[],"usage":null,"usage":{"prompt_tokens":10,"completion_tokens":3}}',
        '{"choices":[],"us\\u0061ge":{"prompt_tokens":10,"completion_tokens":3,"prompt_tokens":1}}',
    ],
)
def test_a_figure_given_twice_is_unusable(data: str) -> None:
    earlier = chat_delta("a", usage={"prompt_tokens": 10, "completion_tokens": 1})
    assert chat(earlier, data, "[DONE]")[0].usage is None
    assert read_body(CALL, data.encode()).usage is None


def test_a_dearer_tier_than_the_table_is_not_believed() -> None:
    assert chat(chat_chunk(choices=[], usage=CHAT_USAGE, service_tier="priority"))[0].usage is None
    assert chat(chat_chunk(choices=[], usage=CHAT_USAGE, service_tier="default"))[0].usage == USAGE


def test_arguments_and_reasoning_count_as_output() -> None:
    call_ = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a"'}}
    delta = {"role": "assistant", "reasoning_content": "why", "tool_calls": [call_]}
    reported, _ = chat(chat_chunk(choices=[{"index": 0, "delta": delta, "finish_reason": None}]))
    assert reported.output_bytes == len("why") + len('{"a"')


RESPONSE_USAGE = {
    "input_tokens": 500,
    "input_tokens_details": {
        "cached_tokens": 300,
        "cache_write_tokens": 90,
        "cache_write_tokens_details": {"ttl_30m_tokens": 50, "ttl_12h_tokens": 40},
    },
    "output_tokens": 70,
    "output_tokens_details": {"reasoning_tokens": 30},
    "total_tokens": 570,
}
RESPONSE_FULL = TokenUsage(
    input=110, cache_read=300, cache_write_5m=50, cache_write_1h=40, output=70, reasoning=30
)


def responses(last: str, usage: object, output: list[Any] | None = None) -> bytes:
    response = {"id": "r", "object": "response", "model": "gpt-x", "status": "in_progress", "usage": None}
    ended = response | {"status": last.removeprefix("response."), "usage": usage, "output": output or []}
    return sse(
        {"type": "response.created", "response": response},
        {"type": "response.output_text.delta", "item_id": "i", "delta": "hé"},
        {"type": "response.function_call_arguments.delta", "item_id": "i", "delta": "{}"},
        {"type": "response.output_text.done", "text": "hé"},
        {"type": last, "response": ended},
        named=True,
    )


@pytest.mark.parametrize("last", ["response.completed", "response.incomplete", "response.failed"])
def test_responses_report_in_their_last_event_however_they_end(last: str) -> None:
    reported, seen = read_stream(RESPONSES, [responses(last, RESPONSE_USAGE)])
    assert reported == Reported(
        usage=RESPONSE_FULL, complete=True, model="gpt-x", input_known=True, output_bytes=5
    )
    assert seen == responses(last, RESPONSE_USAGE)


def test_responses_cut_at_any_byte() -> None:
    stream = responses("response.completed", RESPONSE_USAGE)
    for at in range(len(stream)):
        assert read_stream(RESPONSES, [stream[:at], stream[at:]])[0].usage == RESPONSE_FULL


def test_a_response_that_failed_without_usage_or_was_cut_is_not_complete() -> None:
    assert not read_stream(RESPONSES, [responses("response.failed", None)])[0].complete
    cut = read_stream(RESPONSES, [responses("response.in_progress", None)])[0]
    assert cut.usage is None and not cut.complete and cut.output_bytes == 5 and cut.model == "gpt-x"


def test_searches_at_the_provider_are_counted() -> None:
    output = [
        {"type": "web_search_call"},
        {"type": "file_search_call"},
        {"type": "web_search_call"},
        {"type": "message"},
    ]
    usage = read_stream(RESPONSES, [responses("response.completed", RESPONSE_USAGE, output)])[0].usage
    assert usage is not None and usage.tools == {"web_search": 2, "file_search": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_tokens": None},
        {"input_tokens": "500"},
        {"output_tokens": -1},
        {"output_tokens": 0, "total_tokens": 500},
        {"input_tokens_details": {"cached_tokens": 501}},
        {"output_tokens_details": {"reasoning_tokens": 71}},
        {"input_tokens_details": 3},
    ],
)
def test_a_response_usage_that_cannot_be_is_charged_at_the_hold(wrong: dict[str, Any]) -> None:
    reported, _ = read_stream(RESPONSES, [responses("response.completed", RESPONSE_USAGE | wrong)])
    assert reported.usage is None and reported.complete


def test_a_response_that_was_not_streamed() -> None:
    content = [{"type": "output_text", "text": "hello", "annotations": []}]
    body = {
        "status": "completed",
        "model": "gpt-x",
        "usage": RESPONSE_USAGE,
        "output": [{"type": "message", "content": content}],
    }
    reported = read_body(RESPONSES, body)
    assert reported.usage == RESPONSE_FULL and reported.complete and reported.output_bytes == 5


def test_nothing_a_server_sends_raises() -> None:
    for asked in (CALL, HIDING, RESPONSES):
        for data in (
            b"",
            b"{",
            b"\xff",
            b"null",
            b"[]",
            b"[" * 100_000,
            b'{"type":[],"choices":3}',
            b'{"usage":NaN}',
        ):
            assert read_stream(asked, [b"data: " + data + b"\n\n"])[0].usage is None
            assert read_body(asked, data).usage is None


def test_half_a_surrogate_pair_does_not_hide_the_usage() -> None:
    body = json.dumps({"choices": [{"message": {"content": "\ud83d"}}], "usage": CHAT_USAGE}).encode()
    assert read_body(CALL, body).usage == USAGE
