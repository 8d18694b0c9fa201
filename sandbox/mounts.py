"""Owns the box's file system: carries out the mount steps of a specification, in their order.
May touch the mount namespace it runs in (the box's, never the host's) and the overlay's upper folder.
Never follows a symlink below anything an agent or user can write, and never creates in the user's tree.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandbox import spec, syscalls

STAGING = "/proc/bus"
TEMPLATE = "/proc/fs"
LOWER = "/proc/driver"
"""Folders that exist everywhere and below which no worktree, overlay or system folder lies.

A new root, a template and an overlay's lower layer cover them, in the box's or the launcher's own
mount namespace only."""

_QUIET = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS

_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}


@dataclass(slots=True)
class Stage:
    """What the steps share: the uid outside that stands for the agent, and how files are mapped.

    privileged: made by root, so that files can be mapped to that uid. idmap_fd: a user namespace
    that maps the worktree's owner to it. template: where shared steps have been done already, if
    anywhere. mounts: what from_host() made, by target, where the host is not seen. log_folder_fd is
    set by the LogFolder step; memfd_noexec by Proc: why it is not armed, or "".
    """

    agent_uid: int
    privileged: bool
    staging: str = STAGING
    template: str = ""
    idmap_fd: int = -1
    root_fd: int = -1
    mounts: dict[str, int] | None = None
    log_folder_fd: int = -1
    memfd_noexec: str = "not set"

    def path(self, target: str) -> str:
        return self.staging + target

    def open(self, target: str, flags: int = 0) -> int:
        """A path descriptor in the new root, no symlink followed anywhere on the way."""
        return syscalls.openat2(self.root_fd, target.lstrip("/") or ".", os.O_PATH | flags, _BENEATH)

    def attach(self, mount_fd: int, target: str) -> None:
        """Put a detached mount at target, and close both descriptors."""
        try:
            where = self.open(target)
            try:
                syscalls.move_mount(mount_fd, where, "")
            finally:
                os.close(where)
        finally:
            os.close(mount_fd)


class StepFailed(Exception):
    """A mount step could not be done: which one, and the system's reason."""

    def __init__(self, step: spec.MountStep, cause: OSError) -> None:
        super().__init__(f"{step.describe()}: {cause.strerror} ({cause.filename or step.target})")
        self.step = step
        self.cause = cause


def begin(stage: Stage, steps: tuple[spec.MountStep, ...]) -> None:
    """Make the new root and carry out the first steps; enter() later makes it the root."""
    syscalls.mount_setattr(syscalls.AT_FDCWD, "/", propagation=syscalls.MS_PRIVATE, recursive=True)
    root = syscalls.new_mount("tmpfs", {"size": "1m", "nr_inodes": "512", "mode": "755"}, _QUIET)
    stage.root_fd = root
    syscalls.move_mount(root, syscalls.AT_FDCWD, stage.staging)
    carry_out(stage, steps)


def carry_out(stage: Stage, steps: tuple[spec.MountStep, ...]) -> None:
    """Each step in its order. Raises StepFailed naming the one that could not be done."""
    for step in steps:
        try:
            if stage.template and isinstance(step, SHARED):
                _from_template(step, stage)
            else:
                _EXECUTE[type(step)](step, stage)
        except OSError as error:
            raise StepFailed(step, error) from error


def enter(stage: Stage) -> None:
    """Make the built tree the root and let the host's tree go. Steps may follow until close_root()."""
    os.fchdir(stage.root_fd)
    syscalls.pivot_root(".", ".")
    syscalls.umount(".", syscalls.MNT_DETACH)
    os.chdir("/")
    stage.staging = ""


def close_root(stage: Stage) -> None:
    """Nothing can be made in the root itself any more."""
    syscalls.mount_setattr(stage.root_fd, "", set_bits=syscalls.MOUNT_ATTR_RDONLY)
    os.close(stage.root_fd)


FROM_HOST = (spec.Worktree, spec.Bind)
"""Steps that show something of the host."""


def from_host(step: spec.Worktree | spec.Bind, stage: Stage) -> int:
    """A detached mount, for a process that cannot see the host any more and puts it in its place.

    -1 for something optional that is not there. Raises StepFailed.
    """
    try:
        return _worktree_mount(step, stage) if isinstance(step, spec.Worktree) else _bind_mount(step, stage)
    except FileNotFoundError as error:
        if isinstance(step, spec.Bind) and step.optional:
            return -1
        raise StepFailed(step, error) from error
    except OSError as error:
        raise StepFailed(step, error) from error


def _given(step: spec.MountStep, stage: Stage) -> int:
    assert stage.mounts is not None
    try:
        return stage.mounts.pop(step.target)
    except KeyError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), step.target) from None


