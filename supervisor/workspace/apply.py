"""Owns carrying a run's changes over to the host's tree: vet everything first, then write.
May touch the worktree, through a held descriptor, as its owner would.
Never writes a protected path, a special file or an escaping symlink, and never follows a symlink.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from supervisor.errors import StateError, UsageError
from supervisor.ownership import open_file
from supervisor.workspace.bare import makes_repositories
from supervisor.workspace.overlay import Change, TooManyChanges, Trees, changes, open_beneath, open_trees
from supervisor.workspace.patterns import matches
from supervisor.workspace.tree import is_covered

HANDOFF = (
    "**/package.json",
    "**/.npmrc",
    "**/.yarnrc.yml",
    "**/Makefile",
    "**/conftest.py",
    "**/setup.py",
    "**/build.rs",
    "**/.pre-commit-config.yaml",
    "**/sitecustomize.py",
    ".github/**",
    ".gitlab-ci.yml",
    ".gitattributes",
    ".gitmodules",
    ".venv/**",
    "node_modules/.bin/**",
)
"""Files that a program on the host obeys later: applied, but named, so that somebody looks at them."""


_KEPT = "refused.json"
"""Beside the layers of an overlay, where no agent comes: what the last apply refused."""

_READ_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW


_CONFLICT = "changed on the host since the run began"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One change that is not carried over, and why."""

    path: str
    why: str
    change: Change

    @property
    def conflicts(self) -> bool:
        """Refused because somebody else was here first, not because it must never be carried over."""
        return self.why == _CONFLICT


@dataclass(slots=True)
class Vetted:
    """What would be written, what is refused and why, and what deserves a second look."""

    accepted: list[Change] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    look_at: list[str] = field(default_factory=list)


def vet(trees: Trees, protect: list[str], *, started_ns: int) -> Vetted:
    """Decide about every change. started_ns: when the run began, to find what the host changed since.

    Raises UsageError for an overlay with more changes than anybody will review.
    """
    vetted = Vetted()
    kept: set[str] = set()
    try:
        for change in changes(trees):
            why = _why_not(trees, change, protect, started_ns)
            if why == "" and (there := _kept_above(kept, change.path)) is not None:
                why = f"{there} stays as it is"
            if why and change.how != "added":
                kept.add(change.path)
            if why and change.how == "added" and change.what in ("folder", "special"):
                kept.add(change.path)
            if why == "":
                vetted.accepted.append(change)
                if any(matches(pattern, change.path) for pattern in HANDOFF):
                    vetted.look_at.append(change.path)
            elif why is not None:
                vetted.refused.append(Refusal(change.path, why, change))
    except TooManyChanges as error:
        raise UsageError(f"this run made {error}", hint="look into its overlay folder by hand") from None
    _refuse_repositories(vetted, trees)
    return vetted


def _refuse_repositories(vetted: Vetted, trees: Trees) -> None:
    repository = makes_repositories(trees, vetted.accepted)
    found = [(change, folder) for change in vetted.accepted if (folder := repository(change.path))]
    refused = {change.path for change, _ in found}
    vetted.accepted = [change for change in vetted.accepted if change.path not in refused]
    vetted.look_at = [path for path in vetted.look_at if path not in refused]
    for change, folder in found:
        vetted.refused.append(Refusal(change.path, f"git would take {folder} for a repository", change))


def _why_not(trees: Trees, change: Change, protect: list[str], started_ns: int) -> str | None:
    """ "" to accept, a reason to refuse, None to pass over in silence (history, placeholders)."""
    pattern = is_covered(protect, change.path)
    if pattern == ".git":
        return None
    if any(part.casefold() == ".git" for part in change.path.split("/")):
        return "a repository's own .git is never carried over"
    if pattern is not None:
        empty = change.how == "added" and change.size == 0 and change.what in ("folder", "file")
        return None if empty else f"protected by {pattern}"
    if change.what == "special":
        return "not a plain file, folder or symlink"
    if change.what == "symlink" and change.how != "deleted" and _escapes(change):
        return f"symlink out of the worktree ({change.link})"
    if change.how != "added" and _changed_since(trees, change.path, change.how, started_ns):
        return _CONFLICT
    return ""


