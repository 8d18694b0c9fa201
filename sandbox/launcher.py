"""Owns the privileged part: a fork server that makes boxes, kills them and cleans up after them.
May touch namespaces, mounts, cgroups and uids, with one thread and a pinned list of standard modules.
Never parses anything an agent wrote, never opens the network, and ends every box when its supervisor goes.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import signal
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sandbox import attest, cgroups, identity, init, mounts, syscalls
from sandbox.identity import Identity, write_map
from sandbox.reporting import MESSAGE_BYTES, receive, send, send_raw
from sandbox.spec import AGENT_UID, Base, CgroupLimits, Control, MountStep, Worktree
from sandbox.template import Template
from sandbox.wire import SpecError, decode, prepare

MAX_MESSAGE = MESSAGE_BYTES
_REMOVE_PATIENCE_S = 2.0
_IDLE_MS = 20
_LOOKS = 3


@dataclass(slots=True)
class Box:
    """A PID 1 of ours that has not been cleaned up yet: a blank until it is given a run."""

    base_text: str
    pid: int
    pidfd: int
    group: cgroups.RunGroup
    identity: Identity | None
    assignment: socket.socket
    mounts: int = -1
    reaped: bool = False
    programs: attest.Programs | None = None

    def kill(self) -> None:
        """Both handles: the cgroup gets everything, init's end gets what no cgroup held."""
        self.group.kill()
        if not self.reaped:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:
                return

    def reap(self, block: bool = False) -> bool:
        if not self.reaped:
            flags = os.WEXITED | (0 if block else os.WNOHANG)
            try:
                self.reaped = os.waitid(os.P_PIDFD, self.pidfd, flags) is not None
            except ChildProcessError:
                self.reaped = True
        return self.reaped


class Refused(Exception):
    """A request that is not carried out; control names what could not be armed, if that was it."""

    def __init__(self, message: str, control: str = "", number: int = 0) -> None:
        super().__init__(message)
        self.control = control
        self.number = number


