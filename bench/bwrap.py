"""Owns bubblewrap as the peer: its arguments for the same box, and running it with little overhead.
May touch a copy of the worktree, in which bubblewrap makes the mount points it needs.
Never gives it less work than ours where it can do the same; what it cannot do is left out.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from bench import place
from sandbox import spec

PROGRAM = "/usr/bin/bwrap"
_FLAGS = ("--unshare-all", "--die-with-parent", "--new-session", "--clearenv")


@dataclass(slots=True)
class Command:
    """argv, and the open files that it reads texts from (they are inherited, and read from the start)."""

    argv: list[str]
    texts: list[int]

    def close(self) -> None:
        for fd in self.texts:
            os.close(fd)
        self.texts = []


def command(
    box: spec.BoxSpec, twin: Path, folder: Path, environment: dict[str, str], argv: list[str]
) -> Command:
    """The same namespaces, mounts, limits of size and environment; no overlay, filters or cgroup.

    twin: a copy of the worktree that is bound, writable, where ours makes an overlay of the tree.
    """
    hidden = folder / "hidden"
    hidden.touch(mode=0o000)
    made = Command([PROGRAM, *_FLAGS, "--uid", str(spec.AGENT_UID), "--gid", str(spec.AGENT_UID)], [])
    made.argv += ["--hostname", box.base.hostname]
    for name, value in environment.items():
        made.argv += ["--setenv", name, value]
    tree = ""
    for step in (*box.base.steps, *box.steps):
        if isinstance(step, spec.Worktree):
            tree = step.target
        made.argv += _step(step, made, tree, twin, str(hidden), folder)
    made.argv += ["--remount-ro", "/", "--remount-ro", "/dev", "--chdir", box.workdir, *argv]
    return made


def _step(step: spec.MountStep, made: Command, tree: str, twin: Path, hidden: str, folder: Path) -> list[str]:
    def there(target: str) -> str:
        return str(twin) + target.removeprefix(tree)

    match step:
        case spec.Bind():
            return ["--ro-bind-try" if step.optional else "--ro-bind", step.source, step.target]
        case spec.Symlink():
            return ["--symlink", step.to, step.target]
        case spec.Etc():
            return [word for file in step.files for word in _etc_file(file, step.target, made, folder)]
        case spec.Directory():
            return ["--perms", f"{step.mode:o}", "--dir", step.target]
        case spec.Tmpfs():
            return ["--perms", f"{step.mode:o}", "--size", str(step.size_bytes), "--tmpfs", step.target]
        case spec.LogFolder():
            return ["--size", str(step.size_bytes), "--tmpfs", step.target]
        case spec.HomeFiles():
            return [
                word
                for file in step.files
                for word in ("--file", str(_text(file.text, made, folder)), f"{step.target}/{file.name}")
            ]
        case spec.Devices():
            return ["--dev", step.target]
        case spec.Terminals():
            return []  # --dev has made them
        case spec.Proc():
            masks = [f"{step.target}/{name}" for name in step.masked if os.path.exists(f"/proc/{name}")]
            covers = [word for mask in masks for word in ("--ro-bind", hidden, mask)]
            return ["--proc", step.target, *covers]
        case spec.Worktree():
            return ["--bind", str(twin), step.target]
        case spec.Pin() | spec.Unlock():
            return ["--bind", there(step.target), step.target]
        case spec.Protect():
            _placeholder(step, there(step.target))
            return ["--ro-bind", there(step.target), step.target]
        case spec.Hide() if step.folder:
            return ["--perms", "0000", "--tmpfs", step.target, "--remount-ro", step.target]
        case spec.Hide():
            return ["--ro-bind", hidden, step.target]


def _etc_file(file: spec.EtcFile, etc: str, made: Command, folder: Path) -> list[str]:
    if file.source:
        return ["--ro-bind", file.source, f"{etc}/{file.name}"]
    return ["--file", str(_text(file.text, made, folder)), f"{etc}/{file.name}"]


def _text(text: str, made: Command, folder: Path) -> int:
    path = folder / f"text-{len(made.texts)}"
    path.write_text(text)
    fd = os.open(path, os.O_RDONLY)
    os.set_inheritable(fd, True)
    made.texts.append(fd)
    return fd


def _placeholder(step: spec.Protect, path: str) -> None:
    """Beforehand, so that it is no work of the measured runs."""
    if step.placeholder == "folder":
        os.makedirs(path, exist_ok=True)
    elif step.placeholder:
        Path(path).write_text(step.text)


def run_once(made: Command) -> tuple[float, float]:
    """Milliseconds until bwrap has exited, and until the last process in its box has (--sync-fd).

    bwrap exits on its program's report, a moment before its pid namespace is gone.
    """
    for fd in made.texts:
        os.lseek(fd, 0, os.SEEK_SET)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.set_inheritable(write_end, True)
    before = place.children()
    argv = [PROGRAM, "--sync-fd", str(write_end), *made.argv[1:]]
    try:
        begun = time.perf_counter()
        pid = os.posix_spawn(PROGRAM, argv, {})
        os.close(write_end)
        _, status = os.waitpid(pid, 0)
        exited = time.perf_counter()
        os.read(read_end, 1)
        gone = time.perf_counter()
    finally:
        os.close(read_end)
    place.reap_orphans(before)
    if status:
        raise RuntimeError(f"bwrap ended with status {status}")
    return (exited - begun) * 1000, (gone - begun) * 1000
