"""Owns attempts on the worktree: protected and hidden paths, every kind of .git, the host's tree.
May touch worktrees of its own and what boxes leave in their upper folders.
Never lets git run on the host in a tree that a box has written to.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from boxlab import (
    OWNER,
    PYTHON,
    Lab,
    Mode,
    Outcome,
    Weaken,
    as_planned,
    edited_profile,
    fingerprint,
    git,
    give,
    make_repository,
    processes_of,
    unprotected,
    without_steps,
)
from witnesses import came, listen

from supervisor.errors import UsageError

INSIDE = (Path(__file__).parent / "inside_files.py").read_text()
MARK = b"OWNED"
Operation = tuple[str, ...]


def attempt(
    lab: Lab, tree: Path, operations: list[Operation], *, mode: Mode = "overlay", weaken: Weaken = as_planned
) -> tuple[list[str], Outcome]:
    command = [PYTHON, "-c", INSIDE, json.dumps(operations)]
    outcome = lab.run(tree, command, profile=edited_profile(mode=mode), weaken=weaken)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out), outcome


def layout(kind: str, scratch: Path) -> Path:
    """A worktree whose .git is a folder, a file, a symlink, absent, or in a parent folder."""
    tree = scratch / "tree"
    if kind == "folder":
        return make_repository(tree)
    if kind == "file":
        main = make_repository(scratch / "main")
        os.chown(scratch, OWNER, OWNER)
        git(main, "worktree", "add", "-q", str(tree), "-b", "linked")
        return tree
    if kind == "parent":
        above = make_repository(scratch / "above")
        tree = above / "tree"
    tree.mkdir()
    if kind == "symlink":
        repository = make_repository(scratch / "elsewhere")
        (tree / ".git").symlink_to(repository / ".git")
    (tree / "README").write_text("hello\n")
    give(tree)
    return tree


LAYOUTS = ("folder", "file", "symlink", "absent", "parent")

PREPARE: list[Operation] = [
    ("make", "mine"),
    ("make folder", "myfolder"),
    ("make", "myfolder/hooks/pre-commit"),
]
"""What the agent has ready to put in the place of something protected."""

ON_GIT: dict[Operation, dict[str, str]] = {
    ("create", ".git/hooks/pre-commit"): {"folder": "EROFS", "file": "ENOTDIR", "": "ENOENT"},
    ("mkdir", ".git/hooks/x"): {"folder": "EROFS", "file": "ENOTDIR", "": "ENOENT"},
    ("rename", "mine", ".git/hooks/pre-commit"): {"folder": "EXDEV", "file": "ENOTDIR", "": "ENOENT"},
    ("link", "mine", ".git/hooks/pre-commit"): {"folder": "EROFS", "file": "ENOTDIR", "": "ENOENT"},
    ("symlink", "/mine", ".git/hooks/pre-commit"): {"folder": "EROFS", "file": "ENOTDIR", "": "ENOENT"},
    ("rename", "myfolder", ".git/hooks"): {"folder": "EXDEV", "file": "ENOTDIR", "": "EXDEV"},
    ("exchange", "myfolder", ".git/hooks"): {"folder": "EXDEV", "file": "ENOTDIR", "": "EXDEV"},
    ("rename", ".git/hooks", "away"): {"folder": "EXDEV", "file": "ENOTDIR", "": "EXDEV"},
    ("rmdir", ".git/hooks"): {"folder": "EBUSY", "file": "ENOTDIR", "": "EROFS"},
    ("write", ".git/config"): {"folder": "EROFS", "file": "ENOTDIR", "": "ENOENT"},
    ("truncate", ".git/config"): {"folder": "EROFS", "file": "ENOTDIR", "": "ENOENT"},
    ("unlink", ".git/config"): {"folder": "EBUSY", "file": "ENOTDIR", "": "EROFS"},
    ("rename", "mine", ".git/config"): {"folder": "EXDEV", "file": "ENOTDIR", "": "EXDEV"},
    ("exchange", "mine", ".git/config"): {"folder": "EXDEV", "file": "ENOTDIR", "": "EXDEV"},
    ("whiteout", ".git/config", "away"): {"folder": "EXDEV", "file": "ENOTDIR", "": "EXDEV"},
    ("link", ".git/config", "alias"): {"folder": "EXDEV", "file": "ENOTDIR", "": "ENOENT"},
    ("chmod", ".git/config"): {"folder": "EROFS", "file": "ENOTDIR", "": "ENOENT"},
    ("chown", ".git/config"): {"folder": "EROFS", "file": "ENOTDIR", "": "ENOENT"},
    ("utime", ".git/config"): {"folder": "EROFS", "file": "ENOTDIR", "": "ENOENT"},
    ("xattr", ".git/config"): {"folder": "EROFS", "file": "ENOTDIR", "": "ENOENT"},
    ("create", ".git/commondir"): {"folder": "EEXIST", "file": "ENOTDIR", "": "EROFS"},
    ("write", ".git/commondir"): {"folder": "EACCES", "file": "ENOTDIR", "": "ENOENT"},
    ("symlink", "/mine", ".git/commondir"): {"folder": "EEXIST", "file": "ENOTDIR", "": "EROFS"},
    ("rename", "mine", ".git/commondir"): {"folder": "EXDEV", "file": "ENOTDIR", "": "EXDEV"},
    ("create", ".git/config.worktree"): {"folder": "EEXIST", "file": "ENOTDIR", "": "EROFS"},
    ("rename", ".git/COMMIT_EDITMSG", ".git/config"): {"folder": "EBUSY", "file": "ENOTDIR", "": "EROFS"},
    ("exchange", ".git/refs", ".git/hooks"): {"folder": "EBUSY", "file": "ENOTDIR", "": "EROFS"},
    ("rename", ".git/hooks", ".git/hooks2"): {"folder": "EBUSY", "file": "ENOTDIR", "": "EROFS"},
    ("unlink", ".git/commondir"): {"folder": "EBUSY", "file": "ENOTDIR", "": "EROFS"},
    ("write", ".git"): {"folder": "EISDIR", "file": "EROFS", "": "EISDIR"},
    ("rename", ".git", ".git_away"): {"": "EBUSY"},
    ("rename", "myfolder", ".git"): {"folder": "ENOTEMPTY|EBUSY", "file": "ENOTDIR|EBUSY", "": "EBUSY"},
    ("exchange", "myfolder", ".git"): {"": "EBUSY"},
    ("unlink", ".git"): {"file": "EBUSY", "": "EISDIR|EBUSY"},
    ("rmdir", ".git"): {"file": "ENOTDIR", "": "EBUSY"},
}
"""What each attempt answers by the kind of .git; "" stands for the kinds that are not named."""


@pytest.mark.parametrize("kind", LAYOUTS)
def test_git_cannot_be_made_to_run_something(lab: Lab, scratch: Path, kind: str) -> None:
    tree = layout(kind, scratch)
    before = fingerprint(scratch)
    answers, outcome = attempt(lab, tree, [*PREPARE, *ON_GIT])
    found = dict(zip(ON_GIT, answers[len(PREPARE) :], strict=True))
    wrong = {
        operation: (answer, ON_GIT[operation].get(kind, ON_GIT[operation].get("")))
        for operation, answer in found.items()
        if answer not in ON_GIT[operation].get(kind, ON_GIT[operation].get("", "")).split("|")
    }
    assert wrong == {}
    assert outcome.wrong == []
    assert fingerprint(scratch) == before
    assert outcome.upper is not None
    assert planted(outcome.upper) == []


def planted(upper: Path) -> list[str]:
    """Files with the agent's text in them that git or a user would take for protected ones."""
    return [
        str(path.relative_to(upper))
        for path in upper.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and str(path.relative_to(upper)).startswith((".git", ".env"))
        and MARK in path.read_bytes()
    ]


