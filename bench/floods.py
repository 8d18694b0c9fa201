"""Owns the worst logs we could think of: what an agent would write to slow the redactor down or slip by it.
May touch nothing.
Never holds a secret that is not made up here; each flood tells what must not be let through.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import NamedTuple

from supervisor.logs.redact.samples import sample

PAT = sample("ghp_{b62:36}", 1).encode()
PASSWORD = b"hunter2Xy99"
_SIZE = 8_000_000
ONE_BYTE_LINES = "lines of one byte"


class Flood(NamedTuple):
    """lines: about 8 MB. One of SECRETS in what comes out is a leak."""

    name: str
    lines: list[bytes]


SECRETS = (PAT[8:24], PASSWORD)


def floods() -> Iterator[Flood]:
    """Each is made when it is asked for."""
    for name, line in _LINES.items():
        yield Flood(name, [line] * (_SIZE // (len(line) + 1)))
    pair = [b"x" * 60, PAT]
    yield Flood("every second line", pair * (_SIZE // 103))


_TRIPLE = json.dumps({"a": json.dumps({"b": json.dumps({"c": f"{PAT.decode()}\n"})})}).encode()
_LINES: dict[str, bytes] = {
    "short assignments": b"password=" + PASSWORD,
    "one line of assignments": (b"password=" + PASSWORD + b" ") * 40_000,
    "tokens": PAT,
    "tokens in JSON": b'{"t":"' + PAT + b'"}',
    "JWT heads": b"eyJaaaaaaaaaaaaaaaaaaaaaa." * 400,
    "addresses": b"https://a:" + PASSWORD + b"@h " * 300,
    "addresses without end": b"://a:bcdef@" * 400,
    "escaped letters": b'{"password":"' + b"\\u0068\\u0075" * 150 + b'"}',
    "percent codes": b"%41%42" * 300,
    "backslashes": b"\\" * 1000 + b"\\u0041",
    "key heads": b"-----BEGIN RSA PRIVATE KEY-----",
    "half key heads": b"PRIVATE KEY",
    "base64 of secrets": base64.b64encode(b"password=" + PASSWORD + b" token=abcDEF123456789012 ") * 6,
    "base64 that begins well": b"Z2hwXzAx" * 1000,
    "deep JSON": b'{"a":' * 200 + b'"password=' + PASSWORD + b'"' + b"}" * 200,
    "JSON in JSON in JSON": _TRIPLE,
    "colours": b"a\x1b[31mb" * 100,
    "names and values": b'{"api_key":"abcdefghijklmnop"}',
    "names without values": b"secret" * 200,
    "code": b"token: get_token_from_somewhere()",
    "long lines": b'{"t":"' + b"x" * 900_000 + PAT + b'"}',
    "prefixes": b"sk-" * 30_000,
    "surrogates": b"\\ud83d\\ude00" * 200 + b"\\u0041",
    ONE_BYTE_LINES: b"=",
}
