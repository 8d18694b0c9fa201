"""Owns reading the usage of answers of OpenAI's Chat Completions API and of servers that speak it.
May touch nothing: bytes of one answer in, its usage out.
Never charges a cached token twice: cached ones are inside the prompt's count.
"""

from __future__ import annotations

import re
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

DEARER_TIERS = frozenset({"priority", "fast", "scale"})
"""Billed at other rates than the table's (openai 3.57.0, types/chat/chat_completion.py)."""

_THINKS_UNASKED = re.compile(
    r"(?:^|[/:.])(?:o\d|gpt-[5-9]|gpt-oss|codex|grok-(?:3-mini|[4-9]|code)|gemini-(?:2\.5|[3-9]|.*latest)"
    r"|deepseek[-.](?:r|v4)|glm-(?:4\.[5-9]|[5-9])|qwen-?3|kimi-k2|minimax-m)|reason|think|magistral|qwq|auto$",
    re.IGNORECASE,
)
_ALWAYS_THINKS = re.compile(
    r"(?:^|[/:.])(?:o\d|gpt-oss|gemini-2\.5-pro|deepseek[-.]r)|reasoner", re.IGNORECASE
)
"""These cannot be told not to: "none" is refused there, or taken for the least."""
_ASKS = ("thinking", "enable_thinking", "chat_template_kwargs", "extra_body")
"""Other servers' names for asking (their API references, 2026)."""
"""Families whose default is to think (their makers' model pages, 2026). One too many costs the bound of an
answer that was cut; one too few gives its thinking away."""

_OF_A_USAGE_CHUNK = frozenset(
    {
        "id",
        "object",
        "created",
        "model",
        "choices",
        "usage",
        "service_tier",
        "system_fingerprint",
        "obfuscation",
    }
)


class OpenAIChatUsage:
    """Usage comes once, in a chunk without choices; vLLM can put a running total on every chunk.

    Figures are of openai-python, types/completion_usage.py.
    """

    def __init__(self, call: ModelCall) -> None:
        self._call = call
        self._model = ""
        self._usage: TokenUsage | None = None
        self._output_bytes = 0
        self._spoiled = False
        self._finished: set[object] = set()
        self._done = False

    def event(self, data: bytes) -> bool:
        if data.strip() == b"[DONE]":
            self._done = True
            return True
        chunk = mapping(decode(data))
        self._model = name_of(chunk.get("model")) or self._model
        choices = chunk.get("choices")
        for choice in objects(choices):
            self._output_bytes += text_bytes(choice.get("delta")) + text_bytes(choice.get("text"))
            if choice.get("finish_reason") is not None:
                self._finished.add(str(choice.get("index")))
        reports = chunk.get("usage") is not None
        if reports or data.count(b'"usage"') > 1:
            self._take(data, chunk)
        return not (
            reports
            and self._call.hides_usage
            and choices == []
            and all(value is None or name in _OF_A_USAGE_CHUNK for name, value in chunk.items())
        )

    def body(self, data: bytes) -> None:
        answer = mapping(decode(data))
        self._model = name_of(answer.get("model"))
        for choice in objects(answer.get("choices")):
            self._output_bytes += text_bytes(choice.get("message")) + text_bytes(choice.get("text"))
            self._done = True
        self._take(data, answer)

    def reported(self) -> Reported:
        complete = self._done or (len(self._finished) >= self._call.answers and self._usage is not None)
        usage = None if self._spoiled else self._usage
        if usage is not None and complete and self._output_bytes and usage.output == 0:
            usage = None
        return Reported(
            usage=usage,
            complete=complete,
            model=self._model,
            input_known=usage is not None,
            output_bytes=self._output_bytes,
            unseen=may_think(self._call),
        )

    def _take(self, data: bytes, chunk: dict[str, Any]) -> None:
        try:
            refuse_duplicates(data)
            figures = table(chunk, "usage")
            if figures:
                usage = chat_usage(self._call, figures)
                if chunk.get("service_tier") in DEARER_TIERS:
                    raise Unusable("the rate of that service tier is not known")
                if self._usage is None or usage.total >= self._usage.total:
                    self._usage = usage
        except Unusable:
            self._spoiled = True


def may_think(call: ModelCall) -> bool:
    """Asked to, or a model that does so unasked and was not told "none"."""
    if thinks(call, "reasoning_effort") or thinks(call, "reasoning") or any(map(call.document.get, _ASKS)):
        return True
    told = call.document.get("reasoning_effort") is not None
    return bool(_ALWAYS_THINKS.search(call.model)) or (not told and bool(_THINKS_UNASKED.search(call.model)))


def thinks(call: ModelCall, name: str) -> bool:
    """Does the request ask for thinking, of which at most a summary is shown?"""
    value = call.document.get(name)
    effort = value.get("effort", "medium") if isinstance(value, dict) else value
    return effort not in (None, "none")


def chat_usage(call: ModelCall, figures: dict[str, Any]) -> TokenUsage:
    """Disjoint classes of prompt_tokens and completion_tokens. Raises Unusable.

    total_tokens above the sum of the two is output: xAI and Google's compatible endpoint leave the
    reasoning out of completion_tokens. Audio has rates of its own, so it is not believed here.
    """
    prompt, completion = count(figures, "prompt_tokens"), count(figures, "completion_tokens")
    if not prompt or completion is None:
        raise Unusable("prompt_tokens or completion_tokens is missing")
    details = table(figures, "prompt_tokens_details")
    written = table(figures, "completion_tokens_details")
    if count(details, "audio_tokens") or count(written, "audio_tokens"):
        raise Unusable("audio is not priced")
    cached = count(details, "cached_tokens")
    if cached is None:
        cached = count(figures, "prompt_cache_hit_tokens") or 0
    writes = count(details, "cache_write_tokens") or 0
    short, long = split_writes(call, writes, 0, 0)
    output = max(completion, (count(figures, "total_tokens") or 0) - prompt)
    reasoning = count(written, "reasoning_tokens") or 0
    if cached + writes > prompt or reasoning > output:
        raise Unusable("a part is larger than its whole")
    return TokenUsage(
        input=prompt - cached - writes,
        cache_read=cached,
        cache_write_5m=short,
        cache_write_1h=long,
        output=output,
        reasoning=reasoning,
    )
