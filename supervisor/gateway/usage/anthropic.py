"""Owns reading the usage of answers of Anthropic's Messages API.
May touch nothing: bytes of one answer in, its usage out.
Never adds two reports of one call: they are running totals.
"""

from __future__ import annotations

from typing import Any

from supervisor.gateway.calls import ModelCall, Reported
from supervisor.gateway.usage.figures import (
    Unusable,
    count,
    decode,
    mapping,
    name_of,
    objects,
    refuse_duplicates,
    split_writes,
    table,
    text_bytes,
)
from supervisor.limits.usage import TokenUsage

_INPUT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
MOST_TOOLS = 32
_LIFETIMES = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
_ADDITIONAL = ("compaction", "advisor_message")
"""Kinds of iterations that the totals do not contain (anthropic 2.14.0, types/beta/beta_usage.py)."""


class AnthropicUsage:
    """message_start has the input and its cache split, message_delta running totals without the split.

    Figures are of anthropic-sdk-python, types/usage.py and types/message_delta_usage.py: input_tokens
    is without cache; thinking is inside output_tokens.
    """

    def __init__(self, call: ModelCall) -> None:
        self._call = call
        self._model = ""
        self._most: dict[str, int] = {}
        self._tools: dict[str, int] = {}
        self._additional: list[dict[str, Any]] = []
        self._output_bytes = 0
        self._spoiled = False
        self._final = False
        self._complete = False

    def event(self, data: bytes) -> bool:
        event = mapping(decode(data))
        kind = event.get("type")
        if kind == "content_block_delta":
            self._output_bytes += text_bytes(event.get("delta"))
        elif kind == "content_block_start":
            self._output_bytes += text_bytes(event.get("content_block"))
        elif kind == "message_start":
            message = mapping(event.get("message"))
            self._model = name_of(message.get("model")) or self._model
            self._take(data, message, final=False)
        elif kind == "message_delta":
            ended = mapping(event.get("delta")).get("stop_reason") is not None
            self._take(data, event, final=True)
            self._complete |= ended and self._final
        elif kind == "message_stop":
            self._complete = True
        return True

    def body(self, data: bytes) -> None:
        message = mapping(decode(data))
        self._model = name_of(message.get("model"))
        self._output_bytes = text_bytes(message.get("content"))
        self._take(data, message, final=True)
        self._complete = message.get("type") == "message"

    def reported(self) -> Reported:
        usage = self._usage()
        return Reported(
            usage=usage,
            complete=self._complete,
            model=self._model,
            input_known=usage is not None,
            output_bytes=self._output_bytes,
            # Of thinking a summary is streamed, or nothing, and all of it is billed.
            unseen=mapping(self._call.document.get("thinking")).get("type") not in (None, "disabled"),
        )

    def _take(self, data: bytes, holder: dict[str, Any], *, final: bool) -> None:
        """Keeps the largest of each figure: what a later report leaves out stays as it was."""
        try:
            refuse_duplicates(data)
            usage = table(holder, "usage")
            for name in (*_INPUT, "output_tokens"):
                self._keep(name, count(usage, name))
            split = table(usage, "cache_creation")
            for name in _LIFETIMES:
                self._keep(name, count(split, name))
            self._keep("thinking_tokens", count(table(usage, "output_tokens_details"), "thinking_tokens"))
            used = table(usage, "server_tool_use")
            if len(used) > MOST_TOOLS:
                raise Unusable("that many tools were not asked for")
            for name in used:
                if not name_of(name):
                    raise Unusable("a tool has no name that can be written down")
                tool = name.removesuffix("_requests")
                self._tools[tool] = max(self._tools.get(tool, 0), count(used, name) or 0)
            iterations = usage.get("iterations")
            if iterations is not None:
                if not isinstance(iterations, list):
                    raise Unusable("iterations is no list")
                self._additional = [one for one in objects(iterations) if one.get("type") in _ADDITIONAL]
            self._final |= final and usage.get("output_tokens") is not None
        except Unusable:
            self._spoiled = True

    def _keep(self, name: str, value: int | None) -> None:
        if value is not None:
            self._most[name] = max(value, self._most.get(name, 0))

    def _usage(self) -> TokenUsage | None:
        if self._spoiled or "input_tokens" not in self._most or (self._complete and not self._final):
            return None
        try:
            usage = self._disjoint(self._most)
            for entry in self._additional:
                split = table(entry, "cache_creation")
                figures = {name: count(entry, name) for name in (*_INPUT, "output_tokens")}
                figures |= {name: count(split, name) for name in _LIFETIMES}
                usage = _sum(usage, self._disjoint({n: v for n, v in figures.items() if v is not None}))
        except Unusable:
            return None
        wrote_unseen = self._complete and self._output_bytes > 0 and usage.output == 0
        return None if usage.total_input == 0 or wrote_unseen else usage

    def _disjoint(self, figures: dict[str, int]) -> TokenUsage:
        short, long = split_writes(
            self._call,
            figures.get("cache_creation_input_tokens", 0),
            figures.get("ephemeral_5m_input_tokens", 0),
            figures.get("ephemeral_1h_input_tokens", 0),
        )
        output = figures.get("output_tokens", 0)
        return TokenUsage(
            input=figures.get("input_tokens", 0),
            cache_read=figures.get("cache_read_input_tokens", 0),
            cache_write_5m=short,
            cache_write_1h=long,
            output=output,
            reasoning=min(output, figures.get("thinking_tokens", 0)),
            tools={name: uses for name, uses in self._tools.items() if uses},
        )


def _sum(usage: TokenUsage, more: TokenUsage) -> TokenUsage:
    return TokenUsage(
        input=usage.input + more.input,
        cache_read=usage.cache_read + more.cache_read,
        cache_write_5m=usage.cache_write_5m + more.cache_write_5m,
        cache_write_1h=usage.cache_write_1h + more.cache_write_1h,
        output=usage.output + more.output,
        reasoning=usage.reasoning,
        tools=usage.tools,
    )