def _make_folder(path: str, mode: int = 0o755) -> None:
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise


def _make_file(path: str, text: str = "", mode: int = 0o644) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _folders_to(target: str, stage: Stage) -> None:
    parts = target.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        _make_folder(stage.path("/" + "/".join(parts[:depth])))


def _own(path: str, stage: Stage) -> None:
    if stage.privileged:
        os.chown(path, stage.agent_uid, stage.agent_uid, follow_symlinks=False)


def _tmpfs(step: spec.Tmpfs, stage: Stage) -> None:
    _folders_to(step.target, stage)
    mount = _tmpfs_mount(step.size_bytes, step.inodes, step.mode, step.executable, _owner(step, stage))
    stage.attach(mount, step.target)


def _owner(step: spec.Tmpfs, stage: Stage) -> int | None:
    return stage.agent_uid if step.owned_by_agent and stage.privileged else None


def _tmpfs_mount(
    size: int, inodes: int, mode: int, executable: bool = False, owner: int | None = None
) -> int:
    options: dict[str, str | None] = {"size": str(size), "nr_inodes": str(inodes), "mode": f"{mode:o}"}
    if owner is not None:
        options |= {"uid": str(owner), "gid": str(owner)}
    attributes = _QUIET | (0 if executable else syscalls.MOUNT_ATTR_NOEXEC)
    return syscalls.new_mount("tmpfs", options, attributes)


def _directory(step: spec.Directory, stage: Stage) -> None:
    _folders_to(step.target, stage)
    path = stage.path(step.target)
    os.chmod(path, step.mode)
    if step.owned_by_agent:
        _own(path, stage)


def _symlink(step: spec.Symlink, stage: Stage) -> None:
    _folders_to(os.path.dirname(step.target), stage)
    os.symlink(step.to, stage.path(step.target))


def _bind(step: spec.Bind, stage: Stage) -> None:
    try:
        mount = _bind_mount(step, stage) if stage.mounts is None else _given(step, stage)
    except FileNotFoundError:
        if step.optional:
            return
        raise
    _make_room(mount, step.target, stage)
    stage.attach(mount, step.target)


def _bind_mount(step: spec.Bind, stage: Stage) -> int:
    flags = syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC | syscalls.AT_RECURSIVE
    mount = syscalls.open_tree(syscalls.AT_FDCWD, step.source, flags)
    attributes = _QUIET | syscalls.MOUNT_ATTR_RDONLY
    attributes |= 0 if step.executable else syscalls.MOUNT_ATTR_NOEXEC
    if step.mapped and stage.privileged:
        syscalls.mount_setattr(
            mount,
            "",
            set_bits=attributes | syscalls.MOUNT_ATTR_IDMAP,
            user_namespace=stage.idmap_fd,
            recursive=True,
        )
    else:
        syscalls.mount_setattr(mount, "", set_bits=attributes, recursive=True)
    return mount


def _make_room(mount: int, target: str, stage: Stage) -> None:
    """Something to mount on, of the kind that is mounted."""
    if stat.S_ISDIR(os.fstat(mount).st_mode):
        _folders_to(target, stage)
    else:
        _folders_to(os.path.dirname(target), stage)
        _make_file(stage.path(target))


SHARED = (spec.Bind, spec.Etc, spec.Devices)
"""Steps whose mounts are read-only and alike for all boxes of a base: made once, then cloned."""


def _from_template(step: spec.Bind | spec.Etc | spec.Devices, stage: Stage) -> None:
    flags = syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC | syscalls.AT_RECURSIVE
    mount = syscalls.open_tree(syscalls.AT_FDCWD, stage.template + step.target, flags)
    _make_room(mount, step.target, stage)
    stage.attach(mount, step.target)


def _etc(step: spec.Etc, stage: Stage) -> None:
    folder = step.target
    _folders_to(folder, stage)
    stage.attach(_tmpfs_mount(262144, 256, 0o755), folder)
    for file in step.files:
        target = f"{folder}/{file.name}"
        if file.source:
            _bind(spec.Bind(source=file.source, target=target, executable=False), stage)
        else:
            _make_file(stage.path(target), file.text)
    _remount_read_only(folder, stage)


