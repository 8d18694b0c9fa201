"""Owns answers of providers as their references show them, for the tests of the readers.
May touch nothing.
Never abridges a field that a reader looks at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from supervisor.gateway.calls import Api, ModelCall, Reported
from supervisor.gateway.sse import SseSplitter
from supervisor.gateway.usage.readers import reader_for
from supervisor.limits.pricing import CacheWrite


def call(
    api: Api, *, hides_usage: bool = False, answers: int = 1, cache_write: CacheWrite = CacheWrite.NONE
) -> ModelCall:
    return ModelCall(
        api=api,
        model="m",
        stream=True,
        input_bound=1,
        output_asked=None,
        output_least=1,
        answers=answers,
        hides_usage=hides_usage,
        cache_write=cache_write,
    )


def sse(*events: Any, named: bool = False) -> bytes:
    """Events as a server writes them; a string is data as it is."""
    lines = []
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        lines.append((f"event: {event['type']}\n" if named else "") + f"data: {data}\n\n")
    return "".join(lines).encode()


def read_stream(asked: ModelCall, chunks: Iterable[bytes]) -> tuple[Reported, bytes]:
    """What the reader reports, and what the client sees."""
    reader, splitter, seen = reader_for(asked), SseSplitter(), b""
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    for event in [*events, *splitter.close()]:
        if event.data is None or reader.event(event.data):
            seen += event.raw
    return reader.reported(), seen


def read_body(asked: ModelCall, body: Any) -> Reported:
    reader = reader_for(asked)
    reader.body(body if isinstance(body, bytes) else json.dumps(body).encode())
    return reader.reported()


def anthropic_stream(
    start: dict[str, Any] | None, *deltas: dict[str, Any] | None, stop: bool = True, text: str = "Hello wörld"
) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x"}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message | ({} if start is None else {"usage": start})},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
    ]
    for index, usage in enumerate(deltas):
        reason = "end_turn" if index == len(deltas) - 1 else None
        event = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}}
        events.append(event | ({} if usage is None else {"usage": usage}))
    return [*events, {"type": "message_stop"}] if stop else events


def chat_chunk(**fields: Any) -> dict[str, Any]:
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x"}
    return base | fields


def chat_delta(text: str = "", finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish, "logprobs": None}
    return chat_chunk(choices=[choice], **fields)


CHAT_USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 50,
    "total_tokens": 1050,
    "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 100, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 20, "rejected_prediction_tokens": 5},
}
