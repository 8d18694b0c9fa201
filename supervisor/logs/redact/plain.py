"""Owns the engine of the standard library: the same events as the fast one, found by literals and re.
May touch nothing.
Never tries every rule at every byte: most text is passed over by bytes.find alone.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterator

from supervisor.logs.redact.anchors import Anchor, as_regex, longest_run, probe, text_group
from supervisor.logs.redact.gates import (
    AUTHORIZATION,
    BLOCK,
    COLOUR,
    COOKIE,
    CURL,
    ESCAPE,
    LONG,
    NAMED,
    NAMED_COLOUR,
    NAMED_LONG,
    OPTION,
    OPTION_LONG,
    RUN,
    SCHEME,
    SHORT,
    TOKEN,
    TREE,
    URL,
    Anchored,
    Enough,
    Event,
    Gate,
    anchored,
    hidden,
)
from supervisor.logs.redact.table import Rule

_IN_RUN = b"\1"
_AS_RUN = bytes(1 if byte in TOKEN else 0 for byte in range(256))
_NAME_ROOM = 96
"""A name and what may stand between it and its value are not longer."""
_PROBE = 6
_GROUPS = 3
_LEAD = 5
_LEADS = (b":", b"=")
"""What an anchor may have before its run, and how much of it."""
_LETTER_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LETTERS = frozenset(_LETTER_BYTES)
_MOST_CLEAN = 1 << 14
_LONGEST_CLEAN = 128

_named, _authorization, _option, _url, _curl, _tree = (
    re.compile(shape, re.IGNORECASE) for shape in (NAMED, AUTHORIZATION, OPTION, URL, CURL, TREE)
)
_named_long, _cookie, _option_long, _scheme = (
    re.compile(shape + rb"\Z", re.IGNORECASE) for shape in (NAMED_LONG, COOKIE, OPTION_LONG, SCHEME)
)
_named_colour = re.compile(NAMED_COLOUR, re.IGNORECASE)
_block, _escape = re.compile(BLOCK), re.compile(ESCAPE)
_colour = re.compile(COLOUR, re.IGNORECASE)
_login = re.compile(rb"login[ \t]{1,4}[^\s]{1,64}[ \t]{1,4}\Z", re.IGNORECASE)
_SHORT_NAMES = (b"passw", b"passp", b"pwd", b"secret")
_LONG_NAMES = (
    b"key",
    b"token",
    b"pat",
    b"jwt",
    b"pass",
    b"cred",
    b"creds",
    b"credential",
    b"credentials",
    b"auth",
    b"key-data",
    b'"d',
    b'"k',
)
_COLOURED = (
    *_LONG_NAMES,
    b"passwd",
    b"password",
    b"passphrase",
    b"pwd",
    b"secret",
    b"authorization",
    b"cookie",
)
_BARE_NAMES = (b"bearer", b"-token", b"-key", b"-pat", b"-pass")
_SIGNS = b"=:>"
_QUOTES = b"\\\"'`[]{ \t"


class PlainEngine:
    """See HyperEngine; property-tested to give the same."""

    name = "python"

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rows: dict[int, list[tuple[Anchored, int]]] = {}
        self._clean: set[bytes] = set()
        probes: list[Anchor] = []
        unmarked: list[Anchor] = []
        self._rules = rules
        for row in anchored(rules):
            _check(row.anchor)
            offset, window = probe(row.anchor, _PROBE)
            probes.append(window)
            if all(members & _LETTERS for members in row.anchor):
                unmarked.append(window)
            self._rows.setdefault(next(iter(window[0])), []).append((row, offset))
        self._probes = re.compile(_alternatives(probes).encode())
        self._unmarked = re.compile(_alternatives(unmarked).encode())
        self._text = re.compile(as_regex(text_group() * _GROUPS).encode())

    def scan(self, data: bytes, most: int) -> list[Event]:
        found: set[Event] = set()
        for event in self._events(data):
            found.add(event)
            if len(found) > most:
                raise Enough
        return list(found)

    def _events(self, data: bytes) -> Iterator[Event]:
        low = data.lower()
        yield from _short_names(data, low)
        yield from _shapes(data, low)
        runs = _runs(data)
        if runs:
            yield from self._anchors(data, runs)
            yield from _long_names(data, runs)

    def _anchors(self, data: bytes, runs: list[tuple[int, int]]) -> Iterator[Event]:
        """Runs that were clean before are so again; agents name the same files all day."""
        if len(self._clean) > _MOST_CLEAN:
            self._clean.clear()
        clean = self._clean
        marked: list[tuple[int, bytes]] = []
        unmarked: list[tuple[int, bytes]] = []
        for start, end in runs:
            begin = max(0, start - _LEAD) if data[start - 1 : start] in _LEADS else start
            piece = data[begin:end]
            if piece not in clean:
                # Hashes and pictures: most rules have an underscore or a dash, and need not be tried.
                (marked if piece.translate(None, _LETTER_BYTES) else unmarked).append((begin, piece))
        for pieces, probes in ((marked, self._probes), (unmarked, self._unmarked)):
            if pieces:
                yield from self._in_pieces(data, pieces, probes)

    def _in_pieces(
        self, data: bytes, pieces: list[tuple[int, bytes]], probes: re.Pattern[bytes]
    ) -> Iterator[Event]:
        text = b"\n".join([piece for _, piece in pieces])
        offsets = _offsets([piece for _, piece in pieces])
        dirty: set[int] = set()
        for pattern, look in ((probes, self._rows_at), (self._text, self._cores_at)):
            at = 0
            while hit := pattern.search(text, at):
                at = hit.start() + 1
                number = bisect_right(offsets, hit.start()) - 1
                for event in look(data, pieces[number][0] + hit.start() - offsets[number]):
                    dirty.add(number)
                    yield event
        self._clean.update(
            piece
            for number, (_, piece) in enumerate(pieces)
            if number not in dirty and len(piece) < _LONGEST_CLEAN
        )

    def _rows_at(self, data: bytes, where: int) -> Iterator[Event]:
        for row, offset in self._rows[data[where]]:
            if where >= offset and _compiled(row.anchor).match(data, where - offset):
                yield Event(row.gate, row.which, where - offset)

    @functools.cached_property
    def _cores(self) -> dict[int, re.Pattern[bytes]]:
        """By the sextet that they begin with. Compiled only when one may be there."""
        found: dict[int, list[Anchor]] = {}
        for row in hidden(self._rules):
            found.setdefault(row.which, []).append(row.anchor)
        return {which: re.compile(_alternatives(anchors).encode()) for which, anchors in found.items()}

    def _cores_at(self, data: bytes, where: int) -> Iterator[Event]:
        """where: the first of some groups of base64 that are text. A core begins at it or shortly before."""
        for which, pattern in self._cores.items():
            begin = where - (-which % 4)
            if begin >= 0 and pattern.match(data, begin):
                yield Event(Gate.BASE64, which, begin)


@functools.cache
def _compiled(anchor: Anchor) -> re.Pattern[bytes]:
    return re.compile(as_regex(anchor).encode())


def _check(anchor: Anchor) -> None:
    """What an anchor needs to be found: a run, and next to nothing around it."""
    if longest_run(anchor, TOKEN) < RUN:
        raise ValueError(f"an anchor without a run: {as_regex(anchor)}")
    outside = [at for at, members in enumerate(anchor) if not members <= TOKEN]
    if outside and (outside[-1] >= _LEAD or bytes(anchor[outside[-1]]) not in _LEADS):
        raise ValueError(f"an anchor that leaves its run: {as_regex(anchor)}")


def _runs(data: bytes) -> list[tuple[int, int]]:
    """Where at least RUN token characters stand in a row."""
    marks = data.translate(_AS_RUN)
    needle = _IN_RUN * RUN
    found: list[tuple[int, int]] = []
    start = marks.find(needle)
    while start >= 0:
        end = marks.find(b"\0", start + RUN)
        end = len(marks) if end < 0 else end
        found.append((start, end))
        start = marks.find(needle, end)
    return found


def _offsets(pieces: list[bytes]) -> list[int]:
    offsets, at = [], 0
    for piece in pieces:
        offsets.append(at)
        at += len(piece) + 1
    return offsets


def _places(data: bytes, needle: bytes) -> Iterator[int]:
    at = data.find(needle)
    while at >= 0:
        yield at
        at = data.find(needle, at + 1)


def _short_names(data: bytes, low: bytes) -> Iterator[Event]:
    for at in _places(low, b"authorization"):
        if match := _authorization.match(data, at):
            yield Event(Gate.NAMED, 0, match.end() - 3)
    for name in _SHORT_NAMES:
        for at in _places(low, name):
            if match := _named.match(data, at):
                yield Event(Gate.NAMED, 0, match.end() - SHORT)
            elif match := _tree.match(data, at):
                yield Event(Gate.TREE, 0, match.end() - 1)
            if at and low[at - 1] == 0x2D and (match := _option.match(data, at - 1)):
                yield Event(Gate.OPTION, 0, match.end() - SHORT)
            elif name == b"passw" and (login := _login.search(data[max(0, at - 96) : at])):
                begin = max(0, at - 96) + login.start()
                if match := _option.match(data, begin):
                    yield Event(Gate.OPTION, 0, match.end() - SHORT)


def _long_names(data: bytes, runs: list[tuple[int, int]]) -> Iterator[Event]:
    """Names whose value is a run: it begins where the run does, behind a sign or behind the name itself."""
    for start, end in runs:
        before = data[max(0, start - _NAME_ROOM) : start].rstrip(_QUOTES)
        if before[-1:] in _SIGNS:
            name = before.rstrip(_SIGNS).rstrip(_QUOTES).lower()
            if name.endswith(_LONG_NAMES):
                gate, shape = Gate.NAMED_LONG, _named_long
            elif b"cookie" in before.lower():
                gate, shape = Gate.NAMED_LONG, _cookie
            else:
                continue
        elif before[-6:].lower().endswith(_BARE_NAMES):
            gate, shape = (Gate.SCHEME, _scheme) if before[-1:] in b"rR" else (Gate.OPTION, _option_long)
        else:
            continue
        if end - start >= LONG and shape.search(data, max(0, start - _NAME_ROOM), start + LONG):
            yield Event(gate, 0, start)


def _shapes(data: bytes, low: bytes) -> Iterator[Event]:
    for at in _places(data, b"://"):
        if match := _url.match(data, at):
            yield Event(Gate.URL, 0, match.end() - 1)
    for at in _places(low, b"private"):
        if match := _block.match(data, at):
            yield Event(Gate.BLOCK, 0, match.end() - 1)
    for at in _places(data, b" -u"):
        if match := _curl.match(data, at):
            yield Event(Gate.CURL, 0, match.end() - 1)
    yield from _escapes(data)


def _escapes(data: bytes) -> Iterator[Event]:
    for needle in (b"\\u00", b"\\/", b"%", b"\\" * 16):
        for at in _places(data, needle):
            if match := _escape.match(data, at):
                yield Event(Gate.ESCAPE, 0, match.end() - 1)
            elif needle == b"\\u00":
                yield from _colours(data, at)
    for at in _places(data, b"\x1b"):
        yield from _colours(data, at)


def _colours(data: bytes, at: int) -> Iterator[Event]:
    """at: where a terminal sequence may begin."""
    while at and data[at - 1] == 0x5C:
        at -= 1
    if at > 1 and (match := _colour.match(data, at - 2)):
        yield Event(Gate.COLOUR, 0, match.end() - 1)
    begin = max(0, at - _NAME_ROOM)
    name = data[begin:at].rstrip(_SIGNS + _QUOTES).lower()
    if name.endswith(_COLOURED) and (match := _named_colour.search(data, max(0, at - 32), at + 14)):
        yield Event(Gate.COLOUR, 0, match.end() - 1)


def _alternatives(windows: list[Anchor]) -> str:
    """One pattern for all windows, as a tree by their first certain bytes, which re decides quickly."""
    by_first: dict[frozenset[int], list[Anchor]] = {}
    for window in windows:
        by_first.setdefault(window[0], []).append(window[1:])
    branches = []
    for members, rest in by_first.items():
        tail = "" if not all(rest) else _alternatives(rest)
        branches.append(as_regex((members,)) + tail)
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
