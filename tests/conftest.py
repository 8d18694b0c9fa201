"""Owns what all tests share: a worktree to attack, a laboratory of boxes, databases, and who may run what.
May touch fresh folders below /var/tmp and /tmp, cgroups under a key of its own, and processes it started.
Never hides a test: those that need root are counted aloud without it, and are an error in CI.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "box"))
sys.path.insert(0, str(Path(__file__).parent / "store"))
sys.path.insert(0, str(Path(__file__).parent / "gateway"))
sys.path.insert(0, str(Path(__file__).parent / "supervision"))

from boxlab import Lab, make_repository, remove_tree, scratch_folder
from in_a_loop import pytest_pyfunc_call as pytest_pyfunc_call
from pgserver import Server, running

from supervisor.store.store import Store, open_store

_NEED_ROOT = ("agents", "box", "docs", "security", "supervision")
_HERE = Path(__file__).parent
_left_out: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Boxes need root. Without it their tests are left out and counted; in CI that is an error."""
    if os.geteuid() == 0:
        return
    folders = [_HERE / name for name in _NEED_ROOT]
    rooted = [item for item in items if any(folder in item.path.parents for folder in folders)]
    if not rooted:
        return
    if os.environ.get("CI"):
        raise pytest.UsageError(f"{len(rooted)} box and security tests need root, and CI must run them")
    items[:] = [item for item in items if item not in set(rooted)]
    config.hook.pytest_deselected(items=rooted)
    _left_out[:] = [item.nodeid for item in rooted]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left_out:
        terminalreporter.write_line(
            f"{len(_left_out)} box and security tests were left out: they need root", yellow=True
        )


@pytest.fixture
def scratch() -> Iterator[Path]:
    """An empty folder on a real file system that every uid may enter."""
    folder = scratch_folder()
    yield folder
    remove_tree(folder)


@pytest.fixture
def worktree(scratch: Path) -> Path:
    """A git repository with one commit and a few secrets, owned by uid 1000."""
    return make_repository(scratch / "tree")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Starts boxes, weakened ones too, and knows whether anything of them is still alive."""
    laboratory = Lab()
    try:
        yield laboratory
    finally:
        laboratory.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server of the tests' own."""
    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty database is, once in SQLite and once in PostgreSQL."""
    if request.param == "sqlite":
        yield str(tmp_path / "state.db")
        return
    server: Server = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture
def store(location: str) -> Iterator[Store]:
    opened = open_store(location)
    yield opened
    opened.close()
