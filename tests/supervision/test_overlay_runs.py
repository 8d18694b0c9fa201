"""Owns that apply carries over what the agent made, and nothing that could act on the host.
May touch worktrees of the stands, from inside boxes and from the host.
Never asks the code under test what a tree looks like.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stand import OWNER, PYTHON, Stand, stand

from supervisor.runs.reasons import StopReason
from supervisor.workspace.apply import apply, discard, vetted_changes

pytest_plugins = ["stand_fixtures"]

SEE = """
import hashlib, json, os, stat
def see(root):
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if name.endswith(".pem"): continue
            if stat.S_ISLNK(mode): said = "link " + os.readlink(path)
            elif stat.S_ISDIR(mode): said = "folder"
            elif stat.S_ISREG(mode):
                said = "file %o " % (mode & 0o111) + hashlib.sha256(open(path, "rb").read()).hexdigest()
            else: said = "special"
            found[os.path.relpath(path, root)] = said
    return found
"""


def see(root: Path) -> dict[str, str]:
    """The same from the host: name to kind, executable bits and content."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if name.endswith(".pem"):
                continue  # hidden from the agent, so never the same
            said = "folder" if stat.S_ISDIR(mode) else "special"
            if stat.S_ISLNK(mode):
                said = f"link {os.readlink(path)}"
            elif stat.S_ISREG(mode):
                said = f"file {mode & 0o111:o} {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
            found[os.path.relpath(path, root)] = said
    return found


def fill(tree: Path) -> None:
    """A tree with a bit of everything, all of it the owner's."""
    for name, text in {
        "README": "hello\n",
        "run.sh": "#!/bin/sh\n",
        "d/one": "1\n",
        "d/two": "2\n",
        "d/e/three": "3\n",
        "d/e/f/four": "4\n",
        "g/five": "5\n",
        ".git/config": "[core]\n",
        ".git/hooks/x": "",
        ".env": "TOKEN=x\n",
        "sub/.git/config": "[core]\n",
        "keys/a.pem": "KEY\n",
        **{f"fixture/{name}": "x" for name in ("HEAD", "config", "objects/x", "refs/x")},
        **{f"half/{name}": "x" for name in ("HEAD", "config", "objects/x")},
    }.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("d/one")
    old = 1_700_000_000
    for folder, folders, files in os.walk(tree):
        for name in [*folders, *files]:
            os.chown(os.path.join(folder, name), OWNER, OWNER, follow_symlinks=False)
            os.utime(os.path.join(folder, name), (old, old), follow_symlinks=False)


def run(there: Stand, code: str) -> str:
    made = there.run_to_end("import os, shutil, stat\n" + code)
    assert made.reason is StopReason.DONE, there.lines(made.ticket)
    return made.ticket


def applied(there: Stand, ticket: str) -> Any:
    done = there.ctl("apply", ticket, "--json")
    assert done.code == (1 if done.json["conflicts"] else 0), done
    return done.json


@pytest.fixture
def full(daemon: Stand) -> Stand:
    """The module's daemon with its tree made anew."""
    subprocess.run(["find", str(daemon.tree), "-mindepth", "1", "-delete"], check=True)
    fill(daemon.tree)
    return daemon


CHANGES = {
    "nothing": "",
    "new file": "open('new', 'w').write('n')",
    "new folders": "os.makedirs('x/y/z'); open('x/y/z/file', 'w').write('z'); os.makedirs('empty/one')",
    "changed": "open('README', 'a').write('more')",
    "emptied": "open('README', 'w').close()",
    "executable": "os.chmod('README', 0o755)",
    "no longer executable": "os.chmod('run.sh', 0o644)",
    "opened but not changed": "open('README', 'r+').close()",
    "deleted file": "os.unlink('README')",
    "deleted folder": "shutil.rmtree('d')",
    "deleted and made anew (opaque)": "shutil.rmtree('d'); os.mkdir('d'); open('d/one', 'w').write('other')",
    "made anew alike": "shutil.rmtree('d/e'); os.makedirs('d/e/f'); open('d/e/three', 'w').write('3\\n')",
    "file to folder": "os.unlink('README'); os.mkdir('README'); open('README/in', 'w').write('x')",
    "folder to file": "shutil.rmtree('d'); open('d', 'w').write('x')",
    "file to link": "os.unlink('README'); os.symlink('d/two', 'README')",
    "link to file": "os.unlink('link'); open('link', 'w').write('x')",
    "link to folder": "os.unlink('link'); os.makedirs('link/in')",
    "link changed": "os.unlink('link'); os.symlink('d/two', 'link')",
    "folder to link": "shutil.rmtree('g'); os.symlink('d', 'g')",
    "file renamed": "os.rename('README', 'READYOU')",
    "folder renamed": "os.rename('d', 'moved')",
    "renamed, changed": "os.rename('d', 'm'); open('m/one', 'a').write('x'); os.unlink('m/e/three')",
    "folder renamed twice": "os.rename('d', 'm'); os.rename('m', 'n'); open('n/new', 'w').write('x')",
    "folder moved into another": "os.rename('d', 'g/inside')",
    "inner folder moved out": "os.rename('d/e', 'e')",
    "inner and outer renamed": "os.rename('d/e', 'd/x'); os.rename('d', 'y')",
    "folders swapped": "os.rename('d', 't'); os.rename('g', 'd'); os.rename('t', 'g')",
    "folder renamed over an empty one": "os.unlink('g/five'); os.rename('d', 'g')",
    "renamed, old name used": "os.rename('d', 'm'); os.mkdir('d'); open('d/one', 'w').write('n')",
    "renamed there and back": "os.rename('d', 'm'); os.rename('m', 'd'); open('d/two', 'a').write('x')",
    "hard link": "os.link('README', 'second'); open('second', 'a').write('x')",
    "names": "[open(n, 'w').write('x') for n in ('with space\\n\\t', b'\\xff\\xfe', '-rf', '*')]",
    "large": "open('large', 'wb').write(os.urandom(5 << 20))",
}


