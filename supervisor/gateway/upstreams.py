"""Owns where model calls go: the configured upstreams, and what each of them serves at which address.
May touch nothing: settings in, addresses out.
Never holds a key: it knows where one comes from, and in which header it goes.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import msgspec

from supervisor.errors import UsageError
from supervisor.gateway.calls import Api
from supervisor.gateway.requests import ChatBound

_OPENAI = (Api.OPENAI_CHAT, Api.OPENAI_RESPONSES)
_APIS: dict[str, tuple[Api, ...]] = {"openai": _OPENAI, **{str(api): (api,) for api in Api}}
_KEY_HEADERS = {"x-api-key": "x-api-key", "bearer": "authorization", "x-goog-api-key": "x-goog-api-key"}
_KEY_KINDS = ("file", "credential", "command")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "cookie"})


class Upstream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[upstreams.NAME] of the configuration. For anthropic, openai and gemini only key is needed.

    api: one of calls.Api, or "openai" for chat and responses. url: what the vendor's own SDK takes as
    its base URL ("https://api.openai.com/v1", "http://127.0.0.1:8000/v1"), or "unix:/path/to.sock",
    with ":/base" behind it where the server has one. key: "file:PATH", "credential:NAME",
    "command:PROGRAM ARGS" or "" for none. key_header: "x-api-key", "bearer" or "x-goog-api-key"; ""
    is what the api is used to. headers: sent with every call. provider: whose prices hold; "" is the
    upstream's name. models: patterns of what it serves. names: the upstream's own name of a model that
    agents call otherwise. chat_bound: what a Chat server calls its output bound. keep_alive_s: how long
    an idle connection is kept; shorter than the server keeps it, or a call can meet one that is closing.
    """

    api: str = ""
    url: str = ""
    key: str = ""
    key_header: str = ""
    headers: dict[str, str] = {}
    provider: str = ""
    models: list[str] = msgspec.field(default_factory=lambda: ["*"])
    names: dict[str, str] = {}
    chat_bound: ChatBound = "max_tokens"
    keep_alive_s: float = 4.0


BUILT_IN: dict[str, Upstream] = {
    "anthropic": Upstream(
        api=Api.ANTHROPIC_MESSAGES, url="https://api.anthropic.com", provider="anthropic", keep_alive_s=30.0
    ),
    "openai": Upstream(api="openai", url="https://api.openai.com/v1", provider="openai", keep_alive_s=30.0),
    "gemini": Upstream(
        api=Api.GEMINI,
        url="https://generativelanguage.googleapis.com",
        provider="google",
        keep_alive_s=30.0,
    ),
}
"""An upstream of this name starts from these; the addresses are the defaults of the vendors' SDKs."""


@dataclass(frozen=True, slots=True)
class Service:
    """An upstream as it is used. base: scheme, host and path before the route, without a slash at its end.

    socket: path of a unix socket, "" for TCP. key_header: name in lower case. key_prefix: "Bearer " or "".
    """

    name: str
    apis: tuple[Api, ...]
    base: str
    socket: str
    key_source: str
    key_header: str
    key_prefix: str
    headers: Mapping[str, str]
    provider: str
    models: tuple[str, ...]
    names: Mapping[str, str]
    chat_bound: ChatBound
    keep_alive_s: float

    def serves(self, api: Api, model: str) -> bool:
        return api in self.apis and matches(model, self.models)

    def own_name(self, model: str) -> str:
        """What the upstream calls that model."""
        return self.names.get(model, model)

    def url(self, path: str) -> str:
        """The address of a route. path begins with /v1 or /v1beta, as clients of the gateway write it."""
        # A base URL of OpenAI's SDK ends with the version that the two other vendors' SDKs add themselves.
        if self.apis[0] in _OPENAI:
            path = path.removeprefix("/v1")
        return self.base + path


