"""Owns the published ways out of other agents' boxes, each played to its end: agent, apply, operator.
May touch stands, a folder beside each worktree, and a loopback port.
Never counts an attack that does not work without the box: each is played there first.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from boxlab import git
from models import CALLER, gateway_profile, with_model
from stand import OWNER, PYTHON, Stand, stand
from witnesses import came, listen

from supervisor.runs.reasons import StopReason

PRELUDE = """
import contextlib, os, shutil, subprocess, sys
here = os.getcwd()
beside = os.path.join(os.path.dirname(here), "beside")
canary = os.path.join(beside, "canary")
touch = "#!/bin/sh\\ntouch " + canary + "\\n"
def write(path, text, mode=0o755):
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w") as file: file.write(text)
        os.chmod(path, mode)
def read(path):
    try:
        with open(path) as file: return file.read()
    except OSError: return ""
"""

OBEY_SETTINGS = "test ! -x {name} || ./{name}"
"""What a program of the host does that runs a hook named by its settings at its next start."""


@dataclass(frozen=True)
class Escape:
    """agent runs inside, operator afterwards on the host in the worktree, as its owner."""

    case: str
    agent: str
    operator: str = ":"


ESCAPES = (
    Escape(
        "CVE-2026-25725 settings that were missing at the start",
        "write('.claude/hook', touch)",
        OBEY_SETTINGS.format(name=".claude/hook"),
    ),
    Escape(
        "CVE-2026-39861 a symlink out of the worktree is written through",
        "os.symlink(beside, 'out'); write('out/canary', 'x')",
        "echo x > out/canary || :",
    ),
    Escape(
        "CVE-2026-25724 a folder becomes a symlink after it was looked at",
        "shutil.rmtree('src'); os.symlink(beside, 'src')",
        "echo x > src/canary || :",
    ),
    Escape(
        "Ona: a path list is dodged through /proc/self/root",
        "write('loot', read('/proc/self/root' + beside + '/secret'))",
        "grep -q SECRET loot && touch ../beside/canary || :",
    ),
    Escape(
        "Ona: a hidden file is read through the working directory of the process",
        "write('loot', read('/proc/self/cwd/keys/server.pem'))",
        "grep -q PRIVATE loot && touch ../beside/canary || :",
    ),
    Escape(
        "Ona: a copied program is run",
        "shutil.copy('/usr/bin/touch', 'mine')\n"
        "with contextlib.suppress(OSError): subprocess.run(['./mine', 'ran'])",
        "test ! -e ran || touch ../beside/canary",
    ),
    Escape(
        "Ona: a copied program is run by the dynamic loader",
        "shutil.copy('/usr/bin/touch', 'mine'); os.chmod('mine', 0o644)\n"
        "loader = next(p for p in ('/lib64/ld-linux-x86-64.so.2', '/lib/ld-linux-aarch64.so.1')"
        " if os.path.exists(p))\n"
        "subprocess.run([loader, './mine', 'ran'])",
        "test ! -e ran || touch ../beside/canary",
    ),
    Escape(
        "CVE-2025-59532 a folder that the model chose becomes the place to write",
        "write('/var/tmp/../..' + beside + '/canary', 'x')\n"
        "with contextlib.suppress(OSError): os.chdir(beside)\n"
        "write('canary' if os.getcwd() == beside else 'own', 'x')",
    ),
    Escape(
        "CVE-2026-26268 a git hook is written",
        "write('.git/hooks/post-commit', touch)",
        "git commit -q --allow-empty -m x",
    ),
    Escape(
        "CVE-2026-26268 the folder of hooks is moved by the configuration",
        "write('h/post-commit', touch)\n"
        "write('.git/config', read('.git/config') + '[core]\\nhooksPath = h\\n')",
        "git commit -q --allow-empty -m x",
    ),
    Escape(
        "CVE-2026-26268 the repository is renamed away and made anew",
        "with contextlib.suppress(OSError):\n"
        "    shutil.copytree('.git', 'g'); os.rename('.git', 'old'); os.rename('g', '.git')\n"
        "    write('.git/hooks/post-commit', touch)",
        "git commit -q --allow-empty -m x",
    ),
    Escape(
        "GitSpawn: core.fsmonitor names a program",
        "write('m', touch); write('.git/config', read('.git/config') + '[core]\\nfsmonitor = ./m\\n')",
        "git status --short > ../beside/status",
    ),
    Escape(
        "GitSpawn: .git/commondir points at a repository of the agent's",
        "write('m', touch)\n"
        "for name in ('objects', 'refs'): os.makedirs('c/' + name)\n"
        "write('c/config', '[core]\\nfsmonitor = ' + here + '/m\\n'); write('.git/commondir', '../c\\n')",
        "git status --short > ../beside/status || :",
    ),
    Escape(
        "CVE-2026-45033 a nested bare repository with core.fsmonitor",
        "for name in ('objects', 'refs'): os.makedirs('sub/' + name)\n"
        "write('sub/HEAD', 'ref: refs/heads/main\\n')\n"
        "write('sub/config', '[core]\\nrepositoryformatversion = 0\\nbare = false\\nworktree = ' + here"
        " + '/sub\\nfsmonitor = \"touch ' + canary + ';:\"\\n')",
        "cd sub 2>/dev/null && git status --short > ../../beside/status || :",
    ),
    Escape(
        "CVE-2026-48124 a file that an editor of the host obeys when it opens the folder",
        "write('.vscode/run', touch); write('.idea/run', touch); write('.envrc', touch)",
        "for name in .vscode/run .idea/run .envrc; do test ! -x $name || ./$name; done",
    ),
    Escape(
        "agentcage#173 the settings of the next run are planted",
        "write('.codex/run', touch); write('.gemini/run', touch); write('.agents/run', touch);"
        " write('.mcp.json', touch)",
        "for name in .codex/run .gemini/run .agents/run .mcp.json; do test ! -x $name || ./$name; done",
    ),
)


OBEYED = [".claude", ".codex", ".gemini", ".agents", ".mcp.json", ".vscode", ".idea", ".envrc"]
"""As profiles/coding.toml protects them."""


def make_place(folder: Path) -> Path:
    """A repository with something in it, and a folder beside it that the agent's user could write."""
    tree, beside = folder / "tree", folder / "beside"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.rmtree(beside, ignore_errors=True)
    for name, text in {
        "src/main.py": "print(1)\n",
        "README": "hello\n",
        "keys/server.pem": "PRIVATE\n",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    beside.mkdir()
    (beside / "secret").write_text("SECRET\n")
    for path in (folder / "tree", beside, *tree.rglob("*"), beside / "secret"):
        os.chown(path, OWNER, OWNER)
    for words in (("init", "-q"), ("config", "user.name", "t"), ("config", "user.email", "t@example.org")):
        git(tree, *words)
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "first")
    return tree


