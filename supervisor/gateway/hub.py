"""Owns what the gateways of all runs of a supervisor share: connections, keys, prices, the way to the ledger.
May touch the network towards the configured upstreams, and the sources of their keys.
Never makes anything before the first run that needs a model: most supervisors of a shell need none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from supervisor.booking import BookingClock
from supervisor.config import Config
from supervisor.errors import UsageError
from supervisor.gateway.connections import Connections
from supervisor.gateway.metering import Owner, RecorderLedger
from supervisor.gateway.prices import PriceBook
from supervisor.gateway.requests import Allowances
from supervisor.gateway.server import RunGateway
from supervisor.gateway.settings import Allowed, GatewaySettings
from supervisor.gateway.upstreams import BUILT_IN, resolve
from supervisor.limits.budget import Caps
from supervisor.limits.charges import Booking
from supervisor.profile.schema import Profile
from supervisor.store.recorder import Recorder


class GatewayHub:
    """ready() before a run's box is made, open() once it is; close() at the supervisor's end."""

    def __init__(self, config: Config, recorder: Recorder) -> None:
        self._config = config
        self._ledger = RecorderLedger(recorder)
        self._stack = AsyncExitStack()
        self._connections: Connections | None = None
        self._prices: PriceBook | None = None
        self._making = asyncio.Lock()

    async def ready(self, upstreams: Sequence[str]) -> dict[str, str]:
        """Check that these can be called; their keys by name, for the redactor.

        Raises UsageError naming what is not configured, or whose key cannot be fetched.
        """
        connections = await self._made()
        keys: dict[str, str] = {}
        for name in upstreams:
            try:
                (line,) = connections.lines([name])
            except KeyError:
                raise _not_configured(name) from None
            await line.key.current()
            keys |= {f"{line.key.name}.{n}": value for n, value in enumerate(line.key.values, start=1)}
        return keys

    async def _made(self) -> Connections:
        async with self._making:
            if self._prices is None:
                prices = PriceBook(self._config.prices)
                # Reading the table takes some tenths of a second, in which other runs must be killable.
                await asyncio.to_thread(prices.load)
                self._prices = prices
            if self._connections is None:
                self._connections = await self._stack.enter_async_context(
                    Connections(resolve(self._config.upstreams))
                )
            return self._connections

    async def open(
        self,
        listener: int,
        profile: Profile,
        booking: Booking,
        caps: Caps,
        clock: BookingClock,
        lease_s: float,
        owner: Owner,
    ) -> RunGateway:
        """Serve a box's listener until the gateway is closed."""
        connections, wanted = await self._made(), profile.gateway
        assert self._prices is not None
        gateway = RunGateway(
            listener,
            allowed=Allowed(
                upstreams=tuple(wanted.upstreams),
                models=tuple(wanted.models),
                output_tokens_per_call=profile.limits.output_tokens_per_call,
                least_output_tokens=wanted.least_output_tokens,
                inputs=Allowances(
                    image_tokens=wanted.image_tokens,
                    document_tokens=wanted.document_tokens,
                    tool_uses=wanted.tool_uses,
                ),
            ),
            lines=connections.lines(wanted.upstreams),
            booking=booking,
            caps=caps,
            ledger=self._ledger,
            prices=self._prices,
            clock=clock,
            owner=owner,
            settings=GatewaySettings(lease_s=lease_s),
        )
        await gateway.start()
        return gateway

    async def close(self) -> None:
        await self._stack.aclose()


def _not_configured(name: str) -> UsageError:
    hint = f"add [upstreams.{name}] to the configuration"
    if name in BUILT_IN:
        hint += f', with key = "credential:{name}" or "file:/path/to/key"'
    return UsageError(f"the upstream {name!a} is not configured", hint=hint)
