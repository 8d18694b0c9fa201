"""Owns finding the secrets of one text: gates, then proof, in the text itself and in every view of it.
May touch nothing.
Never looks only where the text says what it is: colours, escapes, percent codes and base64 are undone.
"""

from __future__ import annotations

import binascii
import re

from supervisor.logs.redact.blocks import blocks
from supervisor.logs.redact.engines import Engines
from supervisor.logs.redact.gates import Event, Gate
from supervisor.logs.redact.known import KnownSecrets
from supervisor.logs.redact.named import Names, Value
from supervisor.logs.redact.spans import Span, merged
from supervisor.logs.redact.table import Rule
from supervisor.logs.redact.views import COLOURS, ESCAPES, PERCENTS, View

ROUNDS = 4
"""How many times over a text may be escaped; what is hidden deeper is dropped unseen."""
DEPTH = 4
"""How deep base64 may lie in base64."""
TOO_DEEP = "too-deep"
_KNOWN_RANK = -1
_B64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
_FOLDED = _B64 + b"\r\n"
_STANDARD = bytes.maketrans(b"-_", b"+/")
_TEXT = re.compile(rb"[\t\n\r\x1b\x20-\x7e\x80-\xbf\xc2-\xf4]+")
_LEFT, _RIGHT = 1 << 13, 1 << 16
_BLOB = 48
_IN_BLOB = re.compile(rb"(?=.*[0-9])(?=.*[A-Z])(?=.*[a-z])[A-Za-z0-9+/]{%d}\Z" % _BLOB)
_URL = re.compile(rb"""([a-z][a-z0-9+.-]{1,24})://([^\s"'<>`\\/?#]{3,256})@""", re.IGNORECASE)
_CURL = re.compile(rb""" -u[ \t]?[\\"']{0,2}[^\s:"'\\$]{1,64}:([^\s"'\\]{4,256})""")
_EXAMPLES = frozenset(
    b"password passwd pass pwd secret user username token example changeme postgres root admin guest test "
    b"xxx xxxx xxxxx *** **** ***** ...".split()
)
_MOST_EVENTS = 1 << 16


