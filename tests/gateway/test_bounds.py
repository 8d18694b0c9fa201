"""Owns that the input bound is never below what a provider can count, and shrinks with what it said.
May touch nothing.
Never knows a real tokenizer: the worst one makes a token of every byte.
"""

from __future__ import annotations

import json
from typing import Any

from supervisor.gateway.bounds import SLACK_CALL, SLACK_MESSAGE, BoundMemory, part_of, prefixes_of
from supervisor.gateway.calls import Api, ModelCall
from supervisor.gateway.requests import Allowances, read_call

LONG = "word " * 4000


def read(
    body: dict[str, Any],
    memory: BoundMemory,
    api: Api = Api.ANTHROPIC_MESSAGES,
    image_tokens: int | None = None,
) -> ModelCall:
    path: dict[str, Any] = {"model": "m", "stream": False} if api is Api.GEMINI else {}
    return read_call(
        api, json.dumps(body).encode(), memory=memory, allow=Allowances(image_tokens=image_tokens), **path
    )


def asked(*messages: Any, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    told = [
        {"role": roles[i % 2], "content": m} if not isinstance(m, dict) else m for i, m in enumerate(messages)
    ]
    return {"model": "m", "max_tokens": 100, "system": LONG, "messages": told, **fields}


def text(said: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": said, **fields}]


def test_every_byte_can_be_a_token_and_every_separator_a_space() -> None:
    for said in (LONG, "é😀" * 500, "\x00\n\t" * 300, '"\\' * 300):
        assert read(asked(said), BoundMemory()).input_bound >= len(said.encode()) + len(LONG)
    numbers = list(range(1000))
    call = read(asked("x", tools=[{"name": "t", "input_schema": {"enum": numbers}}]), BoundMemory())
    assert call.input_bound >= len(json.dumps(numbers)) + len(LONG)


def test_the_bound_is_of_what_is_sent_not_of_how_it_was_written() -> None:
    compact = asked("é")
    loose = json.dumps(compact, indent=8, ensure_ascii=True).encode()
    call = read_call(Api.ANTHROPIC_MESSAGES, loose, memory=BoundMemory(), allow=Allowances())
    assert call.input_bound == read(compact, BoundMemory()).input_bound


def test_what_the_provider_counted_once_is_not_bounded_again() -> None:
    memory = BoundMemory()
    first = read(asked("question"), memory)
    memory.learn(first, 4321)
    second = read(asked("question", "answer", "more"), memory)
    new = len('{"role":"assistant","content":"answer"}{"role":"user","content":"more"}') + 6
    assert second.input_bound == 4321 + new + 2 * SLACK_MESSAGE + SLACK_CALL
    assert read(asked("question", "answer", "more"), BoundMemory()).input_bound > len(LONG)


def test_the_longest_prefix_counts() -> None:
    memory = BoundMemory()
    memory.learn(read(asked("a"), memory), 4000)
    memory.learn(read(asked("a", "b", "c" * 9000), memory), 5000)
    assert read(asked("a", "b", "c" * 9000, "d", "e"), memory).input_bound < 5000 + SLACK_CALL + 200
    assert read(asked("a", "x", "y"), memory).input_bound < 4000 + SLACK_CALL + 200


def test_any_change_in_what_was_counted_is_another_prompt() -> None:
    memory = BoundMemory()
    memory.learn(read(asked("a", tools=[{"name": "t"}]), memory), 4000)
    assert read(asked("a", "b", "c", tools=[{"name": "t"}]), memory).input_bound < 6000
    for other in (
        asked("A", "b", "c", tools=[{"name": "t"}]),
        asked("a", "b", "c", tools=[{"name": "u"}]),
        asked("a", "b", "c"),
        asked("a", "b", "c", tools=[{"name": "t"}]) | {"model": "n"},
        asked("a", "b", "c", tools=[{"name": "t"}]) | {"system": LONG + "."},
        asked("a", "b", "c", tools=[{"name": "t"}], thinking={"type": "adaptive"}),
        asked("a", "b", "c", tools=[{"name": "t"}], unknown="x"),
    ):
        assert read(other, memory).input_bound > len(LONG)


def test_sampling_and_bookkeeping_are_not_part_of_the_prompt() -> None:
    memory = BoundMemory()
    memory.learn(read(asked("a", metadata={"user_id": "1"}, diagnostics=None), memory), 4000)
    later = asked("a", "b", "c", metadata={"user_id": "2"}, temperature=0.5, stream=True)
    later |= {"max_tokens": 7, "diagnostics": {"previous_message_id": "msg_1"}}
    assert read(later, memory).input_bound < 6000


def test_cache_marks_move_and_change_nothing() -> None:
    memory = BoundMemory()
    mark = {"cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": text("r", **mark), **mark}
    first = asked(text("a", **mark), "b", [result], system=text(LONG, **mark), tools=[{"name": "t", **mark}])
    memory.learn(read(first, memory), 4000)
    moved = {"type": "tool_result", "tool_use_id": "t", "content": text("r")}
    later = asked("a", "b", [moved], "d", text("e", **mark), system=text(LONG), tools=[{"name": "t"}])
    assert read(later, memory).input_bound < 4000 + SLACK_CALL + 1024 + 300


def test_what_only_looks_like_a_cache_mark_is_counted() -> None:
    memory = BoundMemory()
    call = {"type": "tool_use", "id": "t", "name": "n", "input": {"cache_control": {"type": "ephemeral"}}}
    memory.learn(read(asked("a", [call]), memory), 4000)
    call["input"] = {"cache_control": LONG}
    assert read(asked("a", [call], "c"), memory).input_bound > 2 * len(LONG)


def test_a_block_that_changes_with_every_call_is_counted_every_time() -> None:
    memory = BoundMemory()
    header = "x-anthropic-billing-header: cc_version=2.1; cch="
    memory.learn(read(asked("a", system=[*text(header + "1"), *text(LONG)]), memory), 4000)
    assert read(asked("a", "b", "c", system=[*text(header + "2"), *text(LONG)]), memory).input_bound < 6000
    smuggled = asked("a", "b", "c", system=[*text(header + "x" * 9000), *text(LONG)])
    assert read(smuggled, memory).input_bound > 13_000


def test_where_the_provider_chooses_what_to_leave_out_earlier_counts_say_nothing() -> None:
    edits = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    cut = {"model": "m", "input": [{"role": "user", "content": LONG}], "truncation": "auto"}
    for api, body in ((Api.ANTHROPIC_MESSAGES, asked("a", **edits)), (Api.OPENAI_RESPONSES, cut)):
        memory = BoundMemory()
        memory.learn(read(body, memory, api), 4000)
        assert read(body, memory, api).input_bound > len(LONG)


def test_an_image_that_comes_later_is_held_on_top() -> None:
    memory = BoundMemory()
    memory.learn(read(asked("a"), memory), 4000)
    image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    bound = read(asked("a", "b", [image]), memory, image_tokens=70_000).input_bound
    assert 74_000 < bound < 76_000


def test_a_count_that_leaves_out_what_was_cached_is_not_learned() -> None:
    memory = BoundMemory()
    for few in (0, -5, 40):
        memory.learn(read(asked("a"), memory), few)
    assert read(asked("a", "b", "c"), memory).input_bound > len(LONG)


def test_a_count_of_several_rounds_is_not_learned() -> None:
    memory = BoundMemory()
    allow = Allowances(document_tokens=10, tool_uses={"web_search": 1})
    body = json.dumps(asked("a", tools=[{"type": "web_search_20250305", "name": "web_search"}])).encode()
    call = read_call(Api.ANTHROPIC_MESSAGES, body, memory=memory, allow=allow)
    memory.learn(call, 30_000)
    assert read_call(Api.ANTHROPIC_MESSAGES, body, memory=memory, allow=allow).input_bound == call.input_bound


def test_a_repeated_count_keeps_the_larger() -> None:
    memory = BoundMemory()
    call = read(asked("a"), memory)
    for tokens in (4000, 5000, 4500):
        memory.learn(call, tokens)
    assert read(asked("a"), memory).input_bound == 5000 + SLACK_CALL


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    memory = BoundMemory(entries=3)
    calls = [read(asked(f"{n}"), memory) for n in range(5)]
    for call in calls:
        memory.learn(call, 4000)
    refined = [read(asked(f"{n}"), memory).input_bound < 6000 for n in range(5)]
    assert refined == [False, False, True, True, True]


def test_parts_cannot_be_shifted_into_one_another() -> None:
    parts = [part_of(value) for value in ("a", "b", "ab", ["a", "b"], {"a": "b"}, "")]
    chains = [(), (0,), (1,), (0, 1), (2,), (3,), (4,), (5, 0), (0, 5)]
    last = {prefixes_of("m", parts[5], [parts[i] for i in chain])[-1] for chain in chains}
    assert len(last) == len(chains)
    assert prefixes_of("m", parts[0], [])[-1] != prefixes_of("n", parts[0], [])[-1]


def test_every_api_learns() -> None:
    bodies: dict[Api, Any] = {
        Api.OPENAI_CHAT: lambda m: {"model": "m", "messages": m},
        Api.OPENAI_RESPONSES: lambda m: {"model": "m", "input": m, "instructions": LONG},
        Api.GEMINI: lambda m: {"contents": [{"role": "user", "parts": [{"text": x["content"]}]} for x in m]},
    }
    said = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    for api, body in bodies.items():
        memory = BoundMemory()
        memory.learn(read(body(said[:1]), memory, api), 4000)
        assert read(body(said), memory, api).input_bound < 6000, api