@pytest.mark.parametrize("kind", LAYOUTS)
def test_without_pins_and_protection_git_can_be_made_to_run_something(
    lab: Lab, scratch: Path, kind: str
) -> None:
    tree = layout(kind, scratch)
    plant: list[Operation] = [] if kind == "folder" else [("rename", "myfolder", ".git")]
    if kind in ("file", "symlink"):
        plant.insert(0, ("unlink", ".git"))
    plant.append(("make", ".git/hooks/pre-commit"))
    answers, outcome = attempt(lab, tree, [*PREPARE, *plant], weaken=unprotected)
    assert set(answers) == {"ok"}
    assert outcome.upper is not None
    assert planted(outcome.upper) == [".git/hooks/pre-commit"]


def test_without_pins_an_ancestor_can_be_renamed_away(lab: Lab, worktree: Path) -> None:
    swap: list[Operation] = [("rename", ".git", "away"), ("make", ".git/hooks/pre-commit")]
    assert attempt(lab, worktree, swap)[0] == ["EBUSY", "EROFS"]
    assert attempt(lab, worktree, swap, weaken=without_steps("Pin"))[0] == ["ok", "ok"]


ON_ENV: list[tuple[Operation, str]] = [
    (("write", ".env"), "EROFS"),
    (("unlink", ".env"), "EBUSY"),
    (("rename", "mine", ".env"), "EBUSY"),
    (("exchange", "mine", ".env"), "EBUSY"),
    (("rename", ".env", "away"), "EBUSY"),
    (("link", ".env", "alias"), "EXDEV"),
    (("chmod", ".env"), "EROFS"),
    (("write", ".env.production"), "EROFS"),
    (("create", ".claude/settings.json"), "EROFS"),
    (("rename", "myfolder", ".claude"), "EBUSY"),
    (("rename", "myfolder", ".vscode"), "EBUSY"),
    (("rename", "mine", ".mcp.json"), "EISDIR|EBUSY"),
    (("read", ".env"), "TOKEN=in-the-tree\n"),
]


