"""Owns comparing two profiles by what they allow: wider, narrower, or neither.
May touch nothing.
Never compares their text: a key that is written elsewhere or otherwise and means the same is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from supervisor.limits.money import show_usd
from supervisor.profile.load import Loaded
from supervisor.profile.positions import KeyPath, Position
from supervisor.profile.schema import Profile
from supervisor.profile.units import show_duration, show_size
from supervisor.runs.boxing import required_controls
from supervisor.workspace.patterns import covers, is_literal


class Direction(StrEnum):
    """From the first profile to the second. other: it cannot be told; neutral: it changes no power."""

    WIDER = "wider"
    OTHER = "other"
    NARROWER = "narrower"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference in power. before and after are for people; where: in the second profile."""

    direction: Direction
    key: str
    text: str
    before: str
    after: str
    where: Position


def compare(first: Loaded, second: Loaded) -> list[Change]:
    """Every difference in what is allowed, the widenings first. No difference: an empty list."""
    changes: list[Change] = []
    for comparison in _COMPARISONS:
        changes += comparison(first, second)
    order = list(Direction)
    return sorted(changes, key=lambda change: (order.index(change.direction), change.key))


def is_wider(changes: Iterable[Change]) -> bool:
    """Does the second allow anything that the first does not? What cannot be compared counts as wider."""
    return any(change.direction in (Direction.WIDER, Direction.OTHER) for change in changes)


Comparison = Callable[[Loaded, Loaded], list[Change]]


def _change(
    second: Loaded, direction: Direction, path: KeyPath, text: str, before: str, after: str
) -> Change:
    return Change(direction, ".".join(path), text, before, after, second.where(*path))


def _number(
    path: KeyPath,
    text: str,
    get: Callable[[Profile], Any],
    show: Callable[[Any], str],
    *,
    none: str = "no limit",
) -> Comparison:
    """More is wider, and no limit is the widest."""

    def compare_them(first: Loaded, second: Loaded) -> list[Change]:
        before, after = get(first.profile), get(second.profile)
        if before == after:
            return []
        more = after is None or (before is not None and after > before)
        direction = Direction.WIDER if more else Direction.NARROWER
        said = [none if value is None else show(value) for value in (before, after)]
        return [_change(second, direction, path, text, *said)]

    return compare_them


def _flag(
    path: KeyPath, text: str, get: Callable[[Profile], Any], wide: Any, show: Callable[[Any], str] = str
) -> Comparison:
    """One of its values is the wider one."""

    def compare_them(first: Loaded, second: Loaded) -> list[Change]:
        before, after = get(first.profile), get(second.profile)
        if before == after:
            return []
        direction = Direction.WIDER if after == wide else Direction.NARROWER
        return [_change(second, direction, path, text, show(before), show(after))]

    return compare_them


def _neutral(path: KeyPath, text: str, get: Callable[[Profile], str]) -> Comparison:
    """What a reviewer wants to know of, and that lets nobody do more."""

    def compare_them(first: Loaded, second: Loaded) -> list[Change]:
        before, after = get(first.profile), get(second.profile)
        return [] if before == after else [_change(second, Direction.NEUTRAL, path, text, before, after)]

    return compare_them


def _names(
    path: KeyPath, text: str, get: Callable[[Profile], Iterable[str]], *, more: Direction
) -> Comparison:
    """A set of names; more says what one more of them means."""
    less = Direction.NARROWER if more is Direction.WIDER else Direction.WIDER

    def compare_them(first: Loaded, second: Loaded) -> list[Change]:
        before, after = set(get(first.profile)), set(get(second.profile))
        made = []
        for name in sorted(after - before):
            made.append(_change(second, more, path, text, "", name))
        for name in sorted(before - after):
            made.append(_change(second, less, path, text, name, ""))
        return made

    return compare_them


def _patterns(path: KeyPath, text: str, get: Callable[[Profile], list[str]]) -> Comparison:
    """Patterns that take something away. One that is gone but covered by another takes it away still."""

    def compare_them(first: Loaded, second: Loaded) -> list[Change]:
        before, after = get(first.profile), get(second.profile)
        made = []
        for pattern in before:
            if not _taken(pattern, after):
                made.append(_change(second, Direction.WIDER, path, text, pattern, ""))
        for pattern in after:
            if not _taken(pattern, before):
                made.append(_change(second, Direction.NARROWER, path, text, "", pattern))
        return made

    return compare_them


def _taken(pattern: str, patterns: list[str]) -> bool:
    same = {other.rstrip("/").casefold() for other in patterns}
    return pattern.rstrip("/").casefold() in same or (
        is_literal(pattern) and covers(patterns, pattern.strip("/")) is not None
    )


def _models(first: Loaded, second: Loaded) -> list[Change]:
    before, after = _allowed_models(first.profile), _allowed_models(second.profile)
    path, text = ("gateway", "models"), "models that can be called"
    made = []
    for pattern in sorted(after - before):
        if not any(_pattern_covers(wide, pattern) for wide in before):
            made.append(_change(second, Direction.WIDER, path, text, "", pattern))
    for pattern in sorted(before - after):
        if not any(_pattern_covers(wide, pattern) for wide in after):
            made.append(_change(second, Direction.NARROWER, path, text, pattern, ""))
    return made


