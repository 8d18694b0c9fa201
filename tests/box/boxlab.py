"""Owns starting boxes from tests: planned as in production, then weakened where a control needs it.
May touch launchers it started, cgroups under its own key, and folders below its own scratch folder.
Never leaves a process, a mount, a cgroup or a file behind, also when a test fails.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from sandbox import attest
from sandbox.client import Box, BoxError, Finished, LauncherClient, Streams
from sandbox.spec import BoxSpec
from supervisor.profile.load import load
from supervisor.profile.schema import Profile
from supervisor.runs import boxing
from supervisor.workspace.tree import inspect

T = TypeVar("T")
Weaken = Callable[[BoxSpec], BoxSpec]
Mode = Literal["overlay", "direct"]

WORKER = "lab"
OWNER = 1000
PYTHON = "/usr/bin/python3"
_BOOT = "import sys; sys.path.insert(0, sys.argv[1])\n{patch}\nfrom sandbox.launcher import main\nmain()"
_FOLDER = "/var/tmp"
_PATIENCE_S = 30.0
_numbers = itertools.count(1)


def scratch_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="box-test-", dir=_FOLDER))
    folder.chmod(0o755)
    return folder


def remove_tree(folder: Path) -> None:
    """Also what an agent has made unreadable; root may."""
    shutil.rmtree(folder, ignore_errors=False)


def git(folder: Path, *words: str, as_owner: bool = True) -> str:
    """The host's git, as the worktree's owner and without anybody's configuration."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@example.org",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@example.org",
    }
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        user=OWNER if as_owner and os.geteuid() == 0 else None,
        group=OWNER if as_owner and os.geteuid() == 0 else None,
        extra_groups=[] if as_owner and os.geteuid() == 0 else None,
        check=True,
    )
    return done.stdout


def make_repository(tree: Path) -> Path:
    tree.mkdir()
    give(tree)
    for name, text in {
        "README": "hello\n",
        ".env": "TOKEN=in-the-tree\n",
        "src/main.py": "print(1)\n",
        "keys/server.pem": "PRIVATE\n",
    }.items():
        path = tree / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tree / "src/link").symlink_to("main.py")
    give(tree)
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "first")
    return tree


def give(tree: Path, owner: int = OWNER) -> None:
    """Make owner the owner of all of it (chown -R, symlinks not followed)."""
    if os.geteuid() != 0:
        return
    for folder, folders, files in os.walk(tree):
        for name in [*folders, *files]:
            os.chown(os.path.join(folder, name), owner, owner, follow_symlinks=False)
    os.chown(tree, owner, owner)


def fingerprint(tree: Path) -> dict[str, tuple[object, ...]]:
    """Every name below tree with its type, mode, owner, size, times, names and content."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(tree):
        for name in [*folders, *files, "."]:
            path = os.path.normpath(os.path.join(folder, name))
            entry = os.lstat(path)
            content = ""
            if stat.S_ISREG(entry.st_mode):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            elif stat.S_ISLNK(entry.st_mode):
                content = os.readlink(path)
            found[os.path.relpath(path, tree)] = (
                entry.st_mode,
                entry.st_uid,
                entry.st_gid,
                entry.st_size,
                entry.st_nlink,
                entry.st_mtime_ns,
                entry.st_ctime_ns,
                tuple(os.listxattr(path, follow_symlinks=False)),
                content,
            )
    return found


def processes_of(uid: int, *, zombies: bool = True) -> list[int]:
    """Host pids whose real uid is the run's own; nothing else on the host has it."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                status = Path(f"/proc/{name}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            dead = fields["State"][0] in "ZX"
            if int(fields["Uid"].split()[0]) == uid and (zombies or not dead):
                found.append(int(name))
    return found


