"""Owns the worktree that profiles are verified on: a repository with all that an agent likes to touch.
May touch the folder it is given.
Never takes anything from the user's own tree.
"""

from __future__ import annotations

import os
import subprocess

OWNER = 1000
"""Who owns it when root verifies: somebody else than root, as worktrees are."""

_FILES = {
    "README": "hello\n",
    ".env": "TOKEN=in-the-tree\n",
    "keys/server.pem": "not a key\n",
    "src/main.py": "print(1)\n",
}

NAMES = frozenset(_FILES)


def make(folder: str) -> str:
    """The path of the worktree; beside.txt lies beside it."""
    tree = f"{folder}/tree"
    os.mkdir(tree)
    for name, text in _FILES.items():
        os.makedirs(os.path.dirname(f"{tree}/{name}"), exist_ok=True)
        with open(f"{tree}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    with open(f"{folder}/beside.txt", "w", encoding="utf-8") as file:
        file.write("beside\n")
    environment = {"PATH": os.environ.get("PATH", "/usr/bin"), "HOME": folder, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(
        ["git", "init", "-q", "--template=", tree], check=True, env=environment, capture_output=True
    )
    os.mkdir(f"{tree}/.git/hooks")
    if os.geteuid() == 0:
        for base, folders, files in os.walk(tree):
            for name in [".", *folders, *files]:
                os.chown(os.path.join(base, name), OWNER, OWNER, follow_symlinks=False)
    return tree
