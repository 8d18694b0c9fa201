"""Owns that the rule table says what it must, and that a rule which does not is refused.
May touch rule files in a temporary folder.
Never holds a credential: every example is made up when it is needed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.credentials import FORMATS
from supervisor.errors import UsageError
from supervisor.logs.redact.anchors import anchor_of, as_regex, in_base64
from supervisor.logs.redact.engines import Engines
from supervisor.logs.redact.redactor import Redactor
from supervisor.logs.redact.samples import sample
from supervisor.logs.redact.table import Rule, faults, read, shipped

GOOD = """
[[rule]]
id = "acme-key"
title = "Acme key"
pattern = 'acme_[a-z0-9]{20,}'
literals = ['acme_']
example = 'acme_{low:20}'
near_miss = 'acme_{low:19}'
source = 'https://example.com/keys'
"""


def test_the_shipped_table_has_no_fault() -> None:
    assert faults(shipped(), samples=5) == []
    assert len(shipped()) >= 110
    assert len({rule.source for rule in shipped()}) > 30


@pytest.mark.parametrize("rule", shipped(), ids=lambda rule: rule.id)
def test_a_rule_takes_its_example_and_leaves_its_near_miss(rule: Rule) -> None:
    redactor = Redactor(bounded=False)
    for seed in range(3):
        lines = sample(rule.example, seed).encode().split(b"\n")
        clean = b"\n".join(line or b"" for line, _ in redactor.redact_lines(lines, f"{seed}"))
        assert f"[redacted:{rule.id}#".encode() in clean
        near = sample(rule.near_miss, seed).encode().split(b"\n")
        assert [line for line, _ in redactor.redact_lines(near, f"near {seed}")] == near


def test_most_rules_have_a_format_of_their_own_in_the_corpus() -> None:
    assert set(FORMATS) <= {rule.id for rule in shipped()}
    assert len(FORMATS) >= 110


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("title", "titel", "unknown field `titel`"),
        ("example = 'acme_{low:20}'\n", "", "missing required field `example`"),
        ("[[rule]]", "[[rule]", "rules.toml"),
        ('"Acme key"', "3", "Expected `str`"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(UsageError) as caught:
        read(path)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("acme_[a-z0-9]{20,}", "acme_[a-z0-9", "cannot be compiled"),
        ("'acme_{low:20}'", "'acme_{low:12}'", "the example is not matched"),
        ("'acme_{low:19}'", "'acme_{low:21}'", "the near-miss is matched"),
        ("['acme_']", "['other_']", "holds none of the literals"),
        ("acme_[a-z0-9]{20,}", "(?:a|acme)_[a-z0-9]{20,}", "must begin with"),
        ("'https://example.com/keys'", "'somewhere'", "source is no address"),
        ("'acme_{low:19}'", "''", "near_miss is empty"),
        ("acme-key", "Acme Key", "the id is not"),
    ],
)
def test_a_rule_that_does_not_keep_its_word_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(GOOD)
    assert faults(read(path)) == [], "control"
    path.write_text(GOOD.replace(old, new))
    assert any(says in fault for fault in faults(read(path)))


def test_two_rules_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(GOOD * 2)
    assert any("not unique" in fault for fault in faults(read(path)))


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(GOOD)
    rules = read(path)
    redactor = Redactor(key=b"k", rules=rules, engines=Engines(rules, fast=False))
    clean, count = redactor.redact(sample("x acme_{low:24} y", 1).encode())
    assert count == 1 and re.fullmatch(rb"x \[redacted:acme-key#[0-9a-f]{4}\] y", clean)


@pytest.mark.parametrize(
    ("pattern", "length", "matched"),
    [
        ("ab{2}c", 4, b"abbc"),
        ("a[0-9x-z_-]{3,}q", 4, b"ax-9"),
        ("(?:ab|cd)e", 3, b"cbe"),
        ("(?:ab|c)e", 0, b""),
        (r"\d\w\.", 3, b"1_."),
        ("ab?c", 1, b"a"),
        ("ab*", 1, b"a"),
        ("ab+c", 2, b"ab"),
        ("a.c", 1, b"a"),
        ("a(b)", 1, b"a"),
        ("a[^b]c", 1, b"a"),
    ],
)
def test_an_anchor_is_what_has_one_length(pattern: str, length: int, matched: bytes) -> None:
    anchor = anchor_of(pattern)
    assert len(anchor) == length
    assert re.fullmatch(as_regex(anchor).encode(), matched)


@pytest.mark.parametrize("offset", range(3))
def test_what_base64_makes_of_an_anchor(offset: int) -> None:
    import base64

    core = re.compile(as_regex(in_base64(anchor_of("ghp_[a-z]{8}"), offset)).encode())
    for text in (b"ghp_abcdefgh", b"ghp_zyxwvuts"):
        assert core.search(base64.b64encode(b"\0" * offset + text + b"tail"))
        assert not core.search(base64.b64encode(b"\0" * offset + text.replace(b"g", b"h") + b"tail"))