EVERY_CHANGE = """
import sys
home = os.getcwd()
for name, code in json.loads(sys.argv[2]).items():
    os.chdir(f"{home}/{name}")
    exec(code)
os.chdir(home)
print(json.dumps(see(".")))
"""


def in_one_box(there: Stand, code: str, argument: object, ticket: str) -> Any:
    """Run a program with one argument to its end; what it printed, as JSON."""
    words = ("run", "--ticket", ticket, "--profile", there.profile(), "--json", "--", PYTHON, "-c")
    prelude = f"import json, os, shutil\n{SEE}"
    done = there.ctl(*words, prelude + code, there.marker, json.dumps(argument))
    assert done.code == 0, (done, there.lines(ticket))
    (line,) = there.lines(ticket)
    return json.loads(line)


def fill_each(there: Stand, names: list[str]) -> None:
    """A tree for each name, without what is only protected at the top."""
    for name in names:
        fill(there.tree / name)
        for gone in (".git", "sub", "keys", ".env"):
            subprocess.run(["rm", "-r", f"{there.tree}/{name}/{gone}"], check=True)
        os.chown(there.tree / name, OWNER, OWNER)


def beneath(found: dict[str, str], name: str) -> dict[str, str]:
    return {path: said for path, said in found.items() if path.startswith(f"{name}/")}


def test_the_host_tree_becomes_what_the_agent_saw(full: Stand) -> None:
    """Each kind of change in a tree of its own, all in one box."""
    fill_each(full, list(CHANGES))
    before = see(full.tree)
    seen = in_one_box(full, EVERY_CHANGE, CHANGES, "T-every")
    assert see(full.tree) == before, "an overlay leaves the host alone until apply"
    assert full.ctl("diff", "T-every").code == 0
    assert applied(full, "T-every")["refused"] == []
    after = see(full.tree)
    wrong = {name for name in CHANGES if beneath(seen, name) != beneath(after, name)}
    assert wrong == set()
    assert {k: v for k, v in after.items() if "/" not in k} == {
        k: v for k, v in before.items() if "/" not in k
    }
    for top in (".git", ".env", "d", "keys"):
        assert beneath(after, top) == beneath(before, top), "placeholders are not carried over"
    for path in full.tree.rglob("*"):
        found = path.lstat()
        assert (found.st_uid, found.st_gid) == (OWNER, OWNER), path
        assert not found.st_mode & 0o7000 or path.is_symlink(), path
    again = full.ctl("apply", "T-every")
    assert again.code == 2 and "applied already" in again.err


REFUSED = {
    "absolute": "os.symlink('/etc/passwd', 'absolute')",
    "up": "os.symlink('../outside', 'up')",
    "d/e/deep": "os.symlink('../../../outside', 'd/e/deep')",
    "d/e/chain": "os.symlink('../..', 'd/e/root'); os.symlink('root/../outside', 'd/e/chain')",
    "to-git": "os.symlink('.git/hooks', 'to-git')",
    "to-GIT": "os.symlink('.GIT/hooks', 'to-GIT')",
    "fifo": "os.mkfifo('fifo')",
    "socket": "import socket; socket.socket(socket.AF_UNIX).bind('socket')",
    "new/.git": "os.makedirs('new/.git/hooks'); open('new/.git/config', 'w').write('x')",
    "new/.git/hooks": "",
    "new/.git/config": "",
    "sub/.git/config": "open('sub/.git/config', 'a').write('fsmonitor = evil')",
    "other/.GIT": "os.makedirs('other/.GIT')",
    "n/.git": "os.mkdir('n'); open('n/.git', 'w').write('gitdir: /x')",
    "\\xff\\xfe": "os.mkfifo(b'\\xff\\xfe')",
    "bare/HEAD": "os.makedirs('bare/refs'); os.mkdir('bare/objects'); open('bare/HEAD', 'w').write('ref: x')",
    "bare/objects": "",
    "bare/refs": "open('bare/config', 'w').write('[core]\\nfsmonitor = evil')",
    "linked/HEAD": "os.mkdir('linked'); os.symlink('refs/heads/x', 'linked/HEAD')",
    "linked/commondir": "open('linked/commondir', 'w').write('../bare')",
    "fixture/config": "open('fixture/config', 'a').write('fsmonitor = evil')",
    "fixture/hooks": "os.mkdir('fixture/hooks')",
    "half/refs": "os.mkdir('half/refs')",
}