def _devices(step: spec.Devices, stage: Stage) -> None:
    folder = step.target
    _folders_to(folder, stage)
    stage.attach(_tmpfs_mount(65536, 64, 0o755), folder)
    for name in step.nodes:
        node = syscalls.open_tree(
            syscalls.AT_FDCWD, f"/dev/{name}", syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC
        )
        syscalls.mount_setattr(node, "", set_bits=syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOEXEC)
        _make_file(stage.path(f"{folder}/{name}"))
        stage.attach(node, f"{folder}/{name}")
    for name, to in _DEVICE_LINKS.items():
        os.symlink(to, stage.path(f"{folder}/{name}"))
    os.mkdir(stage.path(f"{folder}/pts"))
    os.mkdir(stage.path(f"{folder}/shm"))
    _remount_read_only(folder, stage)


def _terminals(step: spec.Terminals, stage: Stage) -> None:
    quiet = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOEXEC
    pts = syscalls.new_mount("devpts", {"ptmxmode": "0666", "mode": "0620"}, quiet)
    stage.attach(pts, step.target)


def _proc(step: spec.Proc, stage: Stage) -> None:
    """Writable only until memfd_noexec is set; then the whole procfs is read-only.

    memfd_noexec=2 is per pid namespace (Documentation/userspace-api/mfd_noexec.rst, since 6.3).
    """
    _folders_to(step.target, stage)
    proc = syscalls.new_mount("proc", {"hidepid": "invisible"}, _QUIET | syscalls.MOUNT_ATTR_NOEXEC)
    stage.memfd_noexec = _set_memfd_noexec(proc)
    syscalls.mount_setattr(proc, "", set_bits=syscalls.MOUNT_ATTR_RDONLY)
    stage.attach(proc, step.target)
    for name in step.masked:
        target = f"{step.target}/{name}"
        try:
            folder = stat.S_ISDIR(os.lstat(stage.path(target)).st_mode)
        except FileNotFoundError:
            continue
        _cover(target, folder, stage)


