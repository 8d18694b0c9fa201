"""Owns a box from the inside: PID 1, which arms what holds for the whole box, and reaps.
May touch only what it was forked with: its specification and a few descriptors.
Never reads what the agent writes, never executes anything, never outlives the supervisor.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from sandbox import agent, identity, landlock, mounts, network, syscalls
from sandbox.cgroups import RunGroup
from sandbox.reporting import Armed, NotArmed, reason, receive, report_failure, send
from sandbox.spec import Base, BoxSpec, Control
from sandbox.wire import SpecError, decode_box


@dataclass(frozen=True, slots=True)
class BlankHandles:
    """Descriptors a blank is forked with; -1 stands for "not there".

    assignment: SEQPACKET from the launcher, which sends one run and then closes it. gate: readable
    once the uid maps are written (rootless).
    """

    assignment: int
    gate: int
    user_namespace: int

    def present(self) -> tuple[int, ...]:
        return tuple(fd for fd in (self.assignment, self.gate, self.user_namespace) if fd >= 0)


@dataclass(frozen=True, slots=True)
class RunHandles:
    """Descriptors that come with a run.

    channel: SEQPACKET to the supervisor; when it closes, the box ends. stage: another one, for the
    agent's process, which its exec closes. command: a sealed file with its arguments and environment.
    """

    channel: int
    stage: int
    stdin: int
    stdout: int
    stderr: int
    command: int


def run(
    base: Base, handles: BlankHandles, group: RunGroup, agent_uid: int, template: str, example: bytes
) -> NoReturn:
    """PID 1 of a box: prepare what all boxes have in common, wait for a run, arm the rest, be init.

    Never returns; every failure is reported on the run's channel by name. example: the message of an
    earlier run of this base, or nothing.
    """
    code = 1
    try:
        syscalls.set_parent_death_signal(signal.SIGKILL)
        syscalls.close_from(3, handles.present())
        stage = mounts.Stage(agent_uid, handles.user_namespace >= 0, template=template)
        blank = _Blank(base, handles, stage, Armed(frozenset(base.required)))
        blank.prepare(group)
        if example:
            # Writing to a page copies it. Those that reading a message writes to are then ours already.
            with suppress(SpecError):
                decode_box(json.loads(example), base)
        with socket.socket(fileno=handles.assignment) as launcher:
            raw, descriptors = receive(launcher)
            if raw:  # else the launcher has gone, or has dropped this blank
                code = blank.live(raw, descriptors, launcher)
    except BaseException:
        os._exit(code)
    os._exit(code)


@dataclass(slots=True)
class _Blank:
    """A box on its way: common part, then its run. failure is kept until there is somebody to tell."""

    base: Base
    handles: BlankHandles
    stage: mounts.Stage
    armed: Armed
    failure: NotArmed | None = None
    agent_pid: int = -1
    agent_socket: socket.socket | None = None
    ruleset: int = -1

    def prepare(self, group: RunGroup) -> None:
        """The agent's process is forked before the mounts: it arms itself meanwhile, on another core."""
        try:
            _enter(self.base, self.handles, group, self.armed)
            self.agent_pid, self.agent_socket = agent.fork_ahead(self.base, self.handles.user_namespace)
            _steps(lambda: mounts.begin(self.stage, self.base.steps))
            # Exactly "" is armed: anything else that is merely false is not taken for it.
            if self.stage.memfd_noexec == "":
                self.armed.add(Control.MEMFD_NOEXEC)
            else:
                self.armed.missing[Control.MEMFD_NOEXEC] = str(self.stage.memfd_noexec)
            self._begin_ruleset()
            if self.stage.privileged:
                # What a run needs of the host comes from the launcher, as mounts that are made already.
                self._enter_root()
        except NotArmed as error:
            self.failure = error
        except OSError as error:
            self.failure = NotArmed(Control.ROOT, reason(error), error.errno or 0)

    def _enter_root(self) -> None:
        with self.armed.arming(Control.ROOT):
            mounts.enter(self.stage)

    def _begin_ruleset(self) -> None:
        """Armed by the agent's process, which adds the run's own paths and enforces it."""
        if self.base.landlock is None:
            self.armed.missing[Control.LANDLOCK] = "the kernel has no Landlock, or it is not in its lsm= list"
            return
        try:
            self.ruleset = landlock.prepare(self.base.landlock, self.stage.staging)
        except OSError as error:
            if Control.LANDLOCK in self.base.required:
                raise NotArmed(Control.LANDLOCK, reason(error), error.errno or 0) from error
            self.armed.missing[Control.LANDLOCK] = reason(error)

    def live(self, raw: bytes, descriptors: list[int], launcher: socket.socket) -> int:
        """From the run's message to the agent's end; the exit code of PID 1."""
        given = RunHandles(*descriptors)
        with socket.socket(fileno=given.channel) as channel:
            try:
                if self.failure is not None or self.agent_socket is None:
                    raise self.failure or NotArmed(Control.PID_NAMESPACE, "no process for the agent")
                box = decode_box(json.loads(raw), self.base)
                if self.stage.privileged:
                    self.stage.mounts = _receive_mounts(launcher)
                launcher.close()
                self._hand_over(box, given)
                passed = self._arm(box)
                send(channel, {"kind": "ready", "passed": list(passed)}, tuple(passed.values()))
                for fd in passed.values():
                    os.close(fd)
            except NotArmed as error:
                report_failure(channel, error)
                return 1
            except SpecError as error:
                send(
                    channel,
                    {"kind": "failed", "control": "", "message": f"bad request: {error}", "errno": ""},
                )
                return 1
            return _Reaper(channel, self.agent_pid).run()

    def _tell_agent(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        assert self.agent_socket is not None
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended; the reaper sees it
            send(self.agent_socket, message, descriptors)

    def _hand_over(self, box: BoxSpec, given: RunHandles) -> None:
        """Its streams and what it needs to know: it gets ready while the mounts are made here."""
        paths = [(rule.path, rule.access) for rule in box.landlock_paths]
        theirs = [given.stage, given.stdin, given.stdout, given.stderr, given.command]
        theirs += [self.ruleset] if self.ruleset >= 0 else []
        self._tell_agent({"workdir": box.workdir, "landlock": paths}, tuple(theirs))
        for fd in theirs:
            os.close(fd)

    def _arm(self, box: BoxSpec) -> dict[str, int]:
        """The worktree, and the root is final; then the agent's process may go on, and this one be init.

        Returns the descriptors that are for the supervisor, by name.
        """
        self.stage.template = ""  # it has the base's steps; these are the run's own
        _steps(lambda: mounts.carry_out(self.stage, box.steps))
        if not self.stage.privileged:
            self._enter_root()
        with self.armed.arming(Control.ROOT):
            mounts.close_root(self.stage)
        self.armed.add(Control.WORKTREE, Control.PROTECTED_PATHS)
        passed = {"log_folder": self.stage.log_folder_fd}
        if box.gateway_port:
            with self.armed.arming(Control.NETWORK_NAMESPACE):
                passed["listener"] = network.open_listener(box.gateway_port).detach()
        self._tell_agent({"controls": self.armed.controls, "missing": self.armed.missing})
        with self.armed.arming(Control.IDENTITY):
            self._become_init()
        return {name: fd for name, fd in passed.items() if fd >= 0}

    def _become_init(self) -> None:
        """Give up everything that PID 1 no longer needs: it is the agent's uid without a capability."""
        privileged = self.handles.user_namespace >= 0
        if privileged:
            with self.armed.arming(Control.USER_NAMESPACE):
                syscalls.setns(self.handles.user_namespace, syscalls.CLONE_NEWUSER)
        identity.drop_bounding_set()
        identity.become_agent(privileged)
        syscalls.set_dumpable(False)
        syscalls.set_parent_death_signal(signal.SIGKILL)  # the change of uid cleared it
        syscalls.set_process_name("box-init")
        if privileged:
            os.close(self.handles.user_namespace)
        assert self.agent_socket is not None
        self.agent_socket.close()


def _enter(base: Base, handles: BlankHandles, group: RunGroup, armed: Armed) -> None:
    """What does not depend on the run. The order matters; the reason is beside each step."""
    if handles.gate >= 0:
        os.read(handles.gate, 1)  # without maps this process is nobody and may do nothing
        os.close(handles.gate)
    armed.add(Control.MOUNT_NAMESPACE, Control.PID_NAMESPACE, Control.IPC_NAMESPACE, Control.TIME_NAMESPACE)
    # Limits first: from here on even our own set-up is bounded.
    _enter_groups(group, armed)
    with armed.arming(Control.CGROUP_NAMESPACE):
        syscalls.unshare(syscalls.CLONE_NEWCGROUP)  # after entering, so that the box sees itself as "/"
    with armed.arming(Control.UTS_NAMESPACE):
        syscalls.sethostname(base.hostname)
    with armed.arming(Control.NETWORK_NAMESPACE):
        network.raise_loopback()


def _receive_mounts(launcher: socket.socket) -> dict[str, int]:
    targets, descriptors = receive(launcher)
    return dict(zip(json.loads(targets or b"[]"), descriptors, strict=True))


def _enter_groups(group: RunGroup, armed: Armed) -> None:
    controls = {
        "memory": Control.MEMORY_LIMIT,
        "pids": Control.PIDS_LIMIT,
        "cpu": Control.CPU_LIMIT,
    }
    problem = ""
    try:
        group.enter_v1()
    except OSError as error:
        problem = reason(error)
    for name, control in controls.items():
        if name in group.limits and not problem:
            armed.add(control)
        else:
            armed.missing[control] = problem or f"no writable cgroup with the {name} controller"
    if group.v2:
        armed.add(Control.CGROUP_KILL)
    else:
        armed.missing[Control.CGROUP_KILL] = "no writable cgroup v2 hierarchy"


def _steps(carry_out: Callable[[], None]) -> None:
    try:
        carry_out()
    except mounts.StepFailed as error:
        raise NotArmed(control_of(error.step), str(error), error.cause.errno or 0) from error
    except OSError as error:
        raise NotArmed(Control.ROOT, reason(error), error.errno or 0) from error


def control_of(step: object) -> Control:
    """Which control a mount step belongs to, for the name of a failure."""
    match type(step).__name__:
        case "Worktree":
            return Control.WORKTREE
        case "Pin" | "Protect" | "Hide" | "Unlock":
            return Control.PROTECTED_PATHS
        case _:
            return Control.ROOT


class _Reaper:
    """The rest of PID 1's life: forward TERM, reap, end with the agent or with the supervisor."""

    def __init__(self, channel: socket.socket, agent: int) -> None:
        self.channel = channel
        self.agent = agent

    def run(self) -> int:
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.terminate())
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while (status := self._reap()) is None:
            for fd, _ in poller.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                elif not self._from_supervisor():
                    return 1
        send(self.channel, {"kind": "exited", "status": status})
        return 0

    def _from_supervisor(self) -> bool:
        raw = self.channel.recv(64)
        if not raw:
            return False  # the supervisor is gone, and so is everything in here
        if raw == b"term":
            self.terminate()
        return True

    def terminate(self) -> None:
        """TERM to the agent and its process group; what ignores it is killed with the box later."""
        for target in (-self.agent, self.agent):
            try:
                os.kill(target, signal.SIGTERM)
            except OSError:
                continue

    def _reap(self) -> int | None:
        """Collect every zombie; the agent's own exit status when it was among them."""
        found: int | None = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == self.agent:
                found = status
