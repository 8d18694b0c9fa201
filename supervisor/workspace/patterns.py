"""Owns what a protect or hide pattern means, in one place for mounting, applying and explaining.
May touch nothing.
Never lets spelling decide: names are compared without case, as some file systems do.
"""

from __future__ import annotations

import fnmatch
import functools
import re

_GLOB = re.compile(r"[*?\[]")


def is_literal(pattern: str) -> bool:
    return _GLOB.search(pattern) is None


def parts_of(pattern: str) -> list[str]:
    return [part for part in pattern.split("/") if part not in ("", ".")]


@functools.lru_cache(maxsize=4096)
def _part_matcher(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part.casefold()))


def matches(pattern: str, path: str) -> bool:
    """Does the pattern name this path (relative, / between parts) itself?"""
    return _match(parts_of(pattern), path.split("/"))


def _match(wanted: list[str], parts: list[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_match(wanted[1:], parts[skip:]) for skip in range(len(parts) + 1))
    if not parts:
        return False
    return bool(_part_matcher(wanted[0]).fullmatch(parts[0].casefold())) and _match(wanted[1:], parts[1:])


def covers(patterns: list[str], path: str) -> str | None:
    """The first pattern that names the path or a folder above it, or None."""
    parts = path.split("/")
    for pattern in patterns:
        for depth in range(1, len(parts) + 1):
            if matches(pattern, "/".join(parts[:depth])):
                return pattern
    return None


def bare_name(pattern: str) -> str | None:
    """What a pattern like ".env*" is named after: ".env". None where there is no such name."""
    folder, _, last = pattern.rpartition("/")
    if not is_literal(folder) or is_literal(last):
        return None
    bare = last.rstrip("*")
    if not bare or not is_literal(bare) or not parts_of(bare):
        return None
    return f"{folder}/{bare}" if folder else bare
