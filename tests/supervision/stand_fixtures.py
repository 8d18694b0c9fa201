"""Owns the fixtures of this folder; each module names this one in pytest_plugins.
May touch what stand touches.
Never shares a state between modules.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stand import Stand, stand


@pytest.fixture
def place() -> Iterator[Stand]:
    with stand() as made:
        yield made


@pytest.fixture
def served() -> Iterator[Stand]:
    """A fresh state with a daemon of its own."""
    with stand() as made:
        made.serve()
        yield made


@pytest.fixture(scope="module")
def daemon() -> Iterator[Stand]:
    """A daemon for all tests of a module that leave it as they found it."""
    with stand() as made:
        made.serve()
        yield made


@pytest.fixture(scope="module", params=["daemon", "foreground"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[Stand]:
    """Runs of a daemon, then runs that a shell supervises itself."""
    with stand() as made:
        if request.param == "daemon":
            made.serve()
        yield made
