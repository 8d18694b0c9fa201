"""Owns looking at a worktree before a run, and the mount steps that protect and hide what is in it.
May touch the tree read-only, by descriptors, following no symlink; it was last written by anybody.
Never creates, changes or runs anything in it, and never trusts a path it did not open itself.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.spec import Bind, Hide, MountStep, Pin, Protect, Unlock
from supervisor.errors import UsageError
from supervisor.workspace.patterns import bare_name, covers, is_literal, matches, parts_of

_MAX_ENTRIES = 500_000
_MAX_FROZEN_ENTRIES = 1000
_FILE_PLACEHOLDERS = {".git/commondir": ".\n", ".git/config": "", ".git/config.worktree": ""}
"""Missing files git would read: with this text it behaves as if they were not there."""

_SYSTEM_FOLDERS = (
    "/",
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/run/agent",
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
)
_BELOW = ("/proc/", "/sys/", "/dev/", "/run/agent/", "/etc/", "/boot/", "/usr/lib", "/usr/bin/", "/usr/sbin/")
_WHOLE_FOLDERS = ("/home", "/root", "/var", "/opt", "/srv", "/mnt", "/media", "/boot", "/tmp", "/var/tmp")


@dataclass(frozen=True, slots=True)
class Tree:
    """A worktree as it was found. git: "folder", "file", "symlink", "absent" or "parent"."""

    root: str
    owner_uid: int
    owner_gid: int
    git: str
    git_common: str | None = None


@dataclass(slots=True)
class _Plan:
    """Steps in the making: pins and protections come in the order of their depth."""

    root: str
    steps: list[MountStep] = field(default_factory=list)
    pinned: set[str] = field(default_factory=set)
    protected: set[str] = field(default_factory=set)

    def target(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def pin_ancestors(self, path: str) -> None:
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            ancestor = "/".join(parts[:depth])
            if ancestor not in self.pinned and ancestor not in self.protected:
                self.pinned.add(ancestor)
                self.steps.append(Pin(target=self.target(ancestor)))

    def protect(self, path: str, placeholder: str | None = None, text: str = "") -> None:
        if any(path == done or path.startswith(f"{done}/") for done in self.protected):
            return
        self.pin_ancestors(path)
        self.protected.add(path)
        self.steps.append(Protect(target=self.target(path), placeholder=placeholder, text=text))


def inspect(folder: str) -> Tree:
    """Look at the folder a run is to work in. Raises UsageError where no run may work."""
    root = os.path.realpath(folder)
    if not os.path.lexists(root):
        raise UsageError(
            f"there is no folder {root!a}", hint="give --worktree an existing folder, or cd into it"
        )
    homes = {os.path.realpath(entry.pw_dir) for entry in pwd.getpwall()} | {os.path.expanduser("~")}
    if root in _SYSTEM_FOLDERS or root in _WHOLE_FOLDERS or root in homes or root.startswith(_BELOW):
        raise UsageError(
            f"{root} cannot be a worktree: it holds the system's files, or more than one project",
            hint="go into the project's folder first (cd), or give --worktree",
        )
    try:
        found = os.stat(root, follow_symlinks=False)
    except OSError as error:
        raise UsageError(
            f"worktree {root!a}: {error.strerror}", hint="give --worktree an existing folder, or cd into it"
        ) from None
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"worktree {root!a} is not a folder", hint="give --worktree a folder")
    git, common = _git_kind(root)
    return Tree(root, found.st_uid, found.st_gid, git, common)


def _git_kind(root: str) -> tuple[str, str | None]:
    try:
        mode = os.lstat(f"{root}/.git").st_mode
    except OSError:
        above = any((parent / ".git").exists() for parent in Path(root).parents)
        return ("parent" if above else "absent"), None
    if stat.S_ISDIR(mode):
        return "folder", None
    if stat.S_ISLNK(mode):
        return "symlink", None
    return "file", _linked_common_folder(root)


def _linked_common_folder(root: str) -> str | None:
    """The repository of a linked worktree, only if it points back here (gitrepository-layout(5)).

    The .git file alone proves nothing: whoever wrote it could name any repository of this user.
    """
    try:
        text = Path(f"{root}/.git").read_text(encoding="utf-8")[:4096]
        gitdir = Path(os.path.realpath(Path(root, text.removeprefix("gitdir:").strip())))
        back = (gitdir / "gitdir").read_text(encoding="utf-8")[:4096].strip()
        common = (gitdir / "commondir").read_text(encoding="utf-8")[:4096].strip()
        repository = os.path.realpath(gitdir / common)
        owner = os.stat(repository).st_uid
    except (OSError, ValueError):
        return None
    if not text.startswith("gitdir:") or os.path.realpath(back) != os.path.realpath(f"{root}/.git"):
        return None
    # <repository>/worktrees/<name>, outside the tree: what lies inside was written by anybody.
    if gitdir.parent.name != "worktrees" or str(gitdir.parent.parent) != repository:
        return None
    if f"{gitdir}/".startswith(f"{root}/") or owner != os.stat(root).st_uid:
        return None
    return repository


def protect_and_hide(tree: Tree, *, overlay: bool, protect: list[str], hide: list[str]) -> list[MountStep]:
    """The steps after the worktree's own. Raises UsageError for what cannot be protected here.

    In an overlay, a missing protected name gets a read-only placeholder beside the host's tree. In
    a direct worktree nothing may be created, so a folder in which a protected name is missing, or is
    a symlink, is frozen: its entries stay writable, but none can be added, renamed or removed.
    """
    plan = _Plan(tree.root)
    root = os.open(tree.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if overlay:
            _protect_in_overlay(plan, root, protect)
        else:
            _protect_directly(plan, root, protect)
            _hide_channels(plan, root)
        _hide(plan, root, hide)
    finally:
        os.close(root)
    if tree.git_common:
        plan.steps.insert(
            0, Bind(source=tree.git_common, target=tree.git_common, executable=False, mapped=True)
        )
    return plan.steps


def _literal_paths(root: int, patterns: list[str]) -> Iterator[str]:
    """Every path the patterns name: those that exist, and for literal ones also those that do not."""
    globs = [pattern for pattern in patterns if not is_literal(pattern)]
    for pattern in patterns:
        if is_literal(pattern):
            yield "/".join(parts_of(pattern))
        elif (bare := bare_name(pattern)) is not None:
            yield bare
    if globs:
        yield from (path for path, _ in _walk(root, globs))


def _protect_in_overlay(plan: _Plan, root: int, patterns: list[str]) -> None:
    for path in sorted(set(_literal_paths(root, patterns)), key=lambda p: (p.count("/"), p)):
        existing, kind = _deepest(root, path)
        if kind == "there":
            plan.protect(path)
        elif kind == "missing":
            missing = _next_component(path, existing)
            plan.protect(missing, *_placeholder_for(missing, path))
        else:
            # A symlink or a file stands where a folder would be: it is what must not be replaced.
            plan.protect(existing, "folder" if kind == "symlink" else None)


def _placeholder_for(missing: str, path: str) -> tuple[str, str]:
    if missing == path and path in _FILE_PLACEHOLDERS:
        return "file", _FILE_PLACEHOLDERS[path]
    return "folder", ""


def _next_component(path: str, existing: str) -> str:
    depth = len(existing.split("/")) if existing else 0
    return "/".join(path.split("/")[: depth + 1])


def _deepest(root: int, path: str) -> tuple[str, str]:
    """How far a path exists: ("a/b", "missing"), (path, "there"), ("a", "symlink") or ("a", "file")."""
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        here = "/".join(parts[:depth])
        try:
            mode = os.stat(here, dir_fd=root, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return "/".join(parts[: depth - 1]), "missing"
        if stat.S_ISLNK(mode):
            return here, "symlink"
        if depth < len(parts) and not stat.S_ISDIR(mode):
            return here, "file"
    return path, "there"


def _protect_directly(plan: _Plan, root: int, patterns: list[str]) -> None:
    if any(parts_of(pattern)[0] == ".git" for pattern in patterns):
        # Commits need to create and rename in .git, so there is no half way: history is read-only.
        patterns = [".git", *(p for p in patterns if parts_of(p)[0] != ".git")]
    for pattern in patterns:
        if not is_literal(pattern.rpartition("/")[0]):
            raise UsageError(
                f"files.protect: {pattern!a} cannot be held in a direct worktree: new folders could match it",
                hint='use files.worktree = "overlay", or name the folders',
            )
    existing: list[str] = []
    frozen: set[str] = set()
    for path in set(_literal_paths(root, patterns)):
        found, kind = _deepest(root, path)
        if kind == "there":
            _refuse_second_name(root, path, plan.root, "protected")
            existing.append(path)
        elif kind == "file":
            existing.append(found)
        else:
            frozen.add(found.rpartition("/")[0] if kind == "symlink" else found)
    frozen |= {pattern.rpartition("/")[0] for pattern in patterns if not is_literal(pattern)} - {"**"}
    for folder in sorted(frozen, key=lambda p: (p.count("/") if p else -1, p)):
        if is_literal(folder) and _deepest(root, folder or ".")[1] == "there":
            _freeze(plan, root, folder, existing)
    for path in sorted(existing, key=lambda p: (p.count("/"), p)):
        plan.protect(path)


def _freeze(plan: _Plan, root: int, folder: str, protected: list[str]) -> None:
    plan.pin_ancestors(folder or ".")
    plan.steps.append(Protect(target=plan.target(folder)))
    where = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    try:
        entries = sorted(os.scandir(where), key=lambda entry: entry.name)
    finally:
        os.close(where)
    if len(entries) > _MAX_FROZEN_ENTRIES:
        raise UsageError(
            f"{plan.target(folder)} has {len(entries)} entries, too many for a direct worktree",
            hint='use files.worktree = "overlay"',
        )
    for entry in entries:
        path = f"{folder}/{entry.name}" if folder else entry.name
        plain = entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
        if plain and path not in protected:
            plan.steps.append(Unlock(target=plan.target(path)))


def _refuse_second_name(root: int, path: str, where: str, what: str) -> None:
    found = os.stat(path, dir_fd=root, follow_symlinks=False)
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        raise UsageError(
            f"{what} file {where}/{path} has {found.st_nlink} names, and the others are not covered",
            hint=f"break the hard link: cp -p {path} {path}.new && mv {path}.new {path}",
        )


def _hide(plan: _Plan, root: int, patterns: list[str]) -> None:
    for path, mode in sorted(_walk(root, patterns)):
        if stat.S_ISREG(mode):
            _refuse_second_name(root, path, plan.root, "hidden")
        if not stat.S_ISLNK(mode):
            plan.steps.append(Hide(target=plan.target(path), folder=stat.S_ISDIR(mode)))


def _hide_channels(plan: _Plan, root: int) -> None:
    """Sockets and FIFOs in a direct worktree lead to programs of the host; an overlay cuts them off."""
    for path, mode in sorted(_walk(root, ["**"], below_matches=True)):
        if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
            plan.steps.append(Hide(target=plan.target(path), folder=False))


def _walk(root: int, patterns: list[str], *, below_matches: bool = False) -> Iterator[tuple[str, int]]:
    """Paths that some pattern names, with their modes; what lies below a match only if asked.

    Bounded: a tree with more than half a million entries is refused, not half searched.
    """
    if not patterns:
        return
    seen = 0
    pending = [""]
    while pending:
        folder = pending.pop()
        if not _can_match_below(patterns, folder):
            continue
        try:
            where = os.open(
                folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root
            )
        except OSError as error:
            raise UsageError(f"worktree folder {folder}: {error.strerror}") from None
        with os.scandir(where) as entries:
            for entry in entries:
                seen += 1
                path = f"{folder}/{entry.name}" if folder else entry.name
                found = any(matches(pattern, path) for pattern in patterns)
                if found:
                    yield path, entry.stat(follow_symlinks=False).st_mode
                if entry.is_dir(follow_symlinks=False) and (below_matches or not found):
                    pending.append(path)
        os.close(where)
        if seen > _MAX_ENTRIES:
            raise UsageError(
                f"the worktree has over {_MAX_ENTRIES} entries; patterns with ** cannot be searched in it",
                hint="give --worktree a smaller folder, or use patterns without **",
            )


def _can_match_below(patterns: list[str], folder: str) -> bool:
    depth = len(folder.split("/")) if folder else 0
    for pattern in patterns:
        parts = parts_of(pattern)
        if "**" in parts:
            return True
        if len(parts) > depth and (depth == 0 or matches("/".join(parts[:depth]), folder)):
            return True
    return False


def is_covered(patterns: list[str], path: str) -> str | None:
    """The protecting pattern of a path in the worktree; .git is always covered."""
    if path.split("/")[0].casefold() == ".git":
        return ".git"
    return covers(patterns, path)