def test_protected_files_and_missing_ones(lab: Lab, worktree: Path) -> None:
    (worktree / ".env.production").write_text("X=1\n")
    give(worktree)
    operations = [operation for operation, _ in ON_ENV]
    answers, outcome = attempt(lab, worktree, [*PREPARE, *operations])
    for (operation, expected), answer in zip(ON_ENV, answers[len(PREPARE) :], strict=True):
        assert answer in expected.split("|"), operation
    assert outcome.upper is not None
    assert planted(outcome.upper) == []
    freed, _ = attempt(lab, worktree, [*PREPARE, ("write", ".env"), ("unlink", ".env")], weaken=unprotected)
    assert set(freed) == {"ok"}


ON_HIDDEN: list[tuple[Operation, str]] = [
    (("read", "keys/server.pem"), "EACCES"),
    (("write", "keys/server.pem"), "EACCES"),
    (("unlink", "keys/server.pem"), "EBUSY"),
    (("rename", "keys/server.pem", "x"), "EBUSY"),
    (("rename", "mine", "keys/server.pem"), "EBUSY"),
    (("exchange", "mine", "keys/server.pem"), "EBUSY"),
    (("link", "keys/server.pem", "alias"), "EXDEV"),
    (("chmod", "keys/server.pem"), "EROFS"),
    (("read", "/proc/self/cwd/keys/server.pem"), "EACCES"),
    (("symlink", "keys/server.pem", "shortcut"), "ok"),
    (("read", "shortcut"), "EACCES"),
    (("list", "secret.pem"), "EACCES"),
    (("create", "secret.pem/x"), "EACCES"),
    (("rename", "keys", "moved"), "ok"),
    (("read", "moved/server.pem"), "EACCES"),
    (("make", "keys/other"), "ok"),
    (("read", "keys/server.pem"), "ENOENT"),
    (("exchange", "keys", "moved"), "ok"),
    (("read", "keys/server.pem"), "EACCES"),
]


def test_hidden_files_cannot_be_read_by_any_name(lab: Lab, worktree: Path) -> None:
    (worktree / "secret.pem").mkdir()
    (worktree / "secret.pem/inner").write_text("PRIVATE\n")
    give(worktree)
    answers, _ = attempt(lab, worktree, [*PREPARE, *(operation for operation, _ in ON_HIDDEN)])
    found = answers[len(PREPARE) :]
    assert found == [expected for _, expected in ON_HIDDEN]
    freed, _ = attempt(
        lab, worktree, [("read", "keys/server.pem"), ("list", "secret.pem")], weaken=unprotected
    )
    assert freed == ["PRIVATE\n", "inner"]


@pytest.mark.parametrize(
    ("mode", "name", "message"),
    [
        ("overlay", "keys/server.pem", "hidden file .* has 2 names"),
        ("direct", "keys/server.pem", "hidden file .* has 2 names"),
        ("direct", ".env", "protected file .* has 2 names"),
    ],
)
def test_a_second_name_is_refused(lab: Lab, worktree: Path, mode: Mode, name: str, message: str) -> None:
    os.link(worktree / name, worktree / "alias")
    with pytest.raises(UsageError, match=message):
        attempt(lab, worktree, [("read", "alias")], mode=mode)