def as_owner(tree: Path, argv: list[str]) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(
        argv,
        cwd=tree,
        env=environment,
        user=OWNER,
        group=OWNER,
        extra_groups=[],
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def daemon() -> Iterator[Stand]:
    with stand() as made:
        made.serve()
        yield made


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.case)
def test_a_known_escape_works_without_the_box_and_fails_in_it(daemon: Stand, escape: Escape) -> None:
    tree = make_place(daemon.folder)
    as_owner(tree, [PYTHON, "-c", PRELUDE + escape.agent])
    as_owner(tree, ["sh", "-c", escape.operator])
    canary = daemon.folder / "beside/canary"
    assert canary.exists(), "control: the attack works without the box"

    tree = make_place(daemon.folder)
    profile = daemon.profile(more=f"[files]\nprotect = {OBEYED}")
    run = daemon.run_to_end(PRELUDE + escape.agent + "\nprint('END')", profile=profile)
    assert run.reason is StopReason.DONE and "END" in daemon.lines(run.ticket), daemon.lines(run.ticket)
    assert daemon.ctl("apply", run.ticket).code == 0
    as_owner(tree, ["sh", "-c", escape.operator])
    assert not canary.exists()


def test_cve_2026_103916_what_is_carried_over_follows_no_symlink_of_the_host(daemon: Stand) -> None:
    """The worktree is changed between run and apply, as another program of its owner's can."""
    tree = make_place(daemon.folder)
    run = daemon.run_to_end("import os; os.makedirs('build'); open('build/canary', 'w').write('x')")
    upper = Path(run.overlay) / "upper"
    canary = daemon.folder / "beside/canary"
    (tree / "build").symlink_to(daemon.folder / "beside")
    subprocess.run(["cp", "-r", f"{upper}/build/.", f"{tree}/build/"], check=True)
    assert canary.exists(), "control: a plain copy follows it"
    canary.unlink()
    daemon.ctl("apply", run.ticket)
    assert not canary.exists()
    assert (daemon.folder / "beside").stat().st_uid == OWNER


def test_cve_2026_126329_a_state_folder_of_somebody_else_is_not_trusted(place_of_other: Stand) -> None:
    done = place_of_other.ctl("run", "--here", "--profile", "offline", "--", "true")
    assert done.code != 0 and done.clear_error() and str(place_of_other.state) in done.err


@pytest.fixture
def place_of_other() -> Iterator[Stand]:
    with stand() as made:
        made.state.mkdir()
        os.chown(made.state, OWNER, OWNER)
        yield made


