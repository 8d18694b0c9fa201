"""Owns redacting lines: a raw scan of the whole buffer is the gate, and only the lines it hits are repaired.
May touch nothing: bytes in, bytes out.
Never passes on what it could not look at: too much of it at once, or too deep, is dropped with a digest.
"""

from __future__ import annotations

import functools
import hmac
import secrets
from bisect import bisect_right
from collections import Counter
from itertools import repeat

from supervisor.logs.redact.blocks import Watch
from supervisor.logs.redact.engines import Engines, default
from supervisor.logs.redact.finder import TOO_DEEP, Finder
from supervisor.logs.redact.gates import Enough
from supervisor.logs.redact.jsonlines import is_json, rewritten
from supervisor.logs.redact.known import KnownEngine, KnownSecrets, marker
from supervisor.logs.redact.named import kind_of
from supervisor.logs.redact.seam import Redacted
from supervisor.logs.redact.spans import Span, merged
from supervisor.logs.redact.table import Rule, shipped

LONGEST = 1024
"""No rule needs more bytes than this to recognise a credential."""
NESTED = 8
"""How deep JSON may lie in strings of JSON."""
FLOOD = "flood"
_BLOCK = 1 << 20
_MOST_STREAMS = 256
# What a repair may cost, in nanoseconds of one core as measured: a burst is repaired, a flood dropped.
_EARNED_PER_BYTE = 8
_COST_LINE = 30_000
_COST_BYTE = 40
_COST_EVENT = 12_000
_COST_TOKEN = 1_200
_TOKENS = (b'"', b"{", b"[", b",", b"\\", b"%")
_BURST = 2_000_000_000
_BYTES_PER_EVENT, _BYTES_PER_EVENT_WHEN_POOR, _FREE_EVENTS = 16, 1024, 32
"""More events than one in so many bytes are a flood: with credit, and after one."""


