"""Owns what a call is charged: from what the provider reported, what was held, and how the answer ended.
May touch nothing.
Never charges less than was reported, and never nothing for an answer that was cut short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from supervisor.gateway.calls import Reported
from supervisor.limits.budget import Ask, Grant
from supervisor.limits.pricing import Price, cost_nanos, worst_input_nanos, worst_output_nanos
from supervisor.limits.usage import TokenUsage, UsageSource

BYTES_PER_TOKEN = 3
"""Of text that was relayed when an answer was cut: 3 to 4 are usual, the lower number charges more."""

MOST_TOKENS = 10**7
MOST_USES = 10**4
"""More in one call is not believed: no model reads as much, and sums of such lies fit into no database."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a call was let through with. model: the upstream's own name of it.

    price_of: the price of the model that the answer names.
    """

    ask: Ask
    grant: Grant
    model: str
    price_of: Callable[[str], Price | None]


@dataclass(frozen=True, slots=True)
class Bill:
    """What is to be booked. problems: (code, message) of all that an operator should know."""

    nanos: int
    usage: TokenUsage
    source: UsageSource
    problems: tuple[tuple[str, str], ...] = ()


def bill(terms: Terms, reported: Reported, *, status: int) -> Bill | None:
    """The charge of one attempt; None when the provider did not bill it (an error without usage).

    status: of the provider's answer, 0 when the call was sent and no answer came. A complete report is
    charged as it is. A cut answer costs its input as reported, or the bound that was held for it, and
    an estimate of its output, which is all that was held where it can think unseen; no estimate is above
    the hold. Where nothing was seen, the hold is charged.
    """
    usage = reported.usage
    if usage is not None and usage.total == 0:
        usage = None
    if usage is not None and (usage.total > MOST_TOKENS or sum(usage.tools.values()) > MOST_USES):
        return _hold(terms, answered=True)
    if usage is None and status >= 300:
        return None
    if usage is not None and (reported.complete or status >= 300):
        return _as_reported(terms, usage, reported.model)
    if usage is None and (reported.complete or not reported.output_bytes):
        return _hold(terms, answered=reported.complete or reported.output_bytes > 0)
    return _estimate(terms, usage, reported)


def _as_reported(terms: Terms, usage: TokenUsage, answered_by: str) -> Bill:
    nanos, problems = _cost(terms, usage, answered_by)
    return Bill(nanos, usage, UsageSource.PROVIDER, (*problems, *_above_bound(terms, usage, nanos)))


def _hold(terms: Terms, *, answered: bool) -> Bill:
    ask, grant = terms.ask, terms.grant
    usage = TokenUsage(input=ask.input_bound, output=grant.output_tokens * ask.answers, tools=ask.tools)
    problem = ("unusable_usage", "the provider reported no usage that can be believed; the hold is charged")
    return Bill(grant.nanos, usage, UsageSource.HOLD, (problem,) if answered else ())


def _estimate(terms: Terms, usage: TokenUsage | None, reported: Reported) -> Bill:
    ask, grant = terms.ask, terms.grant
    most = grant.output_tokens * ask.answers
    relayed = most if reported.unseen else min(-(-reported.output_bytes // BYTES_PER_TOKEN), most)
    if usage is None:
        # The input is somewhere below its bound, and nobody said where.
        guessed = TokenUsage(input=ask.input_bound, output=relayed, tools=ask.tools)
        nanos = 0
        if ask.price is not None:
            nanos = worst_input_nanos(ask.price, ask.input_bound, ask.cache_write, ask.tools)
            nanos += worst_output_nanos(ask.price, ask.input_bound, relayed)
        return Bill(min(nanos, grant.nanos), guessed, UsageSource.ESTIMATE)
    known, problems = _cost(terms, usage, reported.model)
    written = TokenUsage(
        input=usage.input,
        cache_read=usage.cache_read,
        cache_write_5m=usage.cache_write_5m,
        cache_write_1h=usage.cache_write_1h,
        output=max(usage.output, relayed),
        reasoning=usage.reasoning,
        tools=usage.tools,
    )
    guess, _ = _cost(terms, written, reported.model)
    nanos = max(known, min(guess, grant.nanos))
    return Bill(nanos, written, UsageSource.ESTIMATE, (*problems, *_above_bound(terms, usage, nanos)))


def _cost(terms: Terms, usage: TokenUsage, answered_by: str) -> tuple[int, tuple[tuple[str, str], ...]]:
    """The larger of what the model that was asked for and the one that answered cost."""
    if terms.ask.price is None:
        return 0, ()
    prices, problems = [terms.ask.price], []
    if answered_by and answered_by != terms.model:
        other = terms.price_of(answered_by)
        if other is None:
            problems.append(("answer_not_priced", f"{answered_by[:80]!r} answered, which has no known price"))
        else:
            prices.append(other)
    found = []
    for price in prices:
        try:
            found.append(cost_nanos(price, usage))
        except KeyError as tool:
            problems.append(
                ("tool_not_priced", f"the provider's tool {tool} was used and has no known price")
            )
            found.append(max(cost_nanos(price, _without_tools(usage)), terms.grant.nanos))
    nanos = max(found)
    rates = terms.ask.price.rates
    if nanos == 0 and usage.total and (rates.input or rates.output):
        problems.append(("free_tokens", f"{usage.total} tokens of {terms.model} cost nothing"))
    return nanos, tuple(problems)


def _without_tools(usage: TokenUsage) -> TokenUsage:
    return TokenUsage(
        input=usage.input,
        cache_read=usage.cache_read,
        cache_write_5m=usage.cache_write_5m,
        cache_write_1h=usage.cache_write_1h,
        output=usage.output,
    )


def _above_bound(terms: Terms, usage: TokenUsage, nanos: int) -> tuple[tuple[str, str], ...]:
    ask, grant = terms.ask, terms.grant
    said = []
    if usage.total_input > ask.input_bound:
        said.append(f"{usage.total_input} tokens of input, at most {ask.input_bound} were expected")
    if usage.output > grant.output_tokens * ask.answers:
        said.append(f"{usage.output} tokens of output, {grant.output_tokens * ask.answers} were allowed")
    if nanos > grant.nanos and ask.price is not None:
        said.append(f"{nanos} nano-dollars, {grant.nanos} were held")
    return (("above_bound", f"{terms.model} used more than was held: {'; '.join(said)}"),) if said else ()
