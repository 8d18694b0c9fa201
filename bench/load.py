"""Owns the clients of a measure: calls in a closed loop or streams side by side, timed in one process.
May touch connections to the loopback port of each job; jobs come in as JSON lines, figures go out.
Never counts an answer that was not 200 and whole.
"""

from __future__ import annotations

import gc
import json
import re
import select
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

_PATIENCE_S = 60.0
_MARK = re.compile(rb"@(\d+):(\d+)@")


@dataclass(slots=True, eq=False)
class _Client:
    """One connection. Times are of the monotonic clock, in nanoseconds."""

    sock: socket.socket
    sent_ns: int = 0
    first_ns: int = 0
    kept: bytes = b""
    marks: int = 0
    delays_ms: list[float] = field(default_factory=list)

    def send(self, request: bytes) -> None:
        self.first_ns = 0
        self.kept = b""
        self.sent_ns = time.monotonic_ns()
        self.sock.sendall(request)

    def read(self) -> bool:
        """What has come; True when the answer is whole. The first byte is the first one of the body."""
        data = self.sock.recv(1 << 18)
        now_ns = time.monotonic_ns()
        if not data:
            raise RuntimeError(f"broke off after {self.kept[:300]!r}")
        self.kept += data
        if not self.first_ns:
            head = self.kept.find(b"\r\n\r\n")
            if head < 0 or len(self.kept) == head + 4:
                return False
            if not self.kept.startswith(b"HTTP/1.1 200") or b"chunked" not in self.kept[:head].lower():
                raise RuntimeError(f"not a stream: {self.kept[:600]!r}")
            self.first_ns = now_ns
        return self.kept.endswith(b"\r\n0\r\n\r\n")

    def look_at_marks(self) -> None:
        """How long each chunk was on its way; one that is missing or comes twice is an error."""
        now_ns = time.monotonic_ns()
        done = 0
        for found in _MARK.finditer(self.kept):
            if int(found[1]) != self.marks:
                raise RuntimeError(f"chunk {int(found[1])} came, {self.marks} was next")
            self.marks += 1
            self.delays_ms.append((now_ns - int(found[2])) / 1e6)
            done = found.end()
        if done:
            self.kept = self.kept[done:]


def _request(job: dict[str, Any]) -> bytes:
    with open(job["body"], "rb") as file:
        body = file.read()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {job['key']}\r\n"
        f"Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _connect(port: int, count: int) -> tuple[dict[int, _Client], select.epoll]:
    poll = select.epoll()
    clients = {}
    for _ in range(count):
        sock = socket.create_connection(("127.0.0.1", port), _PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        clients[sock.fileno()] = _Client(sock)
        poll.register(sock, select.EPOLLIN)
    return clients, poll


def closed_loop(job: dict[str, Any]) -> dict[str, Any]:
    """Each client sends its next call when the last one is whole. Milliseconds to the first byte."""
    request, left = _request(job), int(job["calls"])
    clients, poll = _connect(job["port"], job["clients"])
    first: list[float] = []
    begun_ns = time.monotonic_ns()
    for client in clients.values():
        client.send(request)
    waiting = len(clients)
    left -= waiting
    while waiting:
        ready = poll.poll(_PATIENCE_S)
        if not ready:
            raise RuntimeError("no answer came")
        for number, _ in ready:
            client = clients[number]
            if not client.read():
                continue
            first.append((client.first_ns - client.sent_ns) / 1e6)
            if left > 0:
                left -= 1
                client.send(request)
            else:
                waiting -= 1
    took_s = (time.monotonic_ns() - begun_ns) / 1e9
    for client in clients.values():
        client.sock.close()
    return {"first_ms": first, "per_s": len(first) / took_s}


def streams(job: dict[str, Any]) -> dict[str, Any]:
    """Calls side by side, begun one after the other over one interval, each read to its end."""
    request = _request(job)
    clients, poll = _connect(job["port"], job["clients"])
    for client in clients.values():
        client.send(request)
        time.sleep(job["interval_s"] / job["clients"])
    open_streams = len(clients)
    while open_streams:
        ready = poll.poll(_PATIENCE_S)
        if not ready:
            raise RuntimeError("no chunk came")
        for number, _ in ready:
            client = clients[number]
            if client.read():
                open_streams -= 1
            client.look_at_marks()
    for client in clients.values():
        client.sock.close()
    delays = [delay for client in clients.values() for delay in client.delays_ms]
    return {"delays_ms": delays, "chunks": sum(client.marks for client in clients.values())}


def main() -> None:
    kinds = {"closed_loop": closed_loop, "streams": streams}
    # The collector's pauses would be taken for the server's.
    gc.disable()
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(kinds[job["kind"]](job)), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
