"""Owns the strict reading of a request's JSON: what is read here is what every other reader would read.
May touch nothing: bytes in, objects out.
Never lets a body pass that two parsers could read differently.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from supervisor.gateway.calls import CallRefused

MAX_DEPTH = 128
MAX_VALUES = 1 << 17
"""A request of ten thousand messages has less. Each costs thirty times its bytes."""
VALUE_BYTES = 72
"""What the smallest object or list takes in memory, with the place where it is kept."""

_OPENING = (b",", b"[", b"{")
"""Every value but the first stands behind one of these."""
# Always matches up to the end, so that a text that is never closed is not looked through again and again.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?', re.DOTALL)


def bad_request(message: str) -> CallRefused:
    """The request is malformed."""
    return CallRefused(400, "invalid_request", message)


def not_metered(code: str, message: str) -> CallRefused:
    """The request is well formed, and asks for what cannot be bounded or is not priced."""
    return CallRefused(400, code, message)


def read_object(body: bytes) -> dict[str, Any]:
    """The one JSON object of a body: UTF-8, no name twice, no NaN, numbers that fit, depth to MAX_DEPTH.

    Raises CallRefused (400).
    """
    if has_more_values(body, MAX_VALUES):
        raise bad_request(f"the body holds more than {MAX_VALUES} values")
    try:
        document = _decoder.decode(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise bad_request("the body is not UTF-8") from None
    except RecursionError:
        raise bad_request(f"the body is nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {str(error)[:120]}") from None
    if type(document) is not dict:
        raise bad_request("the body is not a JSON object")
    # A body of fewer brackets than that cannot be deeper.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        _bound_depth(document)
    return document


def values_at_most(data: bytes | bytearray) -> int:
    """A bound of how many values a JSON text holds: what stands inside its strings is counted too."""
    return 1 + sum(data.count(mark) for mark in _OPENING)


def has_more_values(data: bytes, most: int) -> bool:
    """Does a JSON text hold more than so many values? Answered before any of them is made."""
    if values_at_most(data) <= most:
        return False
    found, at = 1, 0
    for text in _TEXT.finditer(data):
        found += sum(data.count(mark, at, text.start()) for mark in _OPENING)
        at = text.end()
        if found > most:
            return True
    return found + sum(data.count(mark, at) for mark in _OPENING) > most


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{name[:40]!r} is given twice in one object")
            seen.add(name)
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number is out of range")
    return number


_decoder = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_no_constant, parse_float=_finite)


def _bound_depth(document: dict[str, Any]) -> None:
    level: list[Any] = [document]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise bad_request(f"the body is nested deeper than {MAX_DEPTH}")
        below: list[Any] = []
        for item in level:
            below += item.values() if type(item) is dict else item
        level = [item for item in below if type(item) is dict or type(item) is list]


def refuse_other_spellings(document: dict[str, Any], below: int = 3) -> None:
    """Refuses names that some readers would take for others: those of Go do not look at upper and lower
    case, nor tell the long s from the short one. In the document and in the objects of its lists; what
    is in an object inside is named by its author.
    """
    for name, value in document.items():
        if name.casefold() != name:
            raise bad_request(f"{name[:40]!r} is not written in small letters: not everybody reads it alike")
        if below and type(value) is list:
            for item in value:
                if type(item) is dict:
                    refuse_other_spellings(item, below - 1)


def whole_number(source: dict[str, Any], name: str, least: int, most: int = 10**9) -> int | None:
    """A JSON integer within bounds; None when it is absent or null. Anything else is refused (400)."""
    value = source.get(name)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        raise bad_request(f"{name} must be a whole number from {least} to {most}, not {str(value)[:40]}")
    return value


def flag(source: dict[str, Any], name: str) -> bool:
    """true or false; absent and null are false. Anything else is refused (400)."""
    value = source.get(name)
    if value is not None and type(value) is not bool:
        raise bad_request(f"{name} must be true or false")
    return value is True


def listed(source: dict[str, Any], name: str) -> list[Any]:
    """A list; an empty one when it is absent or null. Anything else is refused (400)."""
    value = source.get(name)
    if value is None:
        return []
    if type(value) is not list:
        raise bad_request(f"{name} must be a list")
    return value


def member(value: Any, where: str) -> dict[str, Any]:
    """An object of a list, or the refusal of the request (400)."""
    if type(value) is not dict:
        raise bad_request(f"{where} must hold objects")
    return value


def nested(source: dict[str, Any], name: str) -> dict[str, Any]:
    """An object inside; an empty one when it is absent or null. Anything else is refused (400)."""
    value = source.get(name)
    if value is None:
        return {}
    if type(value) is not dict:
        raise bad_request(f"{name} must be an object")
    return value


def kind_of(source: dict[str, Any], otherwise: str = "") -> str:
    """What type says; otherwise when it is absent or null. What is no string is refused (400)."""
    kind = source.get("type")
    if kind is None:
        return otherwise
    if type(kind) is not str:
        raise bad_request("type must be a string")
    return kind


def refuse_given(source: dict[str, Any], names: dict[str, str], code: str) -> None:
    """Refuses fields that are there and not null, false or empty. names: field, and why."""
    for name, why in names.items():
        if source.get(name) not in (None, False, [], {}, ""):
            raise not_metered(code, f"{name} is not forwarded: {why}")
