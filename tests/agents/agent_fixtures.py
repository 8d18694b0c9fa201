"""Owns the fixture of this folder; each module names this one in pytest_plugins.
May touch what agent_stand touches.
Never shares a state between modules.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agent_stand import AgentStand, agent_stand


@pytest.fixture(scope="module")
def agents() -> Iterator[AgentStand]:
    """A worktree and a model for the runs of a module, one after the other."""
    with agent_stand() as made:
        yield made
