"""Owns that a call costs what the price table says, to the nano-dollar, and that no model is guessed.
May touch the installed package genai-prices, read-only.
Never asks the network for prices.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from typing import Any

import msgspec
import pytest
from genai_prices.data import providers
from genai_prices.types import ModelInfo, ModelPrice, Provider, Usage
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from supervisor.errors import UsageError
from supervisor.gateway.prices import PriceBook, PriceOverride
from supervisor.limits.pricing import Price, Rates, cost_nanos
from supervisor.limits.usage import TokenUsage

AT = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
BOOK = PriceBook()
USD = 10**9


def price_of(provider: str, model: str, at: datetime = AT, book: PriceBook = BOOK) -> Price:
    found = book.price(provider, model, at)
    assert found is not None, f"{provider}/{model}"
    return found


PRICED: list[tuple[Provider, ModelInfo]] = [
    (provider, entry)
    for provider in providers
    for entry in provider.models
    if BOOK.price(provider.id, entry.id, AT) is not None and provider.find_model(entry.id) is entry
]


def nanos_of(entry: ModelInfo, provider: Provider, usage: Usage, at: datetime = AT) -> int:
    total = entry.calc_price(usage, provider, genai_request_timestamp=at).total_price
    return int((total * USD).to_integral_value(ROUND_CEILING))


def test_control_most_models_of_the_table_are_priced() -> None:
    assert len(PRICED) > 1500
    assert {"anthropic", "openai", "google", "mistral", "groq", "deepseek", "x-ai", "openrouter"} <= {
        provider.id for provider, _ in PRICED
    }


TOKENS = st.integers(0, 400_000) | st.integers(0, 300)


@settings(deadline=None, max_examples=2000)
@given(st.integers(0, len(PRICED) - 1), TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, st.integers(0, 20))
def test_a_call_costs_what_the_table_says(
    number: int,
    plain: int,
    read: int,
    short: int,
    long: int,
    written: int,
    searches: int,
) -> None:
    provider, entry = PRICED[number]
    price = price_of(provider.id, entry.id)
    if "web_search" not in price.tools:
        searches = 0
    rates = entry.get_prices(AT)
    if rates.cache_write_mtok is None or rates.cache_write_1h_mtok is None:
        # The table has no rate for it: ours are Anthropic's multiples for Claude, else the next wider one.
        assume("claude" not in entry.id or (short, long) == (0, 0))
    ours = cost_nanos(
        price,
        TokenUsage(
            input=plain,
            cache_read=read,
            cache_write_5m=short,
            cache_write_1h=long,
            output=written,
            tools={"web_search": searches} if searches else {},
        ),
    )
    theirs = nanos_of(
        entry,
        provider,
        Usage(
            input_tokens=plain + read + short + long,
            cache_read_tokens=read,
            cache_write_tokens=short + long,
            cache_write_5m_tokens=short,
            cache_write_1h_tokens=long,
            output_tokens=written,
            web_searches=searches,
        ),
    )
    # A rate like a 24th of a dollar is rounded up once, a million tokens at a time.
    assert theirs <= ours <= theirs + 1


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("anthropic", "claude-opus-4-8"),
        ("anthropic", "claude-sonnet-4-5"),
        ("anthropic", "claude-sonnet-4-5-20250929"),
        ("anthropic", "claude-opus-5-5"),
        ("anthropic", "claude-haiku-4-5-20251001"),
        ("openai", "gpt-5"),
        ("openai", "gpt-5-2025-08-07"),
        ("openai", "gpt-6.1-sol-2026-10-01"),
        ("google", "gemini-2.5-pro"),
        ("google", "gemini-2.5-flash"),
        ("deepseek", "deepseek-chat"),
    ],
)
def test_models_and_their_dated_forms_are_found(provider: str, model: str) -> None:
    found = price_of(provider, model)
    assert (found.provider, found.model, found.source) == (provider, model, "genai-prices")
    assert found.rates.input > 0 and found.rates.output > 0


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("anthropic", "claude-opus-99"),
        ("anthropic", "claude-sonnet-4-5-20990101"),
        ("anthropic", "claude-sonnet-4-5-20251345"),
        ("anthropic", "claude-opus-5-20990101"),
        ("anthropic", "claude-sonnet-4-5-fast"),
        ("anthropic", "claude-sonnet-4-55"),
        ("anthropic", "xclaude-sonnet-4-5"),
        ("anthropic", "claude-sonnet-4-5 "),
        ("anthropic", "gpt-5"),
        ("anthropic", ""),
        ("openai", "gpt-5x"),
        ("openai", "gpt-6.1-sol-2099-10-01"),
        ("openai", "gpt-4o-search-preview"),
        ("google", "gemini-2.5-flash-image"),
        ("google", "gemini-embedding-001"),
        ("perplexity", "sonar-deep-research"),
        ("nobody", "gpt-5"),
        ("my-anthropic-proxy", "claude-sonnet-4-5"),
        ("litellm", "anthropic/claude-sonnet-4-5"),
    ],
)
def test_what_nobody_named_or_cannot_be_expressed_has_no_price(provider: str, model: str) -> None:
    assert BOOK.price(provider, model, AT) is None


def test_a_dated_form_is_none_before_its_day() -> None:
    before = datetime(2025, 9, 28, 12, tzinfo=UTC)
    book = PriceBook()
    assert book.price("anthropic", "claude-sonnet-4-5-20250929", before) is None
    assert book.price("anthropic", "claude-sonnet-4-5-20250929", AT) is not None


def test_the_longer_cache_write_and_the_long_context_have_their_rates() -> None:
    opus = price_of("anthropic", "claude-opus-4-8")
    assert opus.rates == Rates(
        input=5 * USD,
        output=25 * USD,
        cache_read=USD // 2,
        cache_write_5m=25 * USD // 4,
        cache_write_1h=10 * USD,
    )
    assert opus.tools["web_search"] == USD // 100 and opus.tools["web_fetch"] == 0
    gemini = price_of("google", "gemini-2.5-pro")
    assert [tier.above_tokens for tier in gemini.tiers] == [200_000]
    assert gemini.tiers[0].rates.input == 2 * gemini.rates.input
    old = price_of("anthropic", "claude-2")
    assert (old.rates.cache_write_5m, old.rates.cache_write_1h) == (10 * USD, 16 * USD), "not in the table"


def test_a_price_that_changes_within_the_hour_is_the_dearer_one() -> None:
    book = PriceBook()
    day, night = datetime(2026, 11, 20, 12, tzinfo=UTC), datetime(2026, 11, 20, 20, tzinfo=UTC)
    dear, cheap = (price_of("deepseek", "deepseek-chat", at, book).rates for at in (day, night))
    assert dear.input > cheap.input and dear.output > cheap.output
    for minute, rates in ((28, dear), (29, dear), (31, cheap)):
        hour = 23 if minute != 31 else 16
        at = datetime(2026, 11, 20, hour, minute if hour == 16 else 45, tzinfo=UTC)
        assert price_of("deepseek", "deepseek-chat", at, book).rates == rates
    before, after = datetime(2026, 3, 12, 22, tzinfo=UTC), datetime(2026, 3, 12, 23, 30, tzinfo=UTC)
    assert price_of("anthropic", "claude-opus-4-6", before, book).tiers
    assert price_of("anthropic", "claude-opus-4-6", after, book).tiers
    assert not price_of("anthropic", "claude-opus-4-6", AT, book).tiers


def book_of(name: str, **fields: Any) -> PriceBook:
    return PriceBook({name: msgspec.convert(fields, PriceOverride)})


def test_the_operators_price_comes_first_and_zero_is_a_price() -> None:
    book = book_of("anthropic/claude-opus-4-8", input="1", output="2.50", max_output_tokens=64000)
    found = price_of("anthropic", "claude-opus-4-8", book=book)
    assert found.source == "configuration" and found.max_output_tokens == 64000
    assert found.rates == Rates(
        input=USD, output=5 * USD // 2, cache_read=USD, cache_write_5m=5 * USD // 4, cache_write_1h=2 * USD
    )
    free = price_of("local", "any/thing", book=book_of("local/*", input="0", output="0"))
    assert (free.provider, free.model) == ("local", "any/thing")
    assert cost_nanos(free, TokenUsage(input=10**9, output=10**9, cache_write_1h=5)) == 0
    assert book_of("local/*", input="0", output="0").price("other", "m", AT) is None


def test_an_exact_override_wins_over_one_for_all() -> None:
    both = {"x/*": PriceOverride(input="1", output="1"), "x/m": PriceOverride(input="7", output="7")}
    book = PriceBook(both)
    assert price_of("x", "m", book=book).rates.input == 7 * USD
    assert price_of("x", "n", book=book).rates.input == USD


def test_an_override_can_add_to_the_table() -> None:
    book = book_of("openai/gpt-5", max_output_tokens=128_000, tools={"code_interpreter": "0.03"})
    found, plain = price_of("openai", "gpt-5", book=book), price_of("openai", "gpt-5")
    assert found.rates == plain.rates and found.max_output_tokens == 128_000
    assert found.tools == plain.tools | {"code_interpreter": 3 * USD // 100}
    assert book_of("openai/gpt-99", max_output_tokens=5).price("openai", "gpt-99", AT) is None


def test_tiers_calls_and_tools_of_an_override() -> None:
    tier = {"above_tokens": 1000, "input": "2", "output": "4", "cache_write_1h": "3"}
    found = price_of(
        "x", "m", book=book_of("x/m", input="1", output="2", call="0.005", tools={"t": "0.01"}, tiers=[tier])
    )
    assert cost_nanos(found, TokenUsage(input=1000, output=1)) == 1000 * 1000 + 2000 + 5_000_000
    assert cost_nanos(found, TokenUsage(input=1001, tools={"t": 2})) == 1001 * 2000 + 5_000_000 + 20_000_000
    assert found.tiers[0].rates.cache_write_1h == 3 * USD


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("m", {"input": "1", "output": "1"}),
        ("x/", {"input": "1", "output": "1"}),
        ("x/m", {"input": "-1", "output": "1"}),
        ("x/m", {"input": "1"}),
        ("x/m", {"cache_read": "1"}),
        ("x/m", {"input": "1", "output": "1e3"}),
        ("x/m", {"input": "1", "output": "20000"}),
        ("x/m", {"input": "1", "output": "1", "call": "free"}),
        ("x/m", {"input": "1", "output": "1", "tools": {"t": "-2"}}),
        ("x/m", {"input": "1", "output": "1", "max_output_tokens": -1}),
        ("x/m", {"input": "1", "output": "1", "tiers": [{"above_tokens": -1, "input": "1", "output": "1"}]}),
        (
            "x/m",
            {"input": "1", "output": "1", "tiers": [{"above_tokens": 5, "input": "1", "output": "1"}] * 2},
        ),
    ],
)
def test_an_override_that_cannot_be_meant_is_refused_by_name(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        book_of(name, **fields)
    assert f'"{name}"' in caught.value.message


@pytest.mark.parametrize(
    "fields", [{"input": 1, "output": "1"}, {"inptu": "1"}, {"input": 0.5, "output": "1"}]
)
def test_an_override_has_no_floats_and_no_other_keys(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, PriceOverride)


@pytest.mark.parametrize("wrong", [Decimal(-1_000_000), Decimal("-0.1"), Decimal(20_000)])
def test_a_wrong_entry_of_the_table_is_no_price(wrong: Decimal, monkeypatch: pytest.MonkeyPatch) -> None:
    (openai,) = (provider for provider in providers if provider.id == "openai")
    (entry,) = (model for model in openai.models if model.id == "gpt-5")
    monkeypatch.setattr(entry, "prices", ModelPrice(input_mtok=wrong, output_mtok=Decimal(1)))
    assert PriceBook().price("openai", "gpt-5", AT) is None


def test_names_without_end_do_not_fill_the_memory() -> None:
    book = PriceBook()
    for n in range(5000):
        assert book.price("nobody", f"m{n}", AT) is None
    assert price_of("openai", "gpt-5", book=book) is price_of("openai", "gpt-5", book=book)
    assert book.find("openai", "gpt-5") is not None


def test_the_table_is_not_imported_before_a_price_of_it_is_needed() -> None:
    code = (
        "import sys, datetime\n"
        "from supervisor.gateway.prices import PriceBook, PriceOverride\n"
        "book = PriceBook({'x/*': PriceOverride(input='0', output='0')})\n"
        "assert book.find('x', 'm') is not None\n"
        "assert not [name for name in sys.modules if name.startswith(('genai_prices', 'pydantic'))]\n"
        "book.load()\n"
        "assert book.find('openai', 'gpt-5') is not None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
