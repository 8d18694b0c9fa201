"""Owns a model's server that costs next to nothing, for measures of what stands before it: streamed Chat.
May touch the loopback socket that it is given by number.
Never waits but where it was told to, and never reads more of a request than its length.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import time

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    b"transfer-encoding: chunked\r\nx-request-id: req_bench\r\n\r\n"
)
_NOTHING_THERE = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_END = b"0\r\n\r\n"
_USAGE = {"prompt_tokens": 1800, "completion_tokens": 30, "total_tokens": 1830}


class _Answering(asyncio.Protocol):
    """One connection, one request after the other."""

    def __init__(self, chunks: int, interval_s: float) -> None:
        self._chunks = chunks
        self._interval_s = interval_s
        self._kept = bytearray()
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._kept += data
        end = self._kept.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._kept[:end]).lower()
        if not head.startswith(b"post "):
            # Some look around first.
            self._kept.clear()
            self._transport.write(_NOTHING_THERE)
            return
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._kept) < end + 4 + length:
            return
        self._kept.clear()
        if self._interval_s:
            self._transport.write(_HEAD)
            self._next(0, asyncio.get_running_loop().time())
        else:
            self._transport.write(_AT_ONCE)

    def _next(self, number: int, due_s: float) -> None:
        """The next event. The time it is written at is in it."""
        if number == self._chunks:
            self._transport.write(_usage() + _END)
            return
        self._transport.write(_event(f"@{number}:{time.monotonic_ns()}@"))
        due_s += self._interval_s
        self._timer = asyncio.get_running_loop().call_at(due_s, self._next, number + 1, due_s)


def _sent(document: dict[str, object]) -> bytes:
    common = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-mini"}
    text = b"data: " + json.dumps({**common, **document}).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


def _event(text: str) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    return _sent({"choices": [choice]})


def _usage() -> bytes:
    stop: dict[str, object] = {"index": 0, "delta": {}, "finish_reason": "stop"}
    done = b"data: [DONE]\n\n"
    framed = b"%x\r\n%b\r\n" % (len(done), done)
    return _sent({"choices": [stop]}) + _sent({"choices": [], "usage": _USAGE}) + framed


_AT_ONCE = _HEAD + b"".join(_event(f"word {number} ") for number in range(10)) + _usage() + _END


async def _serve(descriptor: int, chunks: int, interval_s: float) -> None:
    loop = asyncio.get_running_loop()
    listener = socket.socket(fileno=descriptor)
    server = await loop.create_server(lambda: _Answering(chunks, interval_s), sock=listener)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.upstream")
    parser.add_argument("descriptor", type=int)
    parser.add_argument("--chunks", type=int, default=10, help="of a stream with an interval")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds; 0 answers at once")
    given = parser.parse_args()
    asyncio.run(_serve(given.descriptor, given.chunks, given.interval))
