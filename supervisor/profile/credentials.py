"""Owns saying whether a value in a profile looks like a credential, and how it is shown then.
May touch nothing.
Never shows more of such a value than the prefix that its kind is known by.
"""

from __future__ import annotations

import math
import re
from collections import Counter

_KNOWN = re.compile(
    r"(ghp|gho|ghu|ghs|github_pat|glpat|sk-|sk_live|xox[abprs]|AKIA|ASIA|AIza|ya29\.|eyJ[A-Za-z0-9_-]{10,}\.|npm_"
    r"|-----BEGIN )"
)
_ENTROPY_BITS = 3.7
_ENTROPY_LENGTH = 24
_SHOWN = 4


def looks_like_one(value: str) -> bool:
    """By a known beginning, or by being one long word that nobody would choose."""
    return bool(_KNOWN.search(value)) or _looks_random(value)


def shown(name: str, value: str) -> str:
    """NAME=value for people; of what looks like a credential only its beginning."""
    if not looks_like_one(value):
        return f"{name}={value}"
    return f"{name}={value[:_SHOWN]}… (looks like a credential)"


def _looks_random(value: str) -> bool:
    """High entropy over one long word that is no path, no URL and no list (Shannon, bits per character)."""
    if len(value) < _ENTROPY_LENGTH or re.search(r"[\s/:,;]", value):
        return False
    counts = Counter(value)
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
    return bits >= _ENTROPY_BITS and bool(re.search(r"\d", value)) and bool(re.search(r"[A-Za-z]", value))
