"""Owns the connections to the upstreams: one pool and one key for each, shared by all runs.
May touch the network and the sockets that upstreams are configured at.
Never follows a redirect, keeps a cookie, or asks an environment variable where to go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import aiohttp

from supervisor.gateway.keys import ProviderKey
from supervisor.gateway.upstreams import Service

CONNECT_S = 10.0
_DNS_S = 60
_LINE_BYTES = 16 << 10
_READ_BYTES = 64 << 10
_NOT_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


@dataclass(frozen=True, slots=True)
class Line:
    """The way to one upstream."""

    service: Service
    session: aiohttp.ClientSession
    key: ProviderKey


class Connections:
    """One per supervisor, as an async context manager. on_new_key: see ProviderKey."""

    def __init__(
        self,
        services: Mapping[str, Service],
        on_new_key: Callable[[str, str], None] = lambda _name, _value: None,
        connect_s: float = CONNECT_S,
    ) -> None:
        self._services = services
        self._on_new_key = on_new_key
        self._connect_s = connect_s
        self._lines: dict[str, Line] = {}

    async def __aenter__(self) -> Connections:
        for name, service in self._services.items():
            key = ProviderKey(service, self._on_new_key)
            self._lines[name] = Line(service, _session(service, self._connect_s), key)
        return self

    async def __aexit__(self, *_: object) -> None:
        for line in self._lines.values():
            await line.session.close()

    def lines(self, names: Iterable[str]) -> tuple[Line, ...]:
        """The ways to these upstreams, in that order. Raises KeyError for one that is not configured."""
        return tuple(self._lines[name] for name in names)


def _session(service: Service, connect_s: float) -> aiohttp.ClientSession:
    connector: aiohttp.BaseConnector
    if service.socket:
        connector = aiohttp.UnixConnector(service.socket, limit=0, keepalive_timeout=service.keep_alive_s)
    else:
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=service.keep_alive_s, ttl_dns_cache=_DNS_S
        )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_NOT_ADDED,
        trust_env=False,
        raise_for_status=False,
        read_bufsize=_READ_BYTES,
        max_line_size=_LINE_BYTES,
        max_field_size=_LINE_BYTES,
        # Waiting is bounded by whoever makes the call; only the way there is bounded here.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
    )
