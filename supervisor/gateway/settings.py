"""Owns what a run's gateway is made from: what the run may ask for, and how long and how much it waits.
May touch nothing.
Never has a bound that is absent: everything that an agent can make us keep is limited here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from supervisor.gateway.requests import Allowances


@dataclass(frozen=True, slots=True)
class Allowed:
    """What one run may ask for, out of its profile.

    upstreams: names, in the order in which they are tried for a model. models: patterns. known_models:
    names that are listed to a client beside those in models that are no patterns.
    output_tokens_per_call, least_output_tokens: tokens of one answer.
    """

    upstreams: tuple[str, ...]
    models: tuple[str, ...]
    output_tokens_per_call: int
    least_output_tokens: int
    inputs: Allowances = field(default_factory=Allowances)
    known_models: tuple[str, ...] = ()


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one run's gateway; the defaults are for any agent. Seconds and bytes.

    body_bytes: of one request, decompressed. bodies_bytes: of all requests at once, with what is made
    of them. answer_bytes: of one answer that is not streamed. calls, connections: at once. body_s: for
    a request to arrive.
    keep_alive_s: an idle connection. client_s: how long a client may not read. first_byte_s: until the
    upstream begins to answer. between_bytes_s: until it goes on. call_s: a whole call. drain_s: how long
    an answer is read to its end after its client has gone. lease_s: of a reservation; the worker renews
    it. refusals in refusals_within_s seconds are answered at once, further ones after slow_s.
    """

    body_bytes: int = 32 << 20
    bodies_bytes: int = 128 << 20
    answer_bytes: int = 64 << 20
    calls: int = 128
    connections: int = 256
    body_s: float = 60.0
    keep_alive_s: float = 120.0
    client_s: float = 60.0
    first_byte_s: float = 600.0
    between_bytes_s: float = 120.0
    call_s: float = 3600.0
    drain_s: float = 300.0
    lease_s: float = 120.0
    refusals: int = 20
    refusals_within_s: float = 10.0
    slow_s: float = 2.0
