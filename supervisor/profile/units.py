"""Owns how a profile writes durations and sizes, and how people read them back.
May touch nothing.
Never guesses a unit: a bare number is refused where a unit is meant.
"""

from __future__ import annotations

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_DURATION_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)", re.ASCII)
_SIZE_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_duration(text: object) -> float:
    """ "15m", "1h30m" or "30s" to seconds. Raises ValueError."""
    if isinstance(text, str) and text:
        parts = _DURATION.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return sum(float(number) * _DURATION_S[unit] for number, unit in parts)
    raise ValueError(f'{text!r} is not a duration; write it like "30s", "15m" or "1h30m"')


def parse_size(text: object) -> int:
    """ "4GiB" to bytes. Raises ValueError."""
    if isinstance(text, str):
        match = _SIZE.fullmatch(text)
        if match:
            return int(float(match[1]) * _SIZE_BYTES[match[2]])
    raise ValueError(f'{text!r} is not a size; write it like "512MiB" or "4GiB"')


def show_duration(seconds: float) -> str:
    """For people: 9 ms, 8.4 s, 31 s, 15 min, 3 h 47 min, 2 d 4 h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if hours < 1:
        rest = int(seconds % 60)
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    if days < 1:
        rest = minutes % 60
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"


def show_size(count: int) -> str:
    """For people: 512 B, 1.5 MiB, 4 GiB."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        size = _SIZE_BYTES[unit]
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} B"
