"""Owns a box from the inside: PID 1, which arms every control, then starts the agent and reaps.
May touch only what it was forked with: its specification and a few descriptors.
Never reads what the agent writes, never executes anything but the agent, never outlives the supervisor.
"""

from __future__ import annotations

import array
import base64
import errno
import json
import os
import select
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sandbox import identity, landlock, mounts, network, syscalls
from sandbox.cgroups import RunGroup
from sandbox.spec import ALWAYS_REQUIRED, Base, BoxSpec, Control
from sandbox.wire import decode_box

MESSAGE_BYTES = 1 << 18
MAX_DESCRIPTORS = 8
_INHERITED_HANDLING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGCHLD,
)
"""Ignored in the launcher or in Python; an ignored signal would stay ignored over the exec."""


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
    """Descriptors that come with a run. idmap is -1 without root.

    channel: SEQPACKET to the supervisor; when it closes, the box ends. command: a sealed file with
    the agent's arguments and environment.
    """

    channel: int
    stdin: int
    stdout: int
    stderr: int
    command: int
    idmap: int = -1


class NotArmed(Exception):
    """A control could not be armed: its name, and the system's reason."""

    def __init__(self, control: Control, message: str, number: int = 0) -> None:
        super().__init__(f"{control}: {message}")
        self.control = control
        self.message = message
        self.number = number


class NoProgram(Exception):
    """The agent's program is not in the box, or cannot be executed there."""


@dataclass(slots=True)
class Armed:
    """What is armed so far, and what could not be although the specification does not insist.

    A blank does not know yet what its run will insist on; require() says it, and looks back.
    """

    required: frozenset[str] = frozenset(ALWAYS_REQUIRED)
    controls: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def require(self, names: frozenset[str]) -> None:
        self.required = names
        for name in sorted(names & self.missing.keys()):
            raise NotArmed(Control(name), self.missing[name])

    def add(self, *controls: Control) -> None:
        self.controls += [str(control) for control in controls]

    @contextmanager
    def arming(self, control: Control) -> Iterator[None]:
        """Record the control as armed, or raise NotArmed, or note a dispensable one as missing."""
        try:
            yield
        except (OSError, mounts.StepFailed) as error:
            cause = error.cause if isinstance(error, mounts.StepFailed) else error
            message = str(error) if isinstance(error, mounts.StepFailed) else _reason(error)
            if control in self.required:
                raise NotArmed(control, message, cause.errno or 0) from error
            self.missing[control] = message
        else:
            self.add(control)

    def refuse_if_incomplete(self) -> None:
        for name in sorted(self.required - set(self.controls)):
            raise NotArmed(Control(name), self.missing.get(name, "this host does not offer it"))


def _reason(error: OSError) -> str:
    return f"{error.strerror or error} ({error.filename})" if error.filename else str(error.strerror or error)


