"""Owns that every rule finds its kind wherever it stands, and that what only looks like one is left alone.
May touch nothing.
Never counts a marker: what was made up must be gone from what was let through.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from bench.clean_text import clean_lines, kinds
from bench.credentials import FORMATS, contexts, planted
from bench.redaction import survives
from supervisor.logs.redact.engines import Engines
from supervisor.logs.redact.redactor import Redactor
from supervisor.logs.redact.samples import filled
from supervisor.logs.redact.table import shipped
from supervisor.logs.tail.lines import LineSplitter


@pytest.fixture(scope="module", params=["fast", "plain"])
def engines(request: pytest.FixtureRequest) -> Engines:
    found = Engines(shipped(), fast=request.param == "fast")
    assert (found.ready().name == "python") == (request.param == "plain")
    return found


def test_nothing_planted_survives(engines: Engines) -> None:
    redactor = Redactor(engines=engines, bounded=False)
    missed: Counter[tuple[str, str]] = Counter()
    for case in planted(variants=2, seed=7):
        clean, count = redactor.redact(case.line)
        if count == 0 or survives(case.secret, clean):
            missed[case.format, case.where] += 1
        if case.line.startswith(b"{"):
            json.loads(clean)
    assert missed == Counter()


def test_control_the_search_for_survivors_sees_each_context() -> None:
    text, made = filled("ghp_{b62:36}", 1)
    for where, line in contexts(text):
        if where not in ("broken by colour", "in \\u escapes"):
            assert survives(made, line), where


def test_nothing_clean_is_hit(engines: Engines) -> None:
    redactor = Redactor(engines=engines, bounded=False)
    wrong = [(kind, line) for kind, line in clean_lines(150, seed=7) if redactor.redact(line)[0] != line]
    assert wrong == []
    assert len(kinds()) == 9


@pytest.mark.parametrize("name", FORMATS)
def test_split_at_every_byte_over_two_reads(name: str) -> None:
    text, made = filled(FORMATS[name][0], 11)
    line = json.dumps({"t": f"a {text} b"}).encode() + b"\n"
    redactor = Redactor(bounded=False)
    whole = redactor.redact(line[:-1])
    assert whole[1] >= 1 and not survives(made, whole[0])
    for cut in range(len(line)):
        splitter = LineSplitter(1 << 20)
        lines = splitter.feed(line[:cut]) + splitter.feed(line[cut:])
        assert lines == [line[:-1]]
        if cut % 16 == 0:
            assert redactor.redact_lines(lines, "s") == [whole]
