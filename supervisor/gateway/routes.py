"""Owns which requests there are at all: method and path to a route, and nothing else.
May touch nothing.
Never lets a path through that is not written exactly as it is listed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from supervisor.gateway.calls import Api, CallRefused

MAX_MODEL_LENGTH = 200
_GEMINI = re.compile(
    r"/(v1|v1beta)/models/([A-Za-z0-9][A-Za-z0-9._-]*):(generateContent|streamGenerateContent)"
)
_ONE_MODEL = re.compile(r"/(v1|v1beta)/models/([A-Za-z0-9][A-Za-z0-9._:/@-]*)")
_CALLS = {
    "/v1/messages": Api.ANTHROPIC_MESSAGES,
    "/v1/chat/completions": Api.OPENAI_CHAT,
    "/v1/responses": Api.OPENAI_RESPONSES,
}
_QUERY: dict[Api, frozenset[tuple[str, str]]] = {
    Api.ANTHROPIC_MESSAGES: frozenset({("beta", "true")}),
    Api.OPENAI_CHAT: frozenset(),
    Api.OPENAI_RESPONSES: frozenset(),
    Api.GEMINI: frozenset({("alt", "sse"), ("alt", "json"), ("$alt", "json;enum-encoding=int")}),
}
"""What may stand behind the question mark: what the vendors' SDKs and the known agents send."""


class Local(StrEnum):
    """What the gateway answers by itself."""

    ALIVE = "alive"
    MODELS = "models"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class LocalRoute:
    """model: which one is asked for, "" for the list."""

    what: Local
    api: Api
    model: str = ""


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """A metered call. path: with the query that is sent on. model, stream: None where the body says it."""

    api: Api
    path: str
    model: str | None = None
    stream: bool | None = None


def find(method: str, target: str, headers: Mapping[str, str]) -> LocalRoute | ModelRoute:
    """target as it stands in the request line. Raises CallRefused: 404 for everything that is not listed.

    headers only tell apart whose list of models is wanted, which two vendors keep at one path.
    """
    path, _, query = target.partition("?")
    if method in ("GET", "HEAD"):
        return _read_only(path, headers)
    if method != "POST":
        raise _not_found(method, path)
    api = _CALLS.get(path)
    if api is not None:
        return ModelRoute(api, path + _query(api, query))
    found = _GEMINI.fullmatch(path)
    if found is None or len(found[2]) > MAX_MODEL_LENGTH:
        raise _not_found(method, path)
    stream = found[3] == "streamGenerateContent"
    return ModelRoute(Api.GEMINI, path + _query(Api.GEMINI, query), found[2], stream)


def api_of(target: str, headers: Mapping[str, str]) -> Api:
    """Whose error shape a request would understand, also one that leads nowhere."""
    if target.startswith("/v1beta") or "x-goog-api-key" in headers:
        return Api.GEMINI
    if target.startswith("/v1/messages") or "anthropic-version" in headers:
        return Api.ANTHROPIC_MESSAGES
    return Api.OPENAI_RESPONSES if target.startswith("/v1/responses") else Api.OPENAI_CHAT


def _read_only(path: str, headers: Mapping[str, str]) -> LocalRoute:
    api = api_of(path, headers)
    if path == "/":
        return LocalRoute(Local.ALIVE, api)
    if path in ("/v1/models", "/v1beta/models"):
        return LocalRoute(Local.MODELS, api)
    found = _ONE_MODEL.fullmatch(path)
    if found is None or len(found[2]) > MAX_MODEL_LENGTH:
        raise _not_found("GET", path)
    return LocalRoute(Local.MODEL, api, found[2])


def _query(api: Api, query: str) -> str:
    """The part that is sent on, with its question mark. A key in it is dropped: the gateway has its own."""
    if not query:
        return ""
    kept = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if api is Api.GEMINI and name == "key":
            continue
        if (name, value) not in _QUERY[api]:
            raise CallRefused(
                400, "query_not_allowed", f"the gateway does not pass on {name[:40]!r} in the query"
            )
        kept.append(part)
    if len(kept) > 1:
        raise CallRefused(400, "query_not_allowed", "the gateway passes on one query parameter at most")
    return f"?{kept[0]}" if kept else ""


def _not_found(method: str, path: str) -> CallRefused:
    return CallRefused(
        404,
        "not_forwarded",
        f"{method[:10]} {path[:100]} is not forwarded: the gateway passes on model calls that it can meter "
        "(/v1/messages, /v1/chat/completions, /v1/responses, generateContent) and lists models",
    )
