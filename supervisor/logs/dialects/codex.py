"""Owns reading what `codex exec --json` prints: items of a thread, and the usage of each turn.
May touch nothing; the fields are those of @openai/codex-sdk 0.163 (dist/index.d.ts).
Never keeps a command's output, a patch or a message beyond its first words.
"""

from __future__ import annotations

from typing import Any

from supervisor.events import EventKind
from supervisor.logs.dialects.said import Said, Told, ToolCall, tell
from supervisor.logs.dialects.words import Json, Words, count_of, items, member, size_of

NAME = "codex"
_PREFIXES = ("thread.", "turn.", "item.")
_MAX_STARTED = 256


def speaks(line: Json) -> bool:
    kind = line.get("type")
    if not isinstance(kind, str):
        return False
    return kind.startswith(_PREFIXES) or (kind == "error" and set(line) == {"type", "message"})


class CodexReader:
    def __init__(self, words: Words) -> None:
        self._words = words
        self._count = 0
        self._started: dict[str, str] = {}

    def read(self, line: Json, at: str) -> list[Told]:
        kind = line["type"]
        if kind == "item.started":
            self._start(member(line, "item"), at)
        elif kind == "item.completed":
            return self._item(member(line, "item"), at)
        elif kind == "turn.completed":
            return [self._turn(member(line, "usage"))]
        elif kind == "thread.started":
            return [tell(NAME, Said.SESSION, {"session": self._words.text(line.get("thread_id"), 100)})]
        elif kind in ("turn.failed", "error"):
            message = line.get("message") or member(line, "error").get("message")
            return [tell(NAME, Said.ERROR, {"text": self._words.line(message)})]
        return []

    def finish(self) -> list[Told]:
        return []

    def _start(self, item: Json, at: str) -> None:
        if len(self._started) < _MAX_STARTED:
            self._started[str(item.get("id"))[:100]] = at

    def _turn(self, usage: Json) -> Told:
        """A turn is many model calls; what they used together is all that is said of them."""
        self._count += 1
        detail: dict[str, Any] = {
            "dialect": NAME,
            "iteration": self._count,
            "outcome": "ok",
            "tokens_in": count_of(usage, "input_tokens"),
            "tokens_cached": count_of(usage, "cached_input_tokens"),
            "tokens_out": count_of(usage, "output_tokens"),
        }
        return Told(EventKind.ITERATION, detail)

    def _item(self, item: Json, at: str) -> list[Told]:
        kind, words = item.get("type"), self._words
        began = self._started.pop(str(item.get("id"))[:100], "")
        if kind == "agent_message":
            text = item.get("text")
            return [tell(NAME, Said.MESSAGE, {"text": words.text(text), "bytes": size_of(text)})]
        if kind == "error":
            return [tell(NAME, Said.ERROR, {"text": words.line(item.get("message"))})]
        call = self._call(item, began)
        if call is None:
            return []
        call.end(call.outcome, call.result_bytes, at)
        return [tell(NAME, Said.TOOL, call.as_detail())]

    def _call(self, item: Json, began: str) -> ToolCall | None:
        """A tool call, if the item is one; reasoning and to-do lists are none."""
        kind, words = item.get("type"), self._words
        failed = item.get("status") == "failed"
        outcome = "error" if failed else "ok"
        if kind == "command_execution":
            code = item.get("exit_code")
            if isinstance(code, int) and not isinstance(code, bool) and code:
                outcome = f"exit {code}" if abs(code) < 1000 else "error"
            args = {"command": words.line(item.get("command"))}
            return ToolCall("command", args, began, outcome, size_of(item.get("aggregated_output")))
        if kind == "file_change":
            changes = [
                f"{words.text(change.get('kind'), 20)} {words.line(change.get('path'))}"
                for change in items(item, "changes")[:24]
            ]
            return ToolCall("file_change", {"changes": changes}, began, outcome)
        if kind == "mcp_tool_call":
            name = f"{words.text(item.get('server'), 60)}.{words.text(item.get('tool'), 60)}"
            result = size_of(member(item, "result").get("content"))
            return ToolCall(name, words.arguments(item.get("arguments")), began, outcome, result)
        if kind == "web_search":
            return ToolCall("web_search", {"query": words.line(item.get("query"))}, began, outcome)
        return None
