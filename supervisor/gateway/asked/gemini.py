"""Owns reading requests to Gemini's generateContent, and setting their output bound.
May touch nothing.
Never misses a field for its spelling: the API takes maxOutputTokens and max_output_tokens.
"""

from __future__ import annotations

import re
from typing import Any

from supervisor.gateway.asked.common import Allowances, Asked, Inputs, refuse_media, refuse_tier
from supervisor.gateway.bounds import SLACK_TOOLS, Part, part_of, without
from supervisor.gateway.strict import (
    bad_request,
    listed,
    member,
    nested,
    not_metered,
    refuse_given,
    whole_number,
)
from supervisor.limits.pricing import CacheWrite

MAX_ANSWERS = 8
LEAST_THINKING = 512
"""The largest of the models' least thinkingBudget."""
LEAST_WITH_THINKING = LEAST_THINKING + 256

_TOP = (
    "contents systemInstruction tools toolConfig safetySettings generationConfig cachedContent "
    "serviceTier".split()
)
_CONFIG = (
    "maxOutputTokens candidateCount thinkingConfig responseModalities speechConfig imageConfig routingConfig "
    "modelSelectionConfig modelConfig translationConfig audioTranscriptionConfig mediaResolution".split()
)
_REFUSED = {
    "cachedContent": "its tokens are stored at the provider",
    "speechConfig": "audio has rates of its own",
    "imageConfig": "images have rates of their own",
    "translationConfig": "audio has rates of its own",
    "audioTranscriptionConfig": "audio has rates of its own",
    "routingConfig": "another model could answer",
    "modelSelectionConfig": "another model could answer",
    "modelConfig": "another model could answer",
}
_NOT_READ = frozenset({"contents", "safetySettings", "labels"})
_SAMPLING = frozenset(
    "maxOutputTokens candidateCount temperature topP topK top_p top_k seed stopSequences "
    "stop_sequences".split()
)
_PART_FIELDS = (
    "text thought thoughtSignature functionCall functionResponse inlineData fileData executableCode "
    "codeExecutionResult partMetadata mediaResolution".split()
)
_SNAKE = re.compile("(?<=[a-z])[A-Z]")
_IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif", "image/gif"})


def read(document: dict[str, Any], allow: Allowances, model: str, stream: bool) -> Asked:
    """Raises CallRefused. Fields are of googleapis/python-genai, types.py; model and stream of the path."""
    document = _one_spelling(document, _TOP)
    config = _one_spelling(nested(document, "generationConfig"), _CONFIG)
    thinking = _one_spelling(nested(config, "thinkingConfig"), ["thinkingBudget", "thinkingLevel"])
    refuse_given(document, _REFUSED, "not_metered")
    refuse_given(config, _REFUSED, "not_metered")
    tier = document.get("serviceTier")
    lowered = tier.lower() if isinstance(tier, str) else tier
    refuse_tier(lowered, frozenset({None, "unspecified", "standard", "flex"}), "serviceTier")
    if any(kind not in ("TEXT", "text") for kind in listed(config, "responseModalities")):
        raise not_metered(
            "not_metered", "modalities other than text are not forwarded: they have other rates"
        )
    asked = whole_number(config, "maxOutputTokens", 1)
    answers = whole_number(config, "candidateCount", 1, MAX_ANSWERS) or 1
    budget = whole_number(thinking, "thinkingBudget", -1)
    tools = listed(document, "tools")
    for tool in tools:
        _own_tool(_one_spelling(member(tool, "tools"), ["functionDeclarations"]))
    if thinking:
        config["thinkingConfig"] = thinking
    if config:
        document["generationConfig"] = config
    head = part_of(
        without(document, _NOT_READ)
        | {"generationConfig": without(config, _SAMPLING)}
        | {"systemInstruction": _instruction(document.get("systemInstruction"))}
    )
    contents = [_content(member(one, "contents"), allow) for one in listed(document, "contents")]
    return Asked(
        document=document,
        model=model,
        stream=stream,
        head=head,
        messages=contents,
        output_asked=asked,
        output_least=LEAST_WITH_THINKING if budget is not None and budget > 0 else 1,
        answers=answers,
        cache_write=CacheWrite.NONE,
        slack=SLACK_TOOLS if tools else 0,
    )


def bound_output(document: dict[str, Any], tokens: int) -> None:
    """Sets maxOutputTokens; a thinkingBudget above it is lowered to it, since it is spent from it."""
    config = dict(nested(document, "generationConfig"))
    config["maxOutputTokens"] = tokens
    thinking = nested(config, "thinkingConfig")
    budget = whole_number(thinking, "thinkingBudget", -1)
    if budget is not None and budget > max(tokens, LEAST_THINKING):
        config["thinkingConfig"] = thinking | {"thinkingBudget": max(tokens, LEAST_THINKING)}
    document["generationConfig"] = config


def _one_spelling(source: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """A copy with those fields in one spelling. Refuses (400) both at once: which counts is not certain."""
    found = dict(source)
    for name in names:
        other = _SNAKE.sub(lambda match: "_" + match[0].lower(), name)
        if other != name and other in found:
            if name in found:
                raise bad_request(f"{name} is given in two spellings")
            found[name] = found.pop(other)
    return found


def _own_tool(tool: dict[str, Any]) -> None:
    for name, value in tool.items():
        if name != "functionDeclarations" and value is not None:
            raise not_metered(
                "unbounded_tool", f"the tool {name[:40]!r} is not forwarded: its uses cannot be bounded"
            )


def _instruction(value: object) -> object:
    """A system instruction is text alone."""
    if isinstance(value, dict):
        for part in listed(value, "parts"):
            if set(member(part, "parts")) - {"text"}:
                raise bad_request("systemInstruction must be text")
    elif value is not None and not isinstance(value, str):
        raise bad_request("systemInstruction must be an object")
    return value


def _content(content: dict[str, Any], allow: Allowances) -> Part:
    inputs = Inputs(allow)
    for part in listed(content, "parts"):
        _part(_one_spelling(member(part, "parts"), _PART_FIELDS), inputs)
    return part_of(content, more=inputs.more, opaque=inputs.opaque)


def _part(part: dict[str, Any], inputs: Inputs) -> None:
    for name, value in part.items():
        if name not in _PART_FIELDS and value is not None:
            refuse_media(f"a part with {name[:40]!r}")
    if part.get("inlineData") is not None or part.get("fileData") is not None:
        _media(part, inputs)
    response = nested(part, "functionResponse")
    for inner in listed(response, "parts"):
        _part(_one_spelling(member(inner, "parts"), _PART_FIELDS), inputs)


def _media(part: dict[str, Any], inputs: Inputs) -> None:
    """An image or a document by its type; sound and film are refused."""
    for name in ("inlineData", "fileData"):
        if part.get(name) is None:
            continue
        media = _one_spelling(nested(part, name), ["mimeType"])
        given = media.get("mimeType")
        kind = given if isinstance(given, str) else ""
        data = media.get("data") if name == "inlineData" else None
        if kind in _IMAGES:
            inputs.image(data)
        elif kind == "application/pdf" or (name == "fileData" and kind.startswith("text/")):
            inputs.document(data)
        elif name != "inlineData" or not kind.startswith("text/"):
            refuse_media(f"input of type {kind[:40]!r}")