def test_a_second_name_of_a_protected_file_in_an_overlay_leaves_the_host_alone(
    lab: Lab, worktree: Path
) -> None:
    os.link(worktree / ".env", worktree / "alias")
    before = fingerprint(worktree)
    answers, _ = attempt(lab, worktree, [("write", "alias"), ("read", ".env")])
    assert answers == ["ok", "TOKEN=in-the-tree\n"]
    assert fingerprint(worktree) == before


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "gone", ".env", "README"])
@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_a_symlink_in_a_protected_place(
    lab: Lab, worktree: Path, scratch: Path, target: str, mode: Mode
) -> None:
    """The mount must not land on what the link points to, and the link must not be replaced."""
    (scratch / "outside").write_text("outside\n")
    name = ".env" if target != ".env" else ".envrc"
    (worktree / name).unlink(missing_ok=True)
    (worktree / name).symlink_to(target)
    give(worktree)
    before = fingerprint(scratch)
    operations: list[Operation] = [("make", "src/mine"), ("unlink", name), ("rename", "src/mine", name)]
    answers, _ = attempt(lab, worktree, operations, mode=mode)
    assert answers[0] == "ok"
    assert set(answers[1:]) <= {"EBUSY", "EROFS", "EISDIR", "EXDEV", "ENOTDIR"}
    if mode == "direct":
        (worktree / "src/mine").unlink()
    after = fingerprint(scratch)
    if mode == "direct":
        before.pop("tree/src"), after.pop("tree/src")  # its times changed with what was made in it
    assert after == before


DESTRUCTION = """
import os, shutil, subprocess, time
open("README", "r+").truncate(1)
with open("README", "a") as f: f.write("more")
os.chmod("src/main.py", 0o777)
os.utime("src/main.py", (1, 1))
os.setxattr("src/main.py", "user.x", b"y")
os.rename("src", "src2"); os.mkdir("src"); open("src/main.py", "w").write("new")
os.link("README", "README2"); os.unlink("README"); os.symlink("/etc/passwd", "README")
import mmap
fd = os.open("src2/main.py", os.O_RDWR); m = mmap.mmap(fd, 0); m[0:1] = b"P"; m.flush(); m.close()
os.close(fd)
shutil.copy("src2/main.py", "keys/copy"); os.mkfifo("fifo"); os.mkdir("deep")
for n in range(50): os.mkdir("deep/" + "d" * 100 + str(n))
open("name\\nwith\\x1bescape", "w").write("x")
subprocess.run("git config --global user.email a@b; git config --global user.name a; git add -A; "
    "git commit -qm box; git checkout -qb other; git gc -q", shell=True, check=False)
shutil.rmtree("deep"); shutil.rmtree("src2")
fd = os.open("sparse", os.O_CREAT | os.O_RDWR); os.ftruncate(fd, 1 << 30); os.close(fd)
print(sorted(os.listdir(".")))
"""


def test_an_overlay_leaves_the_host_tree_byte_for_byte_unchanged(lab: Lab, worktree: Path) -> None:
    before = fingerprint(worktree)
    outcome = lab.run(worktree, [PYTHON, "-c", DESTRUCTION])
    assert outcome.code == 0, outcome.err
    assert "sparse" in outcome.out
    assert fingerprint(worktree) == before
    assert outcome.upper is not None
    owners = {entry.lstat().st_uid for entry in [outcome.upper, *outcome.upper.rglob("*")]}
    assert owners <= {outcome.uid, 0}, "placeholders are the launcher's, all else is the run's"


def test_control_the_same_destruction_shows_in_a_direct_worktree(lab: Lab, worktree: Path) -> None:
    before = fingerprint(worktree)
    lab.run(worktree, [PYTHON, "-c", DESTRUCTION], profile=edited_profile(mode="direct"))
    assert fingerprint(worktree) != before


def test_direct_writes_belong_to_the_owner_of_the_worktree(lab: Lab, worktree: Path) -> None:
    operations: list[Operation] = [
        ("create", "src/new.py"),
        ("mkdir", "src/folder"),
        ("symlink", "new.py", "src/new"),
        ("write", "README"),
        ("write", "src/main.py"),
    ]
    answers, outcome = attempt(lab, worktree, operations, mode="direct")
    assert answers == ["ok"] * len(operations)
    for entry in [worktree, *worktree.rglob("*")]:
        assert (entry.lstat().st_uid, entry.lstat().st_gid) == (OWNER, OWNER), entry
    assert (worktree / "src/new.py").read_bytes() == MARK
    assert processes_of(outcome.uid) == []