def test_what_could_act_on_the_host_is_refused(full: Stand) -> None:
    ticket = run(full, "\n".join([*REFUSED.values(), "open('good', 'w').write('control')"]))
    before = see(full.tree)
    assert full.ctl("diff", ticket).code == 0
    assert full.ctl("diff", ticket, "--json").code == 0
    said = applied(full, ticket)
    assert {refusal["path"] for refusal in said["refused"]} == set(REFUSED)
    after = see(full.tree)
    for path in REFUSED:
        assert after.get(path) == before.get(path), path
    assert (full.tree / "good").read_text() == "control"
    shown = full.events(ticket)[-1]
    assert shown["kind"] == "worktree_applied"
    assert {refusal["path"] for refusal in shown["detail"]["refused"]} == set(REFUSED)


def test_what_is_refused_is_kept_and_shown_until_it_is_discarded(full: Stand) -> None:
    """Two runs on one tree: of the second only what the first, or the host, changed too is left over."""
    first = run(full, "open('README', 'w').write('of the first')")
    second = run(full, "open('README', 'w').write('of the second'); os.rename('d', 'm'); os.mkfifo('pipe')")
    assert applied(full, first)["conflicts"] == 0
    said = full.ctl("apply", second)
    assert said.code == 1 and "changed on the host" in said.out and "discard" in said.out
    assert (full.tree / "m/one").read_text() == "1\n" and not (full.tree / "d").exists()
    after = see(full.tree)

    shown = full.ctl("diff", second)
    assert shown.code == 0 and "of the second" in shown.out and "of the first" in shown.out
    assert "supervisorctl apply" not in shown.out, "nothing is left that could be applied"
    left = full.ctl("diff", second, "--json").json
    assert {refusal["path"] for refusal in left["refused"]} == {"README", "pipe"} and left["changes"] == []
    again = full.ctl("apply", second, "--json")
    assert again.code == 1 and again.json["written"] == 0
    assert see(full.tree) == after, "what was moved is not taken for a folder that was emptied"

    upper = Path(full.ended(second).overlay) / "upper"
    assert (upper / "README").read_text() == "of the second"
    assert full.ctl("discard", second).code == 0 and not upper.exists()
    assert full.ctl("diff", second).code == 2


def test_set_uid_bits_do_not_arrive(full: Stand) -> None:
    """The box lets no agent set them; a file of the upper folder with them is made from outside."""
    ticket = run(full, "open('s', 'w').write('x'); os.mkdir('sd')")
    upper = Path(full.ended(ticket).overlay) / "upper"
    (upper / "s").chmod(0o6755)
    (upper / "sd").chmod(0o3755)
    applied(full, ticket)
    assert (full.tree / "s").stat().st_mode & 0o7777 == 0o755
    assert (full.tree / "sd").stat().st_mode & 0o7000 == 0


def test_marks_that_only_overlayfs_may_write_are_not_believed(full: Stand) -> None:
    """An agent can write user.* attributes; read as overlayfs's own they would delete hidden files."""
    code = """
for name, value in (("opaque", b"y"), ("redirect", b"/.git")):
    os.mkdir(name)
    for folder in ("keys", name):
        try: os.setxattr(folder, "user.overlay." + name, value)
        except OSError as error: print(error)
"""
    applied(full, run(full, code))
    assert (full.tree / "keys/a.pem").read_text() == "KEY\n"
    assert not (full.tree / "redirect/config").exists()


def test_what_the_host_changed_meanwhile_is_kept(full: Stand) -> None:
    code = """
open('README', 'a').write('agent'); os.unlink('run.sh'); shutil.rmtree('d')
os.unlink('g/five'); os.mkdir('g/five'); open('g/five/in', 'w').write('x'); open('clash', 'w').write('agent')
"""
    ticket = run(full, code)
    (full.tree / "README").write_text("host\n")
    (full.tree / "run.sh").write_text("host\n")
    (full.tree / "d/e/new-on-host").write_text("host\n")
    (full.tree / "g/five").write_text("host\n")
    (full.tree / "clash").write_text("host\n")
    said = applied(full, ticket)
    for name in ("README", "run.sh", "d/e/new-on-host", "g/five", "clash"):
        assert (full.tree / name).read_text() == "host\n", name
    refused = {refusal["path"] for refusal in said["refused"]}
    assert {"README", "run.sh", "d", "g/five", "g/five/in", "clash"} <= refused


