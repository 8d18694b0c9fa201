"""Owns how a worktree is looked at, and which mount steps protect and hide what is in it.
May touch folders below pytest's own, as any user.
Never makes a box: that the steps hold is for the security tests.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sandbox.spec import Bind, Hide, MountStep, Pin, Protect, Unlock
from supervisor.errors import UsageError
from supervisor.workspace.tree import Tree, inspect, is_covered, protect_and_hide

GIT = [".git/hooks", ".git/config", ".git/commondir"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    for name in (".git/hooks", "src/deep", "keys"):
        (folder / name).mkdir(parents=True)
    for name in (".git/config", ".env", "README", "src/deep/x.pem", "keys/y.PEM"):
        (folder / name).write_text("x\n")
    return folder


def steps(
    folder: Path, protect: list[str], hide: list[str] | None = None, overlay: bool = True
) -> list[MountStep]:
    return protect_and_hide(inspect(str(folder)), overlay=overlay, protect=protect, hide=hide or [])


def short(found: list[MountStep], folder: Path) -> list[str]:
    """ "Pin src", "Protect .env", "Protect .git/commondir file"."""
    lines = []
    for step in found:
        words = [type(step).__name__, os.path.relpath(step.target, folder)]
        if isinstance(step, Protect) and step.placeholder:
            words.append(step.placeholder)
        lines.append(" ".join(words))
    return lines


def test_every_ancestor_is_pinned_once_and_before_what_is_in_it(tree: Path) -> None:
    assert short(steps(tree, [*GIT, "src/deep/x.pem"]), tree) == [
        "Pin .git",
        "Protect .git/commondir file",
        "Protect .git/config",
        "Protect .git/hooks",
        "Pin src",
        "Pin src/deep",
        "Protect src/deep/x.pem",
    ]


def test_what_is_below_something_protected_needs_no_step(tree: Path) -> None:
    assert short(steps(tree, ["src", "src/deep", "src/deep/x.pem"]), tree) == ["Protect src"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (".claude", ["Protect .claude folder"]),
        ("a/b/c", ["Protect a folder"]),
        ("src/new/x", ["Pin src", "Protect src/new folder"]),
        (".git/commondir", ["Pin .git", "Protect .git/commondir file"]),
        ("README/x", ["Protect README"]),
        (".env*", ["Protect .env"]),
        (".none*", ["Protect .none folder"]),
        ("**/*.pem", ["Pin keys", "Protect keys/y.PEM", "Pin src", "Pin src/deep", "Protect src/deep/x.pem"]),
    ],
)
def test_overlay(tree: Path, pattern: str, expected: list[str]) -> None:
    assert short(steps(tree, [pattern]), tree) == expected


def test_the_placeholder_of_commondir_means_what_its_absence_means(tree: Path) -> None:
    found = [step for step in steps(tree, GIT) if isinstance(step, Protect) and step.placeholder]
    assert [(os.path.basename(step.target), step.text) for step in found] == [("commondir", ".\n")]


def test_a_symlink_is_replaced_and_never_followed(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tree / "link").symlink_to(outside)
    assert short(steps(tree, ["link", "link/x"]), tree) == ["Protect link folder"]
    assert short(steps(tree, ["link/x"]), tree) == ["Protect link folder"]


@pytest.mark.parametrize("target", ["loop", "/nowhere", "../..", "."])
def test_symlinks_are_not_walked(tree: Path, target: str) -> None:
    (tree / "loop").symlink_to(target)
    assert short(steps(tree, [], ["**/*.pem"]), tree) == ["Hide keys/y.PEM", "Hide src/deep/x.pem"]


def test_hide_says_whether_it_is_a_folder_and_passes_over_symlinks(tree: Path) -> None:
    (tree / "folder.pem").mkdir()
    (tree / "link.pem").symlink_to("README")
    found = [step for step in steps(tree, [], ["*.pem"]) if isinstance(step, Hide)]
    assert [(os.path.basename(step.target), step.folder) for step in found] == [("folder.pem", True)]


@pytest.mark.parametrize("overlay", [True, False])
def test_a_hidden_file_with_two_names_is_refused(tree: Path, overlay: bool) -> None:
    os.link(tree / "keys/y.PEM", tree / "alias")
    with pytest.raises(UsageError, match="has 2 names"):
        steps(tree, [], ["**/*.pem"], overlay=overlay)


def test_direct_protects_all_of_git_and_freezes_where_a_name_is_missing(tree: Path) -> None:
    found = short(steps(tree, [*GIT, ".env*", "src/.envrc"], overlay=False), tree)
    assert "Protect .git" in found
    assert "Protect .env" in found
    assert found.index("Protect .") < found.index("Unlock README")
    assert found.index("Protect src") < found.index("Unlock src/deep")
    assert "Unlock .env" not in found and "Unlock .git" not in found
    assert not any(isinstance(step, Protect) and step.placeholder for step in steps(tree, GIT, overlay=False))


def test_direct_refuses_to_unlock_a_thousand_entries(tree: Path) -> None:
    for number in range(1001):
        (tree / f"f{number}").touch()
    with pytest.raises(UsageError, match="too many for a direct worktree") as caught:
        steps(tree, [".missing"], overlay=False)
    assert "overlay" in caught.value.hint


def test_nothing_is_planned_outside_the_tree(tree: Path) -> None:
    for overlay in (True, False):
        for step in steps(tree, [*GIT, ".env*", "a/b", "src/x"], ["**/*.pem"], overlay=overlay):
            assert step.target == str(tree) or step.target.startswith(f"{tree}/")


def test_looking_changes_nothing(tree: Path) -> None:
    def picture() -> list[tuple[str, int, int]]:
        return [(str(p), p.lstat().st_mtime_ns, p.lstat().st_ctime_ns) for p in sorted(tree.rglob("*"))]

    before = picture()
    steps(tree, [*GIT, ".missing", "a/b/c"], ["**/*.pem"])
    assert picture() == before


@pytest.mark.parametrize(
    "folder", ["/", "/etc", "/usr", "/home", "/tmp", "/var/tmp", "/proc/self", "~", "/root"]
)
def test_folders_that_hold_more_than_a_project_are_refused(folder: str) -> None:
    if folder == "/root" and os.path.expanduser("~") != "/root":
        folder = "/var"
    with pytest.raises(UsageError, match="cannot be a worktree"):
        inspect(os.path.expanduser(folder))


def test_a_symlink_to_such_a_folder_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "innocent").symlink_to("/etc")
    with pytest.raises(UsageError, match="/etc cannot be a worktree"):
        inspect(str(tmp_path / "innocent"))


def test_a_file_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "missing"):
        with pytest.raises(UsageError, match=name):
            inspect(str(tmp_path / name))


def git(folder: Path, *words: str) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    subprocess.run(["git", *words], cwd=folder, env=environment, check=True, capture_output=True)


def test_kinds_of_git(tmp_path: Path) -> None:
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "-q")
    git(main, "commit", "-q", "--allow-empty", "-m", "one")
    git(main, "worktree", "add", "-q", str(tmp_path / "linked"))
    (main / "below").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "symlink").mkdir()
    (tmp_path / "symlink/.git").symlink_to(main / ".git")
    kinds = {path: inspect(str(path)) for path in (main, tmp_path / "linked", main / "below")}
    assert [tree.git for tree in kinds.values()] == ["folder", "file", "parent"]
    assert inspect(str(tmp_path / "symlink")).git == "symlink"
    assert kinds[tmp_path / "linked"].git_common == str(main / ".git")
    assert inspect(str(tmp_path / "bare")).git_common is None


@pytest.mark.parametrize(
    "text",
    ["gitdir: ../main/.git", "gitdir: /etc", "nonsense", "gitdir: ../main/.git/worktrees/x"],
)
def test_a_git_file_that_its_repository_does_not_know_shows_nothing(tmp_path: Path, text: str) -> None:
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "-q")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ".git").write_text(text)
    found = inspect(str(tree))
    assert (found.git, found.git_common) == ("file", None)
    assert not any(isinstance(step, Bind) for step in steps(tree, GIT))


@pytest.mark.parametrize(
    ("path", "by"),
    [
        (".git/anything", ".git"),
        (".GIT/hooks", ".git"),
        (".env.local", ".env*"),
        ("src/main.py", None),
        ("sub/.git/x", None),
    ],
)
def test_covered_paths(path: str, by: str | None) -> None:
    assert is_covered([".env*"], path) == by


def test_the_kinds_of_steps_a_plan_has(tree: Path) -> None:
    kinds = {type(step) for step in steps(tree, [*GIT, ".missing"], ["**/*.pem"], overlay=False)}
    assert kinds <= {Pin, Protect, Unlock, Hide}
    assert isinstance(inspect(str(tree)), Tree)