def test_the_rules_of_the_next_run_are_not_written_by_this_one(daemon: Stand) -> None:
    """A profile that lies in the worktree: Gemini CLI's CVE-2026-12537 trusted what the workspace said."""
    tree = make_place(daemon.folder)
    profile = tree / "agent.toml"
    shutil.copy(daemon.profile(), profile)
    os.chown(profile, OWNER, OWNER)
    weaker = "open('agent.toml', 'a').write('[network]\\n')"
    run = daemon.run_to_end(weaker, profile=daemon.profile())
    assert run.reason is StopReason.DONE, "control: with a profile elsewhere it is a file like any other"
    run = daemon.run_to_end(weaker, profile=str(profile))
    assert run.reason is StopReason.FAILED and "Read-only" in "\n".join(daemon.lines(run.ticket))
    swap = "import os; os.rename('README', 'agent.toml')"
    assert daemon.run_to_end(swap, profile=str(profile)).reason is StopReason.FAILED


@pytest.mark.parametrize("folder", ["/", "/etc", "/home", "/root", "/var", "/usr/lib"])
def test_cve_2025_59532_no_folder_of_many_projects_becomes_a_worktree(daemon: Stand, folder: str) -> None:
    done = daemon.ctl("run", "--worktree", folder, "--profile", "offline", "--", "true")
    assert done.code != 0 and done.clear_error() and "cannot be a worktree" in done.err


POISON = {
    "LD_PRELOAD": "/x.so",
    "LD_AUDIT": "/x.so",
    "BASH_ENV": "/x",
    "ENV": "/x",
    "PYTHONSTARTUP": "/x",
    "NODE_OPTIONS": "--require /x",
    "GIT_SSH_COMMAND": "/x",
    "GIT_EXTERNAL_DIFF": "/x",
    "PAGER": "/x",
    "PERL5OPT": "-Mx",
}


def test_cve_2026_22708_no_variable_of_the_caller_decides_what_runs(daemon: Stand) -> None:
    show = "import json, os; print(json.dumps(sorted(os.environ)))"
    order = daemon.order("T-env", show, daemon.profile())
    daemon.ask("run", **(order | {"environment": POISON}))
    daemon.ended("T-env")
    (line,) = daemon.lines("T-env")
    assert '"PATH"' in line and not [name for name in POISON if f'"{name}"' in line]


OTHER_DOORS = f"""{CALLER}
import socket, urllib.parse
there = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
def say(text):
    with socket.create_connection((there.hostname, there.port)) as one:
        one.sendall(text.encode("latin-1")); one.settimeout(5)
        try: return one.recv(4096).decode("latin-1").partition("\\r\\n")[0]
        except OSError: return "closed"
print("control", call()[0])
for text in sys.argv[2].split("|"):
    print(say(text.encode().decode("unicode_escape")) or "closed")
"""


def test_the_gateway_opens_no_other_door() -> None:
    """A proxy that decides by a name and connects by another was Claude Code's SOCKS5 hole."""
    canary = listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
    port = canary.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        assert came(canary), "control: it can be reached from the host"
    here, empty = f"127.0.0.1:{port}", "Content-Length: 2\\r\\n\\r\\n{}"
    low = "".join(f"\\x{byte:02x}" for byte in port.to_bytes(2, "big"))
    asked = [
        f"CONNECT {here} HTTP/1.1\\r\\nHost: {here}\\r\\n\\r\\n",
        f"GET http://{here}/ HTTP/1.1\\r\\nHost: {here}\\r\\n\\r\\n",
        f"POST http://{here}/v1/messages HTTP/1.1\\r\\nHost: x\\r\\n{empty}",
        f"GET /http://{here}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n",
        f"GET /v1/../../{here}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n",
        f"POST /v1/messages HTTP/1.1\\r\\nHost: {here}\\x00.example.com\\r\\n{empty}",
        f"\\x05\\x01\\x00\\x05\\x01\\x00\\x01\\x7f\\x00\\x00\\x01{low}",
    ]
    try:
        with stand() as place:
            with_model(place)
            words = ("run", "--here", "--ticket", "T-doors", "--profile", gateway_profile(place))
            place.ctl(*words, "--", PYTHON, "-c", OTHER_DOORS, place.marker, "|".join(asked))
            said = place.lines("T-doors")
            assert said[0] == "control 200" and len(said) == 1 + len(asked), said
            assert [line for line in said[1:] if " 2" in line[:12] or " 3" in line[:12]] == []
            with place.store() as store:
                assert len(store.ledger.charges(place.ended("T-doors").run_id)) == 1
        assert not came(canary)
    finally:
        canary.close()
