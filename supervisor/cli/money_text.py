"""Owns how a run's model calls and money are worded for people: calls, tokens, dollars, refusals.
May touch nothing.
Never rounds an amount to nothing: what was spent is seen.
"""

from __future__ import annotations

from typing import Any

from supervisor.limits.money import parse_usd, show_usd
from supervisor.profile.units import show_duration
from supervisor.runs.reasons import StopReason


def show_count(count: int) -> str:
    """517, 12.9k, 9.1M."""
    if count < 1000:
        return str(count)
    if count < 999_950:
        return f"{count / 1000:.1f}k".replace(".0k", "k")
    return f"{count / 1e6:.1f}M".replace(".0M", "M")


def model_limits(limits: dict[str, Any]) -> list[str]:
    """The limits on models among a run's limits: "20 calls", "400k tokens", "$0.50"."""
    parts = []
    if limits.get("iterations") is not None:
        parts.append(f"{limits['iterations']} calls")
    if limits.get("tokens") is not None:
        parts.append(f"{show_count(int(limits['tokens']))} tokens")
    if limits.get("usd_nanos") is not None:
        parts.append(show_usd(int(limits["usd_nanos"])))
    if limits.get("ticket_usd_nanos") is not None:
        parts.append(f"{show_usd(int(limits['ticket_usd_nanos']))} for the ticket")
    return parts


def today(money: dict[str, Any]) -> str:
    """ "today $3.10 of $20 spent" for the narrower of the two daily caps; "" where neither is set."""
    for name in ("project_day", "global_day"):
        cap = money.get(f"{name}_cap_nanos")
        if cap is not None:
            return f"today {show_usd(money[f'{name}_spent_nanos'])} of {show_usd(cap)} spent"
    return ""


def used(totals: dict[str, Any]) -> list[str]:
    """What a run used of models: "3 calls", "27.5k tokens", "$0.0978"; nothing for a run without."""
    if "calls" not in totals:
        return []
    parts = [
        "1 call" if totals["calls"] == 1 else f"{totals['calls']} calls",
        f"{show_count(int(totals['tokens']))} tokens",
        show_usd(int(totals["spent_nanos"])),
    ]
    if totals.get("calls_refused"):
        parts.append(f"{totals['calls_refused']} refused")
    return parts


def _call(detail: dict[str, Any], mark: str) -> str:
    """What was called, with what, how it went and how long it took."""
    args = detail.get("args")
    said = " ".join(_word(value) for value in args.values()) if isinstance(args, dict) else str(args or "")
    name = str(detail.get("tool") or detail.get("model") or "")
    outcome = str(detail.get("outcome", ""))
    left = [mark, name, said, "" if outcome == "ok" else outcome]
    took = detail.get("duration_ms")
    if isinstance(took, int | float) and took:
        left.append(show_duration(took / 1000))
    return "  ".join(part for part in left if part)


def _word(value: object) -> str:
    """Contents are known by their size only."""
    if isinstance(value, dict) and value.keys() == {"bytes"}:
        return f"({value['bytes']} bytes)"
    return str(value)


def agent_said(detail: dict[str, Any]) -> str:
    """One line for what an agent's own log tells beside the calls: tools, words, errors; "" for none."""
    said = detail.get("said")
    if said in ("tool", "iteration"):
        return _call(detail, " ·") if detail.get("tool") else ""
    if said in ("message", "error"):
        text = " ".join(str(detail.get("text", "")).split())
        return f"{' !' if said == 'error' else ' “'}  {text}" if text else ""
    return ""


def iteration(detail: dict[str, Any]) -> str:
    """One line of the live view for an iteration event, the gateway's or the agent's own."""
    text = _call(detail, f"#{detail.get('iteration', '?')}")
    tokens = [detail.get("tokens_in"), detail.get("tokens_out")]
    right = []
    if all(isinstance(count, int) for count in tokens):
        right.append(f"{show_count(sum(tokens)):>7} tok")  # type: ignore[arg-type]
    cost = _nanos(detail.get("cost_usd"))
    if cost is not None:
        right.append(f"{show_usd(cost):>9}")
    return f"{text:<46}{'  '.join(right)}".rstrip()


def refused(detail: dict[str, Any]) -> str:
    return f" –  refused  {detail['code']}: {detail['message']}"


def warning(detail: dict[str, Any]) -> str:
    """A cap that is nearly used up."""
    whose = {
        "run": "of this run",
        "ticket": "of this ticket",
        "project_day": "of the project's day",
        "global_day": "of the day",
    }[detail["scope"]]
    spent, cap = _nanos(detail["spent_usd"]) or 0, _nanos(detail["cap_usd"]) or 0
    return f"{detail['percent']:.0f} % {whose} is spent: {show_usd(spent)} of {show_usd(cap)}"


def budget(left: dict[str, Any], limits: dict[str, Any]) -> list[str]:
    """For the status line: "3/20 calls", "$0.0978 of $0.50"."""
    parts = []
    if "iterations" in left and "iterations" in limits:
        parts.append(f"{limits['iterations'] - left['iterations']}/{limits['iterations']} calls")
    if "usd" in left and "usd_nanos" in limits:
        cap = int(limits["usd_nanos"])
        parts.append(f"{show_usd(cap - (_nanos(left['usd']) or 0))} of {show_usd(cap)}")
    return parts


def why(reason: StopReason, figures: dict[str, Any]) -> str:
    """What the limit's figures say; "" for an end that no figure led to."""
    if "cap" not in figures or reason not in _SHOW:
        return ""
    show = _SHOW[reason]
    needed, left, cap = int(figures["needed"]), int(figures["left"]), int(figures["cap"])
    if reason is StopReason.MAX_ITERATIONS:
        return f"{figures['calls']} of {cap} calls were made"
    return f"the next call could have used {show(needed)}; {show(left)} of {show(cap)} was left"


_SHOW: dict[StopReason, Any] = {
    StopReason.MAX_COST: show_usd,
    StopReason.DAILY_CAP: show_usd,
    StopReason.MAX_TOKENS: lambda count: f"{show_count(count)} tokens",
    StopReason.MAX_ITERATIONS: str,
}

CHANGE: dict[StopReason, str] = {
    StopReason.MAX_COST: "limits.usd in the profile, or --limit usd=… for one run",
    StopReason.MAX_TOKENS: "limits.tokens in the profile, or --limit tokens=… for one run",
    StopReason.MAX_ITERATIONS: "limits.iterations in the profile, or --limit iterations=… for one run",
    StopReason.DAILY_CAP: "daily caps in the configuration; supervisorctl spend shows them",
}


def _nanos(text: object) -> int | None:
    try:
        return parse_usd(text)
    except ValueError:
        return None
