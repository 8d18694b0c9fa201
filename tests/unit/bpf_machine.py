"""Owns an interpreter of classic BPF, as far as seccomp filters use it (networking/filter.rst).
May touch nothing.
Never guesses: an instruction it does not know, and a jump out of the program, are errors.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """struct seccomp_data without the instruction pointer."""

    number: int
    architecture: int
    arguments: tuple[int, ...] = (0,) * 6

    def data(self) -> bytes:
        return struct.pack("=IIQ6Q", self.number, self.architecture, 0, *self.arguments)


def run(program: bytes, call: Call) -> int:
    """What the filter returns for the call."""
    instructions = list(struct.iter_unpack("=HBBI", program))
    data = call.data()
    accumulator = 0
    position = 0
    while True:
        code, when_true, when_false, value = instructions[position]
        position += 1
        if code == 0x20:
            assert value % 4 == 0
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif code == 0x54:
            accumulator &= value
        elif code == 0x05:
            position += value
        elif code == 0x15:
            position += when_true if accumulator == value else when_false
        elif code == 0x35:
            position += when_true if accumulator >= value else when_false
        elif code == 0x45:
            position += when_true if accumulator & value else when_false
        elif code == 0x06:
            return int(value)
        else:
            raise AssertionError(f"unknown instruction {code:#x}")
