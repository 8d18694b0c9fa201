"""Owns that the vendors' SDKs work through the gateway as they come, and that it costs what was reported.
May touch the stands' runs.
Never sets anything that a user would not have to set.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_stand import INPUT_NANOS, KEY, OUTPUT_NANOS, AgentStand, Ended, command, installed
from leaks import places
from scripted_turns import Playbook, Turn
from scripted_upstream import Asked, Reply

from supervisor.agents import KINDS, PLACEHOLDER_KEY
from supervisor.runs.reasons import StopReason

pytest_plugins = ["agent_fixtures"]

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai-chat": "gpt-5-mini",
    "openai-responses": "gpt-5-mini",
    "google-genai": "gemini-2.5-pro",
}
KEY_HEADERS = {"anthropic": ("x-api-key", ""), "google-genai": ("x-goog-api-key", "")}
WRONG, RIGHT = "def greet():\n    return 'helo'\n", "def greet():\n    return 'hello'\n"
NEEDLES = (KEY[:14].encode(), KEY[10:30].encode(), KEY[-14:].encode())
TASK = Path(__file__).with_name("sdk_task.py").read_text()

every_sdk = pytest.mark.parametrize("sdk", list(MODELS))
both_ways = pytest.mark.parametrize("how", ["whole", "stream"])


def playbook() -> Playbook:
    return Playbook(
        [
            Turn("I write the file.", "write_file", {"path": "greet.py", "text": RIGHT}),
            Turn("It says hello now."),
        ]
    )


def words(agents: AgentStand, sdk: str, how: str, *more: str) -> list[str]:
    agents.put("greet.py", WRONG)
    agents.put("agent.py", TASK)
    _, python = installed("sdk")
    return [str(python), *KINDS["sdk"].start.split()[1:], sdk, how, MODELS[sdk], *more]


def said(ended: Ended, name: str) -> str:
    (line,) = [line for line in ended.lines if line.startswith(f"{name} ")]
    return line.removeprefix(f"{name} ")


@every_sdk
@both_ways
def test_a_task_with_a_tool(agents: AgentStand, sdk: str, how: str) -> None:
    play = playbook()
    agents.play(play)
    ended = agents.run(words(agents, sdk, how), agents.profile("sdk"), apply=True)
    assert ended.run.reason is StopReason.DONE, ended.all()
    assert said(ended, "said") == "It says hello now."
    assert (agents.place.tree / "greet.py").read_text() == RIGHT
    asked = agents.upstream.asked
    assert len(asked) == len(play.reported) == 2
    name, prefix = KEY_HEADERS.get(sdk, ("authorization", "Bearer "))
    assert [one.header(name) for one in asked] == [prefix + KEY] * 2, "control: the provider got it"
    assert PLACEHOLDER_KEY not in repr([one.headers for one in asked])
    cost = play.cost(INPUT_NANOS, OUTPUT_NANOS)
    assert ended.run.totals["spent_nanos"] == cost > 0
    assert [call["usage_source"] for call in ended.calls()] == ["provider"] * 2
    used = [sum(getattr(one, field) for one in play.reported) for field in ("input", "output")]
    assert ended.run.totals["tokens"] == sum(used)
    if (sdk, how) != ("openai-chat", "stream"):
        assert said(ended, "tokens") == f"{used[0]} {used[1]}", "the SDK saw what was charged"
    assert (ended.names, ended.unreachable) == (set(), 0)


@every_sdk
@both_ways
def test_a_refusal_for_money_is_not_tried_again(agents: AgentStand, sdk: str, how: str) -> None:
    play = playbook()
    agents.play(play)
    profile = agents.profile("sdk", more='[limits]\nstop_grace = "5s"\nusd = "0.05"\n')
    # The first answer costs nearly all of it, which a price for one call can say exactly.
    play.first_input = 15_000
    ended = agents.run(words(agents, sdk, how), profile)
    assert (ended.run.reason, ended.run.reason_by) == (StopReason.MAX_COST, "limit"), ended.all()
    assert len(agents.upstream.asked) == 1, "the second call never left"
    refusal = said(ended, "refused")
    assert " 402 " in refusal and "limits.usd" in refusal, refusal
    assert said(ended, "requests") == "2", "one that was answered and one that was refused"
    assert ended.run.totals["calls_refused"] == 1
    assert ended.run.totals["spent_nanos"] == play.cost(INPUT_NANOS, OUTPUT_NANOS) <= 50_000_000


class Blabber:
    """A provider that sends the key back: in a header, in answers, and in the body of an error."""

    def __init__(self) -> None:
        self.play = playbook()

    def __call__(self, asked: Asked) -> Reply:
        reply = self.play(asked)
        if len(self.play.reported) > 1:
            text = f'{{"error": {{"type": "invalid_request_error", "code": 400, "message": "no {KEY}"}}}}'
            return Reply([text.encode()], 400)
        pieces = [
            piece.replace(b"I write", b"I w" + KEY.encode()) if isinstance(piece, bytes) else piece
            for piece in reply.pieces
        ]
        return Reply(pieces, reply.status, reply.headers | {"X-Echo": KEY, "Request-Id": KEY}, reply.framing)


@every_sdk
@both_ways
def test_the_key_is_nowhere_in_the_box(agents: AgentStand, sdk: str, how: str) -> None:
    agents.play(Blabber())
    with agents.held(words(agents, sdk, how, "hold"), agents.profile("sdk")) as (ticket, uid):
        assert KEY in repr(agents.upstream.asked[0].headers), "control: it was sent to the provider"
        assert places(uid, NEEDLES) == set()
        assert {"memory", "environ"} <= places(uid, (PLACEHOLDER_KEY.encode(),)), "control of the search"
        assert f"{agents.place.tree}/agent.py" in places(uid, (b"usage: sdk_task.py",)), "control: files"
    run = agents.place.ended(ticket)
    assert run.totals["redacted"] == 0, "there was nothing to take out of what it printed"
    problems = [event["detail"] for event in agents.place.events(ticket) if event["kind"] == "meter_problem"]
    assert "key_echoed" in {problem["code"] for problem in problems}, "control: it was sent back"


def test_control_a_key_in_the_box_is_found(agents: AgentStand) -> None:
    agents.play(playbook())
    secret = f'[env]\nsecret = {{ TOKEN = "file:{agents.place.folder}/key" }}\n'
    argv = words(agents, "anthropic", "whole", "hold")
    with agents.held(argv, agents.profile("sdk", more=secret)) as (_, uid):
        assert {"memory", "environ"} <= places(uid, NEEDLES)


def test_control_a_look_up_and_a_connection_are_seen(agents: AgentStand) -> None:
    code = (
        "import socket\n"
        "for name in ('one.example', 'two.example'):\n"
        "    try: socket.getaddrinfo(name, 443)\n"
        "    except OSError: print('no', name)\n"
        "try: socket.create_connection(('198.51.100.1', 443))\n"
        "except OSError as error: print(error)\n"
    )
    ended = agents.run(["/usr/bin/python3", "-c", code], agents.profile("sdk"))
    assert ended.names == {"one.example", "two.example"}, ended.all()
    assert ended.unreachable >= 1


def test_the_start_line_is_that_of_the_table() -> None:
    assert command("sdk", "m", "t")[1:] == ["agent.py"]