class Finder:
    """Finds by a rule table and by the values that are known to be secret."""

    def __init__(self, engines: Engines, rules: tuple[Rule, ...], known: KnownSecrets) -> None:
        self.engines = engines
        self.known = known
        self.names = Names(rules)
        self._rules = rules
        self._rank = {rule.id: number for number, rule in enumerate(rules)}
        self._urls = [rule for rule in rules if rule.kind == "url"]

    def find(self, text: bytes, depth: int = 0) -> tuple[list[Span], str]:
        """What to cut out of the text, and the rule of a key that goes on behind its end, or "".

        Raises Enough for a text that is nothing but gates.
        """
        spans: list[Span] = []
        goes_on = ""
        view = View(text)
        for _ in range(ROUNDS):
            events = self.engines.now().scan(view.text, _MOST_EVENTS)
            found, block = self._in(view.text, events, depth)
            goes_on = goes_on or block
            for span in found:
                start, end = view.source(span.start, span.end)
                spans.append(Span(start, end, span.rule, span.rank))
            hides = any(event.gate in (Gate.ESCAPE, Gate.COLOUR) for event in events)
            in_block = any(event.gate == Gate.BLOCK for event in events) and b"\\" in view.text
            if not hides and not in_block:
                break
            following = view.through(COLOURS).through(ESCAPES).through(PERCENTS)
            if following is view:
                break
            view = following
        else:
            if any(event.gate == Gate.ESCAPE for event in self.engines.now().scan(view.text, _MOST_EVENTS)):
                spans.append(Span(0, len(text), TOO_DEEP, len(self._rank)))
        return merged(spans), goes_on

    def _in(self, text: bytes, events: list[Event], depth: int) -> tuple[list[Span], str]:
        known = (*self.known.spans(text), *self.known.folded(text))
        spans = [Span(start, end, name, _KNOWN_RANK) for start, end, name in known]
        goes_on = ""
        once: set[int] = set()
        seen: list[tuple[int, int, int]] = []
        for event in sorted(events):
            gate = event.gate
            if gate == Gate.ANCHOR:
                spans += self._token(text, self._rules[event.which], event.position)
            elif gate == Gate.BASE64:
                spans += self._base64(text, event, depth, seen)
            elif gate in (Gate.NAMED, Gate.NAMED_LONG):
                spans += self._value(self.names.value_at(text, event.position))
            elif gate == Gate.OPTION:
                spans += self._value(self.names.option(text, event.position))
            elif gate == Gate.SCHEME:
                spans += self._value(self.names.bearer(text, event.position))
            elif gate not in once:
                once.add(gate)
                if gate == Gate.URL:
                    spans += self._urls_in(text)
                elif gate == Gate.CURL:
                    spans += self._curl_in(text)
                elif gate == Gate.BLOCK:
                    for block in blocks(text):
                        spans.append(self._span(block.start, block.end, block.rule))
                        goes_on = block.rule if block.open else ""
        return spans, goes_on

    def _span(self, start: int, end: int, rule: str) -> Span:
        return Span(start, end, rule, self._rank[rule])

    def _value(self, value: Value | None) -> list[Span]:
        return [] if value is None else [self._span(*value)]

    def _token(self, text: bytes, rule: Rule, start: int) -> list[Span]:
        match = rule.regex.match(text, start)
        if match is None:
            return []
        if rule.behind is not None:
            before = rule.behind.search(text, max(0, start - 64), start)
            if before is None:
                return []
            start = before.start()
        # Four letters in the middle of a picture mean nothing.
        if not rule.blob and start >= _BLOB and _IN_BLOB.match(text, start - _BLOB, start):
            return []
        return [self._span(start, match.end(), rule.id)]

    def _base64(self, text: bytes, event: Event, depth: int, seen: list[tuple[int, int, int]]) -> list[Span]:
        """Decode what lies around the event, look at it as at any text, and map back what was found."""
        group = event.position - event.which
        inside = max(0, group)
        left = max(0, inside - _LEFT)
        left += len(text[left:inside].rstrip(_FOLDED))
        window = text[inside : inside + _RIGHT]
        right = inside + len(window) - len(window.lstrip(_FOLDED))
        region = text[left:right]
        places = None
        if b"\n" in region or b"\r" in region:
            places = [left + at for at, byte in enumerate(region) if byte not in b"\r\n"]
            region = region.translate(None, b"\r\n")
            group_at = group - left - sum(text.count(mark, left, inside) for mark in (b"\n", b"\r"))
        else:
            group_at = group - left
        phase = group_at % 4
        if any(a <= left and right <= b and phase == p for a, b, p in seen):
            return []
        seen.append((left, right, phase))
        body = region[phase:].translate(_STANDARD)
        body = body[: len(body) - (len(body) % 4 == 1)]
        try:
            decoded = binascii.a2b_base64(body + b"=" * (-len(body) % 4))
        except binascii.Error:
            return []
        spans: list[Span] = []
        for piece in _TEXT.finditer(decoded):
            if piece.end() - piece.start() < 12:
                continue
            if depth >= DEPTH:
                found = [Span(0, piece.end() - piece.start(), TOO_DEEP, len(self._rank))]
            else:
                found, _ = self.find(piece[0], depth + 1)
            for span in found:
                first = phase + (piece.start() + span.start) * 4 // 3
                last = phase - (-(piece.start() + span.end) * 4 // 3)
                last = min(last, len(region))
                if places is None:
                    spans.append(Span(left + first, left + last, span.rule, span.rank))
                else:
                    spans.append(Span(places[first], places[last - 1] + 1, span.rule, span.rank))
        return spans

    def _urls_in(self, text: bytes) -> list[Span]:
        spans = []
        for match in _URL.finditer(text):
            user, colon, password = match[2].partition(b":")
            start = match.end() - 1 - len(password if colon else user)
            secret = password if colon else user
            if not _url_secret(secret, bare=not colon):
                continue
            scheme = match[1].lower()
            rule = next((rule.id for rule in self._urls if rule.regex.fullmatch(scheme)), "url-password")
            spans.append(self._span(start, match.end() - 1, rule))
        return spans

    def _curl_in(self, text: bytes) -> list[Span]:
        return [
            self._span(*match.span(1), "curl-user-password")
            for match in _CURL.finditer(text)
            if _url_secret(match[1], bare=False)
        ]


def _url_secret(secret: bytes, bare: bool) -> bool:
    if secret.lower() in _EXAMPLES or secret[:1] in (b"$", b"<", b"{", b"["):
        return False
    if (
        len(set(secret)) < 3
        or not any(chr(byte).isalnum() for byte in secret if byte < 128)
        or (secret[:1] == secret[-1:] == b"%")
        or b"[redacted:" in secret
    ):
        return False
    # A user alone is a token only when it looks like one.
    return not bare or (len(secret) >= 20 and any(48 <= byte <= 57 for byte in secret))
