"""Owns reading what the agent prints: two pipes, drained for as long as the run lives.
May touch the read ends of the pipes and the run's log book.
Never lets a full pipe block the agent, nor a flood keep the supervisor from its other work.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from supervisor.clock import Clock
from supervisor.logs.book import LogBook, LogLine, Stream
from supervisor.logs.tail.lines import LineSplitter

_CHUNK = 1 << 16
_CHUNKS_PER_TURN = 4
_SPLICE = 1 << 20
_PIPE_BYTES = 1 << 20

OnLines = Callable[[list[LogLine]], None]


def make_pipe() -> tuple[int, int]:
    """(read end, write end), larger than the usual 64 KiB where the kernel lets us (pipe(7))."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read_end, False)
    try:
        import fcntl

        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        return read_end, write_end
    return read_end, write_end


class PipeCapture:
    """Reads one pipe until every writer has closed it. closed is set then."""

    def __init__(self, fd: int, stream: Stream, book: LogBook, clock: Clock, on_lines: OnLines) -> None:
        self.fd = fd
        self.stream: Stream = stream
        self.book = book
        self.clock = clock
        self.on_lines = on_lines
        self.closed = asyncio.Event()
        self._splitter = LineSplitter(book.max_line_bytes + book.redactor.longest)
        self._null = -1

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self.fd, self._readable)

    def _readable(self) -> None:
        if self.book.full:
            self._throw_away()
            return
        for _ in range(_CHUNKS_PER_TURN):
            try:
                chunk = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return
            if not chunk:
                self._finish()
                return
            self._keep(self._splitter.feed(chunk))

    def _throw_away(self) -> None:
        """Past the budget the kernel moves the bytes to /dev/null for us; nothing is copied."""
        if self._null < 0:
            self._null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
            self.book.drop(len(self._splitter.held))
            self._splitter.held.clear()
        try:
            moved = os.splice(self.fd, self._null, _SPLICE)
        except BlockingIOError:
            return
        if moved == 0:
            self._finish()
        self.book.drop(moved)

    def _keep(self, lines: list[bytes]) -> None:
        if lines:
            self.on_lines(self.book.add(self.stream, lines, self.clock.utc()))

    def _finish(self) -> None:
        self._keep(self._splitter.rest())
        self.stop()

    def stop(self) -> None:
        """Also called when the box is gone but somebody outside it still holds the pipe."""
        if self.fd >= 0:
            asyncio.get_running_loop().remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1
        if self._null >= 0:
            os.close(self._null)
            self._null = -1
        self.closed.set()


async def drain(captures: list[PipeCapture], patience_s: float) -> None:
    """After the box is empty: read what the pipes still hold, but do not wait for ever for an end."""
    try:
        async with asyncio.timeout(patience_s):
            for capture in captures:
                await capture.closed.wait()
    except TimeoutError:
        for capture in captures:
            capture.stop()
