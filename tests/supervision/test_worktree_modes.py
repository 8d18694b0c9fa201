"""Owns that a worktree of any shape is a run's in either mode: armed, read back, written as the profile says.
May touch the worktrees of the stands.
Never asks the code under test what lies in a tree.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from stand import OWNER, PYTHON, Stand

from supervisor.runs.reasons import StopReason

pytest_plugins = ["stand_fixtures"]

WRITE = """
import errno, os
os.makedirs("src/new")
open("src/new/made", "w").write("x")
open("README", "a").write("more")
try:
    os.mkdir("beside")
    print("beside made")
except OSError as error:
    print("beside", errno.errorcode[error.errno])
"""


def _plain(tree: Path) -> None:
    (tree / "notes").mkdir()


def _repository(tree: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)


def _all_protected_names(tree: Path) -> None:
    _repository(tree)
    for name in (".env", ".env.local", ".mcp.json", ".envrc"):
        (tree / name).write_text("X=1\n")
    for name in (".claude", ".vscode", ".husky"):
        (tree / name).mkdir()


def _something_hidden(tree: Path) -> None:
    (tree / "keys").mkdir()
    (tree / "keys/server.pem").write_text("-\n")


def _linked(tree: Path) -> None:
    """A worktree of a repository that lies elsewhere (git-worktree(1))."""
    elsewhere = tree.parent / "elsewhere"
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for words in (["init", "-q", elsewhere], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *who, *words], cwd=elsewhere if elsewhere.exists() else tree, check=True)
    subprocess.run(["git", "worktree", "add", "-q", "--detach", tree / "linked"], cwd=elsewhere, check=True)
    (tree / "linked/.git").rename(tree / ".git")
    (tree / "linked").rmdir()
    (elsewhere / ".git/worktrees/linked/gitdir").write_text(f"{tree}/.git\n")
    for path in elsewhere.rglob("*"):
        os.chown(path, OWNER, OWNER, follow_symlinks=False)


SHAPES: list[Callable[[Path], None]] = [_plain, _repository, _linked, _all_protected_names, _something_hidden]


@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_names_may_hold_what_a_mount_table_escapes(place: Stand, mode: str) -> None:
    """proc_pid_mountinfo(5): space, tab, newline and backslash are written in octal."""
    for name in ("a b", "c\\d", "e\tf", "ü 漢"):
        tree = place.tree / name
        (tree / ".claude").mkdir(parents=True)
        (tree / "x y.pem").write_text("-")
        for path in (tree, *tree.rglob("*")):
            os.chown(path, OWNER, OWNER)
        profile = place.folder / f"{mode}.toml"
        profile.write_text(f'extends = "coding"\nname = "{mode}"\n[files]\nworktree = "{mode}"\n')
        done = place.ctl("run", "--worktree", str(tree), "--profile", str(profile), "--", "true")
        assert done.code == 0, (name, done.err)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["overlay", "direct"])
@pytest.mark.parametrize("base", ["base", "offline", "coding"])
def test_a_run_is_armed_read_back_and_writes_where_it_may(
    place: Stand, base: str, mode: str, shape: Callable[[Path], None]
) -> None:
    """In a direct worktree the folder of a protected name that is missing takes no new entries."""
    (place.tree / "src").mkdir()
    (place.tree / "README").write_text("text\n")
    shape(place.tree)
    for path in place.tree.rglob("*"):
        os.chown(path, OWNER, OWNER)
    profile = place.folder / f"{mode}.toml"
    profile.write_text(f'extends = "{base}"\nname = "{mode}"\n[files]\nworktree = "{mode}"\n')
    done = place.ctl("run", "--ticket", "T-1", "--profile", str(profile), "--", PYTHON, "-c", WRITE)
    assert done.code == 0, done.err
    assert place.ended("T-1").reason is StopReason.DONE
    direct = mode == "direct"
    assert ("beside EROFS" in done.out, "beside made" in done.out) == (direct, not direct)
    assert (place.tree / "src/new/made").exists() == direct
    assert (place.tree / "README").read_text() == ("text\nmore" if direct else "text\n")
