"""Owns that real agent programs do a task in a box through the gateway: those that install in a moment.
May touch what playing touches.
Never leaves one out: the rest are in every_program.py, and make test-agents runs both.
"""

from __future__ import annotations

import pytest
from agent_stand import AgentStand
from playing import completes_a_task, ends_at_its_cap, is_heard_without_our_settings
from plays import CLAUDE_CODE, CODEX, CODEX_IN_CODE, MINI_SWE_AGENT, Play

pytest_plugins = ["agent_fixtures"]

ALWAYS = [CLAUDE_CODE, CODEX, CODEX_IN_CODE, MINI_SWE_AGENT]
each = pytest.mark.parametrize("play", ALWAYS, ids=[play.name for play in ALWAYS])


@each
def test_a_task(agents: AgentStand, play: Play) -> None:
    completes_a_task(agents, play)


@each
def test_a_cap(agents: AgentStand, play: Play) -> None:
    ends_at_its_cap(agents, play)


@pytest.mark.parametrize("play", [CLAUDE_CODE, CODEX], ids=["claude-code", "codex"])
def test_control_without_our_settings_it_is_heard(agents: AgentStand, play: Play) -> None:
    """Each has a resolver of its own; the ones of glibc and node have their control elsewhere."""
    is_heard_without_our_settings(agents, play)
