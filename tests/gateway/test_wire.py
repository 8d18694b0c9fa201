"""Owns how connections to an upstream are made, used again and given up.
May touch loopback sockets, a unix socket and a certificate in the test's own folder.
Never sends a request to anything but a server of the test.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
import subprocess
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from supervisor.gateway.upstreams import Service, Upstream, resolve
from supervisor.gateway.wire import BrokenOff, Unreachable, Wire

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def service(url: str, keep_alive_s: float = 4.0) -> Service:
    return resolve({"u": Upstream(api="openai-chat", url=url, keep_alive_s=keep_alive_s)})["u"]


@asynccontextmanager
async def serving(serve: Serve, keep_alive_s: float = 4.0) -> AsyncIterator[Wire]:
    tasks: set[asyncio.Task[None]] = set()

    async def known(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(known, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    wire = Wire(service(f"http://127.0.0.1:{port}/base/v1", keep_alive_s), 5.0)
    try:
        yield wire
    finally:
        wire.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


async def request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def whole(wire: Wire, body: bytes = b"{}") -> bytes:
    answer = await wire.post("/v1/chat/completions", [("x-a", "b")], body)
    try:
        found = b""
        while data := await answer.readany():
            found += data
        return found
    finally:
        answer.close()


class Counting:
    """Answers every request with the same bytes, and counts connections."""

    def __init__(self, answer: bytes = OK) -> None:
        self.answer = answer
        self.connections = 0
        self.requests: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await request(reader))
                writer.write(self.answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return


async def test_what_is_sent_and_that_a_connection_is_used_again() -> None:
    server = Counting()
    async with serving(server) as wire:
        assert [await whole(wire) for _ in range(3)] == [b"ok"] * 3
        assert server.connections == 1
        head = server.requests[0].split(b"\r\n")
        assert head[0] == b"POST /base/v1/chat/completions HTTP/1.1"
        assert head[1].startswith(b"host: 127.0.0.1:") and b"x-a: b" in head and head[-1] == b"{}"
        await asyncio.gather(*[whole(wire) for _ in range(3)])
        assert server.connections > 1, "calls at once have a connection each"


@pytest.mark.parametrize("more", [b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"])
async def test_a_connection_with_something_on_it_is_not_used_again(more: bytes) -> None:
    server = Counting(OK + more)
    async with serving(server) as wire:
        assert [await whole(wire) for _ in range(3)] == [b"ok"] * 3
        assert server.connections == 3


async def test_an_answer_that_is_not_read_to_its_end_ends_its_connection() -> None:
    server = Counting(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok")
    async with serving(server) as wire:
        for _ in range(2):
            answer = await wire.post("/v1/x", [], b"{}")
            answer.close()
            answer.close()
            assert await answer.readany() == b""
        assert server.connections == 2


async def test_an_idle_connection_is_given_up_in_time() -> None:
    server = Counting()
    async with serving(server, keep_alive_s=0.05) as wire:
        await whole(wire)
        async with asyncio.timeout(10):
            while wire._idle:
                await asyncio.sleep(0.01)
        await whole(wire)
        assert server.connections == 2


async def test_one_that_the_server_has_closed_is_not_used() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(OK)
        writer.close()

    async with serving(once) as wire:
        for _ in range(5):
            assert await whole(wire) == b"ok"
            await asyncio.sleep(0.02)


async def test_what_came_before_it_broke_off_is_given_out() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        writer.close()

    async with serving(half) as wire:
        answer = await wire.post("/v1/x", [], b"{}")
        assert await answer.readany() == b"half"
        with pytest.raises(BrokenOff, match="early"):
            await answer.readany()
        answer.close()


async def test_no_answer_at_all_and_no_http() -> None:
    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.close()

    async with serving(nothing) as wire:
        with pytest.raises(BrokenOff, match="early"):
            await wire.post("/v1/x", [], b"{}")
    async with serving(Counting(b"SSH-2.0-x\r\n\r\n")) as wire:
        with pytest.raises(BrokenOff, match="HTTP"):
            await wire.post("/v1/x", [], b"{}")


async def test_a_long_body_arrives_whole_and_one_that_is_refused_early_is_not_sent_on() -> None:
    server = Counting()
    async with serving(server) as wire:
        body = bytes(range(256)) * 40_000
        assert await whole(wire, body) == b"ok"
        assert server.requests[0].endswith(b"\r\n\r\n" + body)
        assert await whole(wire) == b"ok" and server.connections == 1

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.5)
        writer.close()

    async with serving(refuse) as wire:
        answer = await wire.post("/v1/x", [], b"x" * (32 << 20))
        assert answer.status == 413
        answer.close()
        assert not wire._idle


@pytest.mark.parametrize(("coding", "wbits"), [("gzip", 31), ("deflate", 15)])
async def test_a_packed_body_is_unpacked_a_piece_at_a_time(coding: str, wbits: int) -> None:
    packer = zlib.compressobj(wbits=wbits)
    packed = packer.compress(b"\0" * (20 << 20)) + packer.flush()
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {len(packed)}\r\n\r\n"
    async with serving(Counting(head.encode() + packed)) as wire:
        answer = await wire.post("/v1/x", [], b"{}")
        sizes = []
        while data := await answer.readany():
            sizes.append(len(data))
        answer.close()
        assert sum(sizes) == 20 << 20 and max(sizes) <= 1 << 20


@pytest.mark.parametrize("packed", [gzip.compress(b"hello" * 100)[:-9], b"no gzip at all"])
async def test_a_packed_body_that_cannot_be_read(packed: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    async with serving(Counting(head.encode() + packed)) as wire:
        with pytest.raises(BrokenOff, match="packed"):
            await whole(wire)
    async with serving(Counting(head.replace("gzip", "br").encode() + packed)) as wire:
        with pytest.raises(BrokenOff, match="nobody asked"):
            await whole(wire)


async def test_who_does_not_read_holds_up_the_upstream() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while sent < 1 << 28:
            writer.write(b"x" * (1 << 16))
            sent += 1 << 16
            await writer.drain()
        writer.close()

    async with serving(flood) as wire:
        answer = await wire.post("/v1/x", [], b"{}")
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 1 << 26
        found = 0
        while data := await answer.readany():
            found += len(data)
        assert found == 1 << 28
        answer.close()


async def test_nobody_there() -> None:
    server = await asyncio.start_server(Counting(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(Unreachable, match="ConnectionRefused"):
        await Wire(service(f"http://127.0.0.1:{port}"), 5.0).post("/v1/x", [], b"{}")
    with pytest.raises(Unreachable):
        await Wire(service("unix:/nonexistent/socket"), 5.0).post("/v1/x", [], b"{}")


async def test_a_header_cannot_hold_another_one() -> None:
    server = Counting()
    async with serving(server) as wire:
        for value in ("a\r\nx: y", "a\nx: y", "a\rx: y"):
            with pytest.raises(ValueError, match="end of a line"):
                await wire.post("/v1/x", [("x-a", value)], b"{}")
        assert server.connections == 0


def test_tls_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def look() -> None:
        server = await asyncio.start_server(Counting(), "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        stranger = Wire(service(f"https://localhost:{port}/v1"), 5.0)
        with pytest.raises(Unreachable, match="SSLCert"):
            await stranger.post("/v1/x", [], b"{}")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        wire = Wire(service(f"https://localhost:{port}/v1"), 5.0)
        assert [await whole(wire) for _ in range(2)] == [b"ok"] * 2
        other_name = Wire(service(f"https://127.0.0.1:{port}/v1"), 5.0)
        with pytest.raises(Unreachable, match="SSLCert"):
            await other_name.post("/v1/x", [], b"{}")
        wire.close()
        server.close()
        await asyncio.sleep(0.05)

    asyncio.run(look())
