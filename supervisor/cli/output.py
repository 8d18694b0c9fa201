"""Owns how things look in a terminal: colour, columns, sizes, and text that cannot be trusted.
May touch standard output and standard error.
Never lets an agent's bytes act on the terminal, and never depends on colour.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from supervisor.cli.money_text import model_limits
from supervisor.clock import parse_rfc3339
from supervisor.profile.units import show_duration, show_size

GOOD, BAD, NONE = "✓", "✗", "–"


def width() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def accent(text: str) -> str:
    return click.style(text, fg="cyan")


def bad(text: str) -> str:
    return click.style(text, fg="red")


def dim(text: str) -> str:
    return click.style(text, dim=True)


def say(text: str = "") -> None:
    click.echo(text)


def print_json(value: Any) -> None:
    """One JSON value on one line, for programs."""
    click.echo(msgspec.json.encode(value).decode())


def visible(text: str, *, always: bool = False) -> str:
    """For a terminal, control characters become what they are called; for a pipe nothing changes."""
    if not always and not sys.stdout.isatty():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\t" or unicodedata.category(character) not in ("Cc", "Cf", "Co", "Cs"):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def shorten(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(1, room - 1)] + "…"


def table(rows: list[list[str]], *, right: frozenset[int] = frozenset(), header: bool = True) -> None:
    """Aligned columns; the last one takes what is left of the terminal's width."""
    if not rows:
        return
    sizes = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    fixed = sum(sizes[:-1]) + 2 * (len(sizes) - 1)
    if sys.stdout.isatty():
        sizes[-1] = max(8, min(sizes[-1], width() - fixed))
    for number, row in enumerate(rows):
        cells = []
        for column, cell in enumerate(row):
            last = column == len(row) - 1
            text = shorten(cell, sizes[column]) if last else cell
            cells.append(text.rjust(sizes[column]) if column in right else text.ljust(sizes[column]))
        line = "  ".join(cells).rstrip()
        say(dim(line) if header and number == 0 else line)


def ago(instant: str | None) -> str:
    """ "2 min ago", for people; JSON has the instant itself."""
    if not instant:
        return NONE
    seconds = (datetime.now(UTC) - parse_rfc3339(instant)).total_seconds()
    return "now" if seconds < 1 else f"{show_duration(seconds)} ago"


def time_of_day(instant: str) -> str:
    return parse_rfc3339(instant).astimezone().strftime("%H:%M:%S")


def clock_time() -> str:
    """Now, as time_of_day shows it."""
    return datetime.now().astimezone().strftime("%H:%M:%S")


def bar(share: float, cells: int = 18) -> str:
    """▕███████▏ with eighths, empty to full."""
    eighths = round(min(max(share, 0.0), 1.0) * cells * 8)
    full, part = divmod(eighths, 8)
    text = "█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")
    return f"▕{text.ljust(cells)}▏"


def limits_text(limits: dict[str, Any]) -> str:
    """A run's limits as they are stored with it, in one line."""
    parts = [
        show_duration(float(limits["wall_clock_s"])),
        show_size(int(limits["memory_bytes"])),
        f"{limits['pids']} processes",
        "1 core" if limits["cpu_cores"] == 1 else f"{limits['cpu_cores']:g} cores",
    ]
    return " · ".join([*parts, *model_limits(limits)])
