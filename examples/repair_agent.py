"""Owns a small agent: it asks a model what to do next, does it, and tells the model how it went.
May touch the folder it is started in, and the model that $ANTHROPIC_BASE_URL names.
Never holds a real key; that it cannot reach anything else is part of what it shows.

usage: python3 repair_agent.py MODEL TASK
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_MAX_TURNS = 50
_TOOLS = [
    {
        "name": name,
        "description": text,
        "input_schema": {
            "type": "object",
            "properties": {word: {"type": "string"} for word in words},
            "required": list(words),
        },
    }
    for name, text, words in (
        ("run", "Run a command and read what it prints.", ("command",)),
        ("read", "Read a file.", ("path",)),
        ("edit", "Replace a text that occurs once in a file.", ("path", "old", "new")),
    )
]


def ask(model: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One call of the Messages API. Raises HTTPError, for a refusal too."""
    body = {"model": model, "max_tokens": 1024, "tools": _TOOLS, "messages": messages}
    request = urllib.request.Request(
        f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages",
        data=json.dumps(body).encode(),
        headers={
            "Content-Type": "application/json",
            "X-Api-Key": os.environ["ANTHROPIC_API_KEY"],
            "Anthropic-Version": "2023-06-01",
        },
    )
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def use(tool: str, given: dict[str, str]) -> str:
    """Do what the model wants, and say how it went."""
    if tool == "run":
        done = subprocess.run(
            shlex.split(given["command"]), capture_output=True, text=True, timeout=60, check=False
        )
        return f"exit {done.returncode}\n{done.stdout}{done.stderr}"[-4000:]
    path = Path(given["path"])
    text = path.read_text(encoding="utf-8")
    if tool == "read":
        return text
    if text.count(given["old"]) != 1:
        return f"the text occurs {text.count(given['old'])} times"
    path.write_text(text.replace(given["old"], given["new"]), encoding="utf-8")
    return "done"


def shown(tool: str, given: dict[str, str], outcome: str) -> str:
    what = given.get("command") or given["path"]
    return f"  {tool:<5} {what:<34} {outcome.splitlines()[0] if tool == 'run' else ''}".rstrip()


def look_around() -> None:
    """What any curious agent tries first; in the box each of these fails with a plain error."""
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=2).close()
        print("I have a network")
    except OSError as error:
        print(f"no network here: {error.strerror}")
    try:
        Path(".git/hooks/pre-commit").write_text("#!/bin/sh\ntouch /tmp/ran-outside\n", encoding="utf-8")
        print("I planted a git hook")
    except OSError as error:
        print(f"no git hook planted: {error.strerror}")


def main() -> int:
    model, task = sys.argv[1:]
    look_around()
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for _ in range(_MAX_TURNS):
        try:
            answer = ask(model, messages)
        except urllib.error.HTTPError as error:
            print(f"refused: {json.load(error)['error']['message']}")
            return 1
        messages.append({"role": "assistant", "content": answer["content"]})
        results = []
        for block in answer["content"]:
            if block["type"] == "text":
                print(block["text"])
            elif block["type"] == "tool_use":
                outcome = use(block["name"], block["input"])
                print(shown(block["name"], block["input"], outcome))
                results.append({"type": "tool_result", "tool_use_id": block["id"], "content": outcome})
        if not results:
            return 0
        messages.append({"role": "user", "content": results})
    return 1


if __name__ == "__main__":
    sys.exit(main())
