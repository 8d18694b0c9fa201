"""Owns what of an agent's words may enter an event: redacted, then bounded; contents only by their size.
May touch nothing: values in, values out.
Never raises, whatever an agent wrote, and never lets the contents of a file through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Json = Mapping[str, Any]

MAX_DEPTH = 4
MAX_KEYS = 24
MAX_ITEMS = 24
ROOM = 300
"""Characters that are kept of a text."""

_KEY_ROOM = 60
_AHEAD = 1 << 16
"""Characters behind the room that the redactor sees too: a secret must not be cut before it is found."""

_MOST = 1 << 53
_BUDGET = 16_000
"""Characters of one tool's input or one unknown event in all, keys included."""

CONTENTS = frozenset(
    "content contents text code body data diff patch edits stdin file_text new_source original_content"
    " old_string new_string old_str new_str ai_proposed_content originalfile structuredpatch".split()
)
"""Names under which tools carry what a file holds, in lower case."""


class Words:
    """clean: takes secrets out of a decoded text; everything that is kept goes through it first."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._left = 0

    def text(self, value: object, room: int = ROOM) -> str:
        """A text, cut and marked when it is long; "" for anything else."""
        if not isinstance(value, str):
            return ""
        clean = self._clean(value[: room + _AHEAD])
        return clean if len(clean) <= room else f"{clean[:room]}… ({size_of(value)} bytes)"

    def line(self, value: object) -> str:
        """The first line of a text: a command may carry a whole file behind it."""
        if not isinstance(value, str):
            return ""
        first = self.text(value[: ROOM + _AHEAD].strip()).split("\n", 1)[0]
        return first if first == value.strip() or first.endswith(" bytes)") else f"{first} …"

    def arguments(self, value: object) -> dict[str, Any]:
        """The input of a tool: paths, commands and figures as they are, contents as their size."""
        self._left = _BUDGET
        found = self._value(value, 0, contents=CONTENTS)
        return found if isinstance(found, dict) else {"value": found}

    def as_it_is(self, value: Json) -> dict[str, Any]:
        """An event of a shape nobody here knows: kept, but for what is long, deep or several lines."""
        self._left = _BUDGET
        found = self._value(value, 0, contents=frozenset())
        return found if isinstance(found, dict) else {}

    def _value(self, value: object, depth: int, *, contents: frozenset[str]) -> Any:
        self._left -= len(value) if isinstance(value, str) and len(value) <= ROOM * 4 else 8
        if self._left < 0:
            return "…"
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, int):
            return value if abs(value) < _MOST else str(value)[:_KEY_ROOM]
        if isinstance(value, str):
            return self.line(value) if contents else self._whole(value)
        if depth >= MAX_DEPTH:
            return "(nested too deep)"
        if isinstance(value, list):
            kept = [self._value(item, depth + 1, contents=contents) for item in value[:MAX_ITEMS]]
            more = len(value) - len(kept)
            return [*kept, f"… {more} more"] if more else kept
        if isinstance(value, dict):
            return self._members(value, depth, contents=contents)
        return ""

    def _members(self, value: Json, depth: int, *, contents: frozenset[str]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        # A path beside it says that a text is what the file of that path holds.
        beside = CONTENTS if any("path" in str(key).lower()[:_KEY_ROOM] for key in value) else contents
        for key, item in value.items():
            if len(kept) >= MAX_KEYS or self._left < 0:
                kept["…"] = f"{len(value) - len(kept)} more"
                break
            name = self.text(key, _KEY_ROOM)
            self._left -= len(name)
            if name.lower() in beside and isinstance(item, str | list | dict):
                kept[name] = {"bytes": size_of(item)}
            else:
                kept[name] = self._value(item, depth + 1, contents=contents)
        return kept

    def _whole(self, value: str) -> Any:
        long = len(value) > ROOM * 4 or value.count("\n", 0, ROOM * 4) > 8
        return {"bytes": size_of(value)} if long else self.text(value, ROOM * 4)


def size_of(value: object, depth: int = 0) -> int:
    """Bytes of all texts in a value, as UTF-8; figures, types and what is too deep count as nothing."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if depth > 16:
        return 0
    if isinstance(value, list):
        return sum(size_of(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return sum(size_of(item, depth + 1) for key, item in value.items() if key != "type")
    return 0


def member(value: object, name: str) -> dict[str, Any]:
    """The object under a name; an empty one for anything else."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def items(value: object, name: str) -> list[dict[str, Any]]:
    """The objects of the list under a name, so many and no more."""
    found = value.get(name) if isinstance(value, dict) else None
    return [item for item in found[:64] if isinstance(item, dict)] if isinstance(found, list) else []


def count_of(value: Json, name: str) -> int:
    """A whole number that can be counted with; 0 for anything else."""
    found = value.get(name)
    plain = isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 1 << 40
    return int(found) if plain and isinstance(found, int) else 0


def dollars_of(value: Json, name: str) -> float | None:
    """An amount of US dollars as agents write it, a number; None for anything else."""
    found = value.get(name)
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < 1e8:
        return float(found)
    return None
