"""Owns that both engines find the same in any text, and finish with any.
May touch nothing.
Never asks how long it took.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.agent_log import agent_lines, joined
from bench.credentials import FORMATS, contexts
from supervisor.logs.redact.engines import Engine, Engines
from supervisor.logs.redact.gates import Enough, Event, Gate
from supervisor.logs.redact.hyper import HyperEngine
from supervisor.logs.redact.plain import PlainEngine
from supervisor.logs.redact.redactor import Redactor
from supervisor.logs.redact.samples import sample
from supervisor.logs.redact.table import shipped

PLACED = {Gate.ANCHOR, Gate.BASE64, Gate.NAMED, Gate.NAMED_LONG, Gate.OPTION, Gate.SCHEME}
MANY = 1 << 20
FRAGMENTS = [
    b"password",
    b"passwd",
    b"secret",
    b"token",
    b"api_key",
    b"authorization",
    b"Cookie: a=",
    b"bearer ",
    b"=",
    b": ",
    b":=",
    b"=>",
    b"==",
    b'"',
    b'\\"',
    b"'",
    b"\n",
    b"\\n",
    b"\t",
    b" ",
    b"://",
    b"@",
    b":",
    b"\x1b[31m",
    b"\\u001b[0m",
    b"%2F",
    b"\\/",
    b"\\u0041",
    b"-",
    b"--",
    b"login ",
    b" -u ",
    b"PRIVATE KEY",
    b"-----BEGIN ",
    b"abcDEF12",
    b"0123456789abcdef",
    b"hunter2Xy",
    b"\xff",
    b"\0",
    b"a",
    b"Z",
    b"[",
    b"{",
    b"$",
    b"~",
    b"=" * 3,
    b"eyJ",
    b"sk-",
    b"ghp_",
    b"_",
    b".",
]


@pytest.fixture(scope="module")
def both() -> tuple[HyperEngine, PlainEngine]:
    return HyperEngine(shipped()), PlainEngine(shipped())


def seen(engine: Engine, data: bytes) -> set[tuple[int, ...]]:
    """Events with a place of their own as they are, all others by their line."""
    return {
        (event.gate, event.which, event.position)
        if event.gate in PLACED
        else (event.gate, data.count(b"\n", 0, max(0, event.position)))
        for event in engine.scan(data, MANY)
    }


def test_the_same_in_a_clean_log(both: tuple[HyperEngine, PlainEngine]) -> None:
    for block in joined(agent_lines(2_000_000)):
        assert seen(both[0], block) == seen(both[1], block)


def test_the_same_in_the_corpus(both: tuple[HyperEngine, PlainEngine]) -> None:
    for templates in FORMATS.values():
        for template in templates:
            for _, line in contexts(sample(template, 5)):
                assert seen(both[0], line) == seen(both[1], line)


def texts() -> st.SearchStrategy[bytes]:
    formats = st.sampled_from([template for templates in FORMATS.values() for template in templates])
    made = st.builds(lambda template, seed: sample(template, seed).encode(), formats, st.integers(0, 999))
    hidden = st.builds(lambda pad, text: base64.b64encode(b"x" * pad + text), st.integers(0, 2), made)
    piece = st.one_of(st.sampled_from(FRAGMENTS), made, hidden, st.binary(max_size=12))
    return st.lists(piece, max_size=14).map(b"".join)


@settings(deadline=None, max_examples=400)
@given(text=texts(), cut=st.integers(0, 400), gone=st.integers(0, 3))
def test_the_same_in_anything(
    both: tuple[HyperEngine, PlainEngine], text: bytes, cut: int, gone: int
) -> None:
    text = text[:cut] + text[cut + gone :]
    assert seen(both[0], text) == seen(both[1], text)


@settings(deadline=None, max_examples=200)
@given(lines=st.lists(texts().map(lambda text: text.replace(b"\n", b" ")), max_size=6))
def test_whole_redactors_write_the_same(lines: list[bytes]) -> None:
    fast = Redactor(key=b"k", engines=FAST, bounded=False)
    plain = Redactor(key=b"k", engines=PLAIN, bounded=False)
    assert fast.redact_lines(lines, "s") == plain.redact_lines(lines, "s")
    assert fast.counts == plain.counts


FAST, PLAIN = Engines(shipped()), Engines(shipped(), fast=False)
FAST.ready()


def hostile() -> Iterator[tuple[str, bytes]]:
    for piece in (
        b"password=",
        b"password=hunter2Xy ",
        b"secret",
        b"://a:",
        b"https://a:b@",
        b"eyJaaaaaaaaaaaaaaaaaaaa.",
        b"sk-",
        b"A" * 7,
        b"a_",
        b"a.b",
        b"\\",
        b"\\u005c",
        b"%25",
        b"\x1b[",
        b"\x1b[31m",
        b"-----BEGIN PRIVATE KEY-----",
        b"login a password ",
        b'"',
        b"{",
        b"[",
        b'{"password":',
        b"cookie: a=",
        b"Z2hwXzAx",
        b"token: get_token_of_the_user_",
        b"key=a-b_c.d/",
        b"\r\n",
    ):
        yield repr(piece), piece * (60_000 // len(piece))
    yield "a name and no end", b"password='" + b"a\\'" * 20_000
    yield "nested", b'{"a":' * 9_000 + b'"password=hunter2Xy"' + b"}" * 9_000
    yield "words", b"password=" + b"a" * 30_000 + b"!"
    yield (
        "base64 in base64",
        base64.b64encode(base64.b64encode(base64.b64encode(b"password=hunter2Xy99 " * 400))),
    )


@pytest.mark.parametrize(
    ("name", "text"), list(hostile()), ids=lambda value: value[:30] if isinstance(value, str) else ""
)
def test_hostile_text_comes_to_an_end(name: str, text: bytes) -> None:
    for engines in (FAST, PLAIN):
        clean, _ = Redactor(engines=engines, bounded=False).redact(text)
        assert b"hunter2Xy" not in clean


@pytest.mark.parametrize("which", [0, 1])
def test_more_than_asked_for_is_a_flood(both: tuple[HyperEngine, PlainEngine], which: int) -> None:
    data = b"password=hunter2Xy\n" * 50
    assert len(both[which].scan(data, 50)) == 50
    with pytest.raises(Enough):
        both[which].scan(data, 49)


def test_nobody_waits_for_the_compiler() -> None:
    engines = Engines(shipped())
    first = engines.now()
    assert first.scan(b"password=hunter2Xy", 10) == [Event(Gate.NAMED, 0, 9)]
    assert engines.ready().name == "hyperscan"
    assert not [
        thread for thread in threading.enumerate() if thread.name == "redact-compile" and thread.is_alive()
    ]


def test_without_the_package_the_plain_engine_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: HyperEngine, rules: object) -> None:
        raise ImportError("no such package")

    monkeypatch.setattr(HyperEngine, "__init__", missing)
    engines = Engines(shipped())
    assert engines.ready().name == "python"
    assert Redactor(engines=engines).engine == "python"
