"""Owns noticing a folder that git on the host would take for a repository without being told.
May touch the held trees of a run, reading only.
Never asks git: the tree is not trusted yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from supervisor.workspace.overlay import Change, Trees, open_beneath

_MAKES_ONE = ("HEAD", "objects", "refs", "commondir")


def makes_repositories(trees: Trees, accepted: Iterable[Change]) -> Callable[[str], str | None]:
    """Asked for a path: the folder that its change would make, or keep, a repository; None for no such.

    git takes a folder with HEAD, objects and refs (or HEAD and commondir) for a bare repository when it
    is started in it or below, and obeys its config: core.fsmonitor there names a program
    (gitrepository-layout(5), safe.bareRepository in git-config(1); CVE-2026-45033 used it).
    """
    made: set[str] = set()
    gone: set[str] = set()
    for change in accepted:
        if os.path.basename(change.path) in _MAKES_ONE:
            (gone if change.how == "deleted" else made).add(change.path)
    known: dict[str, str] = {}

    def there(path: str) -> bool:
        if path in made:
            return True
        return path not in gone and _exists(trees.lower, path)

    def kind(folder: str) -> str:
        """ "before": the host has it so; "after": the changes make it one; "": none."""
        if folder not in known:
            known[folder] = ""
            if _is_one(lambda path: _exists(trees.lower, path), folder):
                known[folder] = "before"
            elif _is_one(there, folder):
                known[folder] = "after"
        return known[folder]

    def folder_of(path: str) -> str | None:
        parts = path.split("/")
        for end in range(len(parts)):
            folder = "/".join(parts[:end])
            found = kind(folder)
            if found == "before" or (found == "after" and parts[end] in _MAKES_ONE):
                return folder or "."
        return None

    return folder_of


def _is_one(there: Callable[[str], bool], folder: str) -> bool:
    below = f"{folder}/" if folder else ""
    if not there(f"{below}HEAD"):
        return False
    return there(f"{below}commondir") or (there(f"{below}objects") and there(f"{below}refs"))


def _exists(root: int, path: str) -> bool:
    try:
        fd = open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return False
    os.close(fd)
    return True
