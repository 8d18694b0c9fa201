"""Owns a model that drives an agent by script: what it says, which tool it wants, what it says it used.
May touch nothing: a request in, a reply out, in the shape of the API that was asked.
Never decides by what was asked before: the conversation in the request says which turn it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scripted_upstream import (
    Asked,
    Document,
    Piece,
    Reply,
    Tokens,
    api_of,
    good,
    model_of,
    sse,
    stream,
    streams,
    whole,
)

PIECE = 7
"""Arguments of a streamed tool call come in pieces of so many characters."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: a text and, but for the last one, a tool. raw: for tools that take a text (Codex)."""

    say: str
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    raw: str = ""


@dataclass
class Playbook:
    """Serves the turns. A request without tools is a side question (a title, a summary) and gets `aside`.

    Every answer reports tokens of its own; reported lists them, which is what is to be charged.
    in_order: for a program without tools, whose conversation begins with answers nobody gave.
    """

    turns: Sequence[Turn]
    aside: str = "A small task"
    in_order: bool = False
    first_input: int = 1000
    reported: list[Tokens] = field(default_factory=list)
    tools: list[set[str]] = field(default_factory=list)

    def __call__(self, asked: Asked) -> Reply:
        if asked.method != "POST":
            return good(asked)
        offered = tools_of(asked)
        self.tools.append(offered)
        if self.in_order or offered:
            number = len(self.reported) if self.in_order else turn_of(asked)
            turn = self.turns[min(number, len(self.turns) - 1)]
        else:
            turn = Turn(self.aside)
        place = len(self.reported)
        tokens = Tokens(input=1000 + 7 * place if place else self.first_input, output=20 + 3 * place)
        self.reported.append(tokens)
        return answer(asked, turn, tokens, len(self.reported))

    def cost(self, input_nanos: int, output_nanos: int) -> int:
        """What all answers cost at these prices of one token."""
        return sum(one.input * input_nanos + one.output * output_nanos for one in self.reported)


def tools_of(asked: Asked) -> set[str]:
    """Names of the tools that a request offers, wherever it lists them."""
    document = asked.document
    items = document.get("input")
    lists = [document, *(item for item in items if isinstance(item, dict))] if items else [document]
    return {name for one in lists for name in _names(one.get("tools") or [])}


def _names(tools: Iterable[Document]) -> Iterable[str]:
    for tool in tools:
        for one in (tool, tool.get("function") or {}):
            yield from [one["name"]] if "name" in one else []
        yield from _names(tool.get("functionDeclarations") or tool.get("tools") or [])


def turn_of(asked: Asked) -> int:
    """How many answers of the model the conversation holds."""
    document, api = asked.document, api_of(asked)
    if api == "gemini":
        return sum(content.get("role") == "model" for content in document["contents"])
    if api == "openai-responses":
        kinds = [item.get("type") for item in document["input"] if isinstance(item, dict)]
        return sum(kind in ("function_call", "custom_tool_call") for kind in kinds)
    return sum(message["role"] == "assistant" for message in document["messages"])