class Redactor:
    """Takes out known values and recognised credentials. One object per run; not for two threads at once.

    counts has how often each rule (or known name) was found so far.
    """

    def __init__(
        self,
        known: KnownSecrets | None = None,
        *,
        key: bytes = b"",
        rules: tuple[Rule, ...] | None = None,
        engines: Engines | None = None,
        bounded: bool = True,
    ) -> None:
        """key: of this installation, so that one secret has one marker; a random one when empty.

        bounded: drop what would cost more than a log is worth. False where somebody waits for all of it.
        """
        self.known = known or KnownSecrets({})
        self.counts: Counter[str] = Counter()
        self.longest = max(LONGEST, self.known.longest)
        self._rules = rules
        self._engines = engines
        self._key = key or secrets.token_bytes(32)
        self._known_engine: KnownEngine | None = None
        self._known_wanted = bool(self.known.forms)
        self._watches: dict[str, Watch] = {}
        self._credit = _BURST
        self._bounded = bounded

    @functools.cached_property
    def engines(self) -> Engines:
        """Nothing is read or compiled before the first line: most redactors are made at a run's start."""
        return self._engines or (default() if self._rules is None else Engines(self._rules))

    @functools.cached_property
    def _finder(self) -> Finder:
        return Finder(self.engines, self._rules or shipped(), self.known)

    @property
    def engine(self) -> str:
        """Which engine scans at the moment: "hyperscan" or "python"."""
        return self.engines.now().name

    def redact(self, line: bytes) -> tuple[bytes, int]:
        """The line without secrets, and how many were replaced. A dropped line becomes its marker."""
        ((clean, count),) = self.redact_lines([line])
        assert clean is not None
        return clean, count

    def redact_lines(self, lines: list[bytes], stream: str = "") -> list[Redacted]:
        """One entry per line; see seam.Redacted. Lines hold no newline."""
        whole = b"\n".join(lines)
        if len(whole) < _BLOCK or len(lines) == 1:
            return self._block(lines, whole, stream) if lines else []
        out: list[Redacted] = []
        first = 0
        while first < len(lines):
            last, size = first, 0
            while last < len(lines) and (last == first or size + len(lines[last]) < _BLOCK):
                size += len(lines[last]) + 1
                last += 1
            out += self._block(lines[first:last], b"\n".join(lines[first:last]), stream)
            first = last
        return out

    def spend_credit(self) -> None:
        """From here on it is as after a long flood: a burst is not let through any more."""
        self._credit = 0

    def suspicious(self, data: bytes) -> list[int]:
        """The gate alone: positions in the buffer that need a second look. Raises Enough for a flood."""
        most = len(data)
        if self._bounded:
            affordable = max(len(data) // _BYTES_PER_EVENT_WHEN_POOR, self._credit // _COST_EVENT)
            most = min(affordable, len(data) // _BYTES_PER_EVENT)
        most += _FREE_EVENTS
        engine = self.engines.now()
        positions = [event.position for event in engine.scan(data, most)]
        if self._known_wanted and engine.name != "python":
            self._known_wanted = False
            self._known_engine = _known_engine(self.known)
        if self._known_engine is not None:
            positions += (end - 1 for end in self._known_engine.ends(data))
        elif self.known.any_in(data):
            positions += (start for start, _, _ in self.known.spans(data))
        return positions

    def _block(self, lines: list[bytes], data: bytes, stream: str) -> list[Redacted]:
        self._credit = min(_BURST, self._credit + _EARNED_PER_BYTE * len(data))
        try:
            positions = self.suspicious(data)
        except Enough:
            self._credit -= _COST_EVENT * 64
            return self._dropped(lines)
        watch = self._watch(stream)
        if not positions and not watch.left:
            return list(zip(lines, repeat(0)))
        starts: list[int] = []
        at = 0
        for line in lines:
            starts.append(at)
            at += len(line) + 1
        hits = Counter(bisect_right(starts, max(0, position)) - 1 for position in positions)
        out: list[Redacted] = []
        for number, line in enumerate(lines):
            if number not in hits and not watch.left:
                out.append((line, 0))
                continue
            self._credit -= _cost(line, hits[number])
            if self._bounded and self._credit < 0:
                return out + self._dropped(lines[number:])
            out.append(self._repaired(line, watch))
        return out

    def _watch(self, stream: str) -> Watch:
        if stream not in self._watches and len(self._watches) >= _MOST_STREAMS:
            self._watches.clear()
        return self._watches.setdefault(stream, Watch())

    def _repaired(self, line: bytes, watch: Watch) -> Redacted:
        before = self.counts.total()
        try:
            clean = self._text(line, watch, 0)
        except Enough:
            return self._dropped([line])[0]
        if self.known.any_in(clean) and any(True for _ in self.known.spans(clean)):
            clean = self._mark(Span(0, len(line), TOO_DEEP, 0), line)
            if is_json(line):
                clean = b'"' + clean + b'"'
        return clean, self.counts.total() - before

    def _text(self, text: bytes, watch: Watch, depth: int) -> bytes:
        """The text without secrets; JSON stays JSON."""
        if is_json(text):
            if depth >= NESTED:
                return b'"' + self._mark(Span(0, len(text), TOO_DEEP, 0), text) + b'"'

            def scrub(value: bytes, name: bytes, outer: bytes, string: bool) -> bytes | None:
                return self._member(value, name, outer, string, text, watch, depth)

            return rewritten(text, scrub)
        spans = []
        if watch.left:
            rule = watch.rule
            spans = [Span(start, end, rule, 0) for start, end in watch.continues(text)]
        found, goes_on = self._finder.find(text)
        if goes_on:
            watch.open(goes_on)
        spans += found
        return self._cut(text, merged(spans)) if spans else text

    def _member(
        self, value: bytes, name: bytes, outer: bytes, string: bool, document: bytes, watch: Watch, depth: int
    ) -> bytes | None:
        """What becomes of one value of a document, or of a name in it."""
        telling = name if kind_of(name) or not kind_of(outer) else outer
        if not string:
            if value.isdigit() and len(value) >= 6 and kind_of(telling) == "password-assignment":
                return self._mark(Span(0, len(value), "password-assignment", 0), value)
            return None
        clean = self._text(value, watch, depth + 1)
        if clean != value:
            return clean
        if not telling:
            return None
        rule = self._finder.names.judge(
            telling, value, True, telling.lower() + (document if len(name) == 1 else b"")
        )
        if rule is None:
            header = self._finder.names.header(telling, value, 0)
            if header is None:
                return None
            rule = header.rule
        return self._mark(Span(0, len(value), rule, 0), value)

    def _cut(self, text: bytes, spans: list[Span]) -> bytes:
        out: list[bytes] = []
        last = 0
        for span in spans:
            out += (text[last : span.start], self._mark(span, text[span.start : span.end]))
            last = span.end
        return b"".join((*out, text[last:]))

    def _mark(self, span: Span, secret: bytes) -> bytes:
        """Names the rule, and tells by four characters whether it is the same secret as elsewhere."""
        self.counts[span.rule] += 1
        if span.rank < 0:
            return marker(span.rule)
        return f"[redacted:{span.rule}#{self._digest(secret)}]".encode()

    def _digest(self, secret: bytes) -> str:
        return hmac.digest(self._key, secret, "sha256")[:2].hex()

    def _dropped(self, lines: list[bytes]) -> list[Redacted]:
        """One marker for all of them, in the shape of the first."""
        self.counts[FLOOD] += 1
        text = f"[redacted:{FLOOD}#{hmac.digest(self._key, b''.join(lines), 'sha256')[:8].hex()}]".encode()
        if lines[0].lstrip()[:1] in (b"{", b"["):
            text = b'"' + text + b'"'
        nothing: Redacted = (None, 0)
        return [(text, 1), *[nothing] * (len(lines) - 1)]


def _cost(line: bytes, events: int) -> int:
    tokens = sum(line.count(token) for token in _TOKENS)
    return _COST_LINE + _COST_BYTE * len(line) + _COST_EVENT * events + _COST_TOKEN * tokens


def _known_engine(known: KnownSecrets) -> KnownEngine | None:
    try:
        return KnownEngine(known)
    except Exception:
        # Found by bytes.find instead, which is slower and no worse.
        return None
