"""Owns the assembling of seccomp programs: classic BPF over struct seccomp_data.
May touch nothing: bytes in, bytes out.
Never knows a system call by name, nor what is wise to allow.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

# include/uapi/linux/bpf_common.h
_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP = 0x05  # BPF_JMP | BPF_JA
_JUMP_EQUAL = 0x15
_JUMP_GREATER_EQUAL = 0x35
_JUMP_ANY_BIT = 0x45  # BPF_JSET
_RETURN = 0x06

# include/uapi/linux/seccomp.h
ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000
_NUMBER_OFFSET = 0
_ARCH_OFFSET = 4
_ARGUMENTS_OFFSET = 16

MAX_INSTRUCTIONS = 4096
"""BPF_MAXINSNS: the kernel refuses a longer program."""


def refuse(number: int) -> int:
    """The action that makes a call return -number."""
    return _ERRNO | number


@dataclass(frozen=True, slots=True)
class Check:
    """One test on the low 32 bits of an argument; a check that fails sends on to otherwise.

    kind: "any" is true when some bit of value is set; "is" when (argument & mask) equals value.
    """

    argument: int
    kind: str
    value: int
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Branch:
    """A decision on arguments: if check then one side else the other; a side may branch again."""

    check: Check
    then: Branch | int
    otherwise: Branch | int


Action = int | Branch


def assemble(architecture: int, calls: dict[int, Action], default: int, *, foreign_from: int | None) -> bytes:
    """A program that answers each call number with its action and every other with default.

    architecture: AUDIT_ARCH_* of the only ABI let in. foreign_from: numbers from here up belong to
    another ABI (x32) and are killed like a foreign architecture. Raises ValueError if too long.
    """
    code: list[bytes] = [
        _instruction(_LOAD, _ARCH_OFFSET),
        _instruction(_JUMP_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, KILL_PROCESS),
        _instruction(_LOAD, _NUMBER_OFFSET),
    ]
    if foreign_from is not None:
        code += [
            _instruction(_JUMP_GREATER_EQUAL, foreign_from, 0, 1),
            _instruction(_RETURN, KILL_PROCESS),
        ]
    code += _search(_ranges(calls, default))
    if len(code) > MAX_INSTRUCTIONS:
        raise ValueError(f"the filter has {len(code)} instructions, the kernel takes {MAX_INSTRUCTIONS}")
    return b"".join(code)


def _instruction(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, value)


def _ranges(calls: dict[int, Action], default: int) -> list[tuple[int, Action]]:
    """(first number, action) of each run of numbers with one action, covering all numbers."""
    starts: list[tuple[int, Action]] = [(0, default)]
    expected = 0
    for number in sorted(calls):
        if number != expected:
            starts.append((expected, default))
        starts.append((number, calls[number]))
        expected = number + 1
    starts.append((expected, default))
    merged: list[tuple[int, Action]] = []
    for number, action in starts:
        if merged and merged[-1][0] == number:
            merged.pop()
        if not merged or merged[-1][1] != action:
            merged.append((number, action))
    return merged


def _search(ranges: list[tuple[int, Action]]) -> list[bytes]:
    """A balanced search tree over the starts of the ranges."""
    if len(ranges) == 1:
        return _decide(ranges[0][1])
    middle = len(ranges) // 2
    lower, upper = _search(ranges[:middle]), _search(ranges[middle:])
    return [
        _instruction(_JUMP_GREATER_EQUAL, ranges[middle][0], 0, 1),
        _instruction(_JUMP, len(lower)),
        *lower,
        *upper,
    ]


def _decide(action: Action) -> list[bytes]:
    if isinstance(action, int):
        return [_instruction(_RETURN, action)]
    then, otherwise = _decide(action.then), _decide(action.otherwise)
    check = action.check
    test = [_instruction(_LOAD, _ARGUMENTS_OFFSET + 8 * check.argument)]
    if check.kind == "any":
        test.append(_instruction(_JUMP_ANY_BIT, check.value, 0, 1))
    else:
        if check.mask != 0xFFFFFFFF:
            test.append(_instruction(_AND, check.mask))
        test.append(_instruction(_JUMP_EQUAL, check.value, 0, 1))
    return [*test, _instruction(_JUMP, 1), _instruction(_JUMP, len(then)), *then, *otherwise]