def host_mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a boxed program did, and what the kernel said of it before it was released."""

    status: int | None
    out: str
    err: str
    uid: int
    wrong: list[str]
    finished: Finished | None
    upper: Path | None

    @property
    def code(self) -> int | None:
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)


@dataclasses.dataclass(frozen=True, slots=True)
class Killing:
    """A box that was ended by force: processes before, survivors after, and how long it took."""

    line: str
    before: int
    survivors: list[int]
    seconds: float
    finished: Finished | None


def edited_profile(
    name: str = "coding",
    *,
    mode: Mode = "overlay",
    protect: list[str] | None = None,
    hide: list[str] | None = None,
    require: list[str] | None = None,
    **limits: Any,
) -> Profile:
    """A shipped profile with some keys replaced; limits by their field names."""
    profile = load(name).profile
    files = msgspec.structs.replace(profile.files, worktree=mode)
    if protect is not None:
        files = msgspec.structs.replace(files, protect=protect)
    if hide is not None:
        files = msgspec.structs.replace(files, hide=hide)
    profile = msgspec.structs.replace(
        profile, files=files, limits=msgspec.structs.replace(profile.limits, **limits)
    )
    return profile if require is None else msgspec.structs.replace(profile, require=require)


# ---------------------------------------------------------------- ways to weaken a box


def as_planned(spec: BoxSpec) -> BoxSpec:
    return spec


def _with_base(spec: BoxSpec, *not_required: str, **changes: Any) -> BoxSpec:
    required = tuple(c for c in spec.base.required if c not in not_required)
    return dataclasses.replace(spec, base=dataclasses.replace(spec.base, required=required, **changes))


def without_seccomp(spec: BoxSpec) -> BoxSpec:
    return _with_base(spec, "seccomp", seccomp="")


def without_landlock(spec: BoxSpec) -> BoxSpec:
    return _with_base(spec, "landlock", landlock=None)


def without_filters(spec: BoxSpec) -> BoxSpec:
    return without_seccomp(without_landlock(spec))


def without_steps(*kinds: str) -> Weaken:
    """Leave out the mount steps of these kinds, for example Pin or Protect."""

    def weaken(spec: BoxSpec) -> BoxSpec:
        kept = tuple(step for step in spec.steps if type(step).__name__ not in kinds)
        return dataclasses.replace(spec, steps=kept)

    return weaken


unprotected = without_steps("Pin", "Protect", "Hide", "Unlock")


# ---------------------------------------------------------------- the laboratory


class Lab:
    """One event loop, a launcher for each way of breaking one, and a folder for overlays."""

    def __init__(self, folder: Path | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.key = f"lab{os.getpid()}"
        self.folder = folder or scratch_folder()
        self._clients: dict[str, LauncherClient] = {}

    def close(self) -> None:
        try:
            for one in self._clients.values():
                self.wait(one.__aexit__())
        finally:
            self.loop.close()
            remove_tree(self.folder)

    def wait(self, coroutine: Coroutine[Any, Any, T], seconds: float = 2 * _PATIENCE_S) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, seconds))

    def client(self, patch: str = "") -> LauncherClient:
        """A launcher that first runs patch (Python, between the path and the import of main)."""
        return self.wait(self.opened(patch))

    def fresh_client(self, patch: str = "") -> LauncherClient:
        """Each has cgroups under a key of its own, as each supervisor state has."""
        key = f"{self.key}x{next(_numbers)}"
        return LauncherClient(key, _BOOT.format(patch=patch)) if patch else LauncherClient(key)

    def plan(self, tree: Path, profile: Profile, client: LauncherClient) -> boxing.BoxPlan:
        run_id = f"R{next(_numbers):06d}"
        overlay: Path | None = None
        if profile.files.worktree == "overlay":
            overlay = self.folder / run_id
            overlay.mkdir()
        return boxing.plan(
            profile,
            inspect(str(tree)),
            client.capabilities,
            run_id=run_id,
            namespace_key=client.namespace_key,
            worker_id=WORKER,
            overlay_folder=str(overlay) if overlay else None,
        )

    @asynccontextmanager
    async def started(
        self,
        client: LauncherClient,
        spec: BoxSpec,
        argv: list[str],
        *,
        stdin: int = -1,
        stdout: int = -1,
        stderr: int = -1,
        profile: Profile | None = None,
        secrets: dict[str, str] | None = None,
    ) -> AsyncIterator[Box]:
        """An armed box, not released yet; killed and removed at the end whatever happened."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        environment = boxing.environment(profile or edited_profile(), os.environ, secrets or {})
        streams = Streams(*(fd if fd >= 0 else null for fd in (stdin, stdout, stderr)))
        try:
            box = await client.start(spec, streams, argv, environment)
        finally:
            os.close(null)
        try:
            yield box
        finally:
            if box.pidfd >= 0:
                await box.abandon()

    def run(
        self,
        tree: Path,
        argv: list[str],
        *,
        profile: Profile | None = None,
        weaken: Weaken = as_planned,
        patch: str = "",
        secrets: dict[str, str] | None = None,
        seconds: float = _PATIENCE_S,
    ) -> Outcome:
        """Run a program in a box of its own to its end and collect all there is to know."""
        return self.wait(self._run(tree, argv, profile or edited_profile(), weaken, patch, secrets, seconds))

    async def _run(
        self,
        tree: Path,
        argv: list[str],
        profile: Profile,
        weaken: Weaken,
        patch: str,
        secrets: dict[str, str] | None,
        seconds: float,
    ) -> Outcome:
        client = await self.opened(patch)
        plan = self.plan(tree, profile, client)
        spec = weaken(plan.spec)
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        readers = [asyncio.ensure_future(asyncio.to_thread(_read_all, fd)) for fd in (out_read, err_read)]
        status: int | None = None
        finished: Finished | None = None
        uid = -1
        try:
            try:
                async with self.started(
                    client, spec, argv, stdout=out_write, stderr=err_write, profile=profile, secrets=secrets
                ) as box:
                    uid = box.uid
                    facts = await box.attest()
                    await box.release()
                    async with asyncio.timeout(seconds):
                        status = await box.wait_exited()
                    await box.kill()
                    finished = await box.wait_empty(_PATIENCE_S)
                    box.close()
            finally:
                os.close(out_write)
                os.close(err_write)
        finally:
            out, err = [text.decode(errors="replace") for text in await asyncio.gather(*readers)]
        wrong = attest.disagreements(
            facts, uid=uid, seccomp_sha256=plan.seccomp_sha256, required=frozenset(spec.base.required)
        )
        upper = Path(self.folder, spec.run_id, "upper") if profile.files.worktree == "overlay" else None
        return Outcome(status, out, err, uid, wrong, finished, upper)

    def killed(
        self,
        tree: Path,
        code: str,
        *,
        profile: Profile | None = None,
        weaken: Weaken = as_planned,
        how: Callable[[Box], Coroutine[Any, Any, Any]] = Box.kill,
    ) -> Killing:
        """Start a Python program, wait until it prints a line, then end its box."""

        async def attempt() -> Killing:
            client = await self.opened("")
            spec = weaken(self.plan(tree, profile or edited_profile(), client).spec)
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
            with os.fdopen(read_end, "rb") as output:
                try:
                    async with self.started(client, spec, [PYTHON, "-c", code], stdout=write_end) as box:
                        os.close(write_end)
                        write_end = -1
                        await box.release()
                        line = await asyncio.to_thread(output.readline)
                        before = processes_of(box.uid)
                        begun = time.monotonic()
                        await how(box)
                        finished = await box.wait_empty(_PATIENCE_S)
                        took = time.monotonic() - begun
                        box.close()
                        return Killing(
                            line.decode().strip(), len(before), processes_of(box.uid), took, finished
                        )
                finally:
                    if write_end >= 0:
                        os.close(write_end)

        return self.wait(attempt())

    async def opened(self, patch: str) -> LauncherClient:
        if patch not in self._clients:
            client = self.fresh_client(patch)
            await client.__aenter__()
            self._clients[patch] = client
        return self._clients[patch]

    def refused(
        self, tree: Path, argv: list[str], *, profile: Profile, weaken: Weaken, patch: str
    ) -> BoxError | None:
        """The error a start ends with, from a launcher of its own; None when it was armed."""

        async def attempt() -> BoxError | None:
            async with self.fresh_client(patch) as client:
                spec = weaken(self.plan(tree, profile, client).spec)
                try:
                    async with self.started(client, spec, argv) as box:
                        await box.release()
                        await box.wait_exited()
                except BoxError as error:
                    return error
            return None

        return self.wait(attempt())


def _read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process of a test for certain."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait()
