"""Owns reading an overlay's upper folder: what a run changed, without mounting anything.
May touch the upper folder and the worktree read-only, by descriptors, following no symlink.
Never trusts a name, type or mode in there: an agent wrote all of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sandbox import syscalls

_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS
_XATTR = ("trusted.overlay.", "user.overlay.")
_MAX_CHANGES = 200_000
_COMPARE = 1 << 16

How = Literal["added", "modified", "deleted"]
What = Literal["file", "folder", "symlink", "special"]


class TooManyChanges(Exception):
    """More entries than anybody will review."""


@dataclass(frozen=True, slots=True)
class Change:
    """path is below the worktree. source says where the new content is: (in upper?, path there)."""

    path: str
    how: How
    what: What
    mode: int = 0
    size: int = 0
    link: str = ""
    source: tuple[bool, str] = (True, "")


@dataclass(slots=True)
class Trees:
    """Held descriptors of the two layers."""

    upper: int
    lower: int

    def close(self) -> None:
        os.close(self.upper)
        os.close(self.lower)


def open_trees(overlay: str, worktree: str) -> Trees:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    upper = os.open(f"{overlay}/upper", flags)
    try:
        return Trees(upper, os.open(worktree, flags))
    except BaseException:
        os.close(upper)
        raise


def open_beneath(root: int, path: str, flags: int) -> int:
    """Open below a held folder; a symlink anywhere on the way is an error (openat2(2))."""
    return syscalls.openat2(root, path or ".", flags, _BENEATH)


def changes(trees: Trees) -> Iterator[Change]:
    """Every difference between the worktree and what the run made of it, folders before contents.

    The layers are merged as overlayfs.rst describes it: whiteouts, opaque and redirected folders.
    """
    for seen, change in enumerate(_merge(trees, "", "", ""), start=1):
        if seen > _MAX_CHANGES:
            raise TooManyChanges(f"more than {_MAX_CHANGES} changes")
        yield change


def _merge(trees: Trees, path: str, upper: str, lower: str | None) -> Iterator[Change]:
    """upper is the folder in the upper layer; lower where its old contents are, None for none.

    What is told is the difference to what stands in the worktree at the same path now.

    Written with a stack of its own: an agent can nest folders deeper than Python can recurse.
    """
    pending: list[tuple[str, str, str | None]] = [(path, upper, lower)]
    while pending:
        path, upper, lower = pending.pop()
        for name in sorted(_names(trees.upper, upper)):
            here, there = _join(path, name), _join(upper, name)
            before = None if lower is None else _join(lower, name)
            found = _stat(trees.upper, there)
            if found is None:
                yield Change(here, "added", "special")  # too deep, or gone: refused, not passed over
                continue
            host = _stat(trees.lower, here)
            if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
                if host is not None:
                    yield Change(here, "deleted", _kind(host.st_mode))
            elif stat.S_ISDIR(found.st_mode):
                origin = _origin(trees.upper, there, before)
                yield from _folder(trees, here, there, found, host, origin)
                pending.append((here, there, origin))
            else:
                yield from _leaf(trees, here, there, found, host)


def _folder(
    trees: Trees,
    here: str,
    there: str,
    found: os.stat_result,
    host: os.stat_result | None,
    origin: str | None,
) -> Iterator[Change]:
    """The folder itself, and what an opaque or redirected one takes away or brings along.

    host is what stands at its place in the worktree; origin where its old contents are.
    """
    is_folder = host is not None and stat.S_ISDIR(host.st_mode)
    if host is not None and not is_folder:
        yield Change(here, "deleted", _kind(host.st_mode))
    if not is_folder:
        yield Change(here, "added", "folder", mode=found.st_mode & 0o777)
    if origin == here:
        return
    if is_folder:
        told = set(_names(trees.upper, there))
        for name in sorted(set(_names(trees.lower, here)) - told):
            entry = _stat(trees.lower, _join(here, name))
            if entry is not None:
                yield Change(_join(here, name), "deleted", _kind(entry.st_mode))
    if origin is not None:
        yield from _brought_along(trees, here, there, origin)


def _brought_along(trees: Trees, here: str, there: str, origin: str) -> Iterator[Change]:
    """Unchanged contents of a folder that was moved: they are only in the lower layer, at the old place."""
    pending = [(here, there, origin)]
    while pending:
        path, upper, lower = pending.pop()
        covered = set(_names(trees.upper, upper))
        for name in sorted(_names(trees.lower, lower)):
            if name in covered:
                continue  # the merge of the upper folder tells of it
            found = _stat(trees.lower, _join(lower, name))
            if found is None:
                continue
            yield _added(trees.lower, _join(path, name), _join(lower, name), found, in_upper=False)
            if stat.S_ISDIR(found.st_mode):
                pending.append((_join(path, name), _join(upper, name), _join(lower, name)))


def _leaf(
    trees: Trees, here: str, there: str, found: os.stat_result, host: os.stat_result | None
) -> Iterator[Change]:
    new = _added(trees.upper, here, there, found, in_upper=True)
    if host is None:
        yield new
    elif _kind(host.st_mode) != new.what:
        yield Change(here, "deleted", _kind(host.st_mode))
        yield new
    elif not _same(trees, there, here, found, host):
        yield Change(here, "modified", new.what, new.mode, new.size, new.link, new.source)


def _added(root: int, here: str, there: str, found: os.stat_result, *, in_upper: bool) -> Change:
    what = _kind(found.st_mode)
    link = os.readlink(there, dir_fd=root) if what == "symlink" else ""
    size = found.st_size if what == "file" else 0
    return Change(here, "added", what, found.st_mode & 0o777, size, link, (in_upper, there))


def _same(trees: Trees, there: str, before: str, found: os.stat_result, old: os.stat_result) -> bool:
    """Copied up but not different: opening for writing is enough for that."""
    if stat.S_ISLNK(found.st_mode):
        return os.readlink(there, dir_fd=trees.upper) == os.readlink(before, dir_fd=trees.lower)
    if found.st_size != old.st_size or (found.st_mode ^ old.st_mode) & 0o111:
        return False
    return stat.S_ISREG(found.st_mode) and _same_bytes(trees, there, before)


def _same_bytes(trees: Trees, there: str, before: str) -> bool:
    flags = os.O_RDONLY | os.O_NONBLOCK
    try:
        one = open_beneath(trees.upper, there, flags)
    except OSError:
        return False
    try:
        two = open_beneath(trees.lower, before, flags)
    except OSError:
        os.close(one)
        return False
    try:
        while True:
            left, right = os.read(one, _COMPARE), os.read(two, _COMPARE)
            if left != right:
                return False
            if not left:
                return True
    finally:
        os.close(one)
        os.close(two)


def _origin(root: int, path: str, before: str | None) -> str | None:
    """Where a folder's old contents are: nowhere if opaque, elsewhere if redirected, else before."""
    if _xattr(root, path, "opaque") in (b"y", b"x"):
        return None
    redirect = _xattr(root, path, "redirect")
    if redirect is None:
        return before
    target = os.fsdecode(redirect)
    if target.startswith("/"):
        return target.strip("/")
    parent = before.rpartition("/")[0] if before else ""
    return _join(parent, target)


def _xattr(root: int, path: str, name: str) -> bytes | None:
    try:
        fd = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        # Made as root, the overlay's own marks are trusted.*; anybody could have written user.* there.
        for prefix in _XATTR[: 1 if os.geteuid() == 0 else 2]:
            try:
                return os.getxattr(fd, prefix + name)
            except OSError:
                continue
        return None
    finally:
        os.close(fd)


def _names(root: int, path: str) -> list[str]:
    try:
        fd = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def _stat(root: int, path: str) -> os.stat_result | None:
    parent, _, name = path.rpartition("/")
    try:
        fd = open_beneath(root, parent, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return None
    finally:
        os.close(fd)


def _kind(mode: int) -> What:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "symlink" if stat.S_ISLNK(mode) else "special"


def _join(parent: str, name: str) -> str:
    return f"{parent}/{name}" if parent else name
