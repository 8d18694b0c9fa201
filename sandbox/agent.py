"""Owns the process that becomes the agent: it gives everything up, reports, waits, and is replaced.
May touch its own credentials, descriptors and limits, and the root it finds itself in.
Never executes anything before init has passed on the release, and nothing but the agent's program.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import signal
import socket
import stat
from typing import Any, NoReturn

from sandbox import identity, landlock, syscalls
from sandbox.reporting import Armed, NoProgram, NotArmed, reason, receive, report_failure, send
from sandbox.spec import Base, BoxSpec, Control
from sandbox.wire import decode_box


def fork_ahead(base: Base, user_namespace: int) -> tuple[int, socket.socket]:
    """Fork it before there is a run, while there is time: its pid, and the socket it waits on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    ours.close()
    return _become(base, user_namespace, theirs)


def _become(base: Base, user_namespace: int, to_init: socket.socket) -> NoReturn:
    try:
        syscalls.close_from(3, tuple(fd for fd in (to_init.fileno(), user_namespace) if fd >= 0))
        raw, descriptors = receive(to_init)
        if raw:
            _prepare_and_exec(decode_box(json.loads(raw), base), descriptors, user_namespace, to_init)
    except NotArmed as error:
        report_failure(to_init, error)
    except NoProgram as error:
        send(to_init, {"kind": "failed", "control": "program", "message": str(error), "errno": ""})
    except BaseException as error:
        report_failure(to_init, NotArmed(Control.DESCRIPTORS, repr(error)))
    os._exit(127)


def _prepare_and_exec(
    box: BoxSpec, descriptors: list[int], user_namespace: int, to_init: socket.socket
) -> None:
    """The order matters: what needs privilege comes first, what takes calls away comes last."""
    armed = Armed(frozenset(box.required))
    command = _read_command(descriptors[3])
    with armed.arming(Control.RESOURCE_LIMITS):
        identity.set_resource_limits(box.resource_limits)
    _wait_for_the_root(to_init, armed)
    with armed.arming(Control.USER_NAMESPACE):
        if user_namespace >= 0:
            # After the mounts: they are owned by the host's root, so the box cannot undo one.
            syscalls.setns(user_namespace, syscalls.CLONE_NEWUSER)
    with armed.arming(Control.DESCRIPTORS):
        os.setsid()
        for number, fd in enumerate(descriptors[:3]):
            os.dup2(fd, number)
        syscalls.close_from(3, (to_init.fileno(),))
    with armed.arming(Control.CAPABILITIES):
        identity.drop_bounding_set()
    with armed.arming(Control.IDENTITY):
        identity.become_agent(user_namespace >= 0)
    if user_namespace >= 0:
        armed.add(Control.PRIVATE_UID)
    else:
        armed.missing[Control.PRIVATE_UID] = "without root the run has its user's own uid"
    _enter_workdir(box.workdir)
    program = _resolve(command["argv"][0], command["env"].get("PATH", ""), box.workdir)
    with armed.arming(Control.NO_NEW_PRIVS):
        syscalls.set_no_new_privs()
    if box.landlock:
        with armed.arming(Control.LANDLOCK):
            landlock.enforce(box.landlock)
    else:
        armed.missing[Control.LANDLOCK] = "the kernel has no Landlock, or it is not in its lsm= list"
    syscalls.reset_signals()
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


def _wait_for_the_root(to_init: socket.socket, armed: Armed) -> None:
    """init has made the root and says what it armed; the root is ours too (pivot_root(2))."""
    raw, _ = receive(to_init)
    if not raw:
        os._exit(126)
    said = json.loads(raw)
    armed.controls[:0] = said["controls"]
    armed.missing |= said["missing"]
    os.chdir("/")


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
        raise NotArmed(Control.WORKTREE, reason(error), error.errno or 0) from error


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
