"""Owns the JSON Schema of a profile as it is written, for editors and for checks elsewhere.
May touch nothing.
Never says more than loading holds to: what it accepts may still be refused there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from sandbox.spec import CONTROL_GROUPS, Control
from supervisor.agents import KINDS
from supervisor.limits.money import parse_usd
from supervisor.profile.schema import UNITS, Profile
from supervisor.profile.units import parse_duration, parse_size

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_WRITTEN: dict[Callable[[object], Any], dict[str, Any]] = {
    parse_duration: {"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h|d))+$", "examples": ["15m"]},
    parse_size: {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(B|KiB|MiB|GiB|TiB)$", "examples": ["2GiB"]},
    parse_usd: {"type": "string", "pattern": r"^\d+(\.\d+)?$", "examples": ["0.50"]},
}
"""How a value with a unit looks in the file; the defaults of the structs are plain numbers."""


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12. With `extends` nothing is required but what names the profile."""
    whole = msgspec.json.schema(Profile)
    definitions: dict[str, Any] = whole["$defs"]
    for definition in definitions.values():
        for key in definition.get("properties", {}).values():
            key.pop("default", None)
    for (table, key), parse in UNITS.items():
        definitions[table.capitalize()]["properties"][key] = _WRITTEN[parse]
    profile = definitions["Profile"]
    properties = profile["properties"]
    properties["extends"] = {"type": "string", "description": "A shipped profile, or a file beside this one."}
    properties["require"]["items"] = {"enum": sorted([*map(str, Control), *CONTROL_GROUPS])}
    definitions["Agent"]["properties"]["kind"] = {"enum": ["", *KINDS]}
    profile["required"] = ["schema", "name"]
    profile["anyOf"] = [{"required": ["extends"]}, {"required": ["limits"]}]
    profile["description"] = "A profile of the sidecar supervisor, as it is written in TOML."
    extended = definitions["Limits"]
    extended.pop("required", None)
    return {"$schema": DIALECT, "title": "profile", **whole}
