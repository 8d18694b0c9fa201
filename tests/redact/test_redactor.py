"""Owns what a redactor makes of lines: valid JSON, telling markers, keys over lines, known values, floods.
May touch nothing.
Never takes the redactor's own word: secrets are looked for in what came out.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.logs.redact.engines import default
from supervisor.logs.redact.known import KnownSecrets
from supervisor.logs.redact.redactor import FLOOD, Redactor
from supervisor.logs.redact.samples import filled, sample

PAT = sample("ghp_{b62:36}", 1)
KEY_LINES = sample(
    "-----BEGIN RSA PRIVATE KEY-----{nl}Proc-Type: 4,ENCRYPTED{nl}{nl}{b64:64}{nl}{b64:64}{nl}{b64:64}{nl}"
    "{b64:22}=={nl}-----END RSA PRIVATE KEY-----",
    3,
).split("\n")
BODY = [line for line in KEY_LINES if len(line) > 20 and "-----" not in line and "Proc" not in line]
SECRET = "S3cr3t/Valu+e-1234567890=="


def run(*lines: bytes, known: dict[str, str] | None = None) -> list[bytes]:
    redactor = Redactor(KnownSecrets(known or {}), key=b"k")
    return [line or b"" for line, _ in redactor.redact_lines(list(lines), "s")]


def test_a_marker_tells_the_same_secret_and_nothing_else() -> None:
    other = sample("ghp_{b62:36}", 2)
    a, b, c = run(f"x {PAT}".encode(), f"y {PAT} z".encode(), other.encode())
    (mark,) = re.findall(rb"\[redacted:github-pat#[0-9a-f]{4}\]", a)
    assert mark in b and mark not in c
    assert Redactor(key=b"another").redact(PAT.encode())[0] != mark
    longer = Redactor(key=b"k").redact(f"{PAT}{'a' * 50}".encode())[0]
    assert len(longer) == len(mark), "a marker says nothing about the length"


def test_counts_are_by_rule_and_for_good() -> None:
    redactor = Redactor(KnownSecrets({"TOKEN": SECRET}))
    assert redactor.redact(f"{PAT} {PAT} {SECRET}".encode())[1] == 3
    assert redactor.redact(b"nothing") == (b"nothing", 0)
    assert redactor.counts == {"github-pat": 2, "TOKEN": 1}


def test_of_two_rules_that_overlap_the_telling_one_names_both() -> None:
    (clean,) = run(f'"token": "{PAT}"'.encode())
    assert b"[redacted:github-pat#" in clean and b"token-assignment" not in clean


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ('{"a":1.50,"b":[1e3,true,null],"t":"%s"}', '{"a":1.50,"b":[1e3,true,null],"t":"X"}'),
        ('{ "t" : "%s" , "t" : "%s" }', '{ "t" : "X" , "t" : "X" }'),
        ('{"%s":1}', '{"X":1}'),
        ('["%s",["%s"]]', '["X",["X"]]'),
        ('"%s"', '"X"'),
        ('{"t":"caf\\u00e9 \\ud83d\\ude00 %s"}', '{"t":"caf\\u00e9 \\ud83d\\ude00 X"}'),
        ('{"t":"\\ud83d %s"}', '{"t":"\\ud83d X"}'),
        ('{"t":"café %s"}', '{"t":"café X"}'),
        ('{"password":"%s"}', '{"password":"X"}'),
    ],
)
def test_a_document_keeps_all_but_its_secrets(document: str, expected: str) -> None:
    (clean,) = run(document.replace("%s", PAT).encode())
    assert re.sub(r"\[redacted:github-pat#....\]", "X", clean.decode()) == expected


@pytest.mark.parametrize(
    "document",
    [
        {"password": "hunter2Xy"},
        {"db": {"password": {"value": "hunter2Xy"}}},
        {"secret": ["a", "hunter2Xy"]},
        {"a": [{"b": {"client_secret": "hunter2Xy"}}]},
        {"headers": {"Authorization": "Bearer hunter2Xy99876543"}},
        {"headers": {"Cookie": "session=hunter2Xy99876543"}},
        {"password": 1234567890},
        {"kty": "EC", "crv": "P-256", "d": "hunter2Xy" * 5},
        json.dumps({"password": "hunter2Xy"}),
        json.dumps({"a": json.dumps({"password": "hunter2Xy"})}),
        {"cmd": "export API_TOKEN='hunter2Xy99876543'; run"},
        {"text": "user: admin\npassword: hunter2Xy\n"},
        {"text": "\x1b[34mpassword\x1b[0m: \x1b[32mhunter2Xy\x1b[0m"},
    ],
)
def test_a_secret_name_masks_what_stands_under_it(document: object) -> None:
    (clean,) = run(json.dumps(document).encode())
    assert b"hunter2" not in clean and b"1234567890" not in clean
    json.loads(clean)


@pytest.mark.parametrize(
    "line",
    [
        '{"input_tokens":1234567890,"output_tokens":12345678}',
        '{"token_count":"12345678","max_tokens":"99999999"}',
        '{"tool_use_id":"toolu_01A2b3C4d5E6f7G8h9J0k1L2"}',
        '{"secret":{"name":"my-secret","namespace":"default"}}',
        '{"password":{"type":"string","minLength":8}}',
        '{"key":"node-modules-linux-x64-v20"}',
        '{"password":"[redacted:password-assignment#1a2b]"}',
        "password: str = Field(min_length=8)",
        "token = get_token_from_somewhere()",
        "const { accessToken } = await this.auth.login(user2)",
        "the password: is something you should change",
    ],
)
def test_what_only_sounds_secret_stays(line: str) -> None:
    assert run(line.encode()) == [line.encode()]


@settings(deadline=None, max_examples=150)
@given(
    value=st.recursive(
        st.one_of(
            st.text(max_size=30),
            st.just(f"a {PAT}"),
            st.just('password="hunter2Xy"'),
            st.integers(),
            st.booleans(),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(st.sampled_from(["a", "password", "token", PAT]), inner, max_size=4),
        ),
        max_leaves=12,
    ),
    nested=st.booleans(),
)
def test_json_stays_json_and_keeps_its_shape(value: object, nested: bool) -> None:
    document = {"v": json.dumps(value) if nested else value}
    (clean,) = run(json.dumps(document).encode())
    assert PAT.encode() not in clean and b"hunter2Xy" not in clean
    again = json.loads(clean)
    assert list(again) == ["v"]
    if nested:
        json.loads(again["v"])


@pytest.mark.parametrize(
    "written",
    [
        lambda line: line,
        lambda line: f"2026-09-01T02:14:07Z app[1]: {line}",
        lambda line: json.dumps({"t": line}),
        lambda line: json.dumps({"t": line + "\n"}),
        lambda line: f"\x1b[2m{line}\x1b[0m",
        lambda line: line + "\r",
    ],
)
def test_a_key_over_lines(written: Callable[[str], str]) -> None:
    """Each line is a call of its own: nothing is left to the size of a read."""
    redactor = Redactor(key=b"k")
    out = b"\n".join(
        redactor.redact_lines([written(line).encode()], "s")[0][0] or b"" for line in ["a", *KEY_LINES, "b"]
    )
    for piece in BODY:
        assert piece[4:16].encode() not in out
    assert redactor.redact_lines([b"after that MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj"], "s")[0][1] == 0


def test_a_key_with_other_lines_in_between_and_on_another_stream() -> None:
    redactor = Redactor(key=b"k")
    body = BODY[0].encode()
    redactor.redact_lines([KEY_LINES[0].encode()], "s")
    assert redactor.redact_lines([b"GET /x 200", b"a line of another thread"], "s")[1] == (
        b"a line of another thread",
        0,
    )
    assert redactor.redact_lines([body], "other") == [(body, 0)]
    assert redactor.redact_lines([body], "s")[0][1] == 1


def test_a_key_that_never_ends_is_given_up() -> None:
    redactor = Redactor(key=b"k")
    redactor.redact_lines([KEY_LINES[0].encode()], "s")
    redactor.redact_lines([b"some words"] * 60, "s")
    assert redactor.redact_lines([BODY[0].encode()], "s") == [(BODY[0].encode(), 0)]


def test_code_that_names_a_key_is_code() -> None:
    line = b'if line == "-----BEGIN RSA PRIVATE KEY-----": start()'
    assert run(line, b"    return line[4:]") == [line, b"    return line[4:]"]


FORMS: dict[str, Callable[[str], str]] = {
    "twice in JSON": lambda s: json.dumps(json.dumps(s)),
    "percent, every byte": lambda s: "".join(f"%{b:02x}" for b in s.encode()),
    "percent, one byte": lambda s: f"{s[:4]}%{ord(s[4]):02X}{s[5:]}",
    "escapes, one character": lambda s: f'{{"t":"{s[:4]}\\u{ord(s[4]):04x}{s[5:]}"}}',
    "colour inside": lambda s: f"{s[:9]}\x1b[1;31m{s[9:]}",
    "colour inside JSON": lambda s: json.dumps({"t": f"{s[:9]}\x1b[1;31m{s[9:]}"}),
    "trimmed": lambda s: s.strip(),
    "hex": lambda s: s.encode().hex(),
    "base64": lambda s: base64.b64encode(b"zz" + s.encode()).decode(),
    "base64url": lambda s: base64.urlsafe_b64encode(b"z" + s.encode()).decode(),
    "base64 of JSON": lambda s: base64.b64encode(json.dumps({"password": s}).encode()).decode(),
    "quoted": lambda s: urllib.parse.quote(s, safe=""),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_known_value_in_every_form(name: str) -> None:
    written = FORMS[name](SECRET)
    for line in (f"see {written} there", json.dumps({"msg": written})):
        (clean,) = run(line.encode(), known={"BAR": SECRET})
        assert b"[redacted:" in clean
        assert run(line.encode())[0] == line.encode() or name == "base64 of JSON", "control"
        for piece in (
            SECRET[6:18],
            base64.b64encode(SECRET.encode())[8:20].decode(),
            SECRET.encode().hex()[12:30],
        ):
            assert piece.encode() not in clean


def test_known_base64_in_lines() -> None:
    secret = sample("{b62:48}", 4)
    text = base64.b64encode(f"hello {secret} bye".encode()).decode()
    for width in (40, 64, 76):
        folded = "\n".join(text[at : at + width] for at in range(0, len(text), width))
        (clean,) = run(json.dumps({"t": folded}).encode(), known={"A": secret})
        left = json.loads(clean)["t"].replace("\n", "")
        assert secret[8:20] not in base64.b64decode(left[: left.find("[")] + "==").decode("latin-1")
        assert b"[redacted:A]" in clean


def test_each_member_of_a_known_document_and_each_line() -> None:
    document = json.dumps({"user": "robot-4711", "nested": {"key": "line-one-12345\nline-two-67890"}})
    for piece in ("robot-4711", "line-one-12345", "line-two-67890"):
        assert run(f"x {piece} y".encode(), known={"DOC": document}) == [b"x [redacted:DOC] y"]
    assert run(b"x 4711 y", known={"DOC": document}) == [b"x 4711 y"]


def test_two_known_values_of_which_one_is_in_the_other() -> None:
    (clean,) = run(
        b"see abcdef-longer-and-more here", known={"SHORT": "abcdef", "LONG": "abcdef-longer-and-more"}
    )
    assert b"longer" not in clean and b"abcdef" not in clean


@pytest.mark.parametrize(
    "line",
    [
        b"password=hunter2Xy ",
        PAT.encode() + b" ",
        b'{"t":"' + PAT.encode() + b'"}',
        b"https://a:hunter2Xy@b ",
        b'{"password":"\\u0068unter2Xy"}',
        base64.b64encode(b'password="hunter2Xy99"'),
        b"%68unter2Xy password=hunter2Xy",
    ],
)
def test_a_flood_is_dropped_whole_and_counted(line: bytes) -> None:
    default().ready()
    redactor = Redactor(key=b"k")
    lines = [line] * 4000
    out = [entry for _ in range(60) for entry in redactor.redact_lines(lines, "s")]
    said = b"\n".join(clean for clean, _ in out if clean is not None)
    assert b"unter2Xy" not in said and PAT.encode() not in said
    assert len(out) == 60 * len(lines)
    assert redactor.counts[FLOOD] > 0
    assert sum(clean is None for clean, _ in out) > len(out) // 2
    if line.startswith(b"{"):
        assert all(isinstance(json.loads(clean), dict | str) for clean, _ in out if clean is not None)


def test_after_a_flood_the_log_goes_on() -> None:
    redactor = Redactor(key=b"k")
    for _ in range(60):
        redactor.redact_lines([b"password=hunter2Xy"] * 8000, "s")
    redactor.redact_lines([b"all is well"] * 200_000, "s")
    assert redactor.redact_lines([f"x {PAT}".encode(), b"y"], "s")[0][0] != b"x"
    assert redactor.redact_lines([b"y"], "s") == [(b"y", 0)]


def test_one_line_that_is_a_flood_becomes_its_digest() -> None:
    line = b"password=hunter2Xy " * 200_000
    a, _ = Redactor(key=b"k").redact(line)
    b, _ = Redactor(key=b"k").redact(line + b" ")
    assert re.fullmatch(rb"\[redacted:flood#[0-9a-f]{16}\]", a) and a != b


def test_what_is_nested_too_deep_is_dropped_unseen() -> None:
    text = 'password="hunter2Xy"'
    for _ in range(12):
        text = json.dumps([text])
    (clean,) = run(text.encode())
    assert b"hunter2" not in clean
    json.loads(clean)
    percent = "".join(f"%{byte:02x}" for byte in PAT.encode())
    for _ in range(6):
        percent = urllib.parse.quote(percent, safe="")
    (clean,) = run(percent.encode())
    assert clean.startswith(b"[redacted:too-deep#")


def test_every_way_a_password_stands_in_an_address() -> None:
    for address in ("https://me:p@ss:W0rd9@host/x", "redis://:p@ssW0rd9@h", "ftp://me:p%40ssW0rd9@h/"):
        (clean,) = run(f"go {address} now".encode())
        assert b"W0rd9" not in clean and b"@h" in clean
    for kept in (
        "https://example.com/@scope/pkg",
        "postgres://user:password@localhost/db",
        "ssh://git@example.com/x.git",
    ):
        assert run(kept.encode()) == [kept.encode()]


def test_nothing_of_what_was_made_up_is_in_a_message() -> None:
    text, made = filled("Authorization: Bearer {url:40}", 5)
    redactor = Redactor()
    redactor.redact(text.encode())
    assert made[0] not in repr(redactor.counts) + repr(redactor)