def _escapes(change: Change) -> bool:
    if change.link.startswith("/"):
        return True
    parts = [part for part in change.link.split("/") if part not in ("", ".")]
    names = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    if ".." in parts[names:]:
        return True  # behind a name, .. leads up from wherever that name points to: not from here
    folder = os.path.dirname(change.path)
    resolved = os.path.normpath(os.path.join(folder, change.link))
    return resolved == ".." or resolved.startswith("../") or resolved.split("/")[0].casefold() == ".git"


def _changed_since(trees: Trees, path: str, how: str, started_ns: int) -> bool:
    try:
        fd = open_beneath(trees.lower, path, os.O_PATH | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    if found.st_mtime_ns > started_ns and not stat.S_ISDIR(found.st_mode):
        return True
    return how == "deleted" and stat.S_ISDIR(found.st_mode) and _newer_below(trees.lower, path, started_ns)


def _newer_below(root: int, path: str, started_ns: int) -> bool:
    """Did the host make or change anything in a folder that is to be deleted?"""
    pending = [path]
    while pending:
        folder = pending.pop()
        try:
            fd = open_beneath(root, folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return True  # not to be looked into is not known to be old
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if entry.stat(follow_symlinks=False).st_mtime_ns > started_ns:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(f"{folder}/{entry.name}")
        finally:
            os.close(fd)
    return False


def _kept_above(kept: set[str], path: str) -> str | None:
    """The path itself or a folder above it that was refused: nothing can be put there."""
    parts = path.split("/")
    return next((p for n in range(1, len(parts) + 1) if (p := "/".join(parts[:n])) in kept), None)


def apply(trees: Trees, accepted: list[Change], owner_uid: int, owner_gid: int) -> int:
    """Write the accepted changes; how many were written.

    What only moved is still in the worktree at its old place: it is set aside before anything is
    deleted. Then deletions, deepest first, then the rest. Raises StateError; apply can be repeated.
    """
    writer = _Writer(trees, owner_uid, owner_gid)
    moved = {change.path: change.source[1] for change in accepted if writer.must_keep(change)}
    deletions = [change for change in accepted if change.how == "deleted"]
    done = 0
    here = ""
    try:
        for here, old in moved.items():
            writer.set_aside(here, old)
        for change in sorted(deletions, key=lambda c: c.path.count("/"), reverse=True):
            here = change.path
            writer.delete(here)
            done += 1
        for change in accepted:
            here = change.path
            if change.how != "deleted":
                writer.write(change)
                done += 1
    except OSError as error:
        raise StateError(
            f"{here} cannot be written: {error.strerror or error} ({done} of {len(accepted)} changes are)",
            hint="something changes the worktree meanwhile, or the disk is full; then apply again",
        ) from error
    finally:
        writer.drop_aside()
    return len(accepted)


@dataclass(slots=True)
class _Writer:
    trees: Trees
    owner_uid: int
    owner_gid: int
    aside: dict[str, str] = field(default_factory=dict)
    _aside_name: str = ""
    _aside_folder: int = -1

    def must_keep(self, change: Change) -> bool:
        return change.what == "file" and change.how != "deleted" and not change.source[0]

    def set_aside(self, path: str, old: str) -> None:
        """By a second name in a folder beside; deleting the old name then loses nothing."""
        if self._aside_folder < 0:
            self._aside_name = f".apply-{secrets.token_hex(8)}"
            os.mkdir(self._aside_name, 0o700, dir_fd=self.trees.lower)
            self._aside_folder = open_beneath(
                self.trees.lower, self._aside_name, os.O_RDONLY | os.O_DIRECTORY
            )
        parent, name = self._parent(old)
        kept = str(len(self.aside))
        try:
            os.link(name, kept, src_dir_fd=parent, dst_dir_fd=self._aside_folder, follow_symlinks=False)
        finally:
            os.close(parent)
        self.aside[path] = kept

    def drop_aside(self) -> None:
        if self._aside_folder >= 0:
            os.close(self._aside_folder)
            self._aside_folder = -1
            shutil.rmtree(self._aside_name, dir_fd=self.trees.lower)

    def _parent(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        return open_beneath(self.trees.lower, parent, os.O_RDONLY | os.O_DIRECTORY), name

    def delete(self, path: str) -> None:
        try:
            folder, name = self._parent(path)
        except FileNotFoundError:
            return
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                shutil.rmtree(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            return
        finally:
            os.close(folder)

    def write(self, change: Change) -> None:
        folder, name = self._parent(change.path)
        try:
            if change.what == "folder":
                os.mkdir(name, change.mode, dir_fd=folder)
                self._own(name, folder)
            elif change.what == "symlink":
                self._replace(
                    folder, name, lambda temporary: os.symlink(change.link, temporary, dir_fd=folder)
                )
            else:
                self._replace(folder, name, lambda temporary: self._copy(change, folder, temporary))
        finally:
            os.close(folder)

    def _replace(self, folder: int, name: str, make: Callable[[str], None]) -> None:
        """Make it beside, then rename: whoever looks sees the old or the new, never half of one."""
        temporary = f".apply-{secrets.token_hex(8)}"
        try:
            make(temporary)
            self._own(temporary, folder)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise

    def _copy(self, change: Change, folder: int, temporary: str) -> None:
        kept = self.aside.get(change.path)
        if kept is not None:
            source = open_beneath(self._aside_folder, kept, _READ_FILE)
        else:
            source = open_beneath(self.trees.upper, change.source[1], _READ_FILE)
        with open(source, "rb") as reader:
            if not stat.S_ISREG(os.fstat(reader.fileno()).st_mode):
                raise StateError(f"{change.path} is no plain file any more")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            target = os.open(temporary, flags, 0o600, dir_fd=folder)
            with open(target, "wb") as writer:
                _copy_sparse(reader, writer, change.size)
                os.fchmod(writer.fileno(), change.mode & 0o777)

    def _own(self, name: str, folder: int) -> None:
        if os.geteuid() == 0:
            os.chown(name, self.owner_uid, self.owner_gid, dir_fd=folder, follow_symlinks=False)


def _copy_sparse(reader: IO[bytes], writer: IO[bytes], size: int) -> None:
    """Holes stay holes: a sparse terabyte must not become a real one (lseek(2), SEEK_DATA)."""
    source, target = reader.fileno(), writer.fileno()
    os.ftruncate(target, size)
    position = 0
    while position < size:
        try:
            start = os.lseek(source, position, os.SEEK_DATA)
            end = min(os.lseek(source, start, os.SEEK_HOLE), size)
        except OSError:
            return
        while start < end:
            moved = os.copy_file_range(source, target, min(end - start, 1 << 26), start, start)
            if moved == 0:
                return
            start += moved
        position = end


def discard(overlay: str) -> None:
    """Remove an overlay's folders. rm is used for its depth: an agent may have nested ten thousand."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{overlay}/{_KEPT}")
    for name in ("upper", "work"):
        path = f"{overlay}/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            if os.geteuid() != 0:
                subprocess.run(["chmod", "-R", "u+rwx", path], check=False, capture_output=True)
            done = subprocess.run(
                ["rm", "-rf", "--one-file-system", "--", path], check=False, capture_output=True
            )
            if done.returncode:
                raise StateError(f"{path} cannot be removed: {done.stderr.decode(errors='replace').strip()}")


def vetted_changes(overlay: str, worktree: str, protect: list[str], started_ns: int) -> tuple[Trees, Vetted]:
    """Open both layers and decide; the caller closes the trees. Raises UsageError when there are none.

    After an apply that refused something, only what it refused is looked at again.
    """
    try:
        trees = open_trees(overlay, worktree)
    except FileNotFoundError:
        raise UsageError(
            "this run has no changes kept", hint="they were applied or discarded before"
        ) from None
    try:
        vetted = vet(trees, protect, started_ns=started_ns)
        kept = _kept(overlay)
    except BaseException:
        trees.close()
        raise
    if kept is not None:
        vetted.accepted = [change for change in vetted.accepted if change.path in kept]
        vetted.refused = [refusal for refusal in vetted.refused if refusal.path in kept]
        vetted.look_at = [path for path in vetted.look_at if path in kept]
    return trees, vetted


def keep_refused(overlay: str, vetted: Vetted) -> None:
    """Remember what an apply refused. The rest is in the worktree, and is not to be read as a change again:
    a folder that was moved there would look like one whose contents are to be deleted."""
    partial = f"{overlay}/{_KEPT}.{secrets.token_hex(8)}"
    with os.fdopen(open_file(partial, os.O_WRONLY, exclusive=True), "w", encoding="ascii") as file:
        json.dump([refusal.path for refusal in vetted.refused], file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, f"{overlay}/{_KEPT}")


def _kept(overlay: str) -> frozenset[str] | None:
    try:
        with open(f"{overlay}/{_KEPT}", encoding="ascii") as file:
            return frozenset(json.load(file))
    except FileNotFoundError:
        return None
