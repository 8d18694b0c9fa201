"""Owns that a provider's key reaches the provider and nobody else, and where it may come from.
May touch loopback sockets, files in the test's folder and a fresh database.
Never accepts a form of the key in anything that a client received.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import urllib.parse
from pathlib import Path

import pytest
from gateway_stand import APIS, KEY, MODEL, stand, upstreams
from msgspec.structs import replace
from scripted_upstream import Asked, Reply, Tokens, events, good, running, stream, whole

from supervisor.errors import UsageError
from supervisor.gateway.calls import Api
from supervisor.gateway.keys import ProviderKey
from supervisor.gateway.upstreams import BUILT_IN, Service, Upstream, choose, resolve

FORMS = {
    "raw": KEY,
    "json": json.dumps(KEY),
    "percent": urllib.parse.quote(KEY, safe=""),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "basic": base64.b64encode(f"user:{KEY}".encode()).decode(),
    "hex": KEY.encode().hex(),
}


def forms_in(body: bytes) -> list[str]:
    """Which forms can be read, and whether a part is that every escaped form has in common."""
    text = body.decode("utf-8", "replace")
    found = [name for name, form in FORMS.items() if form.strip('"') in text]
    return found + (["part"] if KEY[8:16] in text else [])


def headers_of(asked: Asked) -> str:
    return json.dumps(dict(asked.headers))


def echo_error(asked: Asked) -> Reply:
    said = {"seen": headers_of(asked), "forms": FORMS}
    return Reply([json.dumps({"error": {"message": said}}).encode()], 401)


def echo_whole(asked: Asked) -> Reply:
    answer = whole("anthropic-messages", MODEL, [headers_of(asked), *FORMS.values()], Tokens())
    return Reply([json.dumps(answer).encode()])


def echo_stream(asked: Asked) -> Reply:
    sent = events("anthropic-messages", MODEL, [headers_of(asked), *FORMS.values()], Tokens())
    return stream([byte.to_bytes() for event in sent for byte in event])


def echo_comment(asked: Asked) -> Reply:
    return stream([f": {KEY}\n\n".encode(), *events("anthropic-messages", MODEL, ["x"], Tokens())])


ECHOES = {"error": echo_error, "whole": echo_whole, "stream": echo_stream, "comment": echo_comment}


@pytest.mark.parametrize("how", ECHOES)
async def test_an_upstream_that_sends_the_key_back(tmp_path: Path, how: str) -> None:
    async with stand(tmp_path, ECHOES[how]) as s:
        answered = await s.ask(stream=how in ("stream", "comment"))
        assert answered.whole and forms_in(answered.body) == []
        assert b"[redacted:upstreams.anthropic.key]" in answered.body
        assert "key_echoed" in s.codes()


@pytest.mark.parametrize("how", ECHOES)
async def test_control_the_same_upstream_without_the_gateway(tmp_path: Path, how: str) -> None:
    async with stand(tmp_path, ECHOES[how]) as s:
        s.port = s.upstream.port
        answered = await s.ask(stream=how in ("stream", "comment"), headers={"x-api-key": KEY})
        assert forms_in(answered.body) != []


async def test_headers_that_hold_the_key_are_dropped(tmp_path: Path) -> None:
    def script(asked: Asked) -> Reply:
        reply = good(asked)
        reply.headers |= {"X-Seen": f"Bearer {KEY}", "X-Packed": FORMS["base64"], "X-Fine": "1"}
        return reply

    async with stand(tmp_path, script) as s:
        answered = await s.ask()
        assert "x-fine" in answered.headers
        assert not {"x-seen", "x-packed"} & set(answered.headers)
        s.port = s.upstream.port
        assert "x-seen" in (await s.ask()).headers


async def test_the_key_is_in_no_event_and_no_problem(tmp_path: Path) -> None:
    async with stand(tmp_path, echo_error) as s:
        await s.ask()
        await s.booked(1)
        assert KEY not in repr((s.done, s.problems, s.charges(), s.refusals))
        assert KEY not in repr(s.connections.lines(["anthropic"]))


# ---------------------------------------------------------------- where it comes from


def service(source: str) -> Service:
    return resolve({"anthropic": Upstream(key=source)})["anthropic"]


async def test_the_sources_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("key-of-a-file\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    told: list[tuple[str, str]] = []

    def on_new(name: str, value: str) -> None:
        told.append((name, value))

    assert await ProviderKey(service(f"file:{tmp_path}/a"), on_new).current() == "key-of-a-file"
    assert await ProviderKey(service("credential:a"), on_new).current() == "key-of-a-file"
    assert (
        await ProviderKey(service("command:/bin/echo key-of-a-command"), on_new).current()
        == "key-of-a-command"
    )
    assert await ProviderKey(service(""), on_new).current() == ""
    assert told == [
        ("upstreams.anthropic.key", value) for value in ("key-of-a-file", "key-of-a-file", "key-of-a-command")
    ]


@pytest.mark.parametrize(
    "source",
    ["file:/nonexistent", "credential:../a", "command:/bin/false", "command:/bin/echo", "file:{}/bad"],
)
async def test_a_key_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "none"))
    (tmp_path / "bad").write_bytes(b"key-with\r\nX-Injected: 1")
    key = ProviderKey(service(source.replace("{}", str(tmp_path))))
    with pytest.raises(UsageError, match=r"upstreams\.anthropic\.key") as raised:
        await key.current()
    assert "Injected" not in str(raised.value)


async def test_without_a_key_nothing_is_sent(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("")
    async with stand(tmp_path) as s:
        answered = await s.ask()
        assert answered.status == 503 and s.upstream.asked == [] and s.charges() == []
        assert s.codes() == ["no_key"]


async def test_an_old_key_is_fetched_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("the-first-key")
    key = ProviderKey(service(f"file:{path}"), fresh_s=0.0)
    assert await key.current() == "the-first-key"
    path.write_text("the-second-key")
    assert await key.current() == "the-second-key"
    path.unlink()
    assert await key.current() == "the-second-key"
    assert key.values == ("the-first-key", "the-second-key")
    assert key.secrets.redact(b"the-first-key the-second-key")[1] == 2


async def test_a_key_that_was_changed_meanwhile_is_tried_at_once(tmp_path: Path) -> None:
    """The refused attempt and the second one are each a row of their own."""

    def script(asked: Asked) -> Reply:
        return good(asked) if asked.header("x-api-key") == "the-second-key" else Reply([b"{}"], 401)

    (tmp_path / "key").write_text("the-first-key")
    async with stand(tmp_path, script) as s:
        first = await s.ask()
        assert first.status == 401 and len(s.upstream.asked) == 1
        (tmp_path / "key").write_text("the-second-key")
        second = await s.ask()
        assert second.status == 200
        done = await s.booked(3)
        assert [one.outcome for one in done] == ["error 401", "error 401", "ok"]
        assert [charge.spent_nanos > 0 for charge in s.charges()] == [False, False, True]
        assert s.codes() == ["key_refused"]


# ---------------------------------------------------------------- which upstream


def test_a_known_name_needs_a_key_alone() -> None:
    found = resolve({name: Upstream(key="file:/k") for name in BUILT_IN})
    assert found["anthropic"].url("/v1/messages") == "https://api.anthropic.com/v1/messages"
    assert found["openai"].url("/v1/chat/completions") == "https://api.openai.com/v1/chat/completions"
    assert found["openai"].url("/v1/responses") == "https://api.openai.com/v1/responses"
    google = "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent"
    assert found["gemini"].url("/v1beta/models/m:generateContent") == google
    assert [found[name].key_header for name in ("anthropic", "openai", "gemini")] == [
        "x-api-key",
        "authorization",
        "x-goog-api-key",
    ]
    assert [found[name].provider for name in ("anthropic", "openai", "gemini")] == [
        "anthropic",
        "openai",
        "google",
    ]


def test_own_servers() -> None:
    local = Upstream(
        api="openai-chat", url="http://127.0.0.1:8000/v1/", models=["qwen*"], headers={"X-A": "1"}
    )
    near = Upstream(api="openai", url="unix:/run/vllm.sock", provider="p")
    based = Upstream(api="openai", url="unix:/run/vllm.sock:/base/v1")
    found = resolve({"local": local, "near": near, "based": based})
    assert found["local"].url("/v1/chat/completions") == "http://127.0.0.1:8000/v1/chat/completions"
    assert (found["near"].socket, found["near"].base) == ("/run/vllm.sock", "http://localhost/v1")
    assert found["based"].url("/v1/responses") == "http://localhost/base/v1/responses"
    services = list(found.values())
    chosen = [choose(services, Api.OPENAI_CHAT, model) for model in ("qwen3", "other")]
    assert [one.name if one else "" for one in chosen] == ["local", "near"]
    assert choose(services, Api.GEMINI, "qwen3") is None
    named = choose(services, Api.OPENAI_RESPONSES, "qwen3")
    assert named is not None and named.name == "near"


@pytest.mark.parametrize(
    ("upstream", "key"),
    [
        (Upstream(api="soap", url="http://x"), "api"),
        (Upstream(api="gemini"), "url"),
        (Upstream(api="gemini", url="ftp://x"), "url"),
        (Upstream(api="gemini", url="http://user:pw@x"), "url"),
        (Upstream(api="gemini", url="https://x?key=1"), "url"),
        (Upstream(api="gemini", url="unix:relative"), "url"),
        (Upstream(api="gemini", url="http://x", key="sk-plain"), "key"),
        (Upstream(api="gemini", url="http://x", key="env:X"), "key"),
        (Upstream(api="gemini", url="http://x", key_header="cookie"), "key_header"),
        (Upstream(api="gemini", url="http://x", headers={"Host": "y"}), "headers"),
        (Upstream(api="gemini", url="http://x", headers={"X": "a\r\nb"}), "headers"),
        (Upstream(api="gemini", url="http://x", headers={"x-goog-api-key": "y"}, key="file:/k"), "headers"),
    ],
)
def test_what_cannot_be_an_upstream(upstream: Upstream, key: str) -> None:
    with pytest.raises(UsageError, match=rf"upstreams\.mine\.{key}"):
        resolve({"mine": upstream})


def test_a_built_in_name_keeps_its_api() -> None:
    with pytest.raises(UsageError, match=r"upstreams\.openai\.api"):
        resolve({"openai": Upstream(api="gemini", url="http://x")})


@pytest.mark.parametrize("api", APIS)
async def test_an_upstream_on_a_unix_socket(tmp_path: Path, api: str) -> None:
    path = str(tmp_path / "model.sock")
    (tmp_path / "key").write_text(KEY)
    async with running(path=path) as near:
        configured = {name: Upstream(url=f"unix:{path}", key=f"file:{tmp_path}/key") for name in BUILT_IN}
        async with stand(tmp_path, configured=configured) as s:
            assert (await s.ask(api, stream=True)).whole
            await s.booked(1)
        assert near.asked[0].header("host") == "localhost"


async def test_a_model_can_have_another_name_upstream(tmp_path: Path) -> None:
    def names(port: int) -> dict[str, Upstream]:
        given = upstreams(port, f"file:{tmp_path}/key")
        return {name: replace(one, names={"model-nice": "model-b"}) for name, one in given.items()}

    (tmp_path / "key").write_text(KEY)
    async with running() as upstream, stand(tmp_path, configured=names(upstream.port)) as s:
        for api in APIS:
            assert (await s.ask(api, model="model-nice")).status == 200
        await s.booked(4)
        assert [asked.document.get("model", asked.target) for asked in upstream.asked] == [
            *["model-b"] * 3,
            "/v1beta/models/model-b:generateContent",
        ]
        assert {charge.model for charge in s.charges()} == {"model-b"}


async def test_the_ledger_is_away(tmp_path: Path) -> None:
    async with stand(tmp_path) as s:
        broken = sqlite3.connect(s.database)
        broken.execute("ALTER TABLE balances RENAME TO gone")
        broken.commit()
        answered = await s.ask()
        assert answered.status == 503 and answered.headers["retry-after"] == "5"
        assert s.upstream.asked == [] and "no_ledger" in s.codes()
        broken.execute("ALTER TABLE gone RENAME TO balances")
        broken.commit()
        broken.close()
        assert (await s.ask()).status == 200
