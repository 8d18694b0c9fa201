"""Owns what is said on the control socket: one JSON object per line, request then answers.
May touch nothing.
Never changes the meaning of a field: a new meaning is a new field.
"""

from __future__ import annotations

from typing import Any

import msgspec

from supervisor import errors

MAX_LINE = 8 << 20


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """op names what is wanted (the server's table), arguments what it needs."""

    op: str
    arguments: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """kind: "progress" any number of times, then "result" or "error" once.

    An error names its class in supervisor.errors, so that the client raises the same one.
    """

    kind: str
    value: Any = None
    error: str = ""
    message: str = ""
    hint: str = ""


def error_answer(error: errors.SupervisorError) -> Answer:
    """Under the nearest name that the client knows too."""
    known = next(kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))
    return Answer(kind="error", error=known, message=error.message, hint=error.hint)


def to_error(answer: Answer) -> errors.SupervisorError:
    """The error the server raised; a class this client does not know becomes the base class."""
    kind = getattr(errors, answer.error, errors.SupervisorError)
    if not (isinstance(kind, type) and issubclass(kind, errors.SupervisorError)):
        kind = errors.SupervisorError
    return kind(answer.message, hint=answer.hint)
