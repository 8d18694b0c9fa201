"""Owns what the readers of requests share: what was asked for, and what must be stated to be allowed.
May touch nothing.
Never allows an input whose tokens the body does not bound, unless somebody stated how many they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from supervisor.gateway.bounds import Part
from supervisor.gateway.strict import bad_request, not_metered
from supervisor.limits.pricing import CacheWrite


class Allowances(msgspec.Struct, frozen=True, kw_only=True):
    """What a profile states. image_tokens, document_tokens: to hold for each one; None refuses them.

    tool_uses: the most uses, per call, of tools that run at the provider, by name ("web_search");
    they also need document_tokens, which each use is assumed to bring in at most.
    """

    image_tokens: int | None = None
    document_tokens: int | None = None
    tool_uses: Mapping[str, int] = {}


@dataclass(slots=True)
class Asked:
    """A request as one API's reader understood it. document: what is to be sent, bound not yet set.

    messages are hashed one by one, head is all else that is read. refine: may earlier reports bound
    it. uses: of provider tools by name. rounds: how often the provider may read everything.
    """

    document: dict[str, Any]
    model: str
    stream: bool
    head: Part
    messages: list[Part]
    output_asked: int | None
    output_least: int = 1
    answers: int = 1
    hides_usage: bool = False
    cache_write: CacheWrite = CacheWrite.NONE
    slack: int = 0
    refine: bool = True
    uses: dict[str, int] = field(default_factory=dict)
    rounds: int = 1
    per_round: int = 0


@dataclass(slots=True)
class Inputs:
    """Counts, within one part, what its bytes do not bound."""

    allow: Allowances
    more: int = 0
    opaque: int = 0

    def image(self, data: object = None) -> None:
        """One image. data: its base64 if it is in the body, which then is no text.

        The bytes of an image do not bound its tokens: a small file can hold a large empty picture.
        """
        if self.allow.image_tokens is None:
            raise not_metered("unbounded_input", "images are not forwarded: gateway.image_tokens is not set")
        self._opaque(self.allow.image_tokens, data)

    def document(self, data: object = None) -> None:
        """One document: a PDF, a stored file, a page behind an address."""
        if self.allow.document_tokens is None:
            raise not_metered(
                "unbounded_input", "documents are not forwarded: gateway.document_tokens is not set"
            )
        self._opaque(self.allow.document_tokens, data)

    def _opaque(self, tokens: int, data: object) -> None:
        self.more += tokens
        if isinstance(data, str):
            self.opaque += len(data.encode("utf-8", "surrogatepass"))


def refuse_media(what: str) -> None:
    """Raises for inputs that nobody can state a number of tokens for."""
    raise not_metered(
        "unbounded_input", f"{what} is not forwarded: its tokens are not bounded by the request"
    )


def model_of(document: dict[str, Any]) -> str:
    """The model a body names. Refuses (400) what is no short string."""
    model = document.get("model")
    if type(model) is not str or not 0 < len(model) <= 256 or not model.isprintable():
        raise bad_request("model must be a string")
    return model


def search_uses(name: str, allow: Allowances) -> int:
    """The most uses of a tool at the provider. Raises for one that nothing was stated for."""
    uses = allow.tool_uses.get(name, 0)
    if uses < 1:
        raise not_metered(
            "unbounded_tool", f"the provider's tool {name} is not forwarded: not in gateway.tool_uses"
        )
    if allow.document_tokens is None:
        raise not_metered(
            "unbounded_tool",
            f"the provider's tool {name} is not forwarded: gateway.document_tokens is not set",
        )
    return uses


def refuse_tier(value: object, allowed: frozenset[object], name: str) -> None:
    """Raises for a rate that the price table does not have."""
    if not isinstance(value, str | None) or value not in allowed:
        raise not_metered(
            "dearer_rate", f"{name} {str(value)[:40]!r} is billed at another rate than the one held"
        )


def says(parts: Iterable[Part], *words: bytes) -> bool:
    """Whether one of the strings stands in the parts, as a name or a value of its own.

    Words are given with their quotes: inside a longer text those are escaped, so they are not found.
    """
    # No JSON of ours holds a line end, so nothing is found across two of them.
    text = b"\n".join([part.text for part in parts])
    return any(word in text for word in words)
