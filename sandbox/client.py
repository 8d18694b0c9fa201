"""Owns the supervisor's side of the launcher: starting it, its requests, and a box as an object.
May touch the launcher's socket, the box's channel and pidfd, all through the running event loop.
Never does a privileged step itself, and never waits without a bound.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import functools
import hashlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sandbox import cgroups
from sandbox.cgroups import RunGroup
from sandbox.launcher import MAX_MESSAGE
from sandbox.spec import Base, BoxSpec
from sandbox.wire import encode_run, to_json

T = TypeVar("T")

_ENVIRONMENT = ("LC_ALL=C.UTF-8",)
_PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent)
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from sandbox.launcher import main; main()"
_ARMING_PATIENCE_S = 20.0
_ABANDON_PATIENCE_S = 5.0
_UNWANTED_PAUSE_S = 0.02


class BoxError(Exception):
    """A box could not be made or has broken: control names what failed, hint says what to do."""

    def __init__(self, message: str, *, control: str = "", number: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.control = control
        self.number = number
        self.hint = hint or _ADVICE.get((control, number), "")


_NO_PRIVILEGE = (
    "root lacks CAP_SYS_ADMIN here, as in a container: run on the host, or give the container --privileged"
    if os.geteuid() == 0
    else "run as root; or let users make namespaces (user.max_user_namespaces, an AppArmor profile)"
)
_ADVICE = {
    ("user_namespace", "ENOSPC"): "user.max_user_namespaces allows no more of them (sysctl)",
    ("user_namespace", "EPERM"): _NO_PRIVILEGE,
    ("mount_namespace", "EPERM"): _NO_PRIVILEGE,
    ("mount_namespace", "ENOSPC"): "user.max_mnt_namespaces allows no more of them (sysctl)",
}
"""What lies behind an errno that says little (namespaces(7), clone(2))."""


class LauncherGone(BoxError):
    """The launcher has ended; every box it made has ended with it."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the launcher on this host can do (its answer to hello)."""

    privileged: bool
    landlock_abi: int
    cgroup_v2: str | None
    cgroup_limits: dict[str, str]
    cgroup_why_not: str
    pid: int


@dataclass(slots=True)
class Streams:
    """Descriptors for the agent: what it reads, and where its output goes."""

    stdin: int
    stdout: int
    stderr: int


