"""Owns reading Gemini CLI's stream-json: tool uses with their results, and the sums at the end.
May touch nothing; the fields are those of @google/gemini-cli-core 0.61 (dist/src/output/types.d.ts).
Never keeps what a tool put out, and of a message no more than its first words.
"""

from __future__ import annotations

from typing import Any

from supervisor.events import EventKind
from supervisor.logs.dialects.said import OpenCalls, Said, Told, ToolCall, tell
from supervisor.logs.dialects.words import Json, Words, count_of, member, size_of

NAME = "gemini-cli"
_TYPES = frozenset(("init", "message", "tool_use", "tool_result", "error", "result"))


def speaks(line: Json) -> bool:
    kind = line.get("type")
    return isinstance(kind, str) and kind in _TYPES and isinstance(line.get("timestamp"), str)


class GeminiReader:
    def __init__(self, words: Words) -> None:
        self._words = words
        self._open = OpenCalls()
        self._model = ""
        self._count = 0

    def read(self, line: Json, at: str) -> list[Told]:
        kind, words = line.get("type"), self._words
        if kind == "init":
            self._model = words.text(line.get("model"), 100)
            return [tell(NAME, Said.SESSION, {"model": self._model})]
        if kind == "message" and line.get("role") == "assistant" and line.get("delta") is not True:
            text = line.get("content")
            return [tell(NAME, Said.MESSAGE, {"text": words.text(text), "bytes": size_of(text)})]
        if kind == "tool_use":
            name, given = words.text(line.get("tool_name"), 100), line.get("parameters")
            self._open.add(line.get("tool_id"), ToolCall(name, words.arguments(given), at))
        elif kind == "tool_result":
            return self._tool_result(line, at)
        elif kind == "error":
            return [tell(NAME, Said.ERROR, {"text": words.line(line.get("message"))})]
        elif kind == "result":
            return self._result(line)
        return []

    def finish(self) -> list[Told]:
        return []

    def _tool_result(self, line: Json, at: str) -> list[Told]:
        call = self._open.take(line.get("tool_id"))
        if call is None:
            return []
        call.end("ok" if line.get("status") == "success" else "error", size_of(line.get("output")), at)
        return [tell(NAME, Said.TOOL, call.as_detail())]

    def _result(self, line: Json) -> list[Told]:
        """Sums of the whole session: one iteration stands for all of its model calls."""
        self._count += 1
        stats, ok = member(line, "stats"), line.get("status") == "success"
        detail: dict[str, Any] = {
            "dialect": NAME,
            "iteration": self._count,
            "model": self._model,
            "outcome": "ok" if ok else "error",
            "tokens_in": count_of(stats, "input_tokens"),
            "tokens_cached": count_of(stats, "cached"),
            "tokens_out": count_of(stats, "output_tokens"),
            "duration_ms": count_of(stats, "duration_ms"),
        }
        told = [Told(EventKind.ITERATION, detail)]
        if not ok:
            message = self._words.line(member(line, "error").get("message"))
            told.append(tell(NAME, Said.ERROR, {"text": message}))
        return told
