"""Owns that the bound of a request cannot be fooled, and that only what must change is changed.
May touch nothing.
Never sends a request anywhere.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.gateway.calls import Api, CallRefused, ModelCall
from supervisor.gateway.requests import Allowances, BoundMemory, read_call, rewrite
from supervisor.limits.pricing import CacheWrite

SEEN = Allowances(image_tokens=1600, document_tokens=5000, tool_uses={"web_search": 3, "file_search": 2})
MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[Api, dict[str, Any]] = {
    Api.ANTHROPIC_MESSAGES: {"model": "m", "max_tokens": 64000, "messages": MESSAGES},
    Api.OPENAI_CHAT: {"model": "m", "messages": MESSAGES},
    Api.OPENAI_RESPONSES: {"model": "m", "input": "hello"},
    Api.GEMINI: {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]},
}
A, C, R, G = Api.ANTHROPIC_MESSAGES, Api.OPENAI_CHAT, Api.OPENAI_RESPONSES, Api.GEMINI


def read(api: Api, body: bytes | dict[str, Any], allow: Allowances | None = None) -> ModelCall:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    path: dict[str, Any] = {"model": "m", "stream": True} if api is Api.GEMINI else {}
    return read_call(api, data, memory=BoundMemory(), allow=allow or Allowances(), **path)


def with_(api: Api, **fields: Any) -> dict[str, Any]:
    return BODIES[api] | fields


def refused(api: Api, body: bytes | dict[str, Any], allow: Allowances | None = None) -> CallRefused:
    with pytest.raises(CallRefused) as caught:
        read(api, body, allow)
    assert caught.value.status == 400 and caught.value.message
    return caught.value


def sent(call: ModelCall, tokens: int, **how: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rewrite(call, tokens, **how))
    return found


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b'{"model":"\xff"}',
        '{"model":"m"}'.encode("utf-16"),
        b'{"model":"m","temperature":NaN}',
        b'{"model":"m","temperature":-Infinity}',
        b'{"model":"m","temperature":1e999}',
        b'{"model":"m","x":"\\ud800"}',
        b'{"model":"m","x":' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"model":"m","x":' + b"[" * 100_000,
        b'{"model":"m","seed":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_not_one_strict_json_object_is_refused(api: Api, body: bytes) -> None:
    assert refused(api, body).code == "invalid_request"


@pytest.mark.parametrize("api", Api)
def test_a_name_given_twice_is_refused_wherever_it_is(api: Api) -> None:
    whole = json.dumps(BODIES[api])
    for twice in (
        '"max_tokens":1,"max_tokens":9',
        '"a":{"b":[{"c":1,"\\u0063":2}]}',
        '"model":"m","model":"n"',
    ):
        assert refused(api, f"{whole[:-1]},{twice}}}".encode()).code == "invalid_request"


@pytest.mark.parametrize("api", [A, C, R])
@pytest.mark.parametrize("model", [None, 3, "", ["m"], "m\n", "m" * 300])
def test_the_model_is_a_string(api: Api, model: object) -> None:
    assert refused(api, with_(api, model=model)).code == "invalid_request"


BOUNDS = [(A, "max_tokens"), (C, "max_tokens"), (C, "max_completion_tokens"), (R, "max_output_tokens")]


@pytest.mark.parametrize(("api", "name"), BOUNDS)
@pytest.mark.parametrize("value", ["64000", 1.0, 1e3, True, -1, [1], {}, 10**10])
def test_an_output_bound_is_a_whole_number(api: Api, name: str, value: object) -> None:
    assert refused(api, with_(api, **{name: value})).code == "invalid_request"
    nested = {"generationConfig": {"maxOutputTokens": value}}
    assert refused(G, with_(G, **nested)).code == "invalid_request"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_zero_output_is_for_those_that_know_it(name: str) -> None:
    refused(C, with_(C, **{name: 0}))
    warm = read(A, with_(A, max_tokens=0))
    assert (warm.output_asked, warm.output_least) == (0, 0)
    assert sent(warm, 0)["max_tokens"] == 0


def test_two_bounds_that_differ_are_refused_and_equal_ones_are_both_set() -> None:
    refused(C, with_(C, max_tokens=64000, max_completion_tokens=1))
    call = read(C, with_(C, max_tokens=500, max_completion_tokens=500))
    assert call.output_asked == 500
    document = sent(call, 70)
    assert (document["max_tokens"], document["max_completion_tokens"]) == (70, 70)
    document = sent(read(C, with_(C, max_tokens=None, max_completion_tokens=500)), 70)
    assert "max_tokens" not in document and document["max_completion_tokens"] == 70


@pytest.mark.parametrize("name", ["n_predict", "num_predict", "max_new_tokens", "max_output_tokens"])
def test_a_bound_by_another_name_is_refused(name: str) -> None:
    refused(C, with_(C, max_tokens=1, **{name: 64000}))


def test_a_request_without_a_bound_gets_one_by_the_name_the_server_knows() -> None:
    call = read(C, BODIES[C])
    assert call.output_asked is None
    assert sent(call, 70)["max_tokens"] == 70
    named = sent(call, 70, chat_bound="max_completion_tokens")
    assert named["max_completion_tokens"] == 70 and "max_tokens" not in named
    assert sent(read(R, BODIES[R]), 70)["max_output_tokens"] == 70
    assert sent(read(G, BODIES[G]), 70)["generationConfig"] == {"maxOutputTokens": 70}


@pytest.mark.parametrize("name", ["n", "best_of"])
def test_several_answers_multiply(name: str) -> None:
    assert read(C, with_(C, **{name: 5})).answers == 5
    for wrong in (0, -1, 2.0, "2", True, 10**6):
        refused(C, with_(C, **{name: wrong}))


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", True, 10**6])
def test_candidates_multiply(wrong: object) -> None:
    refused(G, with_(G, generationConfig={"candidateCount": wrong}))
    assert read(G, with_(G, generation_config={"candidate_count": 4})).answers == 4


def test_both_spellings_of_gemini_are_read_and_never_both_at_once() -> None:
    snake = {"generation_config": {"max_output_tokens": 900, "thinking_config": {"thinking_budget": 800}}}
    call = read(G, with_(G, **snake))
    assert call.output_asked == 900
    assert sent(call, 600) == with_(
        G, generationConfig={"maxOutputTokens": 600, "thinkingConfig": {"thinkingBudget": 600}}
    )
    refused(G, with_(G, generationConfig={}, generation_config={"max_output_tokens": 9}))
    refused(G, with_(G, generationConfig={"maxOutputTokens": 1, "max_output_tokens": 64000}))
    refused(G, with_(G, cached_content="cachedContents/x"))
    refused(G, with_(G, generation_config={"speech_config": {"a": 1}}))
    refused(
        G,
        {"contents": [{"parts": [{"text": "x", "inline_data": {"mime_type": "video/mp4", "data": "A"}}]}]},
        SEEN,
    )
    refused(
        G, {"contents": [{"parts": [{"fileData": {"fileUri": "x"}, "file_data": {"file_uri": "y"}}]}]}, SEEN
    )


def test_a_thinking_budget_is_lowered_with_the_bound_and_never_removed() -> None:
    thinking = {"type": "enabled", "budget_tokens": 32000, "display": "summarized"}
    call = read(A, with_(A, thinking=thinking))
    assert call.output_least == 1280
    for granted in (64000, 40000, 2000, 1280):
        document = sent(call, granted)
        budget = document["thinking"]["budget_tokens"]
        assert document["max_tokens"] == granted and 1024 <= budget < granted
        assert document["thinking"] == thinking | {"budget_tokens": budget}
    assert sent(call, 64000)["thinking"] == thinking
    over = read(A, with_(A, max_tokens=4000, thinking=thinking))
    assert sent(over, 4000)["thinking"] == thinking, "allowed between tools"
    assert sent(over, 3000)["thinking"]["budget_tokens"] == 2999
    for wrong in (1023, "2000", 2000.0, True):
        refused(A, with_(A, thinking={"type": "enabled", "budget_tokens": wrong}))
    adaptive = read(A, with_(A, thinking={"type": "adaptive"}))
    assert adaptive.output_least == 1 and sent(adaptive, 300)["thinking"] == {"type": "adaptive"}


def test_a_stream_reports_its_usage_and_a_client_that_did_not_ask_is_remembered() -> None:
    call = read(C, with_(C, stream=True))
    assert call.stream and call.hides_usage and sent(call, 9)["stream_options"] == {"include_usage": True}
    other = {"include_usage": False, "include_obfuscation": False}
    call = read(C, with_(C, stream=True, stream_options=other))
    assert call.hides_usage and sent(call, 9)["stream_options"] == other | {"include_usage": True}
    call = read(C, with_(C, stream=True, stream_options={"include_usage": True}))
    assert not call.hides_usage
    call = read(C, BODIES[C])
    assert not call.stream and not call.hides_usage and "stream_options" not in sent(call, 9)
    wrong: object
    for wrong in (1, "true", []):
        refused(C, with_(C, stream=wrong))
        refused(C, with_(C, stream=True, stream_options={"include_usage": wrong}))


REFUSED: list[tuple[Api, dict[str, Any]]] = [
    (R, {"background": True}),
    (R, {"previous_response_id": "resp_1"}),
    (R, {"conversation": "conv_1"}),
    (R, {"conversation": {"id": "conv_1"}}),
    (R, {"prompt": {"id": "pmpt_1"}}),
    (R, {"context_management": [{"type": "compaction"}]}),
    (R, {"service_tier": "priority"}),
    (R, {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    (R, {"input": [{"type": "compaction_trigger"}]}),
    (R, {"input": [{"type": "additional_tools", "tools": [{"type": "mcp", "server_url": "x"}]}]}),
    (C, {"service_tier": "priority"}),
    (C, {"service_tier": "fast"}),
    (C, {"service_tier": 1}),
    (C, {"web_search_options": {"search_context_size": "high"}}),
    (C, {"models": ["dear-model"]}),
    (C, {"plugins": [{"id": "web"}]}),
    (C, {"prediction": {"type": "content", "content": "x"}}),
    (C, {"modalities": ["text", "audio"]}),
    (C, {"audio": {"voice": "x"}}),
    (C, {"chat_template": "{{ x * 1000 }}"}),
    (C, {"tools": [{"type": "web_search"}]}),
    (A, {"speed": "fast"}),
    (A, {"service_tier": "priority"}),
    (A, {"inference_geo": "us"}),
    (A, {"fallbacks": [{"model": "dear-model"}]}),
    (A, {"fallbacks": "default"}),
    (A, {"mcp_servers": [{"url": "x"}]}),
    (A, {"container": "c"}),
    (A, {"thread": {"type": "continue", "previous_message_id": "msg"}}),
    (A, {"compaction": {"type": "summarize"}}),
    (A, {"context_management": {"edits": [{"type": "compact_20260112"}]}}),
    (G, {"cachedContent": "cachedContents/x"}),
    (G, {"serviceTier": "PRIORITY"}),
    (G, {"generationConfig": {"responseModalities": ["TEXT", "IMAGE"]}}),
    (G, {"generationConfig": {"modelSelectionConfig": {"a": 1}}}),
]
REFUSED += [
    (A, {"tools": [{"type": kind, "name": "t"}]})
    for kind in (
        "web_search_20250305",
        "web_fetch_20250910",
        "code_execution_20260521",
        "advisor_20260301",
        "mcp_toolset",
        "tool_search_tool_bm25_20251119",
        "browser_toolset_20260801",
        "something_new",
    )
]
REFUSED += [
    (R, {"tools": [{"type": kind}]})
    for kind in (
        "web_search",
        "web_search_preview",
        "file_search",
        "code_interpreter",
        "mcp",
        "image_generation",
        "programmatic_tool_calling",
        "tool_search",
        "something_new",
    )
]
REFUSED += [
    (R, {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}),
    (R, {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]}),
]
REFUSED += [
    (G, {"tools": [{kind: {}}]})
    for kind in (
        "googleSearch",
        "google_search",
        "urlContext",
        "codeExecution",
        "fileSearch",
        "computerUse",
        "mcpServers",
    )
]


@pytest.mark.parametrize(("api", "fields"), REFUSED)
def test_what_changes_the_price_or_hides_input_is_refused(api: Api, fields: dict[str, Any]) -> None:
    assert refused(api, with_(api, **fields)).code in (
        "not_metered",
        "unbounded_tool",
        "unbounded_input",
        "dearer_rate",
    )


HARMLESS: list[tuple[Api, dict[str, Any]]] = [
    (
        A,
        {
            "service_tier": "auto",
            "speed": "standard",
            "inference_geo": None,
            "fallbacks": None,
            "mcp_servers": [],
        },
    ),
    (A, {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}),
    (
        A,
        {
            "tools": [
                {"name": "t", "input_schema": {"type": "object"}},
                {"type": "bash_20250124", "name": "bash"},
            ]
        },
    ),
    (
        A,
        {
            "output_config": {"effort": "high"},
            "metadata": {"user_id": "u"},
            "something_new": {"a": [1, 2.5, None]},
        },
    ),
    (
        C,
        {
            "service_tier": "flex",
            "reasoning_effort": "low",
            "top_k": 4,
            "response_format": {"type": "json_object"},
        },
    ),
    (C, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
    (R, {"background": False, "previous_response_id": None, "reasoning": {"effort": "low"}, "include": []}),
    (
        R,
        {
            "tools": [
                {"type": "custom", "name": "apply"},
                {"type": "namespace", "tools": [{"type": "function"}]},
            ]
        },
    ),
    (
        G,
        {
            "tools": [{"functionDeclarations": [{"name": "f"}]}],
            "safetySettings": [],
            "systemInstruction": {"parts": [{"text": "x"}]},
        },
    ),
]


@pytest.mark.parametrize(("api", "fields"), HARMLESS)
def test_all_else_is_forwarded_as_it_is(api: Api, fields: dict[str, Any]) -> None:
    body = with_(api, **fields)
    document = sent(read(api, body), 100)
    for name in ("max_tokens", "max_output_tokens", "generationConfig", "store"):
        document.pop(name, None)
        body.pop(name, None)
    assert document == body


def test_nothing_is_left_at_the_provider_to_be_read_again() -> None:
    for store in ({}, {"store": True}, {"store": None}):
        assert sent(read(R, with_(R, **store)), 9)["store"] is False


def test_the_upstreams_own_name_for_the_model_is_sent() -> None:
    for api in (A, C, R):
        assert sent(read(api, BODIES[api]), 100, model="theirs")["model"] == "theirs"
        assert sent(read(api, BODIES[api]), 100)["model"] == "m"
    assert "model" not in sent(read(G, BODIES[G]), 100, model="theirs")
    with pytest.raises(CallRefused):
        read_call(G, b"{}", memory=BoundMemory(), allow=Allowances())


PIXELS = "A" * 4000
IMAGES: list[tuple[Api, dict[str, Any]]] = [
    (A, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXELS}}),
    (A, {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}),
    (A, {"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
    (C, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXELS}"}}),
    (C, {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "high"}}),
    (R, {"type": "input_image", "image_url": f"data:image/png;base64,{PIXELS}"}),
    (R, {"type": "input_image", "file_id": "file_1"}),
    (G, {"inlineData": {"mimeType": "image/png", "data": PIXELS}}),
    (G, {"fileData": {"mimeType": "image/png", "fileUri": "files/x"}}),
]
DOCUMENTS: list[tuple[Api, dict[str, Any]]] = [
    (A, {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PIXELS}}),
    (A, {"type": "document", "source": {"type": "url", "url": "http://x/y.pdf"}}),
    (A, {"type": "document", "source": {"type": "file", "file_id": "file_1"}}),
    (C, {"type": "file", "file": {"file_id": "file_1"}}),
    (C, {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PIXELS}"}}),
    (R, {"type": "input_file", "file_url": "http://x/y.pdf"}),
    (G, {"inlineData": {"mimeType": "application/pdf", "data": PIXELS}}),
    (G, {"fileData": {"mimeType": "application/pdf", "fileUri": "files/x"}}),
]
NEVER: list[tuple[Api, dict[str, Any]]] = [
    (A, {"type": "container_upload", "file_id": "file_1"}),
    (A, {"type": "something_new"}),
    (C, {"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}),
    (C, {"type": "video_url", "video_url": {"url": "http://x"}}),
    (C, {"type": "image_url", "image_url": {"url": "data:video/mp4;base64,AAAA"}}),
    (C, {"image_url": {"url": "http://x"}}),
    (R, {"type": "input_audio", "data": "A"}),
    (G, {"inlineData": {"mimeType": "audio/wav", "data": "A"}}),
    (G, {"fileData": {"mimeType": "video/mp4", "fileUri": "files/x"}}),
    (G, {"fileData": {"fileUri": "https://video.example/watch"}}),
    (G, {"text": "x", "somethingNew": {"a": 1}}),
]


def holding(api: Api, part: dict[str, Any]) -> dict[str, Any]:
    if api is R:
        return with_(R, input=[{"type": "message", "role": "user", "content": [part]}])
    if api is G:
        return {"contents": [{"role": "user", "parts": [part]}]}
    return with_(api, messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize(
    ("kind", "api", "part"), [("image", *c) for c in IMAGES] + [("document", *c) for c in DOCUMENTS]
)
def test_what_the_bytes_do_not_bound_needs_a_stated_number(kind: str, api: Api, part: dict[str, Any]) -> None:
    body = holding(api, part)
    tokens = 70_000
    images, documents = Allowances(image_tokens=tokens), Allowances(document_tokens=tokens)
    right, other = (images, documents) if kind == "image" else (documents, images)
    assert refused(api, body).code == "unbounded_input"
    assert refused(api, body, other).code == "unbounded_input"
    held = read(api, body, right).input_bound
    assert tokens < held < tokens + 1500, "its base64 is no text"


@pytest.mark.parametrize(("api", "part"), NEVER)
def test_what_nobody_can_bound_is_refused_whatever_is_stated(api: Api, part: dict[str, Any]) -> None:
    assert refused(api, holding(api, part), SEEN).code == "unbounded_input"


@pytest.mark.parametrize("kind", [["image"], {}, 3, True])
def test_a_type_is_a_string(kind: object) -> None:
    for api in (A, C, R):
        refused(api, holding(api, {"type": kind}), SEEN)
        refused(api, with_(api, tools=[{"type": kind}]), SEEN)
    refused(R, with_(R, input=[{"type": kind}]), SEEN)
    refused(G, holding(G, {"inlineData": {"mimeType": kind, "data": "A"}}), SEEN)


def test_images_inside_the_results_of_tools_are_found() -> None:
    image = IMAGES[0][1]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    inside = {"type": "document", "source": {"type": "content", "content": [image]}}
    assert refused(A, holding(A, result)).code == refused(A, holding(A, inside)).code == "unbounded_input"
    assert read(A, holding(A, result), SEEN).input_bound > 1600
    output = {"type": "function_call_output", "call_id": "c", "output": [IMAGES[5][1]]}
    shot = {
        "type": "computer_call_output",
        "call_id": "c",
        "output": {"type": "computer_screenshot", "file_id": "f"},
    }
    for item in (output, shot):
        assert refused(R, with_(R, input=[item])).code == "unbounded_input"
    answer = {"functionResponse": {"name": "f", "response": {}, "parts": [IMAGES[7][1]]}}
    assert refused(G, {"contents": [{"parts": [answer]}]}).code == "unbounded_input"
    assert (
        refused(C, with_(C, messages=[{"role": "assistant", "audio": {"id": "a"}}])).code == "unbounded_input"
    )


def test_searches_at_the_provider_are_bounded_and_held_for_every_round() -> None:
    tool = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    plain = read(A, with_(A, tools=[{"name": "t"}]), SEEN)
    call = read(A, with_(A, tools=[tool]), SEEN)
    assert call.tools == {"web_search": 3} and sent(call, 9)["tools"] == [tool | {"max_uses": 3}]
    assert call.answers == 4 and call.input_bound > 4 * plain.input_bound + 6 * 5000
    unasked = read(A, with_(A, tools=[tool | {"max_uses": None}]), SEEN)
    assert sent(unasked, 9)["tools"][0]["max_uses"] == 3
    refused(A, with_(A, tools=[tool | {"max_uses": "1"}]), SEEN)
    refused(A, with_(A, tools=[tool, tool]), SEEN)
    assert (
        refused(A, with_(A, tools=[tool]), Allowances(tool_uses={"web_search": 3})).code == "unbounded_tool"
    )
    both = read(R, with_(R, tools=[{"type": "web_search"}, {"type": "file_search"}]), SEEN)
    assert both.tools == {"web_search": 2, "file_search": 2} and sent(both, 9)["max_tool_calls"] == 2
    fewer = read(R, with_(R, tools=[{"type": "web_search"}], max_tool_calls=1), SEEN)
    assert fewer.tools == {"web_search": 1} and fewer.answers == 2


def test_the_longest_cache_write_a_request_can_cause() -> None:
    def asked(mark: dict[str, Any]) -> CacheWrite:
        block = {"type": "text", "text": 'say "1h" or "cache_control"', "cache_control": mark}
        return read(A, with_(A, system=[block])).cache_write

    assert read(A, BODIES[A]).cache_write is CacheWrite.NONE
    assert asked({"type": "ephemeral"}) is CacheWrite.FIVE_MINUTES
    assert asked({"type": "ephemeral", "ttl": "1h"}) is CacheWrite.ONE_HOUR
    assert read(A, with_(A, cache_control={"type": "ephemeral"})).cache_write is CacheWrite.FIVE_MINUTES
    assert (
        read(A, with_(A, cache_control={"type": "ephemeral", "ttl": "1h"})).cache_write is CacheWrite.ONE_HOUR
    )
    assert read(C, BODIES[C]).cache_write is CacheWrite.FIVE_MINUTES, "written unasked"
    assert read(C, with_(C, prompt_cache_retention="24h")).cache_write is CacheWrite.ONE_HOUR
    assert read(R, with_(R, prompt_cache_options={"ttl": "12h"})).cache_write is CacheWrite.ONE_HOUR
    assert read(G, BODIES[G]).cache_write is CacheWrite.NONE


INSIDE = st.sampled_from(
    "type role content parts text source data image_url url tools inlineData mimeType".split()
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | INSIDE, inner, max_size=4)
    ),
    max_leaves=20,
)
FIELDS = st.sampled_from(
    (
        "model messages max_tokens max_completion_tokens max_output_tokens stream stream_options tools "
        "system thinking input contents generationConfig generation_config n best_of context_management "
        "tool_choice modalities speed service_tier truncation"
    ).split()
)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(Api), st.dictionaries(FIELDS, JSON, max_size=6))
def test_any_json_is_read_or_refused_and_a_bound_that_was_set_is_there(
    api: Api, fields: dict[str, Any]
) -> None:
    try:
        call = read(api, json.dumps(with_(api, **fields)).encode())
    except CallRefused as refusal:
        assert refusal.status == 400
        return
    document = sent(call, 77)
    bounds = {A: "max_tokens", R: "max_output_tokens"}
    if api in bounds:
        assert document[bounds[api]] == 77
    elif api is G:
        assert document["generationConfig"]["maxOutputTokens"] == 77
    else:
        assert {document[name] for name in ("max_tokens", "max_completion_tokens") if name in document} == {
            77
        }
    assert call.input_bound >= 512 and call.answers >= 1