class LauncherClient:
    """Requests are answered in order, one at a time. Use as an async context manager.

    at: the socket of a launcher that systemd starts; a child of our own where it is empty.
    """

    def __init__(self, namespace_key: str, boot: str = _BOOT, *, at: str = "") -> None:
        self.namespace_key = namespace_key
        self.capabilities: Capabilities
        self._boot = boot
        self._at = at
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Future[Any]] = set()
        self._socket: socket.socket
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1

    async def __aenter__(self) -> LauncherClient:
        if self._at:
            return await self._begin_there()
        scope = scope_command()
        try:
            return await self._begin(scope)
        except LauncherGone:
            if not scope:
                raise
            return await self._begin([])  # no manager to ask: without a group of its own

    async def _begin(self, scope: list[str]) -> LauncherClient:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE * 2)
        with theirs:
            self._process = _spawn(theirs.fileno(), self._boot, scope)
        ours.setblocking(False)
        self._socket = ours
        self._pidfd = os.pidfd_open(self._process.pid)
        return await self._greet()

    async def _begin_there(self) -> LauncherClient:
        """The launcher serves one supervisor: while it ends a dead one's boxes, the next waits here.

        systemd bounds that wait (TimeoutStartSec= of the daemon's unit).
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE * 2)
        self._socket.setblocking(False)
        try:
            self._socket.connect(self._at)
        except OSError as error:
            self._socket.close()
            raise LauncherGone(f"no launcher answers on {self._at}: {error.strerror}") from error
        return await self._greet()

    async def _greet(self) -> LauncherClient:
        try:
            reply, _ = await self.request("hello", namespace_key=self.namespace_key)
            self.capabilities = Capabilities(**{k: v for k, v in reply.items() if k != "ok"})
            if self._pidfd < 0:
                self._pidfd = os.pidfd_open(self.capabilities.pid)
        except (LauncherGone, ProcessLookupError) as error:
            await self.__aexit__()
            raise LauncherGone("the launcher has ended") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closing the socket makes the launcher end what is left and go."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._socket.close()
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
        elif self._pidfd >= 0:
            await _wait_readable(self._pidfd)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else self.capabilities.pid

    @property
    def gone(self) -> bool:
        if self._pidfd < 0:
            return True
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(0))

    async def wait_gone(self) -> None:
        """Until the launcher has ended, for whatever reason; its boxes have ended with it."""
        pidfd = os.dup(self._pidfd)  # a descriptor has one reader in the loop, and others may wait too
        try:
            await _wait_readable(pidfd)
        finally:
            os.close(pidfd)

    async def request(
        self, op: str, descriptors: tuple[int, ...] = (), **values: Any
    ) -> tuple[dict[str, Any], list[int]]:
        """Send one request and wait for its answer. Raises BoxError when it is refused."""
        message = json.dumps({"op": op, **values}, separators=(",", ":")).encode()
        if len(message) > MAX_MESSAGE:
            raise BoxError(
                f"{len(message)} bytes describe this box, the launcher takes {MAX_MESSAGE}: "
                "too many protected or hidden paths",
                control="protected_paths",
            )
        # A caller that is cancelled must not leave its answer for the next one to read.
        exchange = self._own(self._exchange(message, [os.dup(fd) for fd in descriptors]))
        try:
            raw, passed = await asyncio.shield(exchange)
        except asyncio.CancelledError:
            exchange.add_done_callback(_discard)
            raise
        if not raw:
            raise LauncherGone("the launcher has ended")
        reply: dict[str, Any] = json.loads(raw)
        if not reply["ok"]:
            for fd in passed:
                os.close(fd)
            raise BoxError(reply["message"], control=reply["control"], number=reply["errno"])
        return reply, passed

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that goes on when its caller is cancelled, and is ended with this client."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _exchange(self, message: bytes, descriptors: list[int]) -> tuple[bytes, list[int]]:
        try:
            async with self._lock:
                await _send(self._socket, message, tuple(descriptors))
                return await _receive(self._socket, MAX_MESSAGE)
        except OSError as error:
            raise LauncherGone(f"the launcher does not answer: {error}") from error
        finally:
            for fd in descriptors:
                os.close(fd)

    async def _end_unwanted(self, run_id: str) -> None:
        """A start that nobody waits for any more; its requests queue behind the start itself."""
        try:
            await self.request("kill", run_id=run_id)
            while not (await self.request("finish", run_id=run_id))[0]["dead"]:
                await asyncio.sleep(_UNWANTED_PAUSE_S)
        except BoxError:
            return

    async def start(
        self, spec: BoxSpec, streams: Streams, argv: list[str], environment: dict[str, str]
    ) -> Box:
        """Make a box and wait until every required control is armed; the agent is not released yet.

        The environment goes straight to the process that becomes the agent, in a sealed memory file:
        the launcher, which lives longer than a run, never holds a secret.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stage, its_stage = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = _sealed({"argv": argv, "env": environment})
        ends = (theirs.fileno(), its_stage.fileno())
        try:
            with theirs, its_stage:
                reply, passed = await self.request(
                    "start",
                    (*ends, streams.stdin, streams.stdout, streams.stderr, command),
                    spec=encode_run(spec),
                    base=_base_text(spec.base),
                )
        except BaseException as error:
            ours.close()
            stage.close()
            if isinstance(error, asyncio.CancelledError):
                self._own(self._end_unwanted(spec.run_id))
            raise
        finally:
            os.close(command)
        ours.setblocking(False)
        stage.setblocking(False)
        group = RunGroup(reply["cgroup_name"], reply["cgroup_v2"], reply["cgroup_limits"])
        pidfd, kill_fd = (*passed, -1)[:2]
        box = Box(self, spec, ours, stage, pidfd, kill_fd, reply["pid"], reply["uid"], group)
        try:
            async with asyncio.timeout(_ARMING_PATIENCE_S):
                await box.wait_armed()
        except TimeoutError:
            await box.abandon()
            raise BoxError(f"the box was not armed within {_ARMING_PATIENCE_S:.0f} s") from None
        except BaseException:
            await box.abandon()
            raise
        return box


