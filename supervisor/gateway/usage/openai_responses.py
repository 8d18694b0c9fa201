"""Owns reading the usage of answers of OpenAI's Responses API.
May touch nothing: bytes of one answer in, its usage out.
Never believes an event but the last: until then usage is null.
"""

from __future__ import annotations

from collections import Counter
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
from supervisor.gateway.usage.openai_chat import DEARER_TIERS, thinks
from supervisor.limits.usage import TokenUsage

_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})
_BILLED_BY_USE = {"web_search_call": "web_search", "file_search_call": "file_search"}


class OpenAIResponsesUsage:
    """Usage is in the response object of the last event, whether it completed, was cut or failed.

    Figures are of openai-python, types/responses/response_usage.py: cached and written tokens are
    inside input_tokens, reasoning inside output_tokens.
    """

    def __init__(self, call: ModelCall) -> None:
        self._call = call
        self._model = ""
        self._usage: TokenUsage | None = None
        self._output_bytes = 0
        self._spoiled = False
        self._thinks = False
        self._complete = False

    def event(self, data: bytes) -> bool:
        event = mapping(decode(data))
        kind = event.get("type")
        if not isinstance(kind, str):
            return True
        if kind.endswith(".delta"):
            self._output_bytes += text_bytes(event.get("delta"))
            return True
        response = event.get("response")
        if isinstance(response, dict):
            self._model = name_of(response.get("model")) or self._model
            # Models that think unasked say so from the first event on.
            self._thinks |= mapping(response.get("reasoning")).get("effort") not in (None, "none")
            if kind in _LAST:
                self._take(data, response)
                self._complete = kind != "response.failed" or self._usage is not None
        return True

    def body(self, data: bytes) -> None:
        response = mapping(decode(data))
        self._model = name_of(response.get("model"))
        self._output_bytes = text_bytes(response.get("output"))
        self._take(data, response)
        self._complete = response.get("status") in ("completed", "incomplete") or self._usage is not None

    def reported(self) -> Reported:
        usage = None if self._spoiled else self._usage
        if usage is not None and self._output_bytes and usage.output == 0:
            usage = None
        return Reported(
            usage=usage,
            complete=self._complete,
            model=self._model,
            input_known=usage is not None,
            output_bytes=self._output_bytes,
            unseen=self._thinks or thinks(self._call, "reasoning"),
        )

    def _take(self, data: bytes, response: dict[str, Any]) -> None:
        try:
            refuse_duplicates(data)
            figures = table(response, "usage")
            if figures:
                if response.get("service_tier") in DEARER_TIERS:
                    raise Unusable("the rate of that service tier is not known")
                self._usage = self._disjoint(figures, response)
        except Unusable:
            self._spoiled = True

    def _disjoint(self, figures: dict[str, Any], response: dict[str, Any]) -> TokenUsage:
        read, output = count(figures, "input_tokens"), count(figures, "output_tokens")
        if not read or output is None:
            raise Unusable("input_tokens or output_tokens is missing")
        details = table(figures, "input_tokens_details")
        cached = count(details, "cached_tokens") or 0
        writes = count(details, "cache_write_tokens") or 0
        lifetimes = table(details, "cache_write_tokens_details")
        short, long = split_writes(
            self._call,
            writes,
            count(lifetimes, "ttl_30m_tokens") or 0,
            count(lifetimes, "ttl_12h_tokens") or 0,
        )
        output = max(output, (count(figures, "total_tokens") or 0) - read)
        reasoning = count(table(figures, "output_tokens_details"), "reasoning_tokens") or 0
        if cached + short + long > read or reasoning > output:
            raise Unusable("a part is larger than its whole")
        used = Counter(
            _BILLED_BY_USE[kind]
            for item in objects(response.get("output"))
            if isinstance(kind := item.get("type"), str) and kind in _BILLED_BY_USE
        )
        return TokenUsage(
            input=read - cached - short - long,
            cache_read=cached,
            cache_write_5m=short,
            cache_write_1h=long,
            output=output,
            reasoning=reasoning,
            tools=dict(used),
        )
