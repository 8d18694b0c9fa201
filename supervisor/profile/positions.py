"""Owns where in a profile's text each key is written.
May touch nothing: text in, line numbers out.
Never judges the text: tomllib has read it before, so that what is looked at here is TOML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

KeyPath = tuple[str, ...]

_TABLE = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_PART = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(\.|=|$)""")
_TOKEN = re.compile(
    r'"""|' + r"'''" + r'|"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'" + r"|#[^\n]*|[\[\]{},=\n]|[^\"'#\[\]{},=\n]+"
)


@dataclass(frozen=True, slots=True)
class Position:
    """file as it was given, line from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def positions_of(file: str, text: str) -> dict[KeyPath, Position]:
    """Every table and key by its full path. Tables of an array are numbered: ("waive", "0", …)."""
    found: dict[KeyPath, Position] = {}
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    for line, statement in _statements(text):
        header = _TABLE.match(statement)
        if header:
            table = _parts(header[2])
            if header[1] == "[[":
                number = counts[table] = counts.get(table, -1) + 1
                table = (*table, str(number))
            found.setdefault(table, Position(file, line))
            continue
        key, rest = _key(statement)
        if key:
            path = (*table, *key)
            found.setdefault(path, Position(file, line))
            for inner in _inline_keys(rest):
                found.setdefault((*path, *inner), Position(file, line))
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each header and each assignment; one that goes over several lines is one."""
    line, start, depth, held = 1, 1, 0, ""
    position = 0
    while position < len(text):
        token, position = _next(text, position)
        if token == "\n" and depth == 0:
            if held.strip():
                yield start, held
            held, start = "", line + 1
        elif not token.startswith("#"):
            depth += (token in "[{") - (token in "]}") if len(token) == 1 else 0
            if not held.strip() and token.strip():
                start = line
            held += token
        line += token.count("\n")
    if held.strip():
        yield start, held


def _next(text: str, position: int) -> tuple[str, int]:
    match = _TOKEN.match(text, position)
    assert match is not None
    token = match[0]
    if token in ('"""', "'''"):
        end = position + 3
        while True:
            end = text.index(token, end) + 3
            if token == "'''" or text[end - 4] != "\\":
                break
        return text[position:end], end
    return token, match.end()


def _parts(text: str) -> KeyPath:
    parts, position = [], 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            break
        parts.append(next(group for group in match.groups()[:3] if group is not None))
        position = match.end()
    return tuple(parts)


def _key(statement: str) -> tuple[KeyPath, str]:
    parts, position = [], 0
    while (match := _PART.match(statement, position)) is not None:
        parts.append(next(group for group in match.groups()[:3] if group is not None))
        position = match.end()
        if match[4] != ".":
            break
    return tuple(parts), statement[position:]


def _inline_keys(value: str) -> Iterator[KeyPath]:
    """Keys of an inline table: { A = "x", B = "y" }, one level deep."""
    inner = value.strip()
    if not inner.startswith("{"):
        return
    for match in re.finditer(r"""[{,]\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*=""", inner):
        yield (next(group for group in match.groups() if group is not None),)
