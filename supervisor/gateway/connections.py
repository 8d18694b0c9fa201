"""Owns the connections to the upstreams: one pool and one key for each, shared by all runs.
May touch the network and the sockets that upstreams are configured at.
Never follows a redirect, keeps a cookie, or asks an environment variable where to go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from supervisor.gateway.keys import ProviderKey
from supervisor.gateway.upstreams import Service
from supervisor.gateway.wire import Wire

CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Line:
    """The way to one upstream."""

    service: Service
    wire: Wire
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
            self._lines[name] = Line(service, Wire(service, self._connect_s), key)
        return self

    async def __aexit__(self, *_: object) -> None:
        for line in self._lines.values():
            line.wire.close()

    def lines(self, names: Iterable[str]) -> tuple[Line, ...]:
        """The ways to these upstreams, in that order. Raises KeyError for one that is not configured."""
        return tuple(self._lines[name] for name in names)
