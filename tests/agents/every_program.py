"""Owns that real agent programs do a task in a box through the gateway: the ones that take long to install.
May touch what playing touches.
Never runs by itself: pytest does not collect this file unless make test-agents names it.
"""

from __future__ import annotations

import pytest
from agent_stand import AgentStand
from playing import completes_a_task, ends_at_its_cap, is_heard_without_our_settings
from plays import (
    AIDER,
    AIDER_ON_ANTHROPIC,
    GEMINI_CLI,
    MINI_SWE_AGENT,
    MINI_SWE_AGENT_ON_ANTHROPIC,
    OPENCODE,
    Play,
)
from test_programs import ALWAYS

from supervisor.agents import KINDS

pytest_plugins = ["agent_fixtures"]

LONG = [GEMINI_CLI, OPENCODE, AIDER, AIDER_ON_ANTHROPIC, MINI_SWE_AGENT_ON_ANTHROPIC]
HEARD = [OPENCODE, AIDER, MINI_SWE_AGENT]
each = pytest.mark.parametrize("play", LONG, ids=[play.name for play in LONG])


@each
def test_a_task(agents: AgentStand, play: Play) -> None:
    completes_a_task(agents, play)


@each
def test_a_cap(agents: AgentStand, play: Play) -> None:
    ends_at_its_cap(agents, play)


@pytest.mark.parametrize("play", HEARD, ids=[play.name for play in HEARD])
def test_control_without_our_settings_it_is_heard(agents: AgentStand, play: Play) -> None:
    is_heard_without_our_settings(agents, play)


def test_control_look_ups_of_node_are_heard(agents: AgentStand) -> None:
    """Gemini CLI has no variable that undoes its settings."""
    code = "for (const how of ['lookup', 'resolve']) require('dns')[how](how + '.example', () => {})"
    ended = agents.run(["/usr/bin/env", "node", "-e", code], agents.profile("gemini-cli"))
    assert ended.names == {"lookup.example", "resolve.example"}, ended.all()


def test_every_known_program_is_tried() -> None:
    assert {"sdk", *(play.kind for play in [*ALWAYS, *LONG])} == set(KINDS)
