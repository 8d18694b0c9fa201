"""Owns that a box's specification survives the launcher's socket, and that nothing else passes it.
May touch nothing: values in, values out.
Never accepts a lenient decoding: an unknown key is an error, not a wish.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox import init
from sandbox.spec import (
    ALWAYS_REQUIRED,
    CONTROL_GROUPS,
    BoxSpec,
    CgroupLimits,
    Control,
    MountStep,
)
from sandbox.wire import SpecError, decode, encode, to_json

text = st.text(max_size=20)
steps: st.SearchStrategy[Any] = st.one_of(*[st.from_type(kind) for kind in get_args(MountStep)])
cores = st.floats(min_value=0.01, max_value=1024)  # nan is not equal to itself, nor a number of cores
groups = st.builds(CgroupLimits, cpu_cores=cores)
boxes: st.SearchStrategy[BoxSpec] = st.builds(BoxSpec, cgroup=groups)


@settings(max_examples=150, deadline=None)
@given(box=boxes)
def test_a_box_survives_the_socket(box: BoxSpec) -> None:
    assert decode(BoxSpec, json.loads(to_json(box))) == box


@given(step=steps)
@settings(max_examples=200, deadline=None)
def test_every_step_survives_and_describes_itself(step: Any) -> None:
    plain = json.loads(json.dumps(encode(step)))
    assert plain["step"] == type(step).__name__
    assert decode(MountStep, plain) == step  # type: ignore[arg-type]
    assert step.target in step.describe()


@given(step=steps)
@settings(max_examples=100, deadline=None)
def test_a_changed_step_is_refused(step: Any) -> None:
    plain = encode(step)
    for broken in (
        {**plain, "unknown": 1},
        {**plain, "step": "Shell"},
        {**plain, "target": 1},
        {key: value for key, value in plain.items() if key != "target"},
        {key: value for key, value in plain.items() if key != "step"},
        "text",
        None,
        [plain],
    ):
        with pytest.raises(SpecError):
            decode(MountStep, broken)  # type: ignore[arg-type]


@given(box=boxes, data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_field_of_a_box_may_be_left_out_or_have_another_type(box: BoxSpec, data: st.DataObject) -> None:
    plain = json.loads(to_json(box))
    name = data.draw(st.sampled_from(sorted(plain)))
    kind = get_type_hints(BoxSpec)[name]
    for wrong in (1.5, "text", 7, True, {"x": 1}, [[1]]):
        fits = type(wrong) is kind or (kind is float and type(wrong) is int)
        if not fits:
            with pytest.raises(SpecError, match="box"):
                decode(BoxSpec, {**plain, name: wrong})
    without = {key: value for key, value in plain.items() if key != name}
    with pytest.raises(SpecError):
        decode(BoxSpec, without)


@dataclasses.dataclass
class Pair:
    count: int
    cores: float


@dataclasses.dataclass
class Pairs:
    inner: tuple[Pair, ...]


def test_a_truth_value_is_no_number_and_a_whole_number_is_a_float() -> None:
    assert decode(Pair, {"count": 1, "cores": 2}) == Pair(1, 2.0)
    for wrong in ({"count": True, "cores": 2.0}, {"count": 1.0, "cores": 2.0}, {"count": 1, "cores": "2"}):
        with pytest.raises(SpecError):
            decode(Pair, wrong)


def test_errors_say_where() -> None:
    with pytest.raises(SpecError, match=r"box\.inner.*\.count is not of type int"):
        decode(Pairs, {"inner": [{"count": 1, "cores": 1}, {"count": "1", "cores": 1}]})


def test_controls_and_groups() -> None:
    assert set(Control) > ALWAYS_REQUIRED
    for members in CONTROL_GROUPS.values():
        assert set(members) <= set(Control)
        assert not set(members) & ALWAYS_REQUIRED
    assert not set(CONTROL_GROUPS) & {str(control) for control in Control}


def test_every_step_that_touches_the_worktree_has_the_control_of_its_kind() -> None:
    kinds = {kind.__name__ for kind in get_args(MountStep)}
    assert {"Worktree", "Pin", "Protect", "Hide", "Unlock"} <= kinds
    for kind in get_args(MountStep):
        blank = object.__new__(kind)
        name = init.control_of(blank)
        expected = {
            "Worktree": Control.WORKTREE,
            **dict.fromkeys(("Pin", "Protect", "Hide", "Unlock"), Control.PROTECTED_PATHS),
        }
        assert name == expected.get(kind.__name__, Control.ROOT)
