"""Owns the providers' keys: fetching them outside the event loop, keeping them, fetching them again.
May touch the files, the systemd credentials and the programs that keys are configured to come from.
Never writes a key anywhere, and never names one in an error.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Callable

from supervisor.errors import UsageError
from supervisor.gateway.upstreams import Service
from supervisor.logs.redact.known import MIN_SECRET_LENGTH, KnownSecrets

_MOST_BYTES = 1 << 14
_KEY = re.compile(r"[!#-\[\]-~]+")
"""Visible ASCII without quote and backslash: one header, and the same however often JSON wraps it."""
_PATIENCE_S = 10.0
_FRESH_S = 300.0


class ProviderKey:
    """The key of one upstream. value is what was fetched last, "" for an upstream without a key.

    on_new is told every value that was not known before, with the upstream's name, so that the
    redactor can know it too.
    """

    def __init__(
        self,
        service: Service,
        on_new: Callable[[str, str], None] = lambda _name, _value: None,
        fresh_s: float = _FRESH_S,
    ) -> None:
        self.name = f"upstreams.{service.name}.key"
        self.value = ""
        self.secrets = KnownSecrets({})
        self._source = service.key_source
        self._on_new = on_new
        self._fresh_s = fresh_s
        self._fetched_at_s = 0.0
        self._lock = asyncio.Lock()
        self._known: dict[str, str] = {}

    @property
    def values(self) -> tuple[str, ...]:
        """Every value that there was, for whoever keeps secrets out of logs."""
        return tuple(self._known.values())

    async def current(self) -> str:
        """The key, fetched again when it is old. Raises UsageError naming the upstream.

        A key that was there and cannot be fetched again stays in use: the provider decides.
        """
        if not self._source or (time.monotonic() - self._fetched_at_s < self._fresh_s and self.value):
            return self.value
        async with self._lock:
            if time.monotonic() - self._fetched_at_s < self._fresh_s and self.value:
                return self.value
            try:
                await self._fetch()
            except UsageError:
                if not self.value:
                    raise
                self._fetched_at_s = time.monotonic()
            return self.value

    async def changed_since(self, refused: str) -> bool:
        """The provider refused that value: is there another one now?"""
        if not self._source:
            return False
        async with self._lock:
            if self.value == refused:
                try:
                    await self._fetch()
                except UsageError:
                    return False
            return self.value != refused

    async def _fetch(self) -> None:
        value = await asyncio.to_thread(_fetch, self.name, self._source)
        self._fetched_at_s = time.monotonic()
        if value not in self._known.values():
            self._known[f"{self.name}#{len(self._known) + 1}" if self._known else self.name] = value
            self.secrets = KnownSecrets(self._known)
            self._on_new(self.name, value)
        self.value = value


def _fetch(name: str, source: str) -> str:
    """What the source gives, without white space around it. Raises UsageError."""
    kind, _, rest = source.partition(":")
    try:
        raw = _run(rest) if kind == "command" else _read(rest, in_credentials=kind == "credential")
        value = raw.decode("ascii").strip()
    except (OSError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise UsageError(
            f"{name} cannot be fetched from its {kind}: {reason}", hint=f"check {name} in the configuration"
        ) from None
    if not MIN_SECRET_LENGTH <= len(value) <= _MOST_BYTES or not _KEY.fullmatch(value):
        raise UsageError(f"{name} is empty, too short, too long, or holds what no key holds")
    return value


def _run(command: str) -> bytes:
    done = subprocess.run(
        command.split(), check=True, capture_output=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL
    )
    return done.stdout


def _read(path: str, *, in_credentials: bool) -> bytes:
    if in_credentials:
        path = os.path.join(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent"), os.path.basename(path))
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES + 1)
