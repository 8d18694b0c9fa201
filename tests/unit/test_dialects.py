"""Owns what the logs of known agents become: iterations, tools, outcomes, and contents as sizes.
May touch nothing but memory; the lines are made in the shapes of the agents' own type definitions.
Never lets the contents of a file, or any text of unbounded size, into an event.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.events import EventKind
from supervisor.logs.dialects import claude, codex, gemini
from supervisor.logs.dialects.reader import MAX_LINE, DialectReader
from supervisor.logs.dialects.said import Said, Told
from supervisor.logs.dialects.words import ROOM

WHOLE = "def secret_of_the_file():\n    return 42\n" * 40
AT = "2026-09-01T02:14:07.000Z"
LATER = "2026-09-01T02:14:15.421Z"


def read(lines: list[dict[str, Any]], *, unknown_too: bool = False, clean: Any = str) -> list[Told]:
    """Each line comes a little later than the one before it."""
    reader = DialectReader(clean)
    told: list[Told] = []
    for number, line in enumerate(lines):
        at = AT if number % 2 == 0 else LATER
        told += reader.read(json.dumps(line), at, unknown_too=unknown_too) or []
    told += reader.finish()
    assert WHOLE not in msgspec.json.encode(told).decode() and "secret_of_the_file" not in str(told)
    return told


def said(told: list[Told], what: str) -> list[dict[str, Any]]:
    return [one.detail for one in told if one.detail.get("said") == what]


def iterations(told: list[Told]) -> list[dict[str, Any]]:
    return [one.detail for one in told if one.kind is EventKind.ITERATION]


# ---------------------------------------------------------------- Claude Code


def assistant(key: str, *blocks: dict[str, Any], out: int = 5) -> dict[str, Any]:
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 70}
    message = {"id": key, "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
    return {
        "type": "assistant",
        "message": {**message, "content": list(blocks), "usage": {**usage, "output_tokens": out}},
        "parent_tool_use_id": None,
        "session_id": "s",
        "uuid": f"u-{key}",
    }


def use(key: str, name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": key, "name": name, "input": given}


def answer(key: str, content: Any, *, failed: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": key, "content": content, "is_error": failed}
    message = {"role": "user", "content": [block]}
    return {"type": "user", "message": message, "session_id": "s", "parent_tool_use_id": None}


CLAUDE: list[dict[str, Any]] = [
    {"type": "system", "subtype": "init", "session_id": "s", "model": "claude-sonnet-4-5", "cwd": "/w"}
    | {"claude_code_version": "2.1.0", "permissionMode": "bypassPermissions", "tools": ["Bash"]},
    assistant("m1", {"type": "text", "text": "I look at it."}),
    assistant("m1", use("t1", "Read", file_path="/w/a.py"), out=31),
    answer("t1", [{"type": "text", "text": WHOLE}]),
    assistant("m2", use("t2", "Write", file_path="/w/a.py", content=WHOLE)),
    answer("t2", "File written"),
    assistant("m3", use("t3", "Bash", command=f"cat > b <<EOF\n{WHOLE}EOF"), use("t4", "Grep", pattern="x")),
    answer("t3", f"Exit code 1\n{WHOLE}", failed=True),
    answer("t4", WHOLE, failed=True),
    {"type": "result", "subtype": "success", "is_error": False, "session_id": "s", "num_turns": 3}
    | {"duration_ms": 9000, "result": WHOLE, "total_cost_usd": 0.0451}
    | {"usage": {"input_tokens": 30, "cache_creation_input_tokens": 60, "cache_read_input_tokens": 210}}
    | {"modelUsage": {}, "permission_denials": []},
]


def test_claude_code_one_iteration_per_message_with_its_tool_and_outcome() -> None:
    told = read(CLAUDE)
    first, second, third = iterations(told)
    assert (first["iteration"], first["tool"], first["args"]) == (1, "Read", {"file_path": "/w/a.py"})
    assert (first["tokens_in"], first["tokens_cached"], first["tokens_out"]) == (100, 70, 31)
    assert first["model"] == "claude-sonnet-4-5" and first["result_bytes"] == len(WHOLE)
    assert second["args"] == {"file_path": "/w/a.py", "content": {"bytes": len(WHOLE)}}
    assert (third["tool"], third["outcome"]) == ("Bash", "exit 1")
    assert third["args"] == {"command": "cat > b <<EOF …"}
    (other,) = said(told, "tool")
    assert (other["tool"], other["outcome"]) == ("Grep", "error")


def test_claude_code_the_sums_of_the_result_are_booked_once_with_the_last_message() -> None:
    told = read(CLAUDE)
    assert sum(one["tokens_in"] for one in iterations(told)) == 300
    assert [one.get("cost_usd") for one in iterations(told)] == [None, None, "0.0451"]
    (result,) = said(told, "result")
    assert (result["turns"], result["cost_usd"], result["outcome"]) == (3, "0.0451", "ok")
    (session,) = said(told, "session")
    assert (session["model"], session["version"]) == ("claude-sonnet-4-5", "2.1.0")
    assert [one["text"] for one in said(told, "message")] == ["I look at it."]


def test_claude_code_the_same_stream_in_two_places_counts_once() -> None:
    doubled = [line for line in CLAUDE for _ in range(2)]
    assert len(iterations(read(doubled))) == 3
    assert len(iterations(read([*CLAUDE[:-1], *CLAUDE[:-1]]))) == 3


def test_claude_code_a_tool_takes_from_its_call_to_its_result() -> None:
    first, *_ = iterations(read([assistant("m1", use("t1", "Bash", command="npm test")), answer("t1", "ok")]))
    assert (first["duration_ms"], first["outcome"]) == (8421, "ok")


def test_claude_code_a_denied_tool_and_an_error_of_the_api() -> None:
    denied = {"type": "system", "subtype": "permission_denied", "session_id": "s", "tool_name": "Bash"}
    told = read([assistant("m1", use("t1", "Bash", command="rm x")), {**denied, "tool_use_id": "t1"}])
    assert [one["outcome"] for one in iterations(told)] == ["denied"]
    assert [one["outcome"] for one in said(read([{**denied, "tool_use_id": "?"}]), "tool")] == ["denied"]
    failed = {**assistant("m1"), "error": "rate_limit"}
    assert [one["outcome"] for one in iterations(read([failed]))] == ["rate_limit"]


def test_claude_code_edits_are_known_by_path_and_size() -> None:
    edits = [{"old_string": WHOLE, "new_string": WHOLE}] * 2
    (one,) = iterations(read([assistant("m", use("t", "MultiEdit", file_path="/w/a", edits=edits))]))
    assert one["args"] == {"file_path": "/w/a", "edits": {"bytes": 4 * len(WHOLE)}}


# ---------------------------------------------------------------- Codex


def item(kind: str, event: str = "item.completed", **fields: Any) -> dict[str, Any]:
    return {"type": event, "item": {"id": "item_1", "type": kind, **fields}}


CODEX: list[dict[str, Any]] = [
    {"type": "thread.started", "thread_id": "0199-x"},
    {"type": "turn.started"},
    item("reasoning", text="thinking"),
    item(
        "command_execution", "item.started", command="bash -lc ls", aggregated_output="", status="in_progress"
    ),
    item("command_execution", command="bash -lc ls", aggregated_output=WHOLE, exit_code=2, status="failed"),
    item("file_change", changes=[{"path": "a.py", "kind": "update"}], status="completed"),
    item(
        "mcp_tool_call",
        server="docs",
        tool="get",
        arguments={"path": "x", "content": WHOLE},
        status="completed",
    )
    | {"result": None},
    item("web_search", query="vat rounding"),
    item("agent_message", text="Done."),
    {
        "type": "turn.completed",
        "usage": {"input_tokens": 900, "cached_input_tokens": 700, "output_tokens": 50},
    },
    {"type": "turn.failed", "error": {"message": "stream closed"}},
    {"type": "error", "message": "no such model"},
]


def test_codex_items_are_tools_and_a_turn_is_an_iteration() -> None:
    told = read(CODEX)
    tools = [(one["tool"], one["args"], one["outcome"]) for one in said(told, "tool")]
    assert tools == [
        ("command", {"command": "bash -lc ls"}, "exit 2"),
        ("file_change", {"changes": ["update a.py"]}, "ok"),
        ("docs.get", {"path": "x", "content": {"bytes": len(WHOLE)}}, "ok"),
        ("web_search", {"query": "vat rounding"}, "ok"),
    ]
    (turn,) = iterations(told)
    assert (turn["tokens_in"], turn["tokens_cached"], turn["tokens_out"]) == (900, 700, 50)
    assert [one["text"] for one in said(told, "error")] == ["stream closed", "no such model"]
    assert [one["text"] for one in said(told, "message")] == ["Done."]
    assert said(told, "session") == [{"session": "0199-x", "dialect": "codex", "said": "session"}]


# ---------------------------------------------------------------- Gemini CLI

GEMINI: list[dict[str, Any]] = [
    {"type": "init", "timestamp": AT, "session_id": "g", "model": "gemini-2.5-pro"},
    {"type": "message", "timestamp": AT, "role": "user", "content": "fix it"},
    {"type": "message", "timestamp": AT, "role": "assistant", "content": "I will", "delta": True},
    {"type": "tool_use", "timestamp": AT, "tool_name": "write_file", "tool_id": "w"}
    | {"parameters": {"file_path": "a", "content": WHOLE}},
    {"type": "tool_result", "timestamp": AT, "tool_id": "w", "status": "success", "output": WHOLE},
    {"type": "tool_result", "timestamp": AT, "tool_id": "none", "status": "success", "output": WHOLE},
    {"type": "error", "timestamp": AT, "severity": "warning", "message": "loop detected"},
    {"type": "result", "timestamp": AT, "status": "success"}
    | {"stats": {"total_tokens": 120, "input_tokens": 100, "output_tokens": 20, "cached": 60}}
    | {"duration_ms": 5},
]


def test_gemini_tools_and_the_sums_of_the_session() -> None:
    told = read(GEMINI)
    (tool,) = said(told, "tool")
    assert tool["args"] == {"file_path": "a", "content": {"bytes": len(WHOLE)}}
    assert (tool["tool"], tool["outcome"], tool["result_bytes"]) == ("write_file", "ok", len(WHOLE))
    (sums,) = iterations(told)
    assert (sums["model"], sums["tokens_in"], sums["tokens_cached"]) == ("gemini-2.5-pro", 100, 60)
    assert [one["text"] for one in said(told, "error")] == ["loop detected"]


# ---------------------------------------------------------------- the design's own, and unknown ones


def test_the_designs_own_iteration_is_kept_as_it_is() -> None:
    line = {"kind": "iteration", "iteration": 7, "tool": "run", "args": {"cmd": "npm", "args": ["test"]}}
    line |= {"outcome": "exit 1", "duration_ms": 8421, "tokens_in": 12480, "cost_usd": "0.045120"}
    (one,) = iterations(read([line]))
    assert one == {key: value for key, value in line.items() if key != "kind"}


def test_an_unknown_object_is_an_event_of_a_file_and_not_of_standard_output() -> None:
    line = {"level": "info", "msg": "hello", "n": 3, "nested": {"a": [1, None, True, 0.5]}}
    assert read([line]) == []
    assert read([line], unknown_too=True) == [Told(EventKind.AGENT_EVENT, line)]


def test_contents_in_unknown_events_are_known_by_size() -> None:
    (one,) = read([{"event": "wrote", "path": "a.py", "content": WHOLE}], unknown_too=True)
    assert one.detail == {"event": "wrote", "path": "a.py", "content": {"bytes": len(WHOLE)}}
    (one,) = read([{"output": WHOLE}], unknown_too=True)
    assert one.detail == {"output": {"bytes": len(WHOLE)}}


def test_an_unknown_event_cannot_pass_for_one_of_a_dialect() -> None:
    (one,) = read([{"dialect": "claude-code", "said": "result", "x": 1}], unknown_too=True)
    assert one.detail == {"x": 1}


def test_every_text_goes_through_the_redactor_before_it_is_cut() -> None:
    def clean(text: str) -> str:
        return text.replace("hunter2hunter2", "[redacted]")

    long = "x" * (ROOM - 4) + "hunter2hunter2" + "y" * 1000
    lines = [
        assistant("m", {"type": "text", "text": long}, use("t", "Bash", command=f"echo {long}")),
        item("agent_message", text="hunter2hunter2"),
        {"kind": "iteration", "note": long, "hunter2hunter2": 1},
    ]
    assert "hunter2" not in str(read(lines, clean=clean))


# ---------------------------------------------------------------- what is hostile

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
SAMPLES = [*CLAUDE, *CODEX, *GEMINI]


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A line of a known dialect in which one thing is something else, however deep it lies."""
    line = json.loads(json.dumps(draw(st.sampled_from(SAMPLES))))
    at: Any = line
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return dict(line)
        key = draw(st.sampled_from(keys))
        if isinstance(at[key], dict | list) and draw(st.booleans()):
            at = at[key]
            continue
        at[key] = draw(JSON)
        return dict(line)