def _set_memfd_noexec(proc: int) -> str:
    """Why it could not be set; "" when it is. Without root the knob belongs to the host's root."""
    try:
        knob = os.open("sys/vm/memfd_noexec", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
    except FileNotFoundError:
        return "needs Linux 6.3"
    except PermissionError:
        return "needs root"
    try:
        os.write(knob, b"2")
    finally:
        os.close(knob)
    return ""


def _cover(target: str, folder: bool, stage: Stage) -> None:
    """Hide what is at target under something empty that nobody may open."""
    if folder:
        mount = syscalls.new_mount(
            "tmpfs",
            {"size": "4k", "nr_inodes": "1", "mode": "000"},
            _QUIET | syscalls.MOUNT_ATTR_NOEXEC | syscalls.MOUNT_ATTR_RDONLY,
        )
    else:
        mount = _empty_file(stage)
    stage.attach(mount, target)


def _empty_file(stage: Stage) -> int:
    """A detached read-only mount of an empty file of mode 000 in the new root."""
    path = stage.path("/.hidden")
    if not os.path.exists(path):
        _make_file(path, mode=0o000)
    mount = syscalls.open_tree(syscalls.AT_FDCWD, path, syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC)
    syscalls.mount_setattr(
        mount, "", set_bits=_QUIET | syscalls.MOUNT_ATTR_NOEXEC | syscalls.MOUNT_ATTR_RDONLY
    )
    return mount


def _worktree(step: spec.Worktree, stage: Stage) -> None:
    mount = _worktree_mount(step, stage) if stage.mounts is None else _given(step, stage)
    _folders_to(step.target, stage)
    stage.attach(mount, step.target)


def _worktree_mount(step: spec.Worktree, stage: Stage) -> int:
    attributes = _QUIET | (0 if step.executable else syscalls.MOUNT_ATTR_NOEXEC)
    tree = _mapped_tree(step, stage, attributes)
    if step.upper is None or step.work is None:
        return tree
    # overlayfs wants a path, and keeps a clone of its own of what is there.
    syscalls.move_mount(tree, syscalls.AT_FDCWD, LOWER)
    os.close(tree)
    return _overlay(LOWER, step.upper, step.work, stage, attributes)


def _mapped_tree(step: spec.Worktree, stage: Stage, attributes: int) -> int:
    """The user's folder with its files owned by the run's uid (mount_setattr(2), id-mapped mounts)."""
    recursive = syscalls.AT_RECURSIVE if step.submounts else 0
    source = syscalls.openat2(
        syscalls.AT_FDCWD, step.source, os.O_PATH | os.O_DIRECTORY, syscalls.RESOLVE_NO_SYMLINKS
    )
    try:
        tree = syscalls.open_tree(
            source,
            "",
            syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC | syscalls.AT_EMPTY_PATH | recursive,
        )
    finally:
        os.close(source)
    if stage.privileged:
        syscalls.mount_setattr(
            tree,
            "",
            set_bits=attributes | syscalls.MOUNT_ATTR_IDMAP,
            user_namespace=stage.idmap_fd,
            recursive=step.submounts,
        )
    else:
        syscalls.mount_setattr(tree, "", set_bits=attributes, recursive=step.submounts)
    return tree


def _overlay(lower: str, upper: str, work: str, stage: Stage, attributes: int) -> int:
    options: dict[str, str | None] = {"lowerdir": lower, "upperdir": upper, "workdir": work}
    if stage.privileged:
        # Without redirect_dir a rename of a lower folder fails with EXDEV (overlayfs.rst).
        options |= {"redirect_dir": "on", "metacopy": "off", "index": "off", "xino": "off"}
    else:
        options |= {"userxattr": None}
    return syscalls.new_mount("overlay", options, attributes)


def _bind_onto_itself(target: str, stage: Stage, *, set_bits: int = 0, clear_bits: int = 0) -> None:
    """A mount of what is at target on top of it, with what is mounted below; the path is walked once."""
    where = stage.open(target)
    flags = syscalls.OPEN_TREE_CLONE | syscalls.OPEN_TREE_CLOEXEC | syscalls.AT_EMPTY_PATH
    try:
        mount = syscalls.open_tree(where, "", flags | syscalls.AT_RECURSIVE)
        try:
            if set_bits or clear_bits:
                syscalls.mount_setattr(mount, "", set_bits=set_bits, clear_bits=clear_bits, recursive=True)
            syscalls.move_mount(mount, where, "")
        finally:
            os.close(mount)
    finally:
        os.close(where)


def _pin(step: spec.Pin, stage: Stage) -> None:
    _bind_onto_itself(step.target, stage)


def _protect(step: spec.Protect, stage: Stage) -> None:
    if step.placeholder is not None:
        _placeholder(step, stage)
    _bind_onto_itself(step.target, stage, set_bits=syscalls.MOUNT_ATTR_RDONLY)


def _placeholder(step: spec.Protect, stage: Stage) -> None:
    """Made through the overlay by a held folder: it lands in the upper folder, not on the host."""
    parent, name = os.path.split(step.target)
    folder = stage.open(parent, os.O_DIRECTORY)
    try:
        _remove_symlink(name, folder)
        if step.placeholder == "folder":
            os.mkdir(name, 0o755, dir_fd=folder)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        made = os.open(name, flags, 0o444, dir_fd=folder)
        try:
            os.write(made, step.text.encode())
        finally:
            os.close(made)
    finally:
        os.close(folder)


def _remove_symlink(name: str, folder: int) -> None:
    """In the overlay only, where it leaves a whiteout in the upper folder."""
    try:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _unlock(step: spec.Unlock, stage: Stage) -> None:
    _bind_onto_itself(step.target, stage, clear_bits=syscalls.MOUNT_ATTR_RDONLY)


def _hide(step: spec.Hide, stage: Stage) -> None:
    _cover(step.target, step.folder, stage)


def _log_folder(step: spec.LogFolder, stage: Stage) -> None:
    _folders_to(step.target, stage)
    owner = stage.agent_uid if stage.privileged else None
    mount = _tmpfs_mount(step.size_bytes, 256, 0o755, owner=owner)
    stage.log_folder_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
    stage.attach(mount, step.target)


def _home_files(step: spec.HomeFiles, stage: Stage) -> None:
    """Before the agent exists, so that nothing in that folder can be a link of its making."""
    for file in step.files:
        folder = step.target
        for part in os.path.dirname(file.name).split("/"):
            folder = f"{folder}/{part}" if part else folder
            _make_folder(stage.path(folder), 0o700)
            _own(stage.path(folder), stage)
        path = stage.path(f"{step.target}/{file.name}")
        _make_file(path, file.text, 0o600)
        _own(path, stage)


def _remount_read_only(target: str, stage: Stage) -> None:
    where = stage.open(target)
    try:
        syscalls.mount_setattr(where, "", set_bits=syscalls.MOUNT_ATTR_RDONLY)
    finally:
        os.close(where)


_EXECUTE: dict[type, Callable[[Any, Stage], None]] = {
    spec.Tmpfs: _tmpfs,
    spec.Directory: _directory,
    spec.Symlink: _symlink,
    spec.Bind: _bind,
    spec.Etc: _etc,
    spec.Devices: _devices,
    spec.Terminals: _terminals,
    spec.Proc: _proc,
    spec.Worktree: _worktree,
    spec.Pin: _pin,
    spec.Protect: _protect,
    spec.Unlock: _unlock,
    spec.Hide: _hide,
    spec.LogFolder: _log_folder,
    spec.HomeFiles: _home_files,
}
