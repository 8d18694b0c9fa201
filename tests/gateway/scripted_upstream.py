"""Owns an upstream that answers by script: four model APIs, well or badly, byte by byte.
May touch the TCP port or the unix socket it is told to listen on.
Never needs anything but the standard library, so that demonstrations and benches can start it too.

usage: scripted_upstream.py (--port N | --socket PATH) [--words N] [--interval SECONDS] [--input N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Document = dict[str, Any]


class Act(Enum):
    """What can happen between two pieces of an answer."""

    RESET = "reset"
    CLOSE = "close"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds of silence."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Silence until a test says so."""

    event: asyncio.Event


Piece = bytes | Pause | Until | Act


@dataclass(slots=True)
class Reply:
    """One answer. framing: "chunked" sends every piece as a chunk of its own, "length" counts them, "close".

    before: what happens before the status line.
    """

    pieces: Sequence[Piece] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    framing: str = "length"
    before: Sequence[Piece] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it arrived. headers: in order, names as they were written."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def document(self) -> Document:
        found: Document = json.loads(self.body)
        return found


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an answer reports. The three of the cache are inside input, as providers that bill them say."""

    input: int = 100
    output: int = 10
    cache_read: int = 0
    cache_5m: int = 0
    cache_1h: int = 0


Script = Callable[[Asked], Reply]


class ScriptedUpstream:
    """Serves until it is closed. asked grows with every request; script can be changed at any time."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or (lambda asked: good(asked))
        self.asked: list[Asked] = []
        self.connections = 0
        self.hung_up = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def listen(self, *, port: int = 0, path: str = "") -> None:
        if path:
            self._server = await asyncio.start_unix_server(self._serve, path)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    @property
    def port(self) -> int:
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                if not await self._write(reader, writer, self.script(asked)):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        except asyncio.CancelledError:
            return
        finally:
            writer.close()

    async def _write(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply) -> bool:
        """True when the connection can be used again."""
        for piece in reply.before:
            if not await self._one(reader, writer, piece, chunked=False):
                return False
        headers = dict(reply.headers)
        if reply.framing == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        elif reply.framing == "length":
            headers["Content-Length"] = str(
                sum(len(piece) for piece in reply.pieces if isinstance(piece, bytes))
            )
        else:
            headers["Connection"] = "close"
        lines = [
            f"HTTP/1.1 {reply.status} Scripted",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        for piece in reply.pieces:
            if not await self._one(reader, writer, piece, chunked=reply.framing == "chunked"):
                return False
        if reply.framing == "chunked":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return reply.framing != "close"

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: Piece, *, chunked: bool
    ) -> bool:
        if isinstance(piece, bytes):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
            # Pieces that are to arrive apart must not be joined on the way.
            await asyncio.sleep(0)
        elif isinstance(piece, Pause):
            await asyncio.sleep(piece.seconds)
        elif isinstance(piece, Until):
            await piece.event.wait()
        elif piece is Act.HANG:
            # Until the other side has had enough.
            await reader.read()
            self.hung_up.set()
            return False
        else:
            if piece is Act.RESET:
                # SO_LINGER with 0 seconds makes close() send RST (socket(7)).
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            return False
        return True


@asynccontextmanager
async def running(script: Script | None = None, path: str = "") -> AsyncIterator[ScriptedUpstream]:
    upstream = ScriptedUpstream(script)
    await upstream.listen(path=path)
    try:
        yield upstream
    finally:
        await upstream.close()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _ = line.split(" ")
    headers = tuple((name, value.strip()) for name, _, value in (one.partition(":") for one in lines))
    sizes = [int(value) for name, value in headers if name.lower() == "content-length"]
    return Asked(method, target, headers, await reader.readexactly(sizes[0]) if sizes else b"")


# ---------------------------------------------------------------- answers as the vendors give them


def api_of(asked: Asked) -> str:
    path = asked.target.partition("?")[0]
    if path.endswith("/messages"):
        return "anthropic-messages"
    if path.endswith("/chat/completions"):
        return "openai-chat"
    return "openai-responses" if path.endswith("/responses") else "gemini"


def streams(asked: Asked) -> bool:
    return ":streamGenerateContent" in asked.target or bool(asked.document.get("stream"))


def model_of(asked: Asked) -> str:
    if api_of(asked) == "gemini":
        return asked.target.rpartition("/")[2].partition(":")[0]
    return str(asked.document["model"])


def good(
    asked: Asked,
    tokens: Tokens | None = None,
    *,
    words: Sequence[str] = ("Hello", " world"),
    model: str = "",
    interval_s: float = 0.0,
) -> Reply:
    """What a healthy provider answers to that request; HEAD and the list of models too."""
    if asked.method != "POST":
        return Reply([json.dumps({"object": "list", "data": []}).encode()])
    tokens = tokens or Tokens()
    named = model or model_of(asked)
    if streams(asked):
        paused: list[Piece] = []
        for event in events(api_of(asked), named, words, tokens, with_usage=_wants_usage(asked)):
            paused += [event, Pause(interval_s)] if interval_s else [event]
        return stream(paused)
    return Reply([json.dumps(whole(api_of(asked), named, words, tokens)).encode()])


def _wants_usage(asked: Asked) -> bool:
    if api_of(asked) != "openai-chat":
        return True
    return bool((asked.document.get("stream_options") or {}).get("include_usage"))


def stream(pieces: Iterable[Piece], **headers: str) -> Reply:
    kind = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    return Reply(list(pieces), headers=kind | headers, framing="chunked")


def sse(document: Document, *, named: bool = False) -> bytes:
    name = f"event: {document['type']}\n" if named else ""
    return f"{name}data: {json.dumps(document)}\n\n".encode()


