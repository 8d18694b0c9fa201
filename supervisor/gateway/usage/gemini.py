"""Owns reading the usage of answers of Gemini's generateContent, streamed or not.
May touch nothing: bytes of one answer in, its usage out.
Never forgets the thoughts: they are outside the candidates' count.
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
    table,
    text_bytes,
)
from supervisor.limits.usage import TokenUsage


class GeminiUsage:
    """Chunks carry running totals, so the largest counts. A stream without alt=sse is one JSON array.

    Figures are of googleapis/python-genai, types.py: cachedContentTokenCount is inside
    promptTokenCount, toolUsePromptTokenCount outside it, thoughtsTokenCount outside
    candidatesTokenCount, and totalTokenCount is the sum of the four that are outside one another.
    """

    def __init__(self, call: ModelCall) -> None:
        self._call = call
        self._model = ""
        self._usage: TokenUsage | None = None
        self._output_bytes = 0
        self._spoiled = False
        self._finished: set[str] = set()
        self._blocked = False

    def event(self, data: bytes) -> bool:
        self._check(data)
        self._chunk(mapping(decode(data)))
        return True

    def body(self, data: bytes) -> None:
        self._check(data)
        answer = decode(data)
        for chunk in objects(answer) if isinstance(answer, list) else [mapping(answer)]:
            self._chunk(chunk)

    def reported(self) -> Reported:
        usage = None if self._spoiled else self._usage
        complete = self._blocked or len(self._finished) >= self._call.answers
        if usage is not None and complete and self._output_bytes and usage.output == 0:
            usage = None
        return Reported(
            usage=usage,
            complete=complete,
            model=self._model,
            input_known=usage is not None,
            output_bytes=self._output_bytes,
        )

    def _check(self, data: bytes) -> None:
        try:
            refuse_duplicates(data)
        except Unusable:
            self._spoiled = True

    def _chunk(self, chunk: dict[str, Any]) -> None:
        self._model = name_of(chunk.get("modelVersion")) or self._model
        for candidate in objects(chunk.get("candidates")):
            self._output_bytes += text_bytes(mapping(candidate.get("content")).get("parts"))
            if candidate.get("finishReason") is not None:
                self._finished.add(str(candidate.get("index") or 0))
            if mapping(candidate.get("groundingMetadata")).get("webSearchQueries"):
                # Searches are billed by use and cannot be bounded beforehand; the request allows none.
                self._spoiled = True
        self._blocked |= mapping(chunk.get("promptFeedback")).get("blockReason") is not None
        try:
            figures = table(chunk, "usageMetadata")
            if figures:
                usage = _disjoint(figures)
                if self._usage is None or usage.total >= self._usage.total:
                    self._usage = usage
        except Unusable:
            self._spoiled = True


def _disjoint(figures: dict[str, Any]) -> TokenUsage:
    prompt = count(figures, "promptTokenCount")
    candidates, thoughts = count(figures, "candidatesTokenCount"), count(figures, "thoughtsTokenCount")
    total = count(figures, "totalTokenCount")
    if not prompt or (candidates is None and thoughts is None and total is None):
        raise Unusable("promptTokenCount, or every figure of the output, is missing")
    for name in ("promptTokensDetails", "candidatesTokensDetails"):
        for detail in objects(figures.get(name)):
            dearer = ("AUDIO",) if name.startswith("prompt") else ("AUDIO", "IMAGE", "VIDEO")
            if detail.get("modality") in dearer and count(detail, "tokenCount"):
                raise Unusable("what is neither read nor written as text is not priced")
    tool_prompt = count(figures, "toolUsePromptTokenCount") or 0
    cached = count(figures, "cachedContentTokenCount") or 0
    output = max((candidates or 0) + (thoughts or 0), (total or 0) - prompt - tool_prompt)
    if cached > prompt:
        raise Unusable("a part is larger than its whole")
    return TokenUsage(
        input=prompt - cached + tool_prompt,
        cache_read=cached,
        output=output,
        reasoning=thoughts or 0,
    )
