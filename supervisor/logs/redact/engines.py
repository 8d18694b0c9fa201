"""Owns which engine scans: the fast one where it is installed and ready, the plain one until then.
May touch a thread of its own, to compile in.
Never makes anyone wait for a compiler, and never lets the choice change what is found.
"""

from __future__ import annotations

import importlib.util
import threading
from typing import Protocol

from supervisor.logs.redact.gates import Event
from supervisor.logs.redact.plain import PlainEngine
from supervisor.logs.redact.table import Rule, shipped


class Engine(Protocol):
    """Where the gates of a rule table open in a buffer."""

    name: str

    def scan(self, data: bytes, most: int) -> list[Event]:
        """Every event, in no order. Raises Enough when there are more than most."""
        ...


class Engines:
    """The engines of one rule table. fast=False keeps to the plain one."""

    def __init__(self, rules: tuple[Rule, ...], fast: bool = True) -> None:
        self._rules = rules
        self._plain: PlainEngine | None = None
        self._fast: Engine | None = None
        self._lock = threading.Lock()
        self._compiling: threading.Thread | None = None
        self._wanted = fast and importlib.util.find_spec("hyperscan") is not None

    def now(self) -> Engine:
        """The best one that is ready; the first call starts compiling."""
        if self._fast is not None:
            return self._fast
        if self._wanted and self._compiling is None:
            with self._lock:
                if self._compiling is None:
                    self._compiling = threading.Thread(
                        target=self._compile, name="redact-compile", daemon=True
                    )
                    self._compiling.start()
        if self._plain is None:
            self._plain = PlainEngine(self._rules)
        return self._plain

    def ready(self) -> Engine:
        """The best one there will be, waiting for it."""
        if self._wanted and self._fast is None:
            if self._compiling is None:
                self._compile()
            else:
                self._compiling.join()
        return self.now()

    def _compile(self) -> None:
        from supervisor.logs.redact.hyper import HyperEngine

        try:
            self._fast = HyperEngine(self._rules)
        except Exception:
            # A processor or a build that the package does not fit: the plain engine is as good.
            self._wanted = False


_SHIPPED: Engines | None = None


def default() -> Engines:
    """The engines of the shipped table, one for the whole process."""
    global _SHIPPED
    if _SHIPPED is None:
        _SHIPPED = Engines(shipped())
    return _SHIPPED