@settings(deadline=None, max_examples=120)
@given(st.lists(damaged() | st.dictionaries(st.text(max_size=8), JSON, max_size=5), max_size=8))
def test_nothing_an_agent_writes_raises_or_grows(lines: list[dict[str, Any]]) -> None:
    reader = DialectReader(str)
    told = [one for line in lines for one in reader.read(json.dumps(line), AT, unknown_too=True) or []]
    for one in [*told, *reader.finish()]:
        assert len(msgspec.json.encode(one.detail)) < 40_000


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}}",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"type":"assistant","session_id":"s"}',
        '{"type":1}',
        "null",
        '{"type":"user","session_id":"s","message":{"content":[{"type":"tool_result","tool_use_id":{}}]}}',
        '{"kind":"iteration","tokens_in":1e999}',
        '{"kind":"iteration","n":123456789012345678901234567890}',
        '{"type":"turn.completed","usage":{"input_tokens":-1,"output_tokens":true}}',
        '{"kind":["iteration"]}',
    ],
)
def test_lines_that_are_made_to_break(text: str) -> None:
    told = DialectReader(str).read(text, AT, unknown_too=True)
    for one in told or []:
        msgspec.json.encode(one.detail)


def test_deep_wide_and_long_is_cut() -> None:
    deep: Any = "bottom"
    for _ in range(200):
        deep = {"d": deep}
    wide = {f"k{number}": "v" * 1000 for number in range(500)}
    (one,) = read([{"deep": deep, "wide": wide, "list": list(range(500))}], unknown_too=True)
    assert len(msgspec.json.encode(one.detail)) < 30_000
    assert DialectReader(str).read(json.dumps({"a": "x" * MAX_LINE}), AT, unknown_too=True) is None


def test_the_dialects_are_told_apart() -> None:
    speaks = {"claude": claude.speaks, "codex": codex.speaks, "gemini": gemini.speaks}
    for name, lines in (("claude", CLAUDE), ("codex", CODEX), ("gemini", GEMINI)):
        for line in lines:
            found = next(which for which, test in speaks.items() if test(line))
            assert found == name, line
    assert {str(one) for one in Said} == {"session", "message", "tool", "result", "error"}
