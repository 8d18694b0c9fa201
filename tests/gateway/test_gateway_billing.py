"""Owns the arithmetic of what a call is charged, and the words of a refusal.
May touch nothing: values in, values out.
Never accepts a charge below what was reported, or an estimate above the hold.
"""

from __future__ import annotations

import json

import pytest
from gateway_stand import PRICES, USD
from hypothesis import given
from hypothesis import strategies as st

from supervisor.gateway.billing import Bill, Terms, bill
from supervisor.gateway.calls import Api, CallRefused, Reported
from supervisor.gateway.refusals import error_answer, limit_text
from supervisor.limits.budget import Ask, Grant, Refusal, Scope
from supervisor.limits.pricing import Price, Rates, cost_nanos, worst_input_nanos, worst_output_nanos
from supervisor.limits.usage import TokenUsage, UsageSource
from supervisor.runs.reasons import StopReason


def terms(price: Price | None, input_bound: int = 1000, output: int = 100, answers: int = 1) -> Terms:
    ask = Ask(input_bound=input_bound, output_wanted=output, output_least=1, answers=answers, price=price)
    nanos = 0
    if price is not None:
        nanos = worst_input_nanos(price, input_bound, ask.cache_write, {})
        nanos += worst_output_nanos(price, input_bound, output * answers)
    grant = Grant(output_tokens=output, nanos=nanos, tokens=input_bound + output * answers)
    return Terms(ask, grant, "model-a", PRICES.get)


counts = st.integers(0, 5000)
usages = st.builds(TokenUsage, input=counts, cache_read=counts, cache_write_1h=counts, output=counts)


@given(
    usage=st.none() | usages,
    complete=st.booleans(),
    written=st.integers(0, 100_000),
    status=st.sampled_from([0, 200, 400, 500, 529]),
    answers=st.integers(1, 4),
)
def test_nothing_is_free_but_an_error(
    usage: TokenUsage | None, complete: bool, written: int, status: int, answers: int
) -> None:
    price = PRICES["model-a"]
    given_terms = terms(price, answers=answers)
    reported = Reported(usage=usage, complete=complete, output_bytes=written, input_known=usage is not None)
    charged = bill(given_terms, reported, status=status)
    if charged is None:
        assert status >= 400 and (usage is None or usage.total == 0)
        return
    assert charged.nanos > 0 and charged.usage.total > 0
    known = 0 if usage is None or usage.total == 0 else cost_nanos(price, usage)
    assert charged.nanos >= known
    if charged.source is not UsageSource.PROVIDER:
        assert charged.nanos <= max(given_terms.grant.nanos, known)
    else:
        assert charged.nanos == known


def charged(given_terms: Terms, usage: TokenUsage, model: str = "", complete: bool = True) -> Bill:
    found = bill(given_terms, Reported(usage=usage, complete=complete, model=model), status=200)
    assert found is not None
    return found


def codes(found: Bill) -> list[str]:
    return [code for code, _ in found.problems]


def test_tokens_that_cost_nothing_on_a_priced_model_are_told() -> None:
    rates = Rates(input=0, output=USD, cache_read=0, cache_write_5m=0, cache_write_1h=0)
    given_terms = terms(Price(provider="p", model="model-a", rates=rates))
    assert codes(charged(given_terms, TokenUsage(input=5))) == ["free_tokens"]
    assert codes(charged(given_terms, TokenUsage(input=5, output=1))) == []
    assert codes(charged(terms(PRICES["model-free"]), TokenUsage(input=5))) == []


def test_a_tool_without_a_price_costs_at_least_the_hold() -> None:
    given_terms = terms(PRICES["model-a"])
    found = charged(given_terms, TokenUsage(input=5, output=1, tools={"web_search": 3}))
    assert found.nanos == given_terms.grant.nanos and codes(found) == ["tool_not_priced"]


def test_without_a_price_only_tokens_are_booked() -> None:
    found = charged(terms(None), TokenUsage(input=5, output=1))
    assert (found.nanos, found.usage.total, found.source) == (0, 6, UsageSource.PROVIDER)
    cut = bill(terms(None), Reported(usage=None, complete=False), status=200)
    assert cut is not None and (cut.nanos, cut.usage.total, cut.source) == (0, 1100, UsageSource.HOLD)


def test_several_answers_share_the_bound() -> None:
    assert codes(charged(terms(PRICES["model-a"], answers=3), TokenUsage(input=10, output=300))) == []
    assert codes(charged(terms(PRICES["model-a"], answers=3), TokenUsage(input=10, output=301))) == [
        "above_bound"
    ]


@pytest.mark.parametrize("scope", Scope)
def test_every_scope_says_whose_cap_it_is(scope: Scope) -> None:
    text = limit_text(
        Refusal(code="x", message="m", reason=StopReason.MAX_COST, scope=scope, cap=USD, needed=USD, left=0)
    )
    assert "$1" in text and "can raise it: " in text


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("status", [400, 403, 404, 413, 426, 429, 500, 502, 503, 504])
def test_every_refusal_has_the_vendors_shape(api: Api, status: int) -> None:
    answer = error_answer(api, CallRefused(status, "some_code", "in words"))
    body = json.loads(answer.body)
    assert body["error"]["message"] == "in words" and answer.headers["x-supervisor-reason"] == "some_code"
    assert ("x-should-retry" in answer.headers) == (status < 500 and status != 429)
    assert body["error"]["code" if api is Api.GEMINI else "type"]
