"""Owns speaking to a supervisor's control socket from the command line.
May touch that socket.
Never waits for ever: a supervisor that does not answer in time is an error that says what to do.
"""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from supervisor.control.messages import MAX_LINE, Answer, Request, to_error
from supervisor.errors import NoSupervisor, NotAnswering, SupervisorError

_CONNECT_TIMEOUT_S = 2.0


def ask(path: str, op: str, *, timeout_s: float | None = 10.0, **arguments: Any) -> Any:
    """One request and its result. Raises what the server raised, or NoSupervisor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_TIMEOUT_S)
        try:
            connection.connect(path)
            connection.sendall(msgspec.json.encode(Request(op=op, arguments=arguments)) + b"\n")
            connection.settimeout(timeout_s)
            raw = _read_line(connection)
        except TimeoutError:
            named = arguments.get("ticket", "TICKET")
            raise NotAnswering(
                "the supervisor does not answer (stopped, or overloaded)",
                hint=f"supervisorctl kill --force {named} works without it",
            ) from None
        except OSError as error:
            raise NoSupervisor(
                f"no supervisor answers on {path}: {error.strerror or error}",
                hint="start one with `supervisorctl serve`, or set SUPERVISOR_RUN_DIR",
            ) from None
    if not raw:
        raise NoSupervisor("the supervisor ended while it was answering", hint="supervisorctl ps")
    answer = msgspec.json.decode(raw, type=Answer)
    if answer.kind == "error":
        raise to_error(answer)
    if answer.kind != "result":
        raise SupervisorError(f"the supervisor answered {answer.kind!a}")
    return answer.value


def _read_line(connection: socket.socket) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size < MAX_LINE * 4:
        part = connection.recv(1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if part.endswith(b"\n"):
            break
    return b"".join(parts)
