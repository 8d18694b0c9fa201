"""Owns what the processes of a box say to each other and to the supervisor while they arm it.
May touch the sockets it is given.
Never lets a control pass as armed that raised, nor a required one as merely missing.
"""

from __future__ import annotations

import array
import errno
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sandbox.spec import Control

MESSAGE_BYTES = 1 << 18
MAX_DESCRIPTORS = 32


class NotArmed(Exception):
    """A control could not be armed: its name, and the system's reason."""

    def __init__(self, control: Control, message: str, number: int = 0) -> None:
        super().__init__(f"{control}: {message}")
        self.control = control
        self.message = message
        self.number = number


class NoProgram(Exception):
    """The agent's program is not in the box, or cannot be executed there."""


@dataclass(slots=True)
class Armed:
    """What is armed so far, and what could not be although the specification does not insist."""

    required: frozenset[str]
    controls: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, *controls: Control) -> None:
        self.controls += [name for name in map(str, controls) if name not in self.controls]

    @contextmanager
    def arming(self, control: Control) -> Iterator[None]:
        """Record the control as armed, or raise NotArmed, or note a dispensable one as missing."""
        try:
            yield
        except OSError as error:
            message = reason(error)
            if control in self.required:
                raise NotArmed(control, message, error.errno or 0) from error
            self.missing[control] = message
        else:
            self.add(control)

    def refuse_if_incomplete(self) -> None:
        for name in sorted(self.required - set(self.controls)):
            raise NotArmed(Control(name), self.missing.get(name, "this host does not offer it"))


def reason(error: OSError) -> str:
    return f"{error.strerror or error} ({error.filename})" if error.filename else str(error.strerror or error)


def send(channel: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    send_raw(channel, json.dumps(message, separators=(",", ":")).encode(), descriptors)


def send_raw(channel: socket.socket, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
    ancillary: list[tuple[int, int, array.array[int]]] = []
    if descriptors:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([message], ancillary)


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """One message and the descriptors that came with it; empty when the other end has closed."""
    raw, ancillary, _, _ = channel.recvmsg(
        MESSAGE_BYTES, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
    )
    found: array.array[int] = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return raw, list(found)


def report_failure(channel: socket.socket, error: NotArmed) -> None:
    send(
        channel,
        {
            "kind": "failed",
            "control": str(error.control),
            "message": error.message,
            "errno": errno.errorcode.get(error.number, ""),
        },
    )
