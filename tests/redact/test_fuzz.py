"""Owns mutating lines for a bounded time, to find one that breaks the way from bytes to kept lines.
May touch nothing; SUPERVISOR_FUZZ_S gives it longer than ten seconds, SUPERVISOR_FUZZ_SEED a start of old.
Never checks what a mutation may have made of a secret, only what must hold for any bytes.
"""

from __future__ import annotations

import base64
import json
import os
import random
import time

from bench.agent_log import agent_lines
from bench.credentials import planted
from supervisor.logs.redact.engines import Engines
from supervisor.logs.redact.known import KnownSecrets
from supervisor.logs.redact.redactor import Redactor
from supervisor.logs.redact.table import shipped
from supervisor.logs.tail.lines import LineSplitter

KNOWN = "k9/Secret+of-this=Run~42"
FORMS = (
    KNOWN.encode(),
    KNOWN.encode().hex().encode(),
    base64.b64encode(KNOWN.encode())[:-2],
    json.dumps(f'"\n{KNOWN}"').encode(),
)
LIMIT = 1 << 14


class Mutator:
    """Lines made of others: cut, glued, doubled, nested, with bytes flipped and secrets put in."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seeds = [one.line for one in planted(1, seed)] + agent_lines(100_000, seed)

    def line(self) -> bytes:
        line = self.chance.choice(self.seeds)
        for _ in range(self.chance.randrange(4)):
            line = self.chance.choice(
                (self._cut, self._glue, self._double, self._flip, self._nest, self._known)
            )(line)
        return line.replace(b"\n", b" ")[:LIMIT]

    def _at(self, line: bytes) -> int:
        return self.chance.randrange(len(line) + 1)

    def _cut(self, line: bytes) -> bytes:
        first, last = sorted((self._at(line), self._at(line)))
        return line[:first] + line[last:]

    def _glue(self, line: bytes) -> bytes:
        other = self.chance.choice(self.seeds)
        return line[: self._at(line)] + other[self._at(other) :]

    def _double(self, line: bytes) -> bytes:
        first, last = sorted((self._at(line), self._at(line)))
        return line[:last] + line[first:last] * self.chance.randrange(1, 9) + line[last:]

    def _flip(self, line: bytes) -> bytes:
        changed = bytearray(line)
        for _ in range(self.chance.randrange(1, 6) if changed else 0):
            changed[self.chance.randrange(len(changed))] = self.chance.randrange(256)
        return bytes(changed)

    def _nest(self, line: bytes) -> bytes:
        text = line.decode("utf-8", "replace")
        return (
            json.dumps({"t": text, "a": [text]}).encode()
            if self.chance.random() < 0.7
            else base64.b64encode(line)
        )

    def _known(self, line: bytes) -> bytes:
        at = self._at(line)
        return line[:at] + b" " + self.chance.choice(FORMS) + b" " + line[at:]


def is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def test_fuzz_from_bytes_to_kept_lines() -> None:
    seed = int(os.environ.get("SUPERVISOR_FUZZ_SEED") or time.time_ns() & 0xFFFFFFFF)
    until_s = time.monotonic() + float(os.environ.get("SUPERVISOR_FUZZ_S") or 10)
    mutator, chance = Mutator(seed), random.Random(seed)
    fast, plain = Engines(shipped()), Engines(shipped(), fast=False)
    fast.ready()
    rounds = 0
    while time.monotonic() < until_s:
        rounds += 1
        where = f"SUPERVISOR_FUZZ_SEED={seed}, round {rounds}"
        lines = [mutator.line() for _ in range(chance.randrange(1, 12))]
        stream = b"".join(line + b"\n" for line in lines)
        splitter, read = LineSplitter(2 * LIMIT), []
        while stream:
            cut = chance.randrange(1, len(stream) + 1)
            read += splitter.feed(stream[:cut])
            stream = stream[cut:]
        assert splitter.rest() == [], where
        whole = [line for line in read if b"\0" not in line]
        assert [line for line in lines if b"\0" not in line] == whole, where
        kept = []
        for engines in (fast, plain):
            redactor = Redactor(KnownSecrets({"MINE": KNOWN}), key=b"k", engines=engines, bounded=False)
            kept.append(redactor.redact_lines(read, "out"))
        assert kept[0] == kept[1], where
        for before, (after, _) in zip(read, kept[0], strict=True):
            assert after is not None and b"\n" not in after, where
            assert KNOWN.encode() not in after and KNOWN.encode().hex().encode() not in after, where
            if is_json(before):
                assert is_json(after), (where, before)
    assert rounds > 20