def test_a_sparse_file_stays_sparse(full: Stand) -> None:
    code = "f = open('sparse', 'wb'); f.seek(3 << 30); f.write(b'end'); f.close()"
    applied(full, run(full, code))
    found = (full.tree / "sparse").stat()
    assert found.st_size == (3 << 30) + 3
    assert found.st_blocks * 512 < 1 << 20


def test_a_link_swapped_in_after_vetting_is_not_followed(full: Stand) -> None:
    ticket = run(full, "open('d/one', 'w').write('agent'); open('d/e/new', 'w').write('agent')")
    row = full.ended(ticket)
    outside = full.folder / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "one").write_text("outside\n")
    trees, vetted = vetted_changes(row.overlay, row.worktree, [], 1 << 62)
    try:
        (full.tree / "d").rename(full.tree / "was-d")
        (full.tree / "d").symlink_to(outside)
        with pytest.raises(Exception, match="cannot be written") as caught:
            apply(trees, vetted.accepted, OWNER, OWNER)
        assert caught.type.__name__ == "StateError"
    finally:
        trees.close()
    assert see(outside) == {"one": see(outside)["one"]} and (outside / "one").read_text() == "outside\n"


def test_discard(full: Stand) -> None:
    deep = "for _ in range(3000):\n os.mkdir('x'); os.chdir('x')"
    ticket = run(full, f"open('new', 'w').write('x'); os.chmod('d', 0)\n{deep}")
    before = see(full.tree)
    assert full.ctl("discard", ticket).code == 0
    assert see(full.tree) == before
    overlay = full.ended(ticket).overlay
    assert not os.path.exists(f"{overlay}/upper") and not os.path.exists(f"{overlay}/work")
    for command in ("discard", "apply", "diff"):
        done = full.ctl(command, ticket)
        assert done.code == 2 and "discarded already" in done.err
    discard(overlay)


@pytest.mark.parametrize("command", ["diff", "apply", "discard"])
def test_refused_before_its_time(full: Stand, command: str) -> None:
    unknown = full.ctl(command, "T-unknown")
    assert unknown.code in (2, 3) and unknown.clear_error()
    ticket = full.start("print('UP', flush=True); import time; time.sleep(600)")
    early = full.ctl(command, ticket)
    assert early.code == 2 and early.clear_error() and "still running" in early.err
    assert full.ctl("kill", ticket).code == 0


# ---------------------------------------------------------------- at random

NAMES = ("a", "b", "d", "e", "README", "g")
places = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
operations = st.lists(
    st.tuples(
        st.sampled_from(["write", "mkdir", "remove", "rename", "link", "chmod", "hardlink"]), places, places
    ),
    max_size=12,
)

ACT = """
import sys
def attempt(how, one, two):
    if how == "write":
        os.makedirs(os.path.dirname(one) or ".", exist_ok=True); open(one, "a").write(two)
    elif how == "mkdir": os.makedirs(one)
    elif how == "remove" and os.path.isdir(one) and not os.path.islink(one): shutil.rmtree(one)
    elif how == "remove": os.unlink(one)
    elif how == "rename": os.rename(one, two)
    elif how == "link": os.symlink(two.split("/")[-1], one)
    elif how == "chmod" and os.path.isfile(one) and not os.path.islink(one): os.chmod(one, 0o755)
    elif how == "hardlink": os.link(one, two, follow_symlinks=False)
home = os.getcwd()
for number, operations in enumerate(json.loads(sys.argv[2])):
    os.chdir(f"{home}/{number}")
    for operation in operations:
        try: attempt(*operation)
        except OSError: pass
    os.chdir(home)
print(json.dumps(see(".")))
"""


def test_random_changes_arrive_as_the_agent_saw_them() -> None:
    """Batches of random changes to many trees at once: one box has room for all of them."""

    @settings(max_examples=5, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(operations, min_size=20, max_size=20))
    def attempt(batch: list[list[tuple[str, str, str]]]) -> None:
        with stand() as there:
            fill_each(there, [str(number) for number in range(len(batch))])
            seen = in_one_box(there, ACT, batch, "T")
            said = applied(there, "T")
            after = see(there.tree)
            assert said["refused"] == []
            wanted = {k: v for k, v in seen.items() if not k.startswith((".git", ".env"))}
            wrong = [n for n in range(len(batch)) if beneath(wanted, str(n)) != beneath(after, str(n))]
            assert [batch[number] for number in wrong] == []

    attempt()