@functools.lru_cache(maxsize=16)
def _base_text(base: Base) -> str:
    """As text, so that the launcher can tell without decoding it that it knows this one."""
    return to_json(base).decode()


def scope_command() -> list[str]:
    """What to put before the launcher so that it has a delegated group; nothing where it has one.

    Below a group that systemd has not delegated, groups of ours would keep its own processes out, and
    controllers may be missing (systemd.io/CGROUP_DELEGATION, "Delegation"). Pure v2 only.
    """
    if not os.path.isdir("/run/systemd/system") or not os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        return []
    if cgroups.is_delegated() or (program := shutil.which("systemd-run")) is None:
        return []
    user = [] if os.geteuid() == 0 else ["--user"]
    if user and not os.path.exists(f"/run/user/{os.geteuid()}/systemd/private"):
        return []  # no manager of this user is running
    options = "--scope --quiet --collect -p Delegate=yes --description=boxes".split()
    return [program, *user, *options, "--", "/usr/bin/env", "-i", *_ENVIRONMENT]


def _spawn(socket_fd: int, boot: str, scope: list[str]) -> subprocess.Popen[bytes]:
    """-I and -S: nothing from the environment, the current folder or site-packages is imported."""
    command = [sys.executable, "-IS", "-c", f"import os; os.dup2({socket_fd}, 3); {boot}", _PACKAGE_PARENT]
    environment = dict(setting.split("=", 1) for setting in _ENVIRONMENT)
    if scope:
        environment["XDG_RUNTIME_DIR"] = f"/run/user/{os.geteuid()}"  # where the user's manager listens
    read_end = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return subprocess.Popen(
            [*scope, *command],
            env=environment,
            stdin=read_end,
            pass_fds=(socket_fd,),
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(read_end)


def _sealed(command: dict[str, Any]) -> int:
    """A memory file that nobody can change any more (memfd_create(2), F_ADD_SEALS)."""
    fd = os.memfd_create("command", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    raw = json.dumps(command).encode()
    while raw:
        raw = raw[os.write(fd, raw) :]
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _discard(exchange: asyncio.Future[tuple[bytes, list[int]]]) -> None:
    if not exchange.cancelled() and exchange.exception() is None:
        for fd in exchange.result()[1]:
            os.close(fd)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _wait_readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def _wait_io(sock: socket.socket, write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    add(sock.fileno(), _settle, ready)
    try:
        await ready
    finally:
        remove(sock.fileno())


async def _send(sock: socket.socket, message: bytes, descriptors: tuple[int, ...]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    while True:
        try:
            sock.sendmsg([message], ancillary)
            return
        except BlockingIOError:
            await _wait_io(sock, write=True)


async def _receive(sock: socket.socket, size: int) -> tuple[bytes, list[int]]:
    while True:
        try:
            raw, ancillary, _, _ = sock.recvmsg(size, socket.CMSG_SPACE(32), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            await _wait_io(sock, write=False)
            continue
        found = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
        return raw, list(found)


async def _message(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next one and its descriptors; of the kind "gone" when there will be none."""
    try:
        raw, passed = await _receive(sock, MAX_MESSAGE)
    except ConnectionError:
        raw, passed = b"", []
    return (json.loads(raw) if raw else {"kind": "gone"}), passed


@dataclass(slots=True)
class Finished:
    """A box that was observed empty and removed: counters read before, folders that would not go."""

    counters: dict[str, int]
    left: list[str]


@dataclass(slots=True)
class Box:
    """A made box. armed and missing are init's report.

    channel leads to its init, stage to what becomes the agent and is closed by its exec. kill_fd,
    log_folder and listener are descriptors or -1; the first is the group's cgroup.kill.
    """

    launcher: LauncherClient
    spec: BoxSpec
    channel: socket.socket
    stage: socket.socket
    pidfd: int
    kill_fd: int
    pid: int
    uid: int
    group: RunGroup
    armed: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    program: str = ""
    log_folder: int = -1
    listener: int = -1

    async def wait_armed(self) -> None:
        """Both say so: the agent's process, and init, which has given up its own privileges by then."""
        armed = await self._told(self.stage, "armed")
        await self._told(self.channel, "ready")
        self.armed, self.missing = armed["controls"], armed["missing"]
        self.program = armed["program"]

    async def _told(self, sock: socket.socket, kind: str) -> dict[str, Any]:
        message, passed = await _message(sock)
        if message["kind"] == "gone" and sock is self.stage:
            message, passed = await _message(self.channel)  # init says why
        for name, fd in zip(message.get("passed", ()), passed, strict=True):
            setattr(self, name, fd)
        if message["kind"] == "failed":
            raise BoxError(message["message"], control=message["control"], number=message["errno"])
        if message["kind"] != kind:
            raise BoxError(f"the box ended before it was {kind} ({message['kind']})")
        return message

    async def attest(self) -> dict[str, Any]:
        """Facts read back from the kernel by the launcher (sandbox.attest)."""
        reply, _ = await self.launcher.request("attest", run_id=self.spec.run_id)
        facts: dict[str, Any] = reply["facts"]
        programs = [bytes.fromhex(program) for program in facts["seccomp"].pop("programs", ())]
        if programs:
            # Here and not in the launcher, which would have to load OpenSSL, and each box with it.
            facts["seccomp"]["sha256"] = [hashlib.sha256(program).hexdigest() for program in programs]
        return facts

    async def release(self) -> None:
        """Let the agent be executed. Raises BoxError when the exec itself failed."""
        with suppress(OSError):  # it has ended meanwhile: wait_exited tells how
            await _send(self.stage, b"go", ())
        message, _ = await _message(self.stage)
        self.stage.close()
        if message["kind"] == "exec_failed":
            raise BoxError(
                f"{message['program']} cannot be executed: {message['message']}",
                control="environment",
                number=message["errno"],
            )

    async def wait_exited(self) -> int | None:
        """The agent's wait status, or None when the box ended without one."""
        message, _ = await _message(self.channel)
        return int(message["status"]) if message["kind"] == "exited" else None

    async def terminate(self) -> None:
        """TERM to the agent through init; nothing happens when the box is gone already."""
        try:
            await _send(self.channel, b"term", ())
        except OSError:
            return

    def strike(self) -> int:
        """SIGKILL to the group at once, before the launcher has woken up; how many processes it had.

        Not instead of kill(): where there is no such descriptor this does nothing.
        """
        if self.kill_fd < 0:
            return 0
        members = len(self.group.members())
        with suppress(OSError):  # removed meanwhile: nothing was in it
            os.write(self.kill_fd, b"1")
        return members

    async def kill(self) -> int:
        """SIGKILL to everything in the box; how many processes that were."""
        struck = self.strike()
        reply, _ = await self.launcher.request("kill", run_id=self.spec.run_id)
        return max(struck, int(reply["signalled"]))

    async def wait_dead(self, patience_s: float) -> bool:
        """Observe that nothing of the box is alive: init dead, cgroup unpopulated; False past the patience.

        The kernel ends a pid namespace completely before its init counts as dead (pid_namespaces(7)).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        if not await self._wait_pidfd(patience_s):
            return False
        pause = 0.0005
        while self.group.populated():
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True

    async def wait_empty(self, patience_s: float) -> Finished | None:
        """wait_dead, then have it collected and removed; None past the patience."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        if not await self._wait_pidfd(patience_s):
            return None
        pause = 0.0005
        while True:
            reply, _ = await self.launcher.request("finish", run_id=self.spec.run_id)
            if reply["dead"]:
                return Finished(reply["counters"], reply["left"])
            if loop.time() >= deadline:
                return None
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)

    async def _wait_pidfd(self, patience_s: float) -> bool:
        try:
            async with asyncio.timeout(patience_s):
                await _wait_readable(self.pidfd)
        except TimeoutError:
            return False
        return True

    async def abandon(self) -> None:
        """A box whose agent was not released: end and remove it without ceremony."""
        try:
            await self.kill()
            await self.wait_empty(_ABANDON_PATIENCE_S)
        except LauncherGone:
            pass  # it has ended every box with itself
        finally:
            self.close()

    def close(self) -> None:
        for fd in (self.pidfd, self.kill_fd, self.log_folder, self.listener):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self.kill_fd = self.log_folder = self.listener = -1
        self.stage.close()
        self.channel.close()
