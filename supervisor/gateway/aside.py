"""Owns the thread in which one run's large requests and answers are read, one after the other.
May touch nothing else: functions in, what they return out.
Never lets what one agent wrote hold the loop, in which every other run must be killable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from supervisor.gateway.strict import values_at_most

T = TypeVar("T")

_LIGHT_BYTES = 64 << 10
_LIGHT_VALUES = 512
_LOOK_EVERY_S = 0.005


class Aside:
    """One per run. The thread is made with the first reading that is not light."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "gateway-aside")

    async def read(self, reading: Callable[[], T], data: bytes) -> T:
        """What reading of that data returns. A cancellation waits for one that has begun.

        Its caller looks at what the reading changes.
        """
        if is_light(data):
            return reading()
        job = self._pool.submit(reading)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            while not job.cancel() and not job.done():
                await asyncio.sleep(_LOOK_EVERY_S)
            raise

    def close(self) -> None:
        """Without waiting: nothing that is still read is wanted."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def is_light(data: bytes) -> bool:
    """Is it read in less time than going to a thread and back is worth?"""
    return len(data) <= _LIGHT_BYTES and values_at_most(data) <= _LIGHT_VALUES
