"""Owns how the gateway says no: status, headers and body, in the shape that the vendor's clients read.
May touch nothing.
Never repeats what a provider or a database said, and never leaves out who can raise a limit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from supervisor.gateway.calls import Api, CallRefused
from supervisor.limits.budget import Refusal, Scope
from supervisor.limits.money import show_usd
from supervisor.runs.reasons import StopReason

LONG_S = 86_400
"""Retry-After of a limit that does not come back by itself."""

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OPENAI = {402: "insufficient_quota", 403: "permission_error", 429: "rate_limit_error"}
_GOOGLE = {
    400: "INVALID_ARGUMENT",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MONEY: dict[Scope, tuple[str, str]] = {
    Scope.RUN: ("this run's limit", "limits.usd in the run's profile"),
    Scope.TICKET: ("the limit of this ticket's runs together", "limits.ticket_usd in the run's profile"),
    Scope.PROJECT_DAY: (
        "the project's limit of today",
        "daily.project_usd in the profile or the configuration",
    ),
    Scope.GLOBAL_DAY: (
        "the limit of today for everybody",
        "daily.global_usd in the profile or the configuration",
    ),
}
_COUNTED = {
    StopReason.MAX_ITERATIONS: ("model calls", "limits.iterations in the run's profile"),
    StopReason.MAX_TOKENS: ("tokens", "limits.tokens in the run's profile"),
}
_BY_US = "The model call was refused by the supervisor"
_ABOUT_PRICES = " Whoever operates this supervisor can give it a price in the configuration."
_STAND_UNDER_402 = frozenset({StopReason.DAILY_CAP, StopReason.MAX_COST, *_COUNTED})


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back: a status, headers and a JSON body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def limit_answer(api: Api, refusal: Refusal, day_left_s: float) -> Answer:
    """For a call that a limit does not cover (402), or that cannot be priced (403).

    No status stops every client, so it says in three ways that another try changes nothing.
    """
    status = 402 if refusal.reason in _STAND_UNDER_402 else 403
    retry_s = max(1, math.ceil(day_left_s)) if refusal.reason is StopReason.DAILY_CAP else LONG_S
    headers = _headers(str(refusal.reason or refusal.code), final=True, retry_after_s=retry_s)
    code = "budget_exceeded" if status == 402 else refusal.code
    return Answer(status, headers, _body(api, status, code, limit_text(refusal)))


def limit_text(refusal: Refusal) -> str:
    """Which limit, what the call needed, what is left, who can raise it; in plain words."""
    if refusal.reason in (StopReason.MAX_COST, StopReason.DAILY_CAP):
        whose, key = _MONEY[refusal.scope]
        left, needed, cap = show_usd(refusal.left), show_usd(refusal.needed), show_usd(refusal.cap)
        said = f"{whose} is {cap}; the call could cost up to {needed} and {left} is left"
    elif refusal.reason in _COUNTED:
        what, key = _COUNTED[refusal.reason]
        said = (
            f"this run's limit is {refusal.cap} {what}; the call needs {refusal.needed}, left: {refusal.left}"
        )
    else:
        return f"{_BY_US}: {refusal.message}.{_ABOUT_PRICES if 'priced' in refusal.code else ''}"
    return (
        f"{_BY_US}: {said}. Trying again will not help. Whoever operates this supervisor can raise it: {key}."
    )


def error_answer(api: Api, refused: CallRefused, retry_after_s: int | None = None) -> Answer:
    """For a request that is not forwarded, and for an upstream that cannot be reached."""
    final = 400 <= refused.status < 500 and refused.status != 429
    headers = _headers(refused.code, final=final, retry_after_s=retry_after_s)
    return Answer(refused.status, headers, _body(api, refused.status, refused.code, refused.message))


def _headers(reason: str, *, final: bool, retry_after_s: int | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json", "x-supervisor-reason": reason}
    if final:
        headers["x-should-retry"] = "false"
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    return headers


def _body(api: Api, status: int, code: str, message: str) -> bytes:
    body: dict[str, Any]
    match api:
        case Api.ANTHROPIC_MESSAGES:
            kind = _ANTHROPIC.get(status, "api_error" if status >= 500 else "invalid_request_error")
            body = {"type": "error", "error": {"type": kind, "message": message}}
        case Api.OPENAI_CHAT | Api.OPENAI_RESPONSES:
            kind = _OPENAI.get(status, "server_error" if status >= 500 else "invalid_request_error")
            body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
        case Api.GEMINI:
            said = _GOOGLE.get(status, "INTERNAL" if status >= 500 else "FAILED_PRECONDITION")
            detail = {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": code.upper(),
                "domain": "sidecar-supervisor",
            }
            body = {"error": {"code": status, "message": message, "status": said, "details": [detail]}}
    return msgspec.json.encode(body)


class Pace:
    """How soon a refused client is answered: at once at first, slowly when it does nothing but ask.

    many refusals within within_s seconds are free; every further one is delayed by slow_s.
    """

    def __init__(self, many: int, within_s: float, slow_s: float) -> None:
        self._latest: deque[float] = deque(maxlen=many)
        self._within_s = within_s
        self._slow_s = slow_s

    def delay_s(self, now_s: float) -> float:
        """For a refusal that is given now, which it counts."""
        full = len(self._latest) == self._latest.maxlen
        slow = full and now_s - self._latest[0] < self._within_s
        self._latest.append(now_s)
        return self._slow_s if slow else 0.0
