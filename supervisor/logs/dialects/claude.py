"""Owns reading Claude Code's stream-json: messages, tool calls and their results, and the closing result.
May touch nothing; the fields are those of @anthropic-ai/claude-agent-sdk 0.3 (sdk.d.ts, sdk-tools.d.ts).
Never counts a message twice that comes in several lines, and never keeps what a tool read or wrote.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from supervisor.events import EventKind
from supervisor.logs.dialects.said import OpenCalls, Said, Told, ToolCall, tell
from supervisor.logs.dialects.words import Json, Words, count_of, dollars_of, items, member, size_of

NAME = "claude-code"
_TYPES = frozenset(("assistant", "user", "system", "result", "stream_event"))
_EXIT = re.compile(r"\s*Exit code (\d{1,3})\b")
_REMEMBERED = 1024


def speaks(line: Json) -> bool:
    """Every message names its session; other dialects do not use these types together with one."""
    kind = line.get("type")
    return isinstance(kind, str) and kind in _TYPES and isinstance(line.get("session_id"), str)


@dataclass(slots=True)
class _Message:
    """One answer of the model: several lines, one per block, with the same id and the same usage."""

    key: str
    model: str
    outcome: str = "ok"
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    calls: list[ToolCall] = field(default_factory=list)


class ClaudeReader:
    def __init__(self, words: Words) -> None:
        self._words = words
        self._open = OpenCalls()
        self._message: _Message | None = None
        self._seen: deque[str] = deque(maxlen=_REMEMBERED)
        self._count = 0
        self._told = [0, 0]
        self._told_usd = 0.0

    def read(self, line: Json, at: str) -> list[Told]:
        kind = line.get("type")
        if kind == "assistant":
            return self._assistant(line, at)
        if kind == "user":
            self._user(line, at)
        elif kind == "system":
            return self._system(line, at)
        elif kind == "result":
            return self._result(line)
        return []

    def finish(self) -> list[Told]:
        """A message that nothing follows any more."""
        return self._flush({})

    def _assistant(self, line: Json, at: str) -> list[Told]:
        said = member(line, "message")
        key = str(said.get("id") or line.get("uuid") or "")[:100]
        told: list[Told] = []
        if self._message is None or self._message.key != key:
            if key in self._seen:
                return []  # the same stream read in two places
            told = self._flush({})
            self._seen.append(key)
            self._message = _Message(key, self._words.text(said.get("model"), 100))
        message = self._message
        self._measure(message, member(said, "usage"))
        if isinstance(line.get("error"), str):
            message.outcome = self._words.text(line["error"], 60)
        for block in items(said, "content"):
            if block.get("type") == "text":
                text = self._words.text(block.get("text"))
                told.append(tell(NAME, Said.MESSAGE, {"text": text, "bytes": size_of(block.get("text"))}))
            elif block.get("type") == "tool_use" and len(message.calls) < 64:
                name, given = self._words.text(block.get("name"), 100), block.get("input")
                call = ToolCall(name, self._words.arguments(given), at)
                message.calls.append(call)
                self._open.add(block.get("id"), call)
        return told

    def _measure(self, message: _Message, usage: Json) -> None:
        """What is said last is the most complete: the first lines come before the answer has ended."""
        cached = count_of(usage, "cache_read_input_tokens")
        fresh = count_of(usage, "input_tokens") + count_of(usage, "cache_creation_input_tokens")
        message.tokens_in = max(message.tokens_in, cached + fresh)
        message.tokens_cached = max(message.tokens_cached, cached)
        message.tokens_out = max(message.tokens_out, count_of(usage, "output_tokens"))

    def _user(self, line: Json, at: str) -> None:
        for block in items(member(line, "message"), "content"):
            call = self._open.take(block.get("tool_use_id")) if block.get("type") == "tool_result" else None
            if call is not None:
                failed = block.get("is_error") is True
                outcome = call.outcome or (_failure(block.get("content")) if failed else "ok")
                call.end(outcome, size_of(block.get("content")), at)

    def _system(self, line: Json, at: str) -> list[Told]:
        words = self._words
        if line.get("subtype") == "permission_denied":
            call = self._open.take(line.get("tool_use_id"))
            if call is None:
                denied = {"tool": words.text(line.get("tool_name"), 100), "args": {}, "outcome": "denied"}
                return [tell(NAME, Said.TOOL, denied)]
            call.end("denied", 0, at)
        if line.get("subtype") != "init":
            return []
        detail = {
            "model": words.text(line.get("model"), 100),
            "version": words.text(line.get("claude_code_version"), 40),
            "permission_mode": words.text(line.get("permissionMode"), 40),
        }
        return [tell(NAME, Said.SESSION, detail)]

    def _result(self, line: Json) -> list[Told]:
        """The sums of the session. What the messages did not say is booked with the last of them."""
        usage = member(line, "usage")
        cached = count_of(usage, "cache_read_input_tokens")
        sums = (
            cached + count_of(usage, "input_tokens") + count_of(usage, "cache_creation_input_tokens"),
            count_of(usage, "output_tokens"),
        )
        rest: dict[str, Any] = {}
        usd = dollars_of(line, "total_cost_usd")
        if usd is not None:
            rest["cost_usd"] = f"{max(0.0, usd - self._told_usd):.9f}".rstrip("0").rstrip(".")
            self._told_usd = max(usd, self._told_usd)
        if self._message is not None:
            self._message.tokens_in = max(self._message.tokens_in, sums[0] - self._told[0])
            self._message.tokens_out = max(self._message.tokens_out, sums[1] - self._told[1])
        told = self._flush(rest)
        detail = {
            "outcome": "error" if line.get("is_error") is True else "ok",
            "subtype": self._words.text(line.get("subtype"), 60),
            "turns": count_of(line, "num_turns"),
            "duration_ms": count_of(line, "duration_ms"),
            "tokens_in": sums[0],
            "tokens_out": sums[1],
        }
        if usd is not None:
            detail["cost_usd"] = f"{usd:.9f}".rstrip("0").rstrip(".")
        return [*told, tell(NAME, Said.RESULT, detail)]

    def _flush(self, more: dict[str, Any]) -> list[Told]:
        """One iteration: the message, with the first tool it called; further ones are events of their own."""
        message, self._message = self._message, None
        if message is None:
            return []
        self._count += 1
        self._told[0] += message.tokens_in
        self._told[1] += message.tokens_out
        detail: dict[str, Any] = {
            "dialect": NAME,
            "iteration": self._count,
            "model": message.model,
            "outcome": message.outcome,
            "tokens_in": message.tokens_in,
            "tokens_cached": message.tokens_cached,
            "tokens_out": message.tokens_out,
            **more,
        }
        if message.calls:
            detail |= message.calls[0].as_detail()
        others = [tell(NAME, Said.TOOL, call.as_detail()) for call in message.calls[1:]]
        return [Told(EventKind.ITERATION, detail), *others]


def _failure(content: object) -> str:
    """ "exit 1" where the shell tool says so, "error" otherwise: the text may hold what a file holds."""
    first = content
    if isinstance(content, list) and content and isinstance(content[0], dict):
        first = content[0].get("text")
    match = _EXIT.match(first) if isinstance(first, str) else None
    return f"exit {match[1]}" if match else "error"