def matches(model: str, patterns: Iterable[str]) -> bool:
    """Does one of the patterns ("claude-*") fit the whole name? Upper and lower case differ."""
    return any(fnmatchcase(model, pattern) for pattern in patterns)


def choose(services: Sequence[Service], api: Api, model: str) -> Service | None:
    """The first that serves the model, in the order of the profile."""
    return next((service for service in services if service.serves(api, model)), None)


def resolve(configured: Mapping[str, Upstream]) -> dict[str, Service]:
    """Every configured upstream by its name. Raises UsageError naming the upstream and the key."""
    return {name: _service(name, _with_defaults(name, given)) for name, given in configured.items()}


def _with_defaults(name: str, given: Upstream) -> Upstream:
    known = BUILT_IN.get(name)
    if known is None:
        return given
    if given.api not in ("", known.api):
        raise _wrong(name, "api", f"{name} is the built-in upstream of {known.api}; give another one a name")
    fresh = Upstream()
    changed = {field: getattr(given, field) for field in Upstream.__struct_fields__}
    changed = {field: value for field, value in changed.items() if value != getattr(fresh, field)}
    return msgspec.structs.replace(known, **changed)


def _service(name: str, upstream: Upstream) -> Service:
    apis = _APIS.get(upstream.api)
    if apis is None:
        raise _wrong(name, "api", f"{upstream.api!r} is none of {', '.join(_APIS)}")
    kind, colon, _ = upstream.key.partition(":")
    if upstream.key and (not colon or kind not in _KEY_KINDS):
        raise _wrong(name, "key", "it names a source: file:PATH, credential:NAME or command:PROGRAM ARGS")
    style = upstream.key_header or _usual_header(apis[0])
    if style not in _KEY_HEADERS:
        raise _wrong(name, "key_header", f"{style!r} is none of {', '.join(_KEY_HEADERS)}")
    base, socket = _address(name, upstream.url, apis[0])
    return Service(
        name=name,
        apis=apis,
        base=base,
        socket=socket,
        key_source=upstream.key,
        key_header=_KEY_HEADERS[style],
        key_prefix="Bearer " if style == "bearer" else "",
        headers=_fixed_headers(name, upstream.headers, _KEY_HEADERS[style] if upstream.key else ""),
        provider=upstream.provider or name,
        models=tuple(upstream.models),
        names=upstream.names,
        chat_bound=upstream.chat_bound,
        keep_alive_s=upstream.keep_alive_s,
    )


def _usual_header(api: Api) -> str:
    return {Api.ANTHROPIC_MESSAGES: "x-api-key", Api.GEMINI: "x-goog-api-key"}.get(api, "bearer")


def _address(name: str, url: str, api: Api) -> tuple[str, str]:
    """Base URL and socket path. A unix socket is spoken to as if it were localhost."""
    if url.startswith("unix:"):
        path, _, base = url.removeprefix("unix:").partition(":")
        if not path.startswith("/"):
            raise _wrong(name, "url", "the path of a unix socket begins with /")
        base = base or ("/v1" if api in _OPENAI else "")
        return f"http://localhost{base.rstrip('/')}", path
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _wrong(name, "url", f"{url!r} is no https:// or http:// address and no unix: socket")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _wrong(name, "url", "it holds more than scheme, host, port and path; a key goes into key")
    return url.rstrip("/"), ""


def _fixed_headers(name: str, headers: Mapping[str, str], key_header: str) -> dict[str, str]:
    found = {header.lower(): value for header, value in headers.items()}
    for header, value in found.items():
        if header in _OURS or header == key_header:
            raise _wrong(name, "headers", f"{header} is set by the gateway")
        if not header.replace("-", "").isalnum() or not value.isprintable():
            raise _wrong(name, "headers", f"{header!r} is no header")
    return found


def _wrong(name: str, key: str, what: str) -> UsageError:
    return UsageError(f"upstreams.{name}.{key}: {what}", hint="see docs/reference.md for every key")