class Launcher:
    """The message set: hello, start, attest, kill, finish, sweep. A test holds the list."""

    def __init__(self, supervisor: socket.socket) -> None:
        self.supervisor = supervisor
        self.privileged = os.geteuid() == 0
        self._owner: tuple[int, int] | None = None
        self.boxes: dict[str, Box] = {}
        self.blank: Box | None = None
        self._next_base = ""
        self._looks = 0
        self._example = b""
        self._after_reply: list[int] = []
        self.template = Template() if self.privileged else None
        self._known_base: tuple[str, Base] | None = None
        self._made = 0
        self.hierarchies: dict[str, cgroups.Hierarchies] = {}
        self.handlers: dict[str, Callable[[dict[str, Any], list[int]], tuple[dict[str, Any], list[int]]]] = {
            "hello": self.hello,
            "start": self.start,
            "attest": self.attest,
            "kill": self.kill,
            "finish": self.finish,
            "sweep": self.sweep,
        }

    def serve(self) -> None:
        """Until the supervisor's end closes; then everything that was started is ended."""
        poller = select.poll()
        poller.register(self.supervisor, select.POLLIN)
        if self.template:
            poller.register(self.template.host_table, select.POLLPRI)
        try:
            while True:
                ready = [fd for fd, _ in poller.poll(_IDLE_MS if self._next_base or self._looks else None)]
                if self.template and self.template.host_table in ready:
                    # Before any request: the host mounted or unmounted something, and our copy of
                    # its mounts must neither be used nor keep a file system busy.
                    self._drop_blank()
                    self.template.forget()
                if self.supervisor.fileno() in ready:
                    if not self._one_message():
                        return
                elif not ready:
                    self._prepare_next()
        finally:
            self.end_everything()

    def _one_message(self) -> bool:
        raw, descriptors = receive(self.supervisor)
        if not raw:
            return False
        reply: dict[str, Any]
        passed: list[int] = []
        request: dict[str, Any] = {}
        try:
            request = json.loads(raw)
            reply, passed = self.handlers[request["op"]](request, descriptors)
            reply = {"ok": True, **reply}
        except Refused as error:
            reply = {
                "ok": False,
                "message": str(error),
                "control": error.control,
                "errno": _name(error.number),
            }
        except (SpecError, KeyError, ValueError, TypeError) as error:
            reply = {"ok": False, "message": f"bad request: {error!r}", "control": "", "errno": ""}
        except OSError as error:
            reply = {"ok": False, "message": str(error), "control": "", "errno": _name(error.errno or 0)}
        finally:
            for fd in descriptors:
                os.close(fd)
        send(self.supervisor, reply, tuple(passed))
        while self._after_reply:
            os.close(self._after_reply.pop())
        return True

    def _where(self, key: str) -> cgroups.Hierarchies:
        if key not in self.hierarchies:
            self.hierarchies[key] = cgroups.discover(key)
        return self.hierarchies[key]

    def hello(self, request: dict[str, Any], _: list[int]) -> tuple[dict[str, Any], list[int]]:
        """What this launcher can do: asked once, at start."""
        where = self._where(request["namespace_key"])
        return {
            "privileged": self.privileged,
            "landlock_abi": syscalls.landlock_abi(),
            "cgroup_v2": where.v2,
            "cgroup_limits": where.limits,
            "cgroup_why_not": where.why_not,
            "pid": os.getpid(),
        }, []

    def start(self, request: dict[str, Any], descriptors: list[int]) -> tuple[dict[str, Any], list[int]]:
        """Make a box up to the point where the agent waits to be released.

        Descriptors: channel, stage, stdin, stdout, stderr, command. Reply: pid, uid, its cgroups, a
        pidfd of the box's init and, where there is one, its cgroup.kill.
        """
        base_text = request["base"]
        box = self.blank if self.blank and self.blank.base_text == base_text else None
        run_id = decode(str, request["spec"]["run_id"], "box.run_id")
        if len(descriptors) != 6:
            raise Refused(f"start takes 6 descriptors, not {len(descriptors)}")
        if run_id in self.boxes or not run_id.isalnum():
            raise Refused(f"run {run_id!r} exists already or is no run id")
        if box is None or box.reap() or (self.template and self.template.is_stale()):
            self._drop_blank()
            box = self._make_blank(base_text)
        self.blank = None
        try:
            self._assign(box, request["spec"], descriptors)
            kill = box.group.open_kill()
        except BaseException:
            self._end(box)
            raise
        if kill >= 0:
            self._after_reply.append(kill)
        self.boxes[run_id] = box
        self._next_base = base_text
        reply = {
            "pid": box.pid,
            "uid": box.identity.uid if box.identity else os.geteuid(),
            "cgroup_name": box.group.name,
            "cgroup_v2": box.group.v2,
            "cgroup_limits": box.group.limits,
        }
        return reply, [fd for fd in (box.pidfd, kill) if fd >= 0]

    def _assign(self, box: Box, plain: dict[str, Any], descriptors: list[int]) -> None:
        """As root the box reads its part meanwhile; it has no worktree yet, and cannot go on without.

        Only what the launcher itself needs is decoded here; the box decodes all of it, strictly.
        """
        if box.identity:
            _give_pipes(descriptors[3:5], box.identity.uid)
        else:
            self._make_room(box, plain)
        self._example = json.dumps(plain, separators=(",", ":")).encode()
        with box.assignment:
            send_raw(box.assignment, self._example, tuple(descriptors))
            if box.identity:
                self._make_room(box, plain)
                self._send_mounts(box.assignment, plain, box.identity)

    def _make_room(self, box: Box, plain: dict[str, Any]) -> None:
        """Limits before the worktree: nothing of the run exists before its group is bounded."""
        try:
            box.group.limit(decode(CgroupLimits, plain["cgroup"], "box.cgroup"))
        except OSError as error:
            raise Refused(f"{error.strerror} ({error.filename})", "cgroup", error.errno or 0) from error
        for step in _steps_of(plain["steps"], (Worktree,)):
            for folder in (step.upper, step.work):
                if folder is not None:
                    os.mkdir(folder, 0o755)
                    if box.identity:
                        os.chown(folder, box.identity.uid, box.identity.uid, follow_symlinks=False)

    def _send_mounts(self, assignment: socket.socket, plain: dict[str, Any], taken: Identity) -> None:
        """What the run sees of the host. The box has left the host's tree already, and reads meanwhile."""
        self._owner = (decode(int, plain["owner_uid"]), decode(int, plain["owner_gid"]))
        stage = mounts.Stage(taken.uid, privileged=True, idmap_fd=taken.idmap(*self._owner))
        made: dict[str, int] = {}
        try:
            for step in _steps_of(plain["steps"], mounts.FROM_HOST):
                made[step.target] = mounts.from_host(step, stage)
        except mounts.StepFailed as error:
            raise Refused(str(error), str(init.control_of(error.step)), error.cause.errno or 0) from error
        else:
            made = {target: fd for target, fd in made.items() if fd >= 0}
            with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, and says why
                send_raw(assignment, json.dumps(list(made)).encode(), tuple(made.values()))
        finally:
            self._after_reply += [fd for fd in made.values() if fd >= 0]

    # ------------------------------------------------------------ blanks

    def _prepare_next(self) -> None:
        """Make the next box's common part while nobody asks; a failure shows at the next start.

        Then, when it has had time to arm itself, read its filter back: that stops it, and takes a while.
        """
        if self._next_base:
            base_text, self._next_base = self._next_base, ""
            if self.blank is None:
                with suppress(Refused, OSError):
                    self.blank = self._make_blank(base_text)
                    if self.blank.identity and self._owner:
                        self.blank.identity.idmap(*self._owner)  # most likely the next one's too
            syscalls.own_memory()
            self._looks = _LOOKS
        elif self.blank is None:
            self._looks = 0
        else:
            self.blank.programs = attest.read_programs(self.blank.pid)
            self._looks = 0 if self.blank.programs else self._looks - 1

    def _drop_blank(self) -> None:
        if self.blank is not None:
            self._end(self.blank)
            self.blank = None

    def _end(self, box: Box) -> None:
        box.assignment.close()
        box.kill()
        box.reap(block=True)
        box.group.remove(_REMOVE_PATIENCE_S)
        self._forget(box)

    def _base(self, text: str) -> Base:
        if self._known_base is None or self._known_base[0] != text:
            self._known_base = (text, decode(Base, json.loads(text), "base"))
        return self._known_base[1]

    def _make_blank(self, base_text: str) -> Box:
        base = self._base(base_text)
        if "/" in base.group_prefix or not base.group_prefix:
            raise Refused(f"{base.group_prefix!r} cannot begin the name of a group")
        self._made += 1
        if self.template:
            self.template.tidy()
        group = self._make_group(base, f"{base.group_prefix}.{os.getpid()}-{self._made}")
        taken: Identity | None = None
        try:
            taken = self._take_identity()
            return self._fork(base, base_text, group, taken)
        except BaseException:
            group.remove(0.0)
            if taken:
                taken.close()
            raise

    def _take_identity(self) -> Identity | None:
        if not self.privileged:
            return None
        try:
            return identity.take()
        except OSError as error:
            raise Refused(str(error.strerror), str(Control.USER_NAMESPACE), error.errno or 0) from error

    def _make_group(self, base: Base, name: str) -> cgroups.RunGroup:
        try:
            try:
                return cgroups.create(self._where(base.namespace_key), name)
            except FileNotFoundError:
                # Another launcher of this state found the folder empty and removed it: make it again.
                del self.hierarchies[base.namespace_key]
                return cgroups.create(self._where(base.namespace_key), name)
        except OSError as error:
            if self.privileged:
                raise Refused(f"{error.strerror} ({error.filename})", "cgroup", error.errno or 0) from error
            return cgroups.RunGroup(name, None, {})

    def _fork(self, base: Base, base_text: str, group: cgroups.RunGroup, taken: Identity | None) -> Box:
        flags = (
            syscalls.CLONE_NEWNS
            | syscalls.CLONE_NEWPID
            | syscalls.CLONE_NEWNET
            | syscalls.CLONE_NEWIPC
            | syscalls.CLONE_NEWUTS
            | syscalls.CLONE_NEWTIME
        )
        try:
            template = self.template.place_for(base, base_text) if self.template else ""
        except OSError as error:
            raise Refused(str(error.strerror), str(Control.MOUNT_NAMESPACE), error.errno or 0) from error
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gate_read = gate_write = -1
        if taken is None:
            flags |= syscalls.CLONE_NEWUSER
            gate_read, gate_write = os.pipe2(os.O_CLOEXEC)
        cgroup_fd = os.open(group.v2, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if group.v2 else -1
        handles = init.BlankHandles(theirs.fileno(), gate_read, taken.user_namespace if taken else -1)
        try:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE * 2)
            pid, pidfd = syscalls.clone3(flags, cgroup_fd)
            if pid == 0:
                uid = taken.uid if taken else os.geteuid()
                init.run(base, handles, group, uid, template, self._example)
            if taken is None:
                self._open_gate(pid, pidfd, gate_write)
            return Box(base_text, pid, pidfd, group, taken, ours, _mount_namespace(pid))
        except OSError as error:
            ours.close()
            raise Refused(str(error.strerror), str(Control.USER_NAMESPACE), error.errno or 0) from error
        finally:
            theirs.close()
            for fd in (cgroup_fd, gate_read, gate_write):
                if fd >= 0:
                    os.close(fd)

    def _open_gate(self, pid: int, pidfd: int, gate: int) -> None:
        """Map the agent's uid to the one user we are, then let the box go on (user_namespaces(7))."""
        try:
            with open(f"/proc/{pid}/setgroups", "w", encoding="ascii") as file:
                file.write("deny")
            write_map(pid, "uid_map", AGENT_UID, os.geteuid())
            write_map(pid, "gid_map", AGENT_UID, os.getegid())
            os.write(gate, b"x")
        except OSError:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
            os.close(pidfd)
            raise

    def attest(self, request: dict[str, Any], _: list[int]) -> tuple[dict[str, Any], list[int]]:
        """What the kernel says of the process that is about to become the agent."""
        box = self._box(request)
        return {"facts": attest.read(box.pid, box.group, box.programs)}, []

    def kill(self, request: dict[str, Any], _: list[int]) -> tuple[dict[str, Any], list[int]]:
        """SIGKILL to all of the box. Whether it is empty then is for finish to observe."""
        box = self._box(request)
        members = len(box.group.members())
        box.kill()
        return {"signalled": members}, []

    def finish(self, request: dict[str, Any], _: list[int]) -> tuple[dict[str, Any], list[int]]:
        """Reap a dead box and remove what it left: counters, and whether it is observed empty.

        A box that still lives is left as it is ("dead": false); ask again.
        """
        box = self._box(request)
        if not box.reap() or box.group.populated():
            return {"dead": False, "members": len(box.group.members())}, []
        counters = box.group.counters()
        left = box.group.remove(_REMOVE_PATIENCE_S)
        self._forget(box)
        del self.boxes[request["run_id"]]
        return {"dead": True, "members": 0, "counters": counters, "left": left}, []

    def _forget(self, box: Box) -> None:
        os.close(box.pidfd)
        if box.mounts >= 0:
            self._after_reply.append(box.mounts)
        if box.identity:
            box.identity.close()

    def sweep(self, request: dict[str, Any], _: list[int]) -> tuple[dict[str, Any], list[int]]:
        """End and remove groups of supervisors that are gone; keep names those that live."""
        keep = set(request["keep"])
        ended: dict[str, int] = {}
        left: list[str] = []
        for group in cgroups.leftovers(self._where(request["namespace_key"])):
            if group.name.partition(".")[0] in keep:
                continue
            members = group.members()
            _kill_members(group, members)
            ended[group.name] = len(members)
            left += group.remove(_REMOVE_PATIENCE_S)
        return {"ended": ended, "left": left}, []

    def _box(self, request: dict[str, Any]) -> Box:
        try:
            return self.boxes[request["run_id"]]
        except KeyError:
            raise Refused(f"no box {request.get('run_id')!r}") from None

    def end_everything(self) -> None:
        """The supervisor is gone: nothing it started may live on."""
        self._drop_blank()
        for box in list(self.boxes.values()):
            box.kill()
        for box in list(self.boxes.values()):
            box.reap(block=True)
            box.group.remove(_REMOVE_PATIENCE_S)
        for where in self.hierarchies.values():
            cgroups.tidy(where)


