"""Owns that a log is read whole while its writer rotates, truncates, rewrites and removes it.
May touch a temporary folder that stands for the box's.
Never counts as lost what was written and truncated away between two looks: nobody can read that.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_writer import ACTIONS, LogWriter, Reader, check

STEPS = [*ACTIONS, "look", "restart", "crash"]


def play(folder: Path, steps: Sequence[str]) -> tuple[LogWriter, Reader]:
    writer, reader = LogWriter(folder), Reader(folder)
    for step in steps:
        if step in ACTIONS:
            ACTIONS[step](writer)
        elif step == "look":
            reader.look()
            writer.looked()
        elif step == "restart":
            # What is renamed out of sight or unlinked is known to the old tail alone.
            reader.look()
            writer.looked()
            reader.restart()
        else:
            reader.crash()
            writer.looked()
    writer.line()
    reader.finish()
    writer.close()
    return writer, reader


@settings(deadline=None, max_examples=120)
@given(st.lists(st.sampled_from([*STEPS, "line", "line", "look", "look"]), max_size=40))
def test_any_order_of_what_a_writer_may_do(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(*play(Path(folder), steps))


@pytest.mark.parametrize("seed", range(3))
def test_a_day_of_rotation_and_truncation(tmp_path: Path, seed: int) -> None:
    """A minute is some lines and a look; every hour is a rotation and every ten minutes a truncation."""
    chance = random.Random(seed)
    steps: list[str] = []
    rotations = ["rename", "rename_within", "remake", "copy_and_truncate"]
    for minute in range(1, 24 * 60 + 1):
        steps += ["line"] * chance.randrange(12)
        if chance.random() < 0.2:
            steps.append("half")
        if minute % 10 == 0:
            # A look before each: what a look has seen cannot be lost.
            steps += ["look", chance.choice(["truncate", "rewrite", "leave_a_hole"])]
        if minute % 60 == 0:
            steps.append(chance.choice(rotations))
        if minute % 180 == 0:
            steps.append(chance.choice(["restart", "crash"]))
        steps.append("look")
    writer, reader = play(tmp_path, steps)
    check(writer, reader)
    assert len(writer.written) > 5000
    lost = set(writer.written) - set(reader.told)
    assert len(lost) <= 24 * 6, "no more than the ends of half lines between a look and a truncation"


def test_control_what_is_truncated_between_two_looks_is_lost_and_said(tmp_path: Path) -> None:
    writer, reader = play(tmp_path, ["line", "look", "line", "truncate", "line", "look"])
    check(writer, reader)
    assert set(writer.written) - set(reader.told) == {writer.written[1]} == writer.at_risk
    assert reader.gaps == 1


def test_a_copy_that_matches_gives_what_was_not_read_of_the_original(tmp_path: Path) -> None:
    """Here even the lines between the last look and the truncation are found: they are in the copy."""
    steps = ["line", "look", "line", "copy_and_truncate", "line", "look", "copy_and_truncate"]
    writer, reader = play(tmp_path, steps)
    assert sorted(reader.told) == sorted(writer.written)
