"""Owns the supervisor's own settings: one TOML file, named by SUPERVISOR_CONFIG.
May touch that file, read-only.
Never lets an unknown key pass.
"""

from __future__ import annotations

import os
import tomllib

import msgspec

from supervisor.errors import UsageError

_DEFAULT = "/etc/sidecar-supervisor/config.toml"


class StopSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[stop]: the operator's own flag. query is one SELECT with :ticket in it, on database (SQLite)."""

    database: str = ""
    query: str = ""


class ControlSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[control]: the group whose members may use the control socket; "" is the owner alone."""

    group: str = ""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stop: StopSettings = StopSettings()
    control: ControlSettings = ControlSettings()


def load_config() -> Config:
    """The settings, or the defaults where there is no file. Raises UsageError naming file and key."""
    named = os.environ.get("SUPERVISOR_CONFIG")
    path = named or _DEFAULT
    try:
        with open(path, "rb") as file:
            raw = tomllib.load(file)
    except FileNotFoundError:
        if named:
            raise UsageError(f"SUPERVISOR_CONFIG names {path}, which does not exist") from None
        return Config()
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    try:
        return msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}", hint="see docs/reference.md for every key") from None