def send(channel: socket.socket, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    ancillary: list[tuple[int, int, array.array[int]]] = []
    if descriptors:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    channel.sendmsg([json.dumps(message, separators=(",", ":")).encode()], ancillary)


def run(base: Base, handles: BlankHandles, group: RunGroup, agent_uid: int, template: str) -> NoReturn:
    """PID 1 of a box: prepare what all boxes have in common, wait for a run, arm the rest, be init.

    Never returns; every failure is reported on the run's channel by name.
    """
    code = 1
    try:
        syscalls.set_parent_death_signal(signal.SIGKILL)
        syscalls.close_from(3, handles.present())
        stage = mounts.Stage(agent_uid, handles.user_namespace >= 0, template=template)
        armed, failure = Armed(), None
        try:
            _arm_blank(base, handles, group, stage, armed)
        except NotArmed as error:
            failure = error
        box, given = _wait_for_run(handles.assignment, base)
        with socket.socket(fileno=given.channel) as channel:
            try:
                if failure is not None:
                    raise failure
                code = _life(box, handles, given, stage, armed, channel)
            except NotArmed as error:
                _report_failure(channel, error)
    except BaseException:
        os._exit(code)
    os._exit(code)


def _wait_for_run(assignment: int, base: Base) -> tuple[BoxSpec, RunHandles]:
    """The one message a blank ever gets. Without one it ends: its launcher has gone or dropped it."""
    with socket.socket(fileno=assignment) as launcher:
        raw, descriptors = receive(launcher)
    if not raw:
        os._exit(0)
    return decode_box(json.loads(raw), base), RunHandles(*descriptors)


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """One message and the descriptors that came with it; empty when the other end has closed."""
    raw, ancillary, _, _ = channel.recvmsg(
        MESSAGE_BYTES, socket.CMSG_SPACE(4 * MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
    )
    found: array.array[int] = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return raw, list(found)


def _life(
    box: BoxSpec,
    handles: BlankHandles,
    given: RunHandles,
    stage: mounts.Stage,
    armed: Armed,
    channel: socket.socket,
) -> int:
    privileged = handles.user_namespace >= 0
    armed.require(frozenset(box.required))
    _arm_box(box, handles, given, stage, armed)
    listener = None
    if box.gateway_port:
        with armed.arming(Control.NETWORK_NAMESPACE):
            listener = network.open_listener(box.gateway_port)
    agent, stage_channel = _fork_agent(box, given, privileged, armed)
    _become_init(privileged, (*handles.present()[1:], given.stdin, given.stdout, given.stderr, given.command))
    passed = {"log_folder": stage.log_folder_fd, "listener": listener.fileno() if listener else -1}
    present = {name: fd for name, fd in passed.items() if fd >= 0}
    try:
        return _Reaper(channel, stage_channel, agent, present).run()
    finally:
        if listener:
            listener.close()


def _report_failure(channel: socket.socket, error: NotArmed) -> None:
    send(
        channel,
        {
            "kind": "failed",
            "control": str(error.control),
            "message": error.message,
            "errno": errno.errorcode.get(error.number, ""),
        },
    )


def _arm_blank(base: Base, handles: BlankHandles, group: RunGroup, stage: mounts.Stage, armed: Armed) -> None:
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
    _steps(lambda: mounts.begin(stage, base.steps))
    if stage.memfd_noexec:
        armed.add(Control.MEMFD_NOEXEC)
    else:
        armed.missing[Control.MEMFD_NOEXEC] = "needs Linux 6.3"


def _arm_box(
    box: BoxSpec, handles: BlankHandles, given: RunHandles, stage: mounts.Stage, armed: Armed
) -> None:
    """The rest of what holds for the whole box: the worktree, the final root, limits, the uid map."""
    stage.idmap_fd = given.idmap
    _steps(lambda: mounts.carry_out(stage, box.steps))
    with armed.arming(Control.ROOT):
        mounts.enter(stage)
    armed.add(Control.WORKTREE, Control.PROTECTED_PATHS)
    with armed.arming(Control.RESOURCE_LIMITS):
        identity.set_resource_limits(box.resource_limits)
    with armed.arming(Control.USER_NAMESPACE):
        if handles.user_namespace >= 0:
            # After the mounts: they are owned by the host's root, so the box cannot undo one.
            syscalls.setns(handles.user_namespace, syscalls.CLONE_NEWUSER)
            identity.drop_bounding_set()
    if handles.user_namespace >= 0:
        armed.add(Control.PRIVATE_UID)
    else:
        armed.missing[Control.PRIVATE_UID] = "without root the run has its user's own uid"


def _enter_groups(group: RunGroup, armed: Armed) -> None:
    controls = {
        "memory": Control.MEMORY_LIMIT,
        "pids": Control.PIDS_LIMIT,
        "cpu": Control.CPU_LIMIT,
    }
    entered = False
    try:
        group.enter_v1()
        entered = True
    finally:
        for name, control in controls.items():
            if name in group.limits and entered:
                armed.add(control)
            else:
                armed.missing[control] = f"no writable cgroup with the {name} controller"
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
        raise NotArmed(Control.ROOT, _reason(error), error.errno or 0) from error


def control_of(step: object) -> Control:
    """Which control a mount step belongs to, for the name of a failure."""
    match type(step).__name__:
        case "Worktree":
            return Control.WORKTREE
        case "Pin" | "Protect" | "Hide" | "Unlock":
            return Control.PROTECTED_PATHS
        case _:
            return Control.ROOT


def _become_init(privileged: bool, needless: tuple[int, ...]) -> None:
    """Give up everything that PID 1 no longer needs: it is the agent's uid without a capability."""
    identity.drop_bounding_set()
    identity.become_agent(privileged)
    syscalls.set_dumpable(False)
    syscalls.set_parent_death_signal(signal.SIGKILL)  # the change of uid cleared it
    syscalls.set_process_name("box-init")
    for fd in needless:
        os.close(fd)


def _fork_agent(box: BoxSpec, given: RunHandles, privileged: bool, armed: Armed) -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        ours.close()
        _agent_stage(box, given, privileged, armed, theirs)
    except NotArmed as error:
        _report_failure(theirs, error)
    except NoProgram as error:
        send(theirs, {"kind": "failed", "control": "program", "message": str(error), "errno": ""})
    except BaseException as error:
        _report_failure(theirs, NotArmed(Control.DESCRIPTORS, repr(error)))
    os._exit(127)


def _agent_stage(
    box: BoxSpec, given: RunHandles, privileged: bool, armed: Armed, to_init: socket.socket
) -> None:
    """The process that becomes the agent: give everything up, report, wait for release, exec."""
    command = _read_command(given.command)
    with armed.arming(Control.DESCRIPTORS):
        os.setsid()
        for number, fd in enumerate((given.stdin, given.stdout, given.stderr)):
            os.dup2(fd, number)
        syscalls.close_from(3, (to_init.fileno(),))
    with armed.arming(Control.CAPABILITIES):
        identity.drop_bounding_set()
    with armed.arming(Control.IDENTITY):
        identity.become_agent(privileged)
    _enter_workdir(box.workdir)
    program = _resolve(command["argv"][0], command["env"].get("PATH", ""), box.workdir)
    with armed.arming(Control.NO_NEW_PRIVS):
        syscalls.set_no_new_privs()
    if box.landlock:
        with armed.arming(Control.LANDLOCK):
            landlock.enforce(box.landlock)
    else:
        armed.missing[Control.LANDLOCK] = "the kernel has no Landlock, or it is not in its lsm= list"
    for number in _INHERITED_HANDLING:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    armed.add(Control.ENVIRONMENT)
    if box.seccomp:
        with armed.arming(Control.SECCOMP):
            syscalls.install_seccomp(base64.b64decode(box.seccomp))
    armed.refuse_if_incomplete()
    report = {"kind": "armed", "controls": armed.controls, "missing": armed.missing, "program": program}
    send(to_init, report)
    if to_init.recv(16) != b"go":
        os._exit(126)
    try:
        os.execve(program, command["argv"], command["env"])
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        send(to_init, {"kind": "exec_failed", "program": program, "message": error.strerror, "errno": name})
    os._exit(127)


def _read_command(fd: int) -> dict[str, Any]:
    size = os.fstat(fd).st_size
    parts: list[bytes] = []
    offset = 0
    while offset < size:
        part = os.pread(fd, size - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    command: dict[str, Any] = json.loads(b"".join(parts))
    return command


def _enter_workdir(workdir: str) -> None:
    """Also prove that the agent's uid can write where it will need to, before it finds out itself."""
    try:
        os.chdir(workdir)
        if not os.access("/tmp", os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/tmp")
    except OSError as error:
        raise NotArmed(Control.WORKTREE, _reason(error), error.errno or 0) from error


def _resolve(name: str, path: str, workdir: str) -> str:
    """Find the program inside the box, by the box's own PATH. Raises NoProgram saying where it looked."""
    if "/" in name:
        candidates = [os.path.join(workdir, name)]
    else:
        candidates = [os.path.join(folder, name) for folder in path.split(":") if folder]
    seen = ""
    for candidate in candidates:
        try:
            if stat.S_ISREG(os.stat(candidate).st_mode) and os.access(candidate, os.X_OK):
                return candidate
            seen = seen or candidate
        except OSError:
            continue
    if seen:
        raise NoProgram(f"{seen} cannot be executed in the box")
    where = f" on its PATH ({path})" if "/" not in name else ""
    raise NoProgram(f"there is no program {name} in the box{where}")


class _Reaper:
    """The rest of PID 1's life: pass messages on, forward TERM, reap, end with the agent."""

    def __init__(
        self,
        channel: socket.socket,
        stage: socket.socket,
        agent: int,
        passed: dict[str, int],
    ) -> None:
        self.channel = channel
        self.stage: socket.socket | None = stage
        self.agent = agent
        self.passed = passed

    def run(self) -> int:
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.terminate())
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        assert self.stage is not None
        stage_fd = self.stage.fileno()
        poller.register(stage_fd, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                elif fd == stage_fd:
                    if not self._from_stage():
                        poller.unregister(stage_fd)
                elif not self._from_supervisor():
                    return 1
            status = self._reap()
            if status is not None:
                if self.stage is not None:
                    self._from_stage()
                send(self.channel, {"kind": "exited", "status": status})
                return 0

    def _from_stage(self) -> bool:
        """False when there will be no more: the exec closed the socket, or the stage died."""
        assert self.stage is not None
        try:
            raw = self.stage.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            raw = b""
        if not raw:
            self.stage.close()
            self.stage = None
            send(self.channel, {"kind": "released"})
            return False
        message = json.loads(raw)
        if message["kind"] == "armed":
            names = list(self.passed)
            message["passed"] = names
            send(self.channel, message, tuple(self.passed[name] for name in names))
            for fd in self.passed.values():
                os.close(fd)
            self.passed = {}
        else:
            send(self.channel, message)
        return True

    def _from_supervisor(self) -> bool:
        raw = self.channel.recv(64)
        if not raw:
            return False  # the supervisor is gone, and so is everything in here
        if raw == b"go" and self.stage is not None:
            self.stage.send(b"go")
        elif raw == b"term":
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
