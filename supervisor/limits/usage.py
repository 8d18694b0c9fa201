"""Owns what one model call used, in disjoint classes of tokens, and where that is known from.
May touch nothing.
Never counts a token twice: what a provider reports inside another figure is taken out of it first.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class UsageSource(StrEnum):
    """Where the figures of a charge come from."""

    PROVIDER = "provider"
    ESTIMATE = "estimate"
    HOLD = "hold"
    SELF_REPORTED = "self_reported"
    UNBILLED = "unbilled"


MEANING: dict[UsageSource, str] = {
    UsageSource.PROVIDER: "the provider reported what the call used",
    UsageSource.ESTIMATE: "the call was cut short: its input as reported, its output from the bytes relayed",
    UsageSource.HOLD: "nothing usable was reported, so the whole reservation is charged",
    UsageSource.SELF_REPORTED: "the agent's own log says so; nobody checked it",
    UsageSource.UNBILLED: "the provider did not bill the call, and the reservation was released",
}


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one call. The classes are disjoint, except that reasoning is a part of output.

    input: read at the full rate. cache_read, cache_write_5m, cache_write_1h: input read from or
    written to the provider's prompt cache; a write whose lifetime is not reported counts as 1 h.
    output: everything generated, reasoning included. tools: uses of tools that run at the provider
    and are billed by use, by name ("web_search").
    """

    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0
    tools: dict[str, int] = {}

    @property
    def total_input(self) -> int:
        """What price tiers look at: all input, cached or not."""
        return self.input + self.cache_read + self.cache_write_5m + self.cache_write_1h

    @property
    def total(self) -> int:
        """What limits.tokens counts: input with cache, and output."""
        return self.total_input + self.output
