"""Owns what models cost: the rates of the installed price table, and the operator's own above them.
May touch the installed package genai-prices, imported when a price is first needed; never its updater.
Never finds a price for a model that nobody named: a name that only looks alike has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.errors import UsageError
from supervisor.limits.money import NANOS_PER_USD, parse_usd
from supervisor.limits.pricing import Price, Rates, Tier

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

MAX_NANOS_PER_MTOK = 10_000 * NANOS_PER_USD
"""No model costs $10,000 per million tokens; a table that says so is wrong."""
LONGEST_CALL = timedelta(hours=1)
CACHED_PRICES = 4096

_TOKENS = (
    "input_mtok output_mtok cache_read_mtok cache_write_mtok cache_write_5m_mtok cache_write_1h_mtok".split()
)
_TOOLS = {"web_searches_kcount": "web_search", "storage_searches_kcount": "file_search"}
_PER_CALL = "requests_kcount"
_REFUSED_ELSEWHERE = frozenset(
    "input_audio_mtok output_audio_mtok cache_audio_read_mtok input_video_mtok input_audio_hours".split()
)
"""Rates of what no request is let through with."""
_SEARCHING = re.compile("search-(preview|api)")
"""Models that search by themselves, at a fee per search that their entry does not have."""
_DATED = re.compile(r"(.+)[-@](20\d\d)(-?)(\d\d)\3(\d\d)")
_FREE_TOOLS = {"anthropic": {"web_fetch": 0}}
"""Billed by their tokens alone, as the provider's pricing page says."""


class TierOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of a whole call with more input than above_tokens. USD per million tokens, as strings."""

    above_tokens: int
    input: str
    output: str
    cache_read: str | None = None
    cache_write_5m: str | None = None
    cache_write_1h: str | None = None


class PriceOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[prices."PROVIDER/MODEL"], or PROVIDER/* for all its models. USD per million tokens: "2.50".

    Amounts are strings; "0" is free. input and output are both given, or both taken from the table.
    Where left out, a cache read costs what input does, a 5 min write 1.25 times and a 1 h write twice
    as much. tools: USD per use by name; call: USD per call. max_output_tokens: what the model can
    answer with at most, 0 where that is not known.
    """

    input: str | None = None
    output: str | None = None
    cache_read: str | None = None
    cache_write_5m: str | None = None
    cache_write_1h: str | None = None
    tools: dict[str, str] = {}
    call: str = "0"
    max_output_tokens: int = 0
    tiers: list[TierOverride] = []