def answer(asked: Asked, turn: Turn, tokens: Tokens, number: int) -> Reply:
    """number: of this answer among all, so that no two have one id. Claude Code joins those that do."""
    builders = {
        "anthropic-messages": _messages,
        "openai-chat": _chat,
        "openai-responses": _responses,
        "gemini": _gemini,
    }
    body, events = builders[api_of(asked)](model_of(asked), turn, tokens, number)
    return stream(events) if streams(asked) else Reply([json.dumps(body).encode()])


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def _messages(model: str, turn: Turn, tokens: Tokens, number: int) -> tuple[Document, Iterable[Piece]]:
    body = whole("anthropic-messages", model, [turn.say], tokens) | {"id": f"msg_{number:04}"}
    deltas = [[{"type": "text_delta", "text": text} for text in _pieces(turn.say)]]
    if turn.tool:
        use = {"type": "tool_use", "id": f"toolu_{number:04}", "name": turn.tool, "input": turn.arguments}
        body |= {"content": [*body["content"], use], "stop_reason": "tool_use"}
        texts = _pieces(json.dumps(turn.arguments))
        deltas.append([{"type": "input_json_delta", "partial_json": text} for text in texts])
    begun = {**body, "content": [], "stop_reason": None, "usage": {**body["usage"], "output_tokens": 1}}
    said: list[Document] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(body["content"]):
        empty: Document = {"input": {}} if block["type"] == "tool_use" else {"text": ""}
        said.append({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
        said += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas[index]]
        said.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    said.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": tokens.output}})
    said.append({"type": "message_stop"})
    return body, [sse(one, named=True) for one in said]


def _chat(model: str, turn: Turn, tokens: Tokens, number: int) -> tuple[Document, Iterable[Piece]]:
    body = whole("openai-chat", model, [turn.say], tokens) | {"id": f"c{number}"}
    deltas: list[Document] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": text} for text in _pieces(turn.say)]
    choice = body["choices"][0]
    if turn.tool:
        text = json.dumps(turn.arguments)
        function = {"name": turn.tool, "arguments": text}
        call = {"id": f"call_{number:04}", "type": "function", "function": function}
        choice["message"] |= {"tool_calls": [call]}
        choice["finish_reason"] = "tool_calls"
        deltas.append({"tool_calls": [{**call, "index": 0, "function": {**function, "arguments": ""}}]})
        pieces = [{"index": 0, "function": {"arguments": piece}} for piece in _pieces(text)]
        deltas += [{"tool_calls": [piece]} for piece in pieces]
    base = {"id": body["id"], "object": "chat.completion.chunk", "created": 1, "model": model}
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]})
    events = [sse({**base, "choices": [one], "usage": None}) for one in choices]
    events.append(sse({**base, "choices": [], "usage": body["usage"]}))
    return body, [*events, b"data: [DONE]\n\n"]


def _responses(model: str, turn: Turn, tokens: Tokens, number: int) -> tuple[Document, Iterable[Piece]]:
    body = whole("openai-responses", model, [turn.say], tokens) | {"id": f"r{number}"}
    message = body["output"][0]
    message["id"] = f"m{number}"
    at: Document = {"item_id": message["id"], "output_index": 0}
    inside: Document = {**at, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": []}
    said: list[Document] = [
        {"type": "response.created", "response": {**body, "output": [], "usage": None}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**message, "content": []}},
        {"type": "response.content_part.added", **inside, "part": empty},
        *({"type": "response.output_text.delta", **inside, "delta": text} for text in _pieces(turn.say)),
        {"type": "response.output_text.done", **inside, "text": turn.say},
        {"type": "response.content_part.done", **inside, "part": message["content"][0]},
        {"type": "response.output_item.done", "output_index": 0, "item": message},
    ]
    if turn.tool:
        kind, name, event, text = "function_call", "arguments", "function_call_arguments", turn.raw
        if turn.raw:
            kind, name, event = "custom_tool_call", "input", "custom_tool_call_input"
        else:
            text = json.dumps(turn.arguments)
        item: Document = {"type": kind, "id": f"fc_{number:04}", "call_id": f"call_{number:04}"}
        item |= {"name": turn.tool, "status": "completed", name: text}
        at = {"item_id": item["id"], "output_index": 1}
        body["output"].append(item)
        said += [
            {"type": "response.output_item.added", "output_index": 1, "item": {**item, name: ""}},
            *({"type": f"response.{event}.delta", **at, "delta": piece} for piece in _pieces(text)),
            {"type": f"response.{event}.done", **at, "name": turn.tool, name: text},
            {"type": "response.output_item.done", "output_index": 1, "item": item},
        ]
    said.append({"type": "response.completed", "response": body})
    return body, [sse({**one, "sequence_number": place}, named=True) for place, one in enumerate(said)]


def _gemini(model: str, turn: Turn, tokens: Tokens, number: int) -> tuple[Document, Iterable[Piece]]:
    body = whole("gemini", model, [turn.say], tokens) | {"responseId": f"g{number}"}
    parts: list[Document] = body["candidates"][0]["content"]["parts"]
    chunks: list[list[Document]] = [[{"text": text}] for text in _pieces(turn.say)]
    if turn.tool:
        parts.append({"functionCall": {"name": turn.tool, "args": turn.arguments}})
        chunks.append(parts[1:])
    events = []
    for place, chunk in enumerate(chunks):
        last = place == len(chunks) - 1
        candidate = {"index": 0, "content": {"role": "model", "parts": chunk}}
        candidate |= {"finishReason": "STOP"} if last else {}
        usage = {"usageMetadata": body["usageMetadata"]} if last else {}
        events.append(sse({"candidates": [candidate], "modelVersion": model, **usage}))
    return body, events
