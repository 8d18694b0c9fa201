"""Owns writing to a terminal that may not take it: a pager, a stopped screen, a slow pipe.
May touch standard output, from one thread of its own.
Never makes whoever supervises wait: what does not fit is counted and left to `supervisorctl logs`.
"""

from __future__ import annotations

import queue
import threading

import click

_WAITING_LINES = 2000


class Printer:
    """Texts are written in the order they come. close() waits until all of them are out."""

    def __init__(self) -> None:
        self._texts: queue.Queue[tuple[str, bool] | None] = queue.Queue(_WAITING_LINES)
        self._thread = threading.Thread(target=self._write, name="printer", daemon=True)
        self._left_out = 0
        self._broken = False
        self._started = False

    def put(self, text: str, *, newline: bool = True) -> None:
        if not self._started:
            self._started = True
            self._thread.start()
        if self._left_out and self._offer(f"… {self._left_out} lines not shown here; see logs", True):
            self._left_out = 0
        if not self._offer(text, newline):
            self._left_out += 1

    def put_if_idle(self, text: str) -> None:
        """For what is worth nothing later: a redrawn status line."""
        if self._texts.empty():
            self.put(text, newline=False)

    def _offer(self, text: str, newline: bool) -> bool:
        try:
            self._texts.put_nowait((text, newline))
        except queue.Full:
            return False
        return True

    def _write(self) -> None:
        while (item := self._texts.get()) is not None:
            if self._broken:
                continue  # whoever was reading has gone
            try:
                click.echo(item[0], nl=item[1])
            except OSError:
                self._broken = True

    def close(self) -> None:
        """For as long as the reader takes, like any other program; the run is over by now."""
        if self._started:
            self._texts.put(None)
            self._thread.join()
            self._started = False
