"""Owns reading figures from an answer: what may be believed, and what may not.
May touch nothing: bytes and decoded JSON in, whole numbers out.
Never takes what is absent for zero, and never repairs what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from supervisor.gateway.calls import ModelCall
from supervisor.gateway.strict import has_more_values
from supervisor.limits.pricing import CacheWrite

MAX_VALUES = 1 << 20
"""Of one answer or event. The log probabilities of a long one are less; what is above is not read at all."""
MAX_TOKENS = 10**9
"""More than this in one call is no count of tokens."""

_FIGURES = frozenset(
    "usage usageMetadata usage_metadata message response input_tokens output_tokens prompt_tokens "
    "completion_tokens total_tokens cache_read_input_tokens cache_creation_input_tokens cache_creation "
    "ephemeral_5m_input_tokens ephemeral_1h_input_tokens iterations server_tool_use web_search_requests "
    "web_fetch_requests prompt_tokens_details completion_tokens_details input_tokens_details "
    "output_tokens_details cached_tokens cache_write_tokens cache_write_tokens_details reasoning_tokens "
    "promptTokenCount candidatesTokenCount thoughtsTokenCount toolUsePromptTokenCount totalTokenCount "
    "cachedContentTokenCount".split()
)
_NAMES = frozenset("id type role index object name status call_id item_id".split())


class Unusable(Exception):
    """The answer says something about its usage that cannot be believed."""


def decode(data: bytes) -> Any:
    """JSON as it comes; None for what is none. Never raises, whatever the bytes are."""
    if has_more_values(data, MAX_VALUES):
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        pass
    # A server that cuts a surrogate pair in two writes what only the lenient reader takes.
    try:
        return json.loads(data)
    except (RecursionError, ValueError):
        return None


def refuse_duplicates(data: bytes) -> None:
    """Raises Unusable when a name that matters is twice in one object: parsers differ in which they take."""
    if has_more_values(data, MAX_VALUES):
        raise Unusable("there is too much around the usage")
    try:
        json.loads(data, object_pairs_hook=_pairs)
    except (RecursionError, ValueError):
        raise Unusable("the usage cannot be read") from None


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen and name in _FIGURES:
                raise Unusable(f"{name} is given twice")
            seen.add(name)
    return found


def count(source: Mapping[str, Any], name: str) -> int | None:
    """A number of tokens; None when it is absent or null. A whole float is one. Raises Unusable."""
    value = source.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise Unusable(f"{name} is {str(value)[:40]}")
    return value


def table(source: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object inside; an empty one when it is absent or null. Raises Unusable for anything else."""
    value = source.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unusable(f"{name} is no object")
    return value


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one: for parts that hold no figures."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> Iterable[dict[str, Any]]:
    """The objects of a list; nothing when it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def name_of(value: Any) -> str:
    """A model's name, "" when there is none. It is stored and shown: half a character can be neither."""
    return value if isinstance(value, str) and len(value) <= 256 and value.isprintable() else ""


def text_bytes(value: Any) -> int:
    """UTF-8 bytes of all text inside, but for names of things and kinds."""
    total = 0
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            total += len(item) if item.isascii() else len(item.encode("utf-8", "surrogatepass"))
        elif isinstance(item, dict):
            left.extend(inner for name, inner in item.items() if name not in _NAMES)
        elif isinstance(item, list):
            left.extend(item)
    return total


def split_writes(call: ModelCall, total: int, short: int, long: int) -> tuple[int, int]:
    """Cache writes by lifetime, short and long. What is in neither had the longest the request asked for.

    A request that asked for none, or does not say, is charged for the long one.
    """
    rest = max(0, total - short - long)
    if call.cache_write is CacheWrite.FIVE_MINUTES:
        return short + rest, long
    return short, long + rest
