"""Owns which caps hold for a run: the profile's own, the configuration's for everybody, the smaller of two.
May touch nothing.
Never lets one of the two widen the other.
"""

from __future__ import annotations

import msgspec

from supervisor.limits.budget import Caps, Scope


class DailyCaps(msgspec.Struct, frozen=True, kw_only=True):
    """Caps of one day in nano-dollars. projects: for some by name; project: for every other."""

    global_nanos: int | None = None
    project_nanos: int | None = None
    projects: dict[str, int] = {}

    def of_project(self, project: str) -> int | None:
        return self.projects.get(project, self.project_nanos)


def smaller(*caps: int | None) -> int | None:
    """The cap that holds when several are set; None only where none is."""
    given = [cap for cap in caps if cap is not None]
    return min(given) if given else None


def effective(own: Caps, everybody: DailyCaps, project: str) -> Caps:
    """own: what the profile says. everybody: what the configuration says for all profiles."""
    return msgspec.structs.replace(
        own,
        project_day_nanos=smaller(own.project_day_nanos, everybody.of_project(project)),
        global_day_nanos=smaller(own.global_day_nanos, everybody.global_nanos),
    )


WARN_AT_PERCENT = 80


def crossed(scope: Scope, caps: Caps, before_nanos: int, after_nanos: int) -> bool:
    """Did the money spent in a scope pass 80 % of its cap with this charge?"""
    cap = caps.nanos(scope)
    if cap is None or cap == 0:
        return False
    return before_nanos * 100 < cap * WARN_AT_PERCENT <= after_nanos * 100
