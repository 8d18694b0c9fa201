"""Owns a model that needs no weights: it answers the Messages API from a script, for the demonstration.
May touch the unix socket it is told to listen on.
Never sees the agent: it is asked by the gateway, as a provider would be.

usage: python3 scripted_model.py SOCKET
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

_TEST = "python3 -B -m unittest -q"

SCRIPT: list[tuple[str, str, dict[str, str]]] = [
    ("I look at the tests first.", "run", {"command": _TEST}),
    ("Three fail. What do they test?", "read", {"path": "vat.py"}),
    (
        "Tax is taken off where it is to be added.",
        "edit",
        {"path": "vat.py", "old": "100 - RATES", "new": "100 + RATES"},
    ),
    ("Is that all?", "run", {"command": _TEST}),
    (
        "Shipping is free from 50.00 on, not above it.",
        "edit",
        {"path": "vat.py", "old": "> 5000", "new": ">= 5000"},
    ),
    ("Once more.", "run", {"command": _TEST}),
]
"""What the model says, and the tool it wants to use next; then it says that it is done."""

_DONE = "All tests pass. I changed two lines of vat.py."
_TOKENS_PER_S = 400.0


class Model(BaseHTTPRequestHandler):
    """POST /v1/messages; how many answers the conversation holds says which comes next."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turn = sum(message["role"] == "assistant" for message in asked["messages"])
        answer = _answer(asked, turn)
        time.sleep(answer["usage"]["output_tokens"] / _TOKENS_PER_S)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the terminal belongs to the run."""


def _answer(asked: dict[str, Any], turn: int) -> dict[str, Any]:
    said, tool, arguments = SCRIPT[turn] if turn < len(SCRIPT) else (_DONE, "", {})
    content: list[dict[str, Any]] = [{"type": "text", "text": said}]
    if tool:
        content.append({"type": "tool_use", "id": f"toolu_{turn:02}", "name": tool, "input": arguments})
    return {
        "id": f"msg_{turn:02}",
        "type": "message",
        "role": "assistant",
        "model": asked["model"],
        "content": content,
        "stop_reason": "tool_use" if tool else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(json.dumps(asked["messages"])) // 4 + 400,
            "output_tokens": len(json.dumps(content)) // 4,
        },
    }


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def get_request(self) -> tuple[Any, Any]:
        """A unix socket has no address of the client; the handler wants one."""
        request, _ = super().get_request()
        return request, ("gateway", 0)


def main() -> None:
    path = sys.argv[1]
    os.umask(0o077)
    with _Server(path, Model) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
