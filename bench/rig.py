"""Owns the processes of a measure of calls: upstream, gateway, the peer, the clients; each one its own.
May touch a scratch folder, loopback ports, and the processes that it starts.
Never leaves one of them behind, and never lets two of them share an interpreter.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY = "sk-bench-0123456789abcdef"
MODEL = "gpt-4o-mini"
_PATIENCE_S = 30.0

_CONFIG = """
[daily]
global_usd = "1000000"
project_usd = "1000000"
[upstreams.openai]
url = "http://127.0.0.1:{port}/v1"
key = "file:{key}"
"""
_PROFILE = """
schema = 1
name = "bench"
extends = "base"
[limits]
usd = "1000000"
ticket_usd = "1000000"
iterations = 100000000
tokens = 1000000000000
output_tokens_per_call = 4096
[network]
mode = "gateway"
[gateway]
upstreams = ["openai"]
models = ["gpt-4o*"]
"""
_SENTENCE = "The tests of the parser fail since the last change; look at the traceback and repair it. "


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    port: int


def _listen() -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.bind(("127.0.0.1", 0))
    found.listen(1024)
    return found


@contextmanager
def _running(argv: list[str], listener: socket.socket, **environment: str) -> Iterator[Process]:
    """A program that takes a listener over, says "ready", and ends when it is asked to."""
    process = subprocess.Popen(
        [sys.executable, "-m", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[listener.fileno()],
        env={**os.environ, **environment},
        cwd=Path(__file__).resolve().parents[1],
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{argv[0]} did not come up")
        yield Process(process.pid, listener.getsockname()[1])
    finally:
        listener.close()
        process.stdin.close()
        if argv[0] == "bench.upstream":
            process.terminate()
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Wait for the end that was asked for, and force it when it does not come."""
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def upstream(chunks: int = 10, interval_s: float = 0.0) -> Iterator[Process]:
    ear = _listen()
    options = [str(ear.fileno()), "--chunks", str(chunks), "--interval", str(interval_s)]
    with _running(["bench.upstream", *options], ear) as process:
        yield process


@contextmanager
def gateway(folder: Path, upstream_port: int) -> Iterator[Process]:
    """Ours, with every kind of cap set and a ledger of its own on the disk that the folder is on."""
    folder.mkdir()
    (folder / "key").write_text(KEY)
    (folder / "profile.toml").write_text(_PROFILE)
    (folder / "config.toml").write_text(_CONFIG.format(port=upstream_port, key=folder / "key"))
    ear = _listen()
    argv = ["bench.gateway", str(folder), str(ear.fileno())]
    with _running(argv, ear, SUPERVISOR_CONFIG=str(folder / "config.toml")) as process:
        yield process


def free_port() -> int:
    with _listen() as ear:
        port: int = ear.getsockname()[1]
        return port


def wait_until_it_listens(port: int, process: subprocess.Popen[Any], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not come up") from None
            time.sleep(0.1)


def body(folder: Path, size: int) -> Path:
    """A streamed Chat request of an agent in the middle of its work, of about that many bytes."""
    path = folder / f"body-{size}"
    tool = {
        "type": "function",
        "function": {
            "name": "run",
            "description": "Runs a command in the worktree and gives back what it printed.",
            "parameters": {
                "type": "object",
                "properties": {
                    "cmd": {"type": "string"},
                    "args": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["cmd"],
            },
        },
    }
    messages = [{"role": "system", "content": "You are a careful engineer. " + _SENTENCE * 4}]
    request = {"model": MODEL, "max_tokens": 512, "stream": True, "messages": messages, "tools": [tool]}
    while len(json.dumps(request)) < size:
        role = "user" if len(messages) % 2 else "assistant"
        messages.append({"role": role, "content": f"{len(messages)}. " + _SENTENCE * 4})
    path.write_text(json.dumps(request))
    return path


class Clients:
    """The process of the clients, which takes one job after the other."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process

    def begin(self, **job: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def figures(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the clients gave up")
        found: dict[str, Any] = json.loads(line)
        return found

    def do(self, **job: Any) -> dict[str, Any]:
        self.begin(**job)
        return self.figures()


@contextmanager
def clients() -> Iterator[Clients]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    try:
        yield Clients(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        end(process)
