"""Owns that the JSON Schema of profiles takes what loading takes, and refuses what a person mistypes.
May touch nothing.
Never checks the schema by itself: an independent validator does.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from test_mutations import GOOD

from supervisor.agents import KINDS
from supervisor.cli.agents import _profile
from supervisor.profile.json_schema import json_schema
from supervisor.profile.load import shipped

VALIDATOR = Draft202012Validator(json_schema())
TEXTS = {
    **{name: path.read_text() for name, path in shipped().items()},
    **{f"agents {name}": _profile(kind) for name, kind in KINDS.items()},
    "the one that is mutated": GOOD,
    "the demo's": (Path(__file__).parents[2] / "examples/demo.toml").read_text(),
}


def wrong(text: str) -> list[str]:
    data: dict[str, Any] = tomllib.loads(text)
    return [error.message for error in VALIDATOR.iter_errors(data)]


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_written_here_is_taken(name: str) -> None:
    assert wrong(TEXTS[name]) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('schema = 2\nname = "x"\nextends = "base"', "2"),
        ('name = "x"\nextends = "base"', "'schema' is a required"),
        ('schema = 1\nname = "x"', "not valid under any"),
        ('schema = 1\nname = "x"\nextends = "base"\nlimit = 1', "limit"),
        ('schema = 1\nname = "x"\nextends = "base"\n[limits]\nmemroy = "1GiB"', "memroy"),
        ('schema = 1\nname = "x"\nextends = "base"\n[limits]\nmemory = 4', "not of type 'string'"),
        ('schema = 1\nname = "x"\nextends = "base"\n[limits]\nmemory = "4GB"', "does not match"),
        ('schema = 1\nname = "x"\nextends = "base"\n[limits]\nusd = "1,50"', "does not match"),
        ('schema = 1\nname = "x"\nextends = "base"\nrequire = ["secomp"]', "secomp"),
        ('schema = 1\nname = "x"\nextends = "base"\n[network]\nmode = "host"', "host"),
        ('schema = 1\nname = "x"\nextends = "base"\n[agent]\nkind = "claud"', "claud"),
    ],
)
def test_what_is_mistyped_is_refused(text: str, said: str) -> None:
    assert any(said in message for message in wrong(text)), wrong(text)