class PriceBook:
    """Prices by provider and model. Look-ups are kept, but for those whose price depends on the minute."""

    def __init__(
        self,
        overrides: Mapping[str, PriceOverride] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Raises UsageError naming the override that cannot be meant."""
        self._now = now
        self._overrides = dict(overrides or {})
        self._own = {name: _own_price(name, override) for name, override in self._overrides.items()}
        self._found: dict[tuple[str, str], tuple[datetime | None, Price | None]] = {}
        self._providers: dict[str, Provider] | None = None

    def load(self) -> None:
        """Imports the table now (some tenths of a second, about 30 MiB), not with the first call."""
        if self._providers is None:
            from genai_prices.data import providers

            self._providers = {provider.id: provider for provider in providers}

    def find(self, provider: str, model: str) -> Price | None:
        """What the model costs now."""
        return self.price(provider, model, self._now())

    def price(self, provider: str, model: str, at: datetime) -> Price | None:
        """What the model costs at that time; None when nobody named it or its rates cannot be expressed.

        provider: an id of genai-prices ("anthropic", "openai", "google", …), or one that only overrides
        name. Where a price changes within an hour, each rate is the dearer one: a call can last that long.
        """
        key = (provider, model)
        minute = at.astimezone(UTC).replace(second=0, microsecond=0)
        kept = self._found.get(key)
        if kept is not None and kept[0] in (None, minute):
            return kept[1]
        found, changes = self._look_up(provider, model, minute)
        if len(self._found) >= CACHED_PRICES:
            # Names come from requests; nothing is lost but time.
            self._found.clear()
        self._found[key] = (minute if changes else None, found)
        return found

    def _look_up(self, provider: str, model: str, at: datetime) -> tuple[Price | None, bool]:
        """The price, and whether it depends on the time."""
        name = next((n for n in (f"{provider}/{model}", f"{provider}/*") if n in self._overrides), None)
        own = self._own.get(name) if name is not None else None
        if own is not None:
            return msgspec.structs.replace(own, provider=provider, model=model), False
        found, changes = self._from_table(provider, model, at)
        if found is not None and name is not None:
            override = self._overrides[name]
            found = msgspec.structs.replace(
                found,
                tools=found.tools | {tool: _usd(name, tool, text) for tool, text in override.tools.items()},
                max_output_tokens=override.max_output_tokens,
            )
        return found, changes

    def _from_table(self, provider: str, model: str, at: datetime) -> tuple[Price | None, bool]:
        self.load()
        assert self._providers is not None
        table = self._providers.get(provider)
        entry = table.find_model(model, all_providers=list(self._providers.values())) if table else None
        if entry is None or _SEARCHING.search(model):
            return None, False
        named = _is_named(entry, model.lower(), at.date())
        # A name that is dated in the future has a price once that day has come.
        changes = isinstance(entry.prices, list) or not named
        if not named:
            return None, changes
        prices = [_price(provider, model, entry, time) for time in (at, at + LONGEST_CALL)]
        if prices[0] is None or prices[1] is None:
            return None, changes
        return (prices[0] if prices[0] == prices[1] else _dearer(prices[0], prices[1])), changes


def _own_price(name: str, override: PriceOverride) -> Price | None:
    """None for an override that only adds to the table's price. Raises UsageError."""
    provider, slash, model = name.partition("/")
    if not (provider and slash and model):
        raise UsageError(f'prices."{name}" must be named PROVIDER/MODEL')
    if not 0 <= override.max_output_tokens <= 10**9:
        raise UsageError(f'prices."{name}": max_output_tokens must be from 0 to a billion')
    tools = {tool: _usd(name, f"tools.{tool}", text) for tool, text in override.tools.items()}
    call = _usd(name, "call", override.call)
    if override.input is None or override.output is None:
        rates = (override.cache_read, override.cache_write_5m, override.cache_write_1h)
        if override.input is not None or override.output is not None or any(rates) or override.tiers or call:
            raise UsageError(f'prices."{name}" must give input and output')
        return None
    above = [tier.above_tokens for tier in override.tiers]
    if above != sorted(set(above)) or any(tokens < 0 for tokens in above):
        raise UsageError(f'prices."{name}": tiers must be in rising order of above_tokens')
    return Price(
        provider=provider,
        model=model,
        rates=_own_rates(name, override, override.input, override.output),
        tiers=tuple(
            Tier(above_tokens=tier.above_tokens, rates=_own_rates(name, tier, tier.input, tier.output))
            for tier in override.tiers
        ),
        tools=tools,
        call_nanos=call,
        max_output_tokens=override.max_output_tokens,
        source="configuration",
    )


def _own_rates(name: str, given: PriceOverride | TierOverride, input_text: str, output_text: str) -> Rates:
    read = _usd(name, "input", input_text)

    def rate(field: str, text: str | None, otherwise: int) -> int:
        return otherwise if text is None else _usd(name, field, text)

    return Rates(
        input=read,
        output=_usd(name, "output", output_text),
        cache_read=rate("cache_read", given.cache_read, read),
        cache_write_5m=rate("cache_write_5m", given.cache_write_5m, -(-read * 5 // 4)),
        cache_write_1h=rate("cache_write_1h", given.cache_write_1h, read * 2),
    )


def _usd(name: str, field: str, text: str) -> int:
    try:
        nanos = parse_usd(text)
    except ValueError as error:
        raise UsageError(f'prices."{name}".{field}: {error}') from None
    if nanos > MAX_NANOS_PER_MTOK:
        raise UsageError(f'prices."{name}".{field}: {text} cannot be meant')
    return nanos


def _names(clause: Any) -> Iterator[tuple[str, str]]:
    """(kind, text) of every clause by which the table knows a model."""
    for inner in getattr(clause, "or_", None) or getattr(clause, "and_", None) or ():
        yield from _names(inner)
    for kind in ("equals", "starts_with", "ends_with", "contains", "regex"):
        text = getattr(clause, kind, None)
        if isinstance(text, str):
            yield kind, text


def _is_named(entry: ModelInfo, model: str, today: date) -> bool:
    """Whether the table names exactly this model, or the model of which it is a dated form.

    The table's own rules take any ending: claude-sonnet-4-5-20990101 is none that exists. A date must
    be one, and not after today.
    """
    names = {text.lower() for kind, text in _names(entry.match) if kind != "regex"} | {entry.id.lower()}
    if model in names:
        return True
    dated = _DATED.fullmatch(model)
    if dated is not None:
        try:
            day = date(int(dated[2]), int(dated[4]), int(dated[5]))
        except ValueError:
            return False
        if day > today:
            return False
        if dated[1] in names:
            return True
    return any(kind == "regex" and re.fullmatch(text, model) for kind, text in _names(entry.match))


def _price(provider: str, model: str, entry: ModelInfo, at: datetime) -> Price | None:
    """The entry's price at that time; None when it has a rate that a Price cannot hold, or a wrong one."""
    given = {name: value for name, value in entry.get_prices(at).__dict__.items() if value is not None}
    known = {*_TOKENS, *_TOOLS, _PER_CALL, *_REFUSED_ELSEWHERE}
    image = given.get("input_image_mtok")
    if image is not None and image == given.get("input_mtok"):
        known.add("input_image_mtok")
    if given.keys() - known or "input_mtok" not in given or "output_mtok" not in given:
        return None
    starts = sorted({t.start for name in _TOKENS for t in getattr(given.get(name), "tiers", ())})
    try:
        rates, *above = (_rates(given, start, "claude" in model.lower()) for start in (-1, *starts))
        tools = {tool: _nanos(given[name], 1000) for name, tool in _TOOLS.items() if name in given}
        call = _nanos(given[_PER_CALL], 1000) if _PER_CALL in given else 0
    except ValueError:
        return None
    return Price(
        provider=provider,
        model=model,
        rates=rates,
        tiers=tuple(Tier(above_tokens=s, rates=r) for s, r in zip(starts, above, strict=True)),
        tools=_FREE_TOOLS.get(provider, {}) | tools,
        call_nanos=call,
        source="genai-prices",
    )


def _rates(given: Mapping[str, Any], start: int, claude: bool) -> Rates:
    """Rates above that many tokens. What has no rate of its own is read at the next wider one.

    Anthropic charges 1.25 times the input for a 5 min write and twice for 1 h; where the table lacks
    one for a Claude model, it is that. Raises ValueError.
    """

    def rate(name: str) -> int | None:
        value: Any = given.get(name)
        if hasattr(value, "tiers"):
            reached = [tier.price for tier in value.tiers if tier.start <= start]
            value = reached[-1] if reached else value.base
        return None if value is None else _nanos(value, 1)

    def first(*rates: int | None) -> int:
        return next(found for found in rates if found is not None)

    read, write = first(rate("input_mtok")), rate("cache_write_mtok")
    return Rates(
        input=read,
        output=first(rate("output_mtok")),
        cache_read=first(rate("cache_read_mtok"), read),
        cache_write_5m=first(rate("cache_write_5m_mtok"), write, -(-read * 5 // 4) if claude else read),
        cache_write_1h=first(rate("cache_write_1h_mtok"), 2 * read if claude else write, read),
    )


def _nanos(value: Decimal, per: int) -> int:
    """Nano-dollars, a part of one being a whole one. Raises ValueError for what no price is."""
    nanos = int((value * NANOS_PER_USD / per).to_integral_value(ROUND_CEILING))
    if not 0 <= nanos <= MAX_NANOS_PER_MTOK:
        raise ValueError(f"{value} is no price")
    return nanos


def _dearer(one: Price, other: Price) -> Price:
    """The dearer of each figure."""

    def rates_above(price: Price, start: int) -> Rates:
        reached = [tier.rates for tier in price.tiers if tier.above_tokens <= start]
        return reached[-1] if reached else price.rates

    def both(start: int) -> Rates:
        pair = rates_above(one, start), rates_above(other, start)
        return Rates(**{name: max(getattr(r, name) for r in pair) for name in Rates.__struct_fields__})

    starts = sorted({tier.above_tokens for price in (one, other) for tier in price.tiers})
    return msgspec.structs.replace(
        one,
        rates=both(-1),
        tiers=tuple(Tier(above_tokens=start, rates=both(start)) for start in starts),
        tools=one.tools | {n: max(v, one.tools.get(n, 0)) for n, v in other.tools.items()},
        call_nanos=max(one.call_nanos, other.call_nanos),
    )
