"""Owns that real agent programs do a task in a box through the gateway: the ones that take long to install.
May touch what playing touches.
Never runs by itself: pytest does not collect this file unless make test-agents names it.
"""

from __future__ import annotations

import pytest
from agent_stand import AgentStand
from playing import completes_a_task, ends_at_its_cap
from plays import AIDER, GEMINI_CLI, OPENCODE, Play
from test_programs import ALWAYS

from supervisor.agents import KINDS

pytest_plugins = ["agent_fixtures"]

LONG = [GEMINI_CLI, OPENCODE, AIDER]
each = pytest.mark.parametrize("play", LONG, ids=[play.name for play in LONG])


@each
def test_a_task(agents: AgentStand, play: Play) -> None:
    completes_a_task(agents, play)


@each
def test_a_cap(agents: AgentStand, play: Play) -> None:
    ends_at_its_cap(agents, play)


def test_every_known_program_is_tried() -> None:
    assert {"sdk", *(play.kind for play in [*ALWAYS, *LONG])} == set(KINDS)
