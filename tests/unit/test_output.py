"""Owns that an agent's bytes cannot act on a terminal, and how columns and bars look.
May touch nothing but captured output.
Never depends on colour.
"""

from __future__ import annotations

import unicodedata

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.cli import output


@settings(deadline=None)
@given(st.text(st.characters()))
def test_nothing_that_acts_on_a_terminal_is_left(text: str) -> None:
    shown = output.visible(text, always=True)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co") and c != "\t" for c in shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢", "plain ü 漢"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\rb\n", "a\\x0db\\x0a"),
        ("\u202e", "\\u202e"),
        ("\t", "\t"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert output.visible(text, always=True) == shown


def test_a_pipe_gets_the_text_as_it_was() -> None:
    assert output.visible("\x1b[31m") == "\x1b[31m", "the tests' output is no terminal"


@settings(deadline=None)
@given(st.floats(-2, 3), st.integers(1, 40))
def test_bars_have_one_width(share: float, cells: int) -> None:
    assert len(output.bar(share, cells)) == cells + 2


def test_bars() -> None:
    assert (output.bar(0, 4), output.bar(0.5, 4), output.bar(1, 4)) == ("▕    ▏", "▕██  ▏", "▕████▏")


def test_tables_end_where_the_terminal_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["A", "COMMAND"], ["one", "x" * 200], ["three", "y"]]
    output.table(rows)
    assert "x" * 200 in capsys.readouterr().out, "a pipe gets all of it"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.table(rows)
    lines = click.unstyle(capsys.readouterr().out).splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert lines[1].endswith("…") and lines[1].index("x") == lines[2].index("y") == lines[0].index("COMMAND")


@pytest.mark.parametrize(
    ("text", "room", "short"), [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("abc", 0, "…"), ("", 0, "")]
)
def test_shorten(text: str, room: int, short: str) -> None:
    assert output.shorten(text, room)[-len(short) :] == short or not short


def test_no_time_is_a_dash() -> None:
    assert output.ago(None) == output.NONE and output.ago("") == output.NONE