def usage_of(api: str, tokens: Tokens) -> Document:
    """The vendor's own usage object for these tokens."""
    cached = tokens.cache_read + tokens.cache_5m + tokens.cache_1h
    if api == "anthropic-messages":
        return {
            "input_tokens": tokens.input - cached,
            "cache_read_input_tokens": tokens.cache_read,
            "cache_creation_input_tokens": tokens.cache_5m + tokens.cache_1h,
            "cache_creation": {
                "ephemeral_5m_input_tokens": tokens.cache_5m,
                "ephemeral_1h_input_tokens": tokens.cache_1h,
            },
            "output_tokens": tokens.output,
        }
    total = tokens.input + tokens.output
    if api == "openai-chat":
        return {
            "prompt_tokens": tokens.input,
            "completion_tokens": tokens.output,
            "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
        }
    if api == "openai-responses":
        return {
            "input_tokens": tokens.input,
            "input_tokens_details": {"cached_tokens": tokens.cache_read},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total,
        }
    return {
        "promptTokenCount": tokens.input,
        "candidatesTokenCount": tokens.output,
        "cachedContentTokenCount": tokens.cache_read,
        "totalTokenCount": total,
    }


def whole(api: str, model: str, words: Sequence[str], tokens: Tokens) -> Document:
    """The body of an answer that is not streamed."""
    text, usage = "".join(words), usage_of(api, tokens)
    if api == "anthropic-messages":
        content = [{"type": "text", "text": text}]
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": usage,
        }
    if api == "openai-chat":
        message = {"role": "assistant", "content": text}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": choices,
            "usage": usage,
        }
    if api == "openai-responses":
        return _response(model, text, usage, "completed")
    parts = {"role": "model", "parts": [{"text": text}]}
    return {
        "candidates": [{"index": 0, "content": parts, "finishReason": "STOP"}],
        "modelVersion": model,
        "usageMetadata": usage,
    }


def events(
    api: str, model: str, words: Sequence[str], tokens: Tokens, *, with_usage: bool = True
) -> list[bytes]:
    """The events of a streamed answer, one per entry; the first and the last ones hold the usage."""
    usage = usage_of(api, tokens)
    if api == "anthropic-messages":
        begun = {**whole(api, model, [], tokens), "content": [], "stop_reason": None}
        begun["usage"] = {**usage, "output_tokens": 1}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        ended = {"stop_reason": "end_turn", "stop_sequence": None}
        said: list[Document] = [{"type": "message_start", "message": begun}, block]
        for word in words:
            delta = {"type": "text_delta", "text": word}
            said.append({"type": "content_block_delta", "index": 0, "delta": delta})
        said.append({"type": "content_block_stop", "index": 0})
        final = {"output_tokens": tokens.output}
        said += [{"type": "message_delta", "delta": ended, "usage": final}, {"type": "message_stop"}]
        return [sse(one, named=True) for one in said]
    if api == "openai-chat":
        return _chat_events(model, words, usage, with_usage)
    if api == "openai-responses":
        said = [{"type": "response.created", "response": _response(model, "", None, "in_progress")}]
        said += [{"type": "response.output_text.delta", "item_id": "m1", "delta": word} for word in words]
        final = _response(model, "".join(words), usage, "completed")
        said.append({"type": "response.completed", "response": final})
        return [sse(one, named=True) for one in said]
    found = []
    for number, word in enumerate(words):
        candidate: Document = {"index": 0, "content": {"role": "model", "parts": [{"text": word}]}}
        if number == len(words) - 1:
            candidate["finishReason"] = "STOP"
        chunk = {"candidates": [candidate], "modelVersion": model}
        found.append(sse(chunk | ({"usageMetadata": usage} if number == len(words) - 1 else {})))
    return found


def _chat_events(model: str, words: Sequence[str], usage: Document, with_usage: bool) -> list[bytes]:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model}
    null: Document = {"usage": None} if with_usage else {}
    found = []
    for number, word in enumerate(words):
        delta = {"content": word} | ({"role": "assistant"} if number == 0 else {})
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        found.append(sse({**base, "choices": [choice], **null}))
    found.append(sse({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **null}))
    if with_usage:
        found.append(sse({**base, "choices": [], "usage": usage}))
    return [*found, b"data: [DONE]\n\n"]


def _response(model: str, text: str, usage: Document | None, status: str) -> Document:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "m1", "type": "message", "role": "assistant", "status": status, "content": content}
    return {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": model,
        "output": [message] if text else [],
        "usage": usage,
    }


def zipped(reply: Reply) -> Reply:
    """The same, compressed although nobody asked for it; every piece can be read as soon as it is there."""
    packer = zlib.compressobj(wbits=31)
    pieces: list[Piece] = []
    for piece in reply.pieces:
        if isinstance(piece, bytes):
            piece = packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
        pieces.append(piece)
    pieces.append(packer.flush())
    return Reply(
        pieces, reply.status, reply.headers | {"Content-Encoding": "gzip"}, reply.framing, reply.before
    )


async def _main() -> None:
    parser = argparse.ArgumentParser(description="a model that answers by script")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--socket", default="")
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--interval", type=float, default=0.0)
    parser.add_argument("--input", type=int, default=100)
    given = parser.parse_args()
    words = [f"word{number} " for number in range(given.words)]
    tokens = Tokens(input=given.input, output=given.words)
    upstream = ScriptedUpstream(lambda asked: good(asked, tokens, words=words, interval_s=given.interval))
    await upstream.listen(port=given.port, path=given.socket)
    print(given.socket or upstream.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