def _steps_of(plain: list[dict[str, Any]], kinds: tuple[type, ...]) -> list[Any]:
    """Only these are decoded here: the box decodes all of them, strictly."""
    names = {kind.__name__ for kind in kinds}
    return [decode(MountStep, step, "box.steps") for step in plain if step.get("step") in names]  # type: ignore[arg-type]


def _kill_members(group: cgroups.RunGroup, members: list[int]) -> None:
    """By cgroup where there is one; a v1-only leftover is ended through pidfds, member by member."""
    group.kill()
    if group.v2 is None:
        for pid in members:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                if pid in group.members():
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                continue
            finally:
                os.close(pidfd)


def _mount_namespace(pid: int) -> int:
    """Held until the box's end has been reported: letting its mounts go takes a while, and then
    delays nobody. -1 where it cannot be had, which costs only that."""
    try:
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _give_pipes(descriptors: list[int], uid: int) -> None:
    """Output pipes belong to the agent: `echo > /dev/stderr` opens one by its name."""
    for fd in descriptors:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.fchown(fd, uid, uid)


def _name(number: int) -> str:
    return errno.errorcode.get(number, "")


def _supervisor() -> socket.socket:
    """Descriptor 3: the supervisor's end, or from systemd a socket where it is waiting to be accepted."""
    given = socket.socket(fileno=3)
    if not given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        given.set_inheritable(False)
        return given
    with given:
        connection, _ = given.accept()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_MESSAGE * 2)
    return connection


def main() -> None:
    """Started by sandbox.client, or by systemd through the folder's __main__, with descriptor 3."""
    supervisor = _supervisor()
    syscalls.set_process_name("box-launcher")
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A Ctrl-C in the terminal is for the supervisor, which then ends the boxes through us.
        signal.signal(number, signal.SIG_IGN)
    prepare()
    gc.collect()
    gc.freeze()
    gc.disable()
    Launcher(supervisor).serve()
