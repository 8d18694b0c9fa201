"""Owns the supervisor's own settings: one TOML file, named by SUPERVISOR_CONFIG.
May touch that file, read-only.
Never lets an unknown key pass.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec

from supervisor.errors import UsageError
from supervisor.gateway.prices import PriceOverride
from supervisor.gateway.upstreams import Upstream
from supervisor.limits.caps import DailyCaps
from supervisor.limits.money import parse_usd
from supervisor.paths import DEFAULT_CONFIG
from supervisor.profile.units import parse_duration

_HINT = "see docs/reference.md for every key"


class StopSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[stop]: the operator's own flag. query is one SELECT with :ticket in it.

    database: the SQLite file or postgresql:// URL that it runs on; the supervisor's own when empty.
    """

    database: str = ""
    query: str = ""


class ControlSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[control]: the group whose members may use the control socket; "" is the owner alone."""

    group: str = ""


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[store]: where state is kept. url: postgresql://… for a fleet; the state folder's SQLite when empty.

    url_file: a file that holds the URL, for one with a password.
    """

    url: str = ""
    url_file: str = ""


class DailySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[daily]: what everything together may spend in a day of that zone; nano-dollars, None is no cap.

    projects: caps of single projects by name. on_reached: "end" ends runs that are refused for a
    daily cap, "refuse" only refuses their calls.
    """

    zone: str = "UTC"
    global_nanos: int | None = msgspec.field(name="global_usd", default=None)
    project_nanos: int | None = msgspec.field(name="project_usd", default=None)
    projects: dict[str, int] = {}
    on_reached: Literal["end", "refuse"] = "end"

    @property
    def caps(self) -> DailyCaps:
        return DailyCaps(
            global_nanos=self.global_nanos, project_nanos=self.project_nanos, projects=self.projects
        )


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[queue]: lease_s is how long a worker may be silent before its ticket is taken from it."""

    lease_s: float = msgspec.field(name="lease", default=60.0)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stop: StopSettings = StopSettings()
    control: ControlSettings = ControlSettings()
    store: StoreSettings = StoreSettings()
    daily: DailySettings = DailySettings()
    queue: QueueSettings = QueueSettings()
    upstreams: dict[str, Upstream] = {}
    prices: dict[str, PriceOverride] = {}

    def store_location(self, database: str) -> str:
        """The URL, or the path of the state folder's database. Raises UsageError for an unreadable file."""
        if not self.store.url_file:
            return self.store.url or database
        try:
            with open(self.store.url_file, encoding="utf-8") as file:
                return file.read().strip()
        except OSError as error:
            raise UsageError(
                f"store.url_file {self.store.url_file} cannot be read: {error.strerror}", hint=_HINT
            ) from None


_UNITS: dict[tuple[str, str], Callable[[object], Any]] = {
    ("daily", "global_usd"): parse_usd,
    ("daily", "project_usd"): parse_usd,
    ("daily", "projects"): lambda caps: {name: parse_usd(cap) for name, cap in dict(caps).items()},  # type: ignore[call-overload]
    ("daily", "zone"): lambda zone: _checked_zone(zone),
    ("queue", "lease"): parse_duration,
}


def _checked_zone(zone: object) -> str:
    try:
        return ZoneInfo(str(zone)).key
    except (OSError, ValueError, ZoneInfoNotFoundError):
        near = difflib.get_close_matches(str(zone), available_timezones(), n=1)
        said = f"did you mean {near[0]}?" if near else "write one like Europe/Madrid"
        raise ValueError(f"{zone!r} is no time zone; {said}") from None


def load_config() -> Config:
    """The settings, or the defaults where there is no file. Raises UsageError naming file and key."""
    named = os.environ.get("SUPERVISOR_CONFIG")
    path = named or DEFAULT_CONFIG
    try:
        with open(path, "rb") as file:
            raw = tomllib.load(file)
    except FileNotFoundError:
        if named:
            raise UsageError(f"SUPERVISOR_CONFIG names {path}, which does not exist") from None
        return Config()
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    for (table, key), parse in _UNITS.items():
        values = raw.get(table)
        if isinstance(values, dict) and key in values:
            try:
                values[key] = parse(values[key])
            except (TypeError, ValueError) as error:
                raise UsageError(f"{path}: {table}.{key}: {error}", hint=_HINT) from None
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}", hint=_HINT) from None
    scheme, found, _ = config.store.url.partition("://")
    if found and scheme not in ("postgresql", "postgres"):
        raise UsageError(
            f"{path}: store.url: {scheme}:// is not known",
            hint="postgresql://… is, or leave it out for SQLite",
        )
    if config.queue.lease_s < 3:
        raise UsageError(f"{path}: queue.lease must be at least 3s", hint=_HINT)
    return config
