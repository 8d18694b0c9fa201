"""Owns the shapes that cross the gateway: a model call as it was asked for, and what its answer used.
May touch nothing.
Never holds a key of a provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from supervisor.limits.pricing import CacheWrite
from supervisor.limits.usage import TokenUsage


class Api(StrEnum):
    """The wire formats that have a meter."""

    ANTHROPIC_MESSAGES = "anthropic-messages"
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    GEMINI = "gemini"


class CallRefused(Exception):
    """A request that cannot be metered, or may not be made. status is an HTTP status, code for programs."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request, read strictly. Token counts bound from above what the provider can bill.

    output_asked: tokens per answer, None when the request names no bound. output_least: fewer would
    be refused by the provider or useless. answers: generated at once. hides_usage: a usage chunk was
    asked for by us and not by the client, who must not see it. tools: the most uses of tools that
    run at the provider, by name. document and prefixes belong to the module that read the request.
    """

    api: Api
    model: str
    stream: bool
    input_bound: int
    output_asked: int | None
    output_least: int
    answers: int = 1
    hides_usage: bool = False
    cache_write: CacheWrite = CacheWrite.NONE
    tools: Mapping[str, int] = field(default_factory=dict)
    document: Mapping[str, object] = field(default_factory=dict)
    prefixes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Reported:
    """What a provider said. usage None: it said nothing usable, so the reservation is charged.

    input_known: the input was reported though the answer was cut short. output_bytes: of generated
    text that went by, to estimate a cut answer from. complete: the answer came to its end.
    model: as the provider named it, "" when it did not. unseen: the model may have thought more than went
    by, so that no estimate can be made from what did.
    """

    usage: TokenUsage | None
    complete: bool
    model: str = ""
    input_known: bool = False
    output_bytes: int = 0
    unseen: bool = False


class UsageReader(Protocol):
    """Reads one answer of one API. feed is given whole server-sent events or one whole body, in order."""

    def event(self, data: bytes) -> bool:
        """One event's data of a stream. False: the client did not ask for it and must not see it."""
        ...

    def body(self, data: bytes) -> None:
        """The whole body of an answer that was not streamed."""
        ...

    def reported(self) -> Reported: ...
