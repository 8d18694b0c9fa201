"""Owns what people may write for a span of time.
May touch the clock.
Never guesses: what is neither a span nor an instant is an error.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from supervisor.clock import parse_rfc3339, rfc3339
from supervisor.errors import UsageError
from supervisor.profile.units import parse_duration

_SPAN = re.compile(r"[\d.]+(ms|s|m|h|d)([\d.]+(ms|s|m|h|d))*", re.ASCII)


def since_instant(text: str) -> str:
    """ "7d", "12h" or an instant, as RFC 3339 UTC. Raises UsageError."""
    try:
        if _SPAN.fullmatch(text):
            return rfc3339(datetime.now(UTC) - timedelta(seconds=parse_duration(text)))
        return rfc3339(parse_rfc3339(text))
    except (ValueError, OverflowError):
        raise UsageError(
            f"--since {text!a} is no span of time", hint='like "7d", "12h" or "2026-09-01"'
        ) from None