@pytest.mark.parametrize("owner", [1001, 65534, 0])
@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_any_owner_of_a_worktree_will_do(lab: Lab, worktree: Path, owner: int, mode: Mode) -> None:
    give(worktree, owner)
    answers, outcome = attempt(lab, worktree, [("make", "src/new.py"), ("write", "README")], mode=mode)
    assert answers == ["ok", "ok"]
    there = outcome.upper if mode == "overlay" else worktree
    assert there is not None
    assert (there / "src/new.py").lstat().st_uid == (outcome.uid if mode == "overlay" else owner)


ON_DIRECT: list[tuple[Operation, str]] = [
    (("create", "new-at-the-top"), "EROFS"),
    (("mkdir", ".claude"), "EROFS"),
    (("create", ".env.local"), "EROFS"),
    (("symlink", "/etc/passwd", ".envrc"), "EROFS"),
    (("rename", "src/mine", ".envrc"), "EXDEV"),
    (("rename", "README", ".envrc"), "EROFS"),
    (("unlink", "README"), "EROFS"),
    (("rename", "src", "away"), "EROFS"),
    (("write", ".env"), "EROFS"),
    (("rename", "src/mine", ".env"), "EXDEV|EBUSY"),
    (("unlink", ".env"), "EBUSY|EROFS"),
    (("create", ".git/hooks/x"), "EROFS"),
    (("create", ".git/x"), "EROFS"),
    (("write", ".git/config"), "EROFS"),
    (("rename", ".git", "away"), "EROFS"),
    (("write", "README"), "ok"),
    (("create", "src/new.py"), "ok"),
    (("rename", "src/new.py", "src/newer.py"), "ok"),
    (("unlink", "src/newer.py"), "ok"),
]


def test_direct_refuses_new_names_where_a_protected_one_is_missing(lab: Lab, worktree: Path) -> None:
    before = fingerprint(worktree / ".git")
    answers, _ = attempt(
        lab, worktree, [("make", "src/mine"), *(operation for operation, _ in ON_DIRECT)], mode="direct"
    )
    for (operation, expected), answer in zip(ON_DIRECT, answers[1:], strict=True):
        assert answer in expected.split("|"), (operation, answer)
    assert sorted(os.listdir(worktree)) == [".env", ".git", "README", "keys", "src"]
    assert fingerprint(worktree / ".git") == before
    freed, _ = attempt(
        lab,
        worktree,
        [("create", ".envrc"), ("create", ".git/hooks/x")],
        mode="direct",
        weaken=unprotected,
    )
    assert freed == ["ok", "ok"]


def test_a_socket_of_the_host_in_an_overlay_cannot_be_reached(lab: Lab, worktree: Path) -> None:
    path = worktree / "host.sock"
    with listen(socket.AF_UNIX, socket.SOCK_STREAM, str(path)) as witness:
        path.chmod(0o777)
        give(worktree)
        code = "import socket; socket.socket(socket.AF_UNIX).connect('host.sock')"
        outcome = lab.run(worktree, [PYTHON, "-c", code])
        assert "ConnectionRefusedError" in outcome.err
        assert not came(witness)
        shown = edited_profile(mode="direct")
        lab.run(worktree, [PYTHON, "-c", code], profile=shown, weaken=without_steps("Hide"))
        assert came(witness), "the control: the same socket, no overlay before it and not hidden"


def test_only_the_worktree_of_a_repository_is_shown(lab: Lab, scratch: Path) -> None:
    tree = layout("parent", scratch)
    operations: list[Operation] = [
        ("list", ".."),
        ("read", "../.env"),
        ("list", "../../"),
        ("read", "README"),
    ]
    answers, _ = attempt(lab, tree, operations)
    assert answers == ["tree", "ENOENT", "above", "hello\n"]


def test_a_linked_worktree_can_read_its_repository_and_write_nothing_of_it(lab: Lab, scratch: Path) -> None:
    tree = layout("file", scratch)
    before = fingerprint(scratch / "main")
    outcome = lab.run(
        tree, ["sh", "-c", "git status --short && git log --oneline && touch ../main/.git/hooks/x"]
    )
    assert "first" in outcome.out
    assert "Read-only file system" in outcome.err
    assert fingerprint(scratch / "main") == before
