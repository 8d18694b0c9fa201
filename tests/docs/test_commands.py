"""Owns holding the documents to what the program does: every command in them is run.
May touch a state folder and a worktree of its own, removed afterwards.
Never compares output word for word; a command in a document must work, and a name in it must exist.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PRELUDE = """set -eu
trap 'code=$?; kill $(jobs -p) 2>/dev/null || true; wait || true; exit $code' EXIT"""
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def commands(document: Path) -> list[str]:
    blocks = _BLOCK.findall(document.read_text(encoding="utf-8"))
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A worktree and the environment's folders, shared by the documents in the order they are read."""
    folder = Path(tempfile.mkdtemp(prefix="docs-", dir="/var/tmp"))
    (folder / "tree").mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder / "tree")]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "base"], check=True)
    yield folder
    shutil.rmtree(folder)


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "SUPERVISOR_STATE_DIR": str(home / "state"),
        "SUPERVISOR_RUN_DIR": str(home / "run"),
        "DEMO_FOLDER": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
    }


@pytest.mark.parametrize(
    "name", ["docs/tutorial.md", "docs/how-to.md", "docs/money.md", "docs/audit.md", "README.md"]
)
def test_every_command_of_a_document_works(name: str, home: Path) -> None:
    lines = commands(ROOT / name)
    assert lines, f"{name} shows no command"
    script = "\n".join([_PRELUDE, *lines, ""])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT if name == "README.md" else home / "tree",
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr


def test_the_tutorial_shows_what_it_says(home: Path) -> None:
    assert (home / "tree" / "greeting.txt").read_text(encoding="utf-8") == "hello\n"
    assert not (home / "tree" / ".git" / "hooks" / "post-checkout").exists()


@pytest.mark.parametrize(
    "document", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md", ROOT / "SECURITY.md"]
)
def test_links_lead_somewhere(document: Path) -> None:
    for link in _LINK.findall(document.read_text(encoding="utf-8")):
        assert (document.parent / link).exists(), f"{document.name} links to {link}"


def test_files_named_in_the_promises_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for name in re.findall(r"`((?:tests|sandbox|supervisor)/[\w/.]+)`", text):
        assert (ROOT / name).exists(), f"SECURITY.md names {name}"
