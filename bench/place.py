"""Owns the scratch a measure works in: a folder, a worktree, a control group, a launcher, a plan.
May touch folders and groups it made itself, and processes by the pids it started or found in them.
Never leaves any of these behind, also when a measure fails.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from sandbox.client import LauncherClient
from supervisor.profile.load import load
from supervisor.profile.schema import Profile
from supervisor.runs import boxing
from supervisor.workspace.tree import inspect

OWNER = 1000
PROFILE = "offline"
WORKER = "bench"
_PATIENCE_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_numbers = itertools.count(1)

_TREE_FILES = {
    "README": "a worktree to be measured in\n",
    ".env": "TOKEN=in-the-tree\n",
    "src/main.py": "print(1)\n",
    "keys/server.pem": "PRIVATE\n",
}


def adopt_orphans() -> None:
    """What loses its parent below us becomes our child: the machine's init may be slow to reap."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder everybody may look into, on the file system that temporary files are kept on."""
    folder = Path(tempfile.mkdtemp(prefix="box-bench-", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def make_worktree(folder: Path, files: dict[str, str] | None = None) -> Path:
    """A small git repository of an ordinary user, with something to protect and something to hide."""
    folder.mkdir()
    for name, text in (files or _TREE_FILES).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    give(folder)
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=b", "-c", "user.email=b@example.org", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", *words], cwd=folder, env=environment, check=True, **as_owner())
    return folder


def as_owner() -> dict[str, Any]:
    """Arguments of subprocess that make it the worktree's owner; none without root."""
    return {"user": OWNER, "group": OWNER, "extra_groups": []} if os.geteuid() == 0 else {}


def give(tree: Path) -> None:
    if os.geteuid() != 0:
        return
    for folder, folders, files in os.walk(tree):
        for name in [".", *folders, *files]:
            os.chown(os.path.join(folder, name), OWNER, OWNER, follow_symlinks=False)


def profile() -> Profile:
    return load(PROFILE).profile


class Plans:
    """Boxes planned before they are started: each has a name and an overlay of its own."""

    def __init__(
        self,
        client: LauncherClient,
        worktree: Path,
        folder: Path,
        mode: Literal["overlay", "direct"] = "overlay",
    ) -> None:
        self.folder = folder
        files = msgspec.structs.replace(profile().files, worktree=mode)
        self._profile = msgspec.structs.replace(profile(), files=files)
        self.environment = boxing.environment(profile(), {}, {})
        self.planned_ms: list[float] = []
        self._client = client
        self._worktree = worktree

    def next(self) -> boxing.BoxPlan:
        run_id = f"R{next(_numbers):06d}"
        overlay = self.folder / run_id
        overlay.mkdir()
        begun = time.perf_counter()
        made = boxing.plan(
            self._profile,
            inspect(str(self._worktree)),
            self._client.capabilities,
            run_id=run_id,
            namespace_key=key(),
            worker_id=WORKER,
            overlay_folder=str(overlay),
        )
        self.planned_ms.append((time.perf_counter() - begun) * 1000)
        return made

    def forget(self, plan: boxing.BoxPlan) -> None:
        shutil.rmtree(self.folder / plan.spec.run_id)


def key() -> str:
    """Names the bench's cgroups apart from everybody else's."""
    return f"bench{os.getpid()}"


# ---------------------------------------------------------------- a plain control group


@contextmanager
def plain_group(client_v2: str | None, name: str) -> Iterator[str]:
    """A cgroup v2 folder of the bench's own, beside the one that holds the supervisors' groups."""
    if client_v2 is None:
        raise RuntimeError("this measure needs a writable cgroup v2 hierarchy")
    beside = os.path.dirname(os.path.dirname(client_v2))
    folder = f"{beside}/box-bench-{os.getpid()}-{name}"
    os.mkdir(folder)
    try:
        yield folder
    finally:
        empty(folder)
        os.rmdir(folder)


def in_group(folder: str, argv: list[str]) -> list[str]:
    """A command that enters the group first."""
    return ["/bin/sh", "-c", f'echo 0 > "{folder}/cgroup.procs" && exec "$@"', "sh", *argv]


def members(folder: str) -> list[int]:
    return [int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()]


def empty(folder: str) -> None:
    """Kill what is in the group, wait until it is gone, and reap what has become ours."""
    pids = members(folder)
    Path(folder, "cgroup.kill").write_text("1")
    wait_unpopulated(folder)
    reap(pids)


def wait_unpopulated(folder: str) -> None:
    """Look again and again: the kernel sends at most one change of this file in 10 ms."""
    deadline = time.monotonic() + _PATIENCE_S
    file = os.open(f"{folder}/cgroup.events", os.O_RDONLY)
    try:
        while b"populated 1" in os.pread(file, 256, 0):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{folder} does not become empty")
            time.sleep(0.0002)
    finally:
        os.close(file)


def reap(pids: list[int]) -> None:
    """Those that are children of ours by now; the others have a parent that does it."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def reap_orphans(among: frozenset[int]) -> None:
    """Dead processes we have adopted: those children of ours that we had not before."""
    for pid in children() - among:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def children() -> frozenset[int]:
    listed = [Path(f"/proc/self/task/{task}/children").read_text() for task in os.listdir("/proc/self/task")]
    return frozenset(int(pid) for text in listed for pid in text.split())


class Watched:
    """Processes held by pidfd, so that a pid used again is never mistaken for one of them."""

    def __init__(self, pids: list[int]) -> None:
        self.held: dict[int, int] = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                self.held[pid] = os.pidfd_open(pid)

    def alive(self) -> list[int]:
        """A pidfd is readable as soon as its process is dead (pidfd_open(2))."""
        poller = select.poll()
        for fd in self.held.values():
            poller.register(fd, select.POLLIN)
        dead = {fd for fd, _ in poller.poll(0)}
        return [pid for pid, fd in self.held.items() if fd not in dead]

    def kill(self) -> None:
        for fd in self.held.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)

    def close(self) -> None:
        for fd in self.held.values():
            os.close(fd)
        self.held = {}
