"""Owns that an answer of generateContent is charged for what it used, thoughts included.
May touch nothing.
Never adds two reports of one call.
"""

from __future__ import annotations

from typing import Any

import pytest
from provider_answers import call, read_body, read_stream, sse

from supervisor.gateway.calls import Api
from supervisor.limits.usage import TokenUsage

CALL = call(Api.GEMINI)
META = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 60,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 30,
    "toolUsePromptTokenCount": 7,
    "totalTokenCount": 157,
}
USAGE = TokenUsage(input=47, cache_read=60, output=50, reasoning=30)


def chunk(text: str = "", finish: str | None = None, meta: object = None, index: int = 0) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": [{"text": text}], "role": "model"}, "index": index}
    if finish:
        candidate["finishReason"] = finish
    found: dict[str, Any] = {"candidates": [candidate], "modelVersion": "gemini-x"}
    return found if meta is None else found | {"usageMetadata": meta}


STREAM = [
    chunk("a", meta={"promptTokenCount": 100, "totalTokenCount": 100}),
    chunk("b", meta=META | {"candidatesTokenCount": 10, "totalTokenCount": 147}),
    chunk("c", "STOP", META),
]


def test_thoughts_are_outside_the_candidates_cached_inside_the_prompt() -> None:
    reported = read_body(CALL, chunk("hello", "STOP", META))
    assert reported.usage == USAGE and reported.complete and reported.model == "gemini-x"
    assert reported.output_bytes == 5


def test_running_totals_are_not_added() -> None:
    reported, seen = read_stream(CALL, [sse(*STREAM)])
    assert reported.usage == USAGE and reported.complete and seen == sse(*STREAM)


def test_a_cut_at_any_byte_changes_nothing() -> None:
    stream = sse(*STREAM)
    for at in range(len(stream)):
        assert read_stream(CALL, [stream[:at], stream[at:]])[0].usage == USAGE


def test_a_stream_that_is_one_json_array() -> None:
    reported = read_body(CALL, STREAM)
    assert reported.usage == USAGE and reported.complete and reported.output_bytes == 3


def test_a_stream_cut_short() -> None:
    reported, _ = read_stream(CALL, [sse(*STREAM[:2])])
    assert not reported.complete and reported.input_known and reported.output_bytes == 2
    assert reported.usage is not None and reported.usage.output == 40


def test_all_answers_have_to_end() -> None:
    two = call(Api.GEMINI, answers=2)
    first = chunk("a", "STOP", META)
    assert not read_stream(two, [sse(first)])[0].complete
    assert read_stream(two, [sse(first, chunk("b", "STOP", META, index=1))])[0].complete


def test_an_answer_of_thoughts_alone_and_a_blocked_prompt() -> None:
    thoughts = {"promptTokenCount": 10, "thoughtsTokenCount": 30, "totalTokenCount": 40}
    assert read_body(CALL, chunk("", "MAX_TOKENS", thoughts)).usage == TokenUsage(
        input=10, output=30, reasoning=30
    )
    blocked = {
        "promptFeedback": {"blockReason": "SAFETY"},
        "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9},
    }
    reported = read_body(CALL, blocked)
    assert reported.complete and reported.usage == TokenUsage(input=9)


def test_what_the_total_has_and_no_part_is_output() -> None:
    assert read_body(
        CALL, chunk("x", "STOP", {"promptTokenCount": 10, "totalTokenCount": 25})
    ).usage == TokenUsage(input=10, output=15)


@pytest.mark.parametrize(
    "meta",
    [
        {},
        [],
        {"promptTokenCount": 10},
        {"candidatesTokenCount": 10},
        META | {"promptTokenCount": "100"},
        META | {"thoughtsTokenCount": -3},
        META | {"candidatesTokenCount": True},
        META | {"cachedContentTokenCount": 101},
        {"promptTokenCount": 10, "candidatesTokenCount": 0, "totalTokenCount": 10},
        META | {"candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}]},
        META | {"promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 5}]},
    ],
)
def test_a_usage_that_cannot_be_is_charged_at_the_hold(meta: object) -> None:
    reported = read_body(CALL, chunk("hello", "STOP", meta))
    assert reported.usage is None and reported.complete


def test_a_search_nobody_allowed_is_charged_at_the_hold() -> None:
    answer = chunk("x", "STOP", META)
    answer["candidates"][0]["groundingMetadata"] = {"webSearchQueries": ["q"]}
    assert read_body(CALL, answer).usage is None


def test_a_figure_given_twice_is_unusable() -> None:
    twice = b'{"usageMetadata":{"promptTokenCount":10,"promptTokenCount":1,"totalTokenCount":12}}'
    assert read_body(CALL, twice).usage is None
    assert read_stream(CALL, [b"data: " + twice + b"\n\n"])[0].usage is None


def test_nothing_a_server_sends_raises() -> None:
    for data in (b"", b"{", b"\xff", b"null", b"[1,[]]", b"[" * 100_000, b'{"candidates":[{"content":3}]}'):
        assert read_stream(CALL, [b"data: " + data + b"\n\n"])[0].usage is None
        assert read_body(CALL, data).usage is None