def _allowed_models(profile: Profile) -> set[str]:
    return set(profile.gateway.models) if profile.network.mode == "gateway" else set()


def _pattern_covers(wide: str, narrow: str) -> bool:
    """Is every name of narrow one of wide? Only where it is plain: wide is a beginning and a * behind it."""
    if wide == narrow:
        return True
    beginning = wide.removesuffix("*")
    return wide.endswith("*") and not set(beginning) & set("*?[") and narrow.startswith(beginning)


def _tools(first: Loaded, second: Loaded) -> list[Change]:
    before, after = first.profile.gateway.tool_uses, second.profile.gateway.tool_uses
    made = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, 0), after.get(name, 0)
        if old != new:
            direction = Direction.WIDER if new > old else Direction.NARROWER
            path = ("gateway", "tool_uses", name)
            made.append(
                _change(second, direction, path, "uses of a provider's tool per call", str(old), str(new))
            )
    return made


def _allowance(key: str) -> Comparison:
    """None refuses what another number lets through; two numbers only change what is held."""

    def compare_them(first: Loaded, second: Loaded) -> list[Change]:
        before, after = getattr(first.profile.gateway, key), getattr(second.profile.gateway, key)
        if (before is None) == (after is None):
            return []
        direction = Direction.WIDER if before is None else Direction.NARROWER
        said = ["refused" if value is None else f"held at {value} tokens" for value in (before, after)]
        return [_change(second, direction, ("gateway", key), f"{key.split('_')[0]}s in a request", *said)]

    return compare_them


def _values(path: KeyPath, text: str, get: Callable[[Profile], dict[str, str]]) -> Comparison:
    """Values that cannot be put into an order; their text is not repeated."""

    def compare_them(first: Loaded, second: Loaded) -> list[Change]:
        before, after = get(first.profile), get(second.profile)
        made = []
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                said = ["" if name not in values else f"{name}=…" for values in (before, after)]
                direction = Direction.NARROWER if name not in after else Direction.OTHER
                made.append(_change(second, direction, (*path, name), text, *said))
        return made

    return compare_them


_COMPARISONS: tuple[Comparison, ...] = (
    _number(("limits", "wall_clock"), "time", lambda p: p.limits.wall_clock_s, show_duration),
    _number(("limits", "stop_grace"), "time to end", lambda p: p.limits.stop_grace_s, show_duration),
    _number(("limits", "memory"), "memory", lambda p: p.limits.memory_bytes, show_size),
    _number(("limits", "pids"), "processes", lambda p: p.limits.pids, str),
    _number(("limits", "cpu"), "cores", lambda p: p.limits.cpu_cores, str),
    _number(("limits", "tmp"), "private folders", lambda p: p.limits.tmp_bytes, show_size),
    _number(("limits", "open_files"), "open files", lambda p: p.limits.open_files, str),
    _number(("limits", "file_size"), "size of a file", lambda p: p.limits.file_bytes, show_size),
    _number(("limits", "iterations"), "model calls", lambda p: p.limits.iterations, str),
    _number(("limits", "tokens"), "tokens", lambda p: p.limits.tokens, str),
    _number(("limits", "usd"), "money of a run", lambda p: p.limits.usd_nanos, show_usd),
    _number(("limits", "ticket_usd"), "money of a ticket", lambda p: p.limits.ticket_usd_nanos, show_usd),
    _number(("daily", "project_usd"), "money of a project's day", lambda p: p.daily.project_nanos, show_usd),
    _number(("daily", "global_usd"), "money of a day", lambda p: p.daily.global_nanos, show_usd),
    _number(
        ("limits", "output_tokens_per_call"),
        "tokens of an answer",
        lambda p: p.limits.output_tokens_per_call,
        str,
    ),
    _flag(("files", "worktree"), "the worktree", lambda p: p.files.worktree, "direct"),
    _flag(("files", "executable"), "executing files of the worktree", lambda p: p.files.executable, True),
    _flag(("network", "mode"), "the network", lambda p: p.network.mode, "gateway"),
    _names(("files", "read"), "folders of the host to read", lambda p: p.files.read, more=Direction.WIDER),
    _patterns(("files", "protect"), "paths that cannot be written", lambda p: p.files.protect),
    _patterns(("files", "hide"), "paths that cannot be read", lambda p: p.files.hide),
    _names(
        ("require",),
        "controls without which no run starts",
        lambda p: map(str, required_controls(p)),
        more=Direction.NARROWER,
    ),
    _models,
    _names(
        ("gateway", "upstreams"),
        "upstreams of models",
        lambda p: p.gateway.upstreams if p.network.mode == "gateway" else [],
        more=Direction.WIDER,
    ),
    _tools,
    _allowance("image_tokens"),
    _allowance("document_tokens"),
    _names(("env", "pass"), "variables of the caller", lambda p: p.env.passed, more=Direction.WIDER),
    _values(("env", "set"), "a variable's value", lambda p: p.env.set),
    _values(("env", "secret"), "where a secret comes from", lambda p: p.env.secret),
    _neutral(("agent", "kind"), "which agent program it is", lambda p: p.agent.kind or "none named"),
    _neutral(("limits", "output"), "output that is kept", lambda p: show_size(p.limits.output_bytes)),
)
