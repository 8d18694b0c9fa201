"""Owns that what is granted fits under every cap, whatever the balances are, and what a refusal says.
May touch nothing.
Never asks a database: the rule itself is held here.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.limits.budget import Ask, Balance, Balances, Caps, Grant, Refusal, Scope, decide
from supervisor.limits.pricing import CacheWrite, Price, Rates, Tier, cost_nanos, worst_rates
from supervisor.limits.usage import TokenUsage
from supervisor.runs.reasons import StopReason

USD = 1_000_000_000
PRICE = Price(
    provider="p",
    model="m",
    rates=Rates(
        input=3 * USD,
        output=15 * USD,
        cache_read=300_000_000,
        cache_write_5m=3_750_000_000,
        cache_write_1h=6 * USD,
    ),
    tiers=(
        Tier(
            above_tokens=200_000,
            rates=Rates(
                input=6 * USD,
                output=22_500_000_000,
                cache_read=600_000_000,
                cache_write_5m=7_500_000_000,
                cache_write_1h=12 * USD,
            ),
        ),
    ),
    tools={"web_search": 10_000_000},
)
MONEY = st.one_of(st.none(), st.integers(0, 2 * USD))
BALANCE = st.builds(
    Balance,
    spent_nanos=st.integers(0, USD),
    held_nanos=st.integers(0, USD),
    tokens=st.integers(0, 500_000),
    held_tokens=st.integers(0, 500_000),
    calls=st.integers(0, 30),
)
CAPS = st.builds(
    Caps,
    iterations=st.one_of(st.none(), st.integers(0, 30)),
    tokens=st.one_of(st.none(), st.integers(0, 2_000_000)),
    run_nanos=MONEY,
    ticket_nanos=MONEY,
    project_day_nanos=MONEY,
    global_day_nanos=MONEY,
)
ASK = st.builds(
    Ask,
    input_bound=st.integers(0, 400_000),
    output_wanted=st.integers(0, 64_000),
    output_least=st.integers(0, 2_000),
    answers=st.integers(1, 4),
    cache_write=st.sampled_from(list(CacheWrite)),
    tools=st.sampled_from([{}, {"web_search": 3}]),
    price=st.just(PRICE),
)
BALANCES = st.builds(Balances, run=BALANCE, ticket=BALANCE, project_day=BALANCE, global_day=BALANCE)


@given(ASK, CAPS, BALANCES)
def test_what_is_granted_fits_under_every_cap(ask: Ask, caps: Caps, balances: Balances) -> None:
    answer = decide(ask, caps, balances)
    if isinstance(answer, Refusal):
        return
    for scope in Scope:
        cap, balance = caps.nanos(scope), balances.of(scope)
        assert cap is None or balance.spent_nanos + balance.held_nanos + answer.nanos <= cap
    run = balances.run
    assert caps.tokens is None or run.tokens + run.held_tokens + answer.tokens <= caps.tokens
    assert caps.iterations is None or run.calls < caps.iterations
    assert min(ask.output_least, ask.output_wanted) <= answer.output_tokens <= ask.output_wanted


@given(ASK, st.data())
def test_no_use_within_the_bounds_costs_more_than_was_held(ask: Ask, data: st.DataObject) -> None:
    answer = decide(ask, Caps(), Balances())
    assert isinstance(answer, Grant)
    total = data.draw(st.integers(0, ask.input_bound))
    read = data.draw(st.integers(0, total))
    writes = {CacheWrite.NONE: "input", CacheWrite.FIVE_MINUTES: "cache_write_5m"}
    field = writes.get(ask.cache_write, "cache_write_1h")
    output = data.draw(st.integers(0, answer.output_tokens * ask.answers))
    usage = TokenUsage(cache_read=read, output=output, tools=ask.tools, **{field: total - read})
    assert cost_nanos(PRICE, usage) <= answer.nanos
    assert usage.total <= answer.tokens


@given(ASK, CAPS, BALANCES)
def test_a_refusal_of_money_is_due(ask: Ask, caps: Caps, balances: Balances) -> None:
    """The positive side: what is refused for money would not have fitted with the least it could do with."""
    answer = decide(ask, caps, balances)
    if isinstance(answer, Refusal) and answer.reason in (StopReason.MAX_COST, StopReason.DAILY_CAP):
        assert answer.needed > answer.left
        assert answer.cap == caps.nanos(answer.scope)


@pytest.mark.parametrize(
    ("caps", "code", "reason"),
    [
        (Caps(iterations=0), "max_iterations", StopReason.MAX_ITERATIONS),
        (Caps(tokens=0), "max_tokens", StopReason.MAX_TOKENS),
        (Caps(run_nanos=0), "max_cost", StopReason.MAX_COST),
        (Caps(ticket_nanos=0), "max_cost", StopReason.MAX_COST),
        (Caps(project_day_nanos=0), "daily_cap", StopReason.DAILY_CAP),
        (Caps(global_day_nanos=0), "daily_cap", StopReason.DAILY_CAP),
    ],
)
def test_a_cap_of_zero_allows_nothing(caps: Caps, code: str, reason: StopReason) -> None:
    ask = Ask(input_bound=1, output_wanted=1, output_least=1, price=PRICE)
    answer = decide(ask, caps, Balances())
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.reason) == (code, reason)
    assert isinstance(decide(ask, Caps(), Balances()), Grant)


def test_a_model_without_a_price_is_refused_where_money_is_capped() -> None:
    ask = Ask(input_bound=1, output_wanted=1, output_least=1, price=None)
    refused = decide(ask, Caps(global_day_nanos=USD), Balances())
    assert isinstance(refused, Refusal) and (refused.code, refused.reason) == ("model_not_priced", None)
    assert decide(ask, Caps(tokens=10), Balances()) == Grant(output_tokens=1, nanos=0, tokens=2)


def test_a_tool_without_a_price_is_refused() -> None:
    ask = Ask(input_bound=1, output_wanted=1, output_least=1, price=PRICE, tools={"dig": 1})
    refused = decide(ask, Caps(run_nanos=USD), Balances())
    assert isinstance(refused, Refusal) and refused.code == "tool_not_priced"
    with pytest.raises(KeyError):
        cost_nanos(PRICE, TokenUsage(tools={"dig": 1}))


def test_the_answer_is_cut_to_what_is_left_rather_than_refused() -> None:
    ask = Ask(input_bound=1000, output_wanted=64_000, output_least=256, price=PRICE)
    answer = decide(ask, Caps(run_nanos=100_000_000), Balances())
    assert isinstance(answer, Grant)
    assert answer.output_tokens == (100_000_000 - 3_000_000) * 1_000_000 // (15 * USD)
    assert answer.nanos <= 100_000_000


def test_what_a_run_holds_of_the_day_already_is_its_own() -> None:
    full = Balance(spent_nanos=USD - 200_000_000, held_nanos=200_000_000)
    ask = Ask(input_bound=1000, output_wanted=1000, output_least=1000, price=PRICE)
    caps = Caps(global_day_nanos=USD)
    assert isinstance(decide(ask, caps, Balances(global_day=full)), Refusal)
    assert isinstance(decide(ask, caps, Balances(global_day=full, ceiling_nanos=200_000_000)), Grant)


def test_a_long_input_is_priced_as_a_whole_at_the_dearer_rate() -> None:
    assert worst_rates(PRICE, 200_000).input == 3 * USD
    assert worst_rates(PRICE, 200_001).input == 6 * USD
    assert cost_nanos(PRICE, TokenUsage(input=1, cache_read=200_000)) == 6000 + 120_000_000
