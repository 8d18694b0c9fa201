"""Owns that an assembled filter decides what its table says: every program is run here, by hand.
May touch nothing but bytes; the interpreter of classic BPF is this file's own.
Never trusts the assembler: the expectation walks the table, the finding walks the instructions.
"""

from __future__ import annotations

import struct

import pytest
from bpf_machine import Call, run
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.bpf import ALLOW, KILL_PROCESS, MAX_INSTRUCTIONS, Action, Branch, Check, assemble, refuse

ARCH = 0xC000003E
X32 = 0x40000000


def decide(action: Action, call: Call) -> int:
    """The table's own meaning."""
    if isinstance(action, int):
        return action
    low = call.arguments[action.check.argument] & 0xFFFFFFFF
    check = action.check
    passed = bool(low & check.value) if check.kind == "any" else (low & check.mask) == check.value
    return decide(action.then if passed else action.otherwise, call)


def expected(call: Call, table: dict[int, Action], default: int, foreign_from: int | None) -> int:
    if call.architecture != ARCH or (foreign_from is not None and call.number >= foreign_from):
        return KILL_PROCESS
    return decide(table.get(call.number, default), call)


results = st.sampled_from([ALLOW, refuse(1), refuse(38), refuse(97), KILL_PROCESS])
values = st.one_of(st.integers(0, 0xFFFFFFFF), st.sampled_from([0, 1, 2, 0o6000, 0x80000000, 0xFFFFFFFF]))
checks = st.builds(
    Check,
    argument=st.integers(0, 5),
    kind=st.sampled_from(["any", "is"]),
    value=values,
    mask=st.sampled_from([0xFFFFFFFF, 0xF, 0xFF00]),
)
actions: st.SearchStrategy[Action] = st.recursive(
    results, lambda inner: st.builds(Branch, checks, inner, inner), max_leaves=6
)
numbers = st.one_of(st.integers(0, 30), st.integers(0, 500), st.sampled_from([X32 - 1, X32, 0xFFFFFFFF]))
tables = st.dictionaries(st.integers(0, 500), actions, max_size=40)
arguments = st.tuples(*[st.one_of(st.integers(0, 2**64 - 1), values) for _ in range(6)])
calls = st.builds(
    Call,
    number=numbers,
    architecture=st.sampled_from([ARCH, ARCH, ARCH, 0x40000003, 0xC00000B7, 0]),
    arguments=arguments,
)


@settings(max_examples=100, deadline=None)
@given(
    table=tables, default=results, foreign=st.sampled_from([None, X32]), probes=st.lists(calls, max_size=20)
)
def test_a_program_decides_what_its_table_says(
    table: dict[int, Action], default: int, foreign: int | None, probes: list[Call]
) -> None:
    program = assemble(ARCH, table, default, foreign_from=foreign)
    borders = {0, *(n + d for n in table for d in (-1, 0, 1) if n + d >= 0)}
    for call in [*probes, *(Call(n, ARCH, (n,) * 6) for n in borders)]:
        assert run(program, call) == expected(call, table, default, foreign)


@given(table=tables, default=results)
@settings(max_examples=100, deadline=None)
def test_jumps_go_forward_and_end_in_a_return(table: dict[int, Action], default: int) -> None:
    program = assemble(ARCH, table, default, foreign_from=X32)
    instructions = list(struct.iter_unpack("=HBBI", program))
    for position, (code, when_true, when_false, value) in enumerate(instructions):
        if code == 0x05:
            assert position + 1 + value < len(instructions)
        elif code & 0x07 == 0x05:
            assert position + 1 + max(when_true, when_false) < len(instructions)
    assert instructions[-1][0] == 0x06


@pytest.mark.parametrize("check", [Check(0, "any", 0), Check(0, "is", 0), Check(5, "is", 0xF0, 0xF0)])
def test_checks_at_their_edges(check: Check) -> None:
    table: dict[int, Action] = {1: Branch(check, refuse(1), ALLOW)}
    program = assemble(ARCH, table, refuse(38), foreign_from=None)
    for value in (0, 1, 0xF0, 0xFF, 2**32, 2**64 - 1):
        call = Call(1, ARCH, (value,) * 6)
        assert run(program, call) == decide(table[1], call)


def test_what_the_high_half_of_an_argument_holds_does_not_matter() -> None:
    """The kernel takes 32 bits of a request, a mode or a flag; so must the filter."""
    program = assemble(ARCH, {16: Branch(Check(1, "is", 0x5412), refuse(1), ALLOW)}, ALLOW, foreign_from=X32)
    assert run(program, Call(16, ARCH, (0, 0x1_0000_5412, 0, 0, 0, 0))) == refuse(1)


def test_a_program_that_is_too_long_is_refused() -> None:
    table: dict[int, Action] = {
        n: Branch(Check(0, "is", n), refuse(n % 100 + 1), ALLOW) for n in range(0, 2 * MAX_INSTRUCTIONS, 2)
    }
    with pytest.raises(ValueError, match="instructions"):
        assemble(ARCH, table, ALLOW, foreign_from=None)


def test_the_longest_programs_still_reach_both_ends() -> None:
    """Jumps over more than 255 instructions need their own form."""
    table: dict[int, Action] = {
        n: Branch(Check(0, "is", n), refuse(n % 100 + 1), ALLOW) for n in range(0, 700, 2)
    }
    program = assemble(ARCH, table, refuse(38), foreign_from=None)
    for number in range(701):
        for value in (number, number + 1):
            call = Call(number, ARCH, (value,) * 6)
            assert run(program, call) == expected(call, table, refuse(38), None)
