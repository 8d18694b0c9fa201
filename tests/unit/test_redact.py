"""Owns that no known secret passes the redactor, in any encoding, wherever a line was cut.
May touch a log book in a temporary folder.
Never takes the redactor's own word: the secret is looked for in what came out.
"""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.errors import UsageError
from supervisor.logs.book import LogBook, read_lines
from supervisor.logs.redact.known import MIN_SECRET_LENGTH, KnownSecrets
from supervisor.logs.tail.lines import LineSplitter

SECRET = "sk-a/b+c&d<e>f\"g'h é%_ 0123456789"
ENCODINGS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "json": json.dumps,
    "json unicode": lambda s: json.dumps(s, ensure_ascii=False),
    "json php": lambda s: json.dumps(s).replace("/", "\\/"),
    "json go": lambda s: "".join(
        f"\\u{ord(c):04x}" if c in "<>&" else c for c in json.dumps(s, ensure_ascii=False)
    ),
    "json dotnet": lambda s: re.sub(
        r"\\u(....)",
        lambda m: "\\u" + m[1].upper(),
        "".join(f"\\u{ord(c):04x}" if c in "<>&'+" else c for c in json.dumps(s)),
    ),
    "repr": repr,
    "html": html.escape,
    "hex": lambda s: s.encode().hex(),
    "HEX": lambda s: s.encode().hex().upper(),
    "percent": urllib.parse.quote,
    "percent all": lambda s: urllib.parse.quote(s, safe=""),
    "percent plus": urllib.parse.quote_plus,
    "base64 0": lambda s: base64.b64encode(s.encode()).decode(),
    "base64 1": lambda s: base64.b64encode(b"x" + s.encode() + b"yz").decode(),
    "base64 2": lambda s: base64.b64encode(b"xy" + s.encode() + b"z").decode(),
    "base64 url": lambda s: base64.urlsafe_b64encode(b"xy" + s.encode()).decode(),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding(name: str) -> None:
    written = ENCODINGS[name](SECRET)
    line = f"before {written} after".encode()
    clean, count = KnownSecrets({"TOKEN": SECRET}).redact(line)
    assert count == 1
    assert b"[redacted:TOKEN]" in clean and clean.startswith(b"before ") and clean.endswith(b" after")
    assert written.strip("\"'")[8:-8].encode() not in clean
    assert KnownSecrets({"TOKEN": "another secret"}).redact(line) == (line, 0), "control"


@settings(deadline=None)
@given(secret=st.text(min_size=MIN_SECRET_LENGTH, max_size=40), around=st.binary(max_size=20))
def test_any_text_can_be_a_secret(secret: str, around: bytes) -> None:
    for encode in ENCODINGS.values():
        raw = encode(secret).encode("utf-8", "replace") if secret.isprintable() else secret.encode()
        clean, count = KnownSecrets({"N": secret}).redact(around + raw + around)
        assert count >= 1
        assert secret.encode() not in clean.replace(b"[redacted:N]", b"")


@pytest.mark.parametrize("value", ["", "~", "?234?"])
def test_a_secret_too_short_is_refused(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        KnownSecrets({"TOKEN": value})
    assert not value or value not in caught.value.message


def test_each_line_of_a_key_file() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----"
    redactor = KnownSecrets({"KEY": key})
    for line in key.splitlines():
        assert redactor.redact(line.encode())[1] == 1


def test_nothing_to_redact() -> None:
    redactor = KnownSecrets({})
    assert redactor.redact(b"anything") == (b"anything", 0)
    assert redactor.longest == 0


@settings(deadline=None)
@given(
    count=st.integers(0, 12),
    lead=st.integers(0, 400),
    length=st.integers(20, 120),
    max_line=st.integers(64, 512),
    step=st.integers(1, 97),
)
def test_a_secret_at_the_cut_does_not_leak_a_piece(
    tmp_path_factory: pytest.TempPathFactory, count: int, lead: int, length: int, max_line: int, step: int
) -> None:
    """Markers are shorter than secrets: what was behind the cut moves before it."""
    secret = ("Zq7" * 60)[:length]
    redactor = KnownSecrets({"T": secret})
    folder = tmp_path_factory.mktemp("book")
    book = LogBook(str(folder / "log"), redactor, 1 << 20, max_line).open()
    splitter = LineSplitter(max_line + redactor.longest)
    text = b"." * lead + secret.encode() * count + b"tail" * 300 + secret.encode() + b"\n"
    for start in range(0, len(text), step):
        lines = splitter.feed(text[start : start + step])
        book.add("out", lines, datetime.now(UTC))
    book.close()
    kept, _ = read_lines(str(folder / "log"), 0)
    (line,) = kept
    assert "Zq7" not in line.t
    assert len(line.t) <= max_line
    Path(folder / "log").unlink()
    folder.rmdir()
