"""Owns the arithmetic of prices: what a call cost, and the most that it can cost.
May touch nothing: a price is an argument.
Never rounds in the caller's favour: a part of a nano-dollar is a whole one.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from supervisor.limits.usage import TokenUsage

TOKENS_PER_RATE = 1_000_000


class CacheWrite(StrEnum):
    """The dearest way in which a request lets the provider write its prompt cache."""

    NONE = "none"
    FIVE_MINUTES = "5m"
    ONE_HOUR = "1h"


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-dollars per million tokens: $3 per million is 3_000_000_000."""

    input: int
    output: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """Rates for the whole of a call whose input (cache included) is above that many tokens."""

    above_tokens: int
    rates: Rates


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a model costs. tiers are sorted by above_tokens.

    tools: nano-dollars per use, by name. call_nanos: per call, whatever it used. max_output_tokens:
    the most that the model can answer with, 0 where that is not known.
    source: where the figures come from, for people.
    """

    provider: str
    model: str
    rates: Rates
    tiers: tuple[Tier, ...] = ()
    tools: dict[str, int] = {}
    call_nanos: int = 0
    max_output_tokens: int = 0
    source: str = ""


def cost_nanos(price: Price, usage: TokenUsage) -> int:
    """What the call cost. A tool without a price of its own raises KeyError: never zero by default."""
    rates = rates_at(price, usage.total_input)
    millionths = (
        usage.input * rates.input
        + usage.cache_read * rates.cache_read
        + usage.cache_write_5m * rates.cache_write_5m
        + usage.cache_write_1h * rates.cache_write_1h
        + usage.output * rates.output
    )
    tools = sum(count * price.tools[name] for name, count in usage.tools.items() if count)
    return _divide_up(millionths, TOKENS_PER_RATE) + tools + price.call_nanos


def rates_at(price: Price, total_input: int) -> Rates:
    """The rates of a call with that much input; a tier applies to the whole call, not to what is above it."""
    found = price.rates
    for tier in price.tiers:
        if total_input > tier.above_tokens:
            found = tier.rates
    return found


def worst_rates(price: Price, input_bound: int) -> Rates:
    """The dearest of each rate that a call with at most that much input can be given."""
    if not price.tiers:
        return price.rates
    reached = [price.rates, *(tier.rates for tier in price.tiers if input_bound > tier.above_tokens)]
    return Rates(**{name: max(getattr(r, name) for r in reached) for name in Rates.__struct_fields__})


def worst_input_nanos(price: Price, input_bound: int, cache_write: CacheWrite, tools: dict[str, int]) -> int:
    """The most that the input of a call, its fee and its tools can cost. Raises KeyError as cost_nanos."""
    rates = worst_rates(price, input_bound)
    dearest = max(rates.input, rates.cache_read)
    if cache_write is not CacheWrite.NONE:
        dearest = max(dearest, rates.cache_write_5m)
    if cache_write is CacheWrite.ONE_HOUR:
        dearest = max(dearest, rates.cache_write_1h)
    used = sum(count * price.tools[name] for name, count in tools.items() if count)
    return _divide_up(input_bound * dearest, TOKENS_PER_RATE) + used + price.call_nanos


def worst_output_nanos(price: Price, input_bound: int, output_tokens: int) -> int:
    """The most that so many tokens of output can cost."""
    return _divide_up(output_tokens * worst_rates(price, input_bound).output, TOKENS_PER_RATE)


def affordable_output(price: Price, input_bound: int, nanos: int) -> int:
    """How many tokens of output fit into that much money; a model without an output price has no bound."""
    rate = worst_rates(price, input_bound).output
    return nanos * TOKENS_PER_RATE // rate if rate else 1 << 62


def _divide_up(amount: int, by: int) -> int:
    return -(-amount // by)
