"""Owns that real tools work in the coding profile: git, Python, node, npm, a C compiler, make.
May touch boxes and the programs of this machine.
Never needs a network, a cache from outside or a second try.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from boxlab import PYTHON, Lab, Outcome, edited_profile, give

TOOLS: dict[str, tuple[str, str]] = {
    "git": (
        """git init -q sub && cd sub && git config user.name a && git config user.email a@b && echo x > f &&
        git add f && git commit -qm one && git checkout -qb two && git mv f g && git commit -qam two &&
        git log --oneline | wc -l""",
        "2",
    ),
    "git in the worktree": (
        """export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        echo more >> README && git add README && git commit -qm two &&
        git mv src lib && git commit -qm three && git log --oneline | wc -l &&
        git status --short -- lib README | wc -l""",
        "3\n0",
    ),
    "python venv": (
        """python3 -m venv --without-pip .venv &&
        .venv/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'
        """,
        "True",
    ),
    "python processes and threads": (
        """python3 -c '
import multiprocessing, threading, concurrent.futures as f
with multiprocessing.Pool(3) as p: print(sum(p.map(abs, range(10))))
with f.ThreadPoolExecutor(4) as t: print(sum(t.map(abs, range(10))))'""",
        "45\n45",
    ),
    "python accounts, time zone, temporary files": (
        """python3 -c '
import pwd, os, grp, tempfile, pathlib, time, socket
print(pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name, pathlib.Path.home())
print(tempfile.gettempdir(), os.access("/var/tmp", os.W_OK), bool(time.tzname[0]))
print(socket.gethostbyname("localhost"), socket.gethostname())'""",
        "agent agent /home/agent\n/tmp True True\n127.0.0.1 box",
    ),
    "python tls": (
        """python3 -c '
import ssl; c = ssl.create_default_context(); print(len(c.get_ca_certs()) > 10)'""",
        "True",
    ),
    "python server on loopback": (
        """python3 -c '
import http.server, threading, urllib.request
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
url = f"http://localhost:{s.server_port}/README"
threading.Thread(target=s.serve_forever, daemon=True).start()
print(urllib.request.urlopen(url).read().decode().strip())' 2>/dev/null""",
        "hello",
    ),
    "node": (
        """node -e '
const os = require("os"), { Worker } = require("worker_threads");
console.log(Object.keys(os.networkInterfaces()).join(), os.userInfo().username);
const code = "require(\\"worker_threads\\").parentPort.postMessage(6*7)";
new Worker(code, { eval: true }).on("message", console.log);'""",
        "lo agent\n42",
    ),
    "npm": (
        """printf '%s' '{"name":"p","version":"1.0.0","scripts":{"test":"node --test"}}' > package.json
        printf 'require("node:test")("adds", () => { require("assert").equal(1 + 1, 2) })' > a.test.js
        npm test --offline 2>&1 | grep -c -E '^# pass 1'""",
        "1",
    ),
    "gcc and make": (
        """printf 'int main(){return 0;}' > a.c; printf 'a: a.c\\n\\tcc -o a a.c\\n' > Makefile
        make -s -j2 && ./a && echo built""",
        "built",
    ),
    "shell": (
        """x=$(mktemp) && echo one > $x && (cat $x | tr a-z A-Z) && find . -name README | wc -l &&
        ls -la / >/dev/null && ps >/dev/null 2>&1; sleep 0.01 & wait; echo done""",
        "ONE\n1\ndone",
    ),
}

_NEEDS = {"node": "node", "npm": "npm", "gcc and make": "gcc"}


def run(lab: Lab, tree: Path, script: str) -> Outcome:
    return lab.run(tree, ["sh", "-c", script])


@pytest.mark.parametrize("name", [n for n in TOOLS if n not in _NEEDS or shutil.which(_NEEDS[n])])
def test_tool(lab: Lab, worktree: Path, name: str) -> None:
    script, expected = TOOLS[name]
    outcome = run(lab, worktree, script)
    assert outcome.out.strip() == expected, outcome.err
    assert outcome.wrong == []


def test_the_base_profile_runs_no_file_of_the_worktree(lab: Lab, worktree: Path) -> None:
    """The control is "gcc and make" above: the coding profile does."""
    (worktree / "script").write_text("#!/bin/sh\necho ran\n")
    (worktree / "script").chmod(0o755)
    give(worktree)
    for profile, code, out in (("base", 126, ""), ("coding", 0, "ran\n")):
        outcome = lab.run(worktree, ["sh", "-c", "./script"], profile=edited_profile(profile))
        assert (outcome.code, outcome.out) == (code, out)


def test_limits_of_the_profile_hold_inside(lab: Lab, worktree: Path) -> None:
    code = """
import os, resource, errno
print(resource.getrlimit(resource.RLIMIT_NOFILE)[1], resource.getrlimit(resource.RLIMIT_FSIZE)[1])
try:
    with open("big", "wb") as f: f.truncate(2 << 20)
except OSError as e: print(errno.errorcode[e.errno])
try:
    for n in range(200): os.open("/dev/null", os.O_RDONLY)
except OSError as e: print(errno.errorcode[e.errno])
"""
    profile = edited_profile(open_files=100, file_bytes=1 << 20)
    outcome = lab.run(
        worktree, [PYTHON, "-c", "import signal; signal.signal(25, 1)\n" + code], profile=profile
    )
    assert outcome.out.split() == ["100", str(1 << 20), "EFBIG", "EMFILE"], outcome.err


def test_the_environment_reaches_only_the_agent(lab: Lab, worktree: Path) -> None:
    secrets = {"MODEL_KEY": "k3y-of-the-run"}
    outcome = lab.run(worktree, ["sh", "-c", "echo $MODEL_KEY"], secrets=secrets)
    assert outcome.out == "k3y-of-the-run\n"
    pid = lab.client().pid
    for file in ("environ", "cmdline"):
        assert b"k3y" not in Path(f"/proc/{pid}/{file}").read_bytes()


def test_signals_and_exit_codes_come_through(lab: Lab, worktree: Path) -> None:
    for script, code in (("exit 3", 3), ("kill -9 $$", -9), ("kill -15 $$", -15), ("kill -11 $$", -11)):
        assert run(lab, worktree, script).code == code


def test_standard_input_is_empty_and_no_terminal(lab: Lab, worktree: Path) -> None:
    outcome = run(lab, worktree, "cat | wc -c; tty; test -t 1 || echo no")
    assert outcome.out.split("\n")[:3] == ["0", "not a tty", "no"]
