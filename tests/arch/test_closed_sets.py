"""Owns that every member of a closed set is tested somewhere and has a line of documentation.
May touch the sources, the tests and the documents, read-only.
Never accepts a member that only its own definition mentions.
"""

from __future__ import annotations

import ast
import functools
import re
from enum import StrEnum
from pathlib import Path

import pytest

from sandbox.spec import Control
from supervisor.audit.records import Decision, GapWhy, RecordKind, SealWhy
from supervisor.audit.verify import Fault
from supervisor.events import EventKind
from supervisor.logs.dialects.said import Said
from supervisor.logs.tail.files import Gap
from supervisor.runs.order import Step
from supervisor.runs.reasons import StopReason

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


def keys_of(path: str, attribute: str) -> set[str]:
    """The keys of the dictionary that a class assigns to self.<attribute>."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        if isinstance(target, ast.Attribute) and target.attr == attribute:
            assert isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict)
            return {str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)}
    raise AssertionError(f"{path} has no {attribute}")


def members(kind: type[StrEnum]) -> set[str]:
    return {str(member) for member in kind}


SETS = {
    "StopReason": members(StopReason),
    "EventKind": members(EventKind),
    "Control": members(Control),
    "Step": members(Step),
    "audit record": members(RecordKind),
    "audit decision": members(Decision),
    "audit seal": members(SealWhy),
    "audit gap": members(GapWhy),
    "audit fault": members(Fault),
    "log gap": members(Gap),
    "what an agent said": members(Said),
    "launcher message": keys_of("sandbox/launcher.py", "handlers"),
    "control operation": keys_of("supervisor/control/server.py", "handlers"),
}
IN_DOCUMENTS = [name for name in SETS if name != "Step"]
"""Steps are points in the code for tests; nobody outside has to know them."""


@functools.cache
def all_tests() -> str:
    """All tests but these."""
    paths = [path for path in (ROOT / "tests").rglob("*.py") if HERE not in path.parents]
    return "\n".join(path.read_text() for path in paths)


@functools.cache
def documents() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))


def missing(wanted: set[str], text: str) -> set[str]:
    """Members that are nowhere: as they are written, or by the name that Python gives them."""
    return {
        name
        for name in wanted
        if not re.search(rf"(?<![a-z_]){re.escape(name)}(?![a-z_])", text)
        and not re.search(rf"\.{re.escape(name.upper())}\b", text)
    }


def test_control_a_member_that_is_nowhere_is_missed() -> None:
    assert missing({"no_such_thing"}, all_tests() + documents()) == {"no_such_thing"}
    assert missing({"done"}, "it is done.") == set()
    assert missing({"stop"}, "nonstop stopped") == {"stop"}


@pytest.mark.parametrize("name", SETS)
def test_every_member_has_a_test(name: str) -> None:
    assert missing(SETS[name], all_tests()) == set()


@pytest.mark.parametrize("name", IN_DOCUMENTS)
def test_every_member_is_documented(name: str) -> None:
    assert missing(SETS[name], documents()) == set()
