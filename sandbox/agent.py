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
from typing import Any

from sandbox import identity, landlock, syscalls
from sandbox.reporting import Armed, NoProgram, NotArmed, reason, receive, report_failure, send
from sandbox.spec import Base, Control, PathAccess


def fork_ahead(base: Base, user_namespace: int) -> tuple[int, socket.socket]:
    """Fork it before there is a run, while there is time: its pid, and the socket it waits on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    ours.close()
    try:
        _become(base, user_namespace, theirs)
    finally:
        os._exit(127)


def _become(base: Base, user_namespace: int, to_init: socket.socket) -> None:
    """Give everything up, then wait for a run; what could not be armed is told to whoever gives one."""
    armed = Armed(frozenset(base.required))
    failure: NotArmed | None = None
    try:
        _close_but(to_init.fileno(), user_namespace)
        _give_up(base, user_namespace, armed)
    except NotArmed as error:
        failure = error
    except BaseException as error:
        failure = NotArmed(Control.DESCRIPTORS, repr(error))
    raw, descriptors = receive(to_init)
    if not raw:
        return
    with socket.socket(fileno=descriptors[0]) as supervisor:
        try:
            if failure is not None:
                raise failure
            _prepare_and_exec(json.loads(raw), descriptors[1:], to_init, supervisor, armed)
        except NotArmed as error:
            report_failure(supervisor, error)
        except NoProgram as error:
            send(supervisor, {"kind": "failed", "control": "program", "message": str(error), "errno": ""})
        except BaseException as error:
            report_failure(supervisor, NotArmed(Control.DESCRIPTORS, repr(error)))


def _close_but(*kept: int) -> None:
    syscalls.close_from(3, tuple(fd for fd in kept if fd >= 0))


def _give_up(base: Base, user_namespace: int, armed: Armed) -> None:
    """All that does not depend on the run, while nobody waits.

    The order matters: what needs privilege comes first, what takes calls away comes last. The mounts
    are init's, so that being in the agent's user namespace already gives no say over those to come.
    """
    with armed.arming(Control.RESOURCE_LIMITS):
        identity.set_resource_limits(base.resource_limits)
    with armed.arming(Control.USER_NAMESPACE):
        if user_namespace >= 0:
            syscalls.setns(user_namespace, syscalls.CLONE_NEWUSER)
    with armed.arming(Control.CAPABILITIES):
        identity.drop_bounding_set()
    with armed.arming(Control.IDENTITY):
        identity.become_agent(user_namespace >= 0)
    if user_namespace >= 0:
        armed.add(Control.PRIVATE_UID)
    else:
        armed.missing[Control.PRIVATE_UID] = "without root the run has its user's own uid"
    with armed.arming(Control.NO_NEW_PRIVS):
        syscalls.set_no_new_privs()
    syscalls.reset_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    if base.seccomp:
        with armed.arming(Control.SECCOMP):
            syscalls.install_seccomp(base64.b64decode(base.seccomp))


def _prepare_and_exec(
    run: dict[str, Any],
    descriptors: list[int],
    to_init: socket.socket,
    supervisor: socket.socket,
    armed: Armed,
) -> None:
    """What only this run knows: its command, its streams, its worktree. run is written by init.

    descriptors: stdin, stdout, stderr, command and, where there is Landlock, a ruleset that is begun.
    """
    command = _read_command(descriptors[3])
    ruleset = descriptors[4] if len(descriptors) > 4 else -1
    with armed.arming(Control.DESCRIPTORS):
        os.setsid()
        for number, fd in enumerate(descriptors[:3]):
            os.dup2(fd, number)
        _close_but(to_init.fileno(), supervisor.fileno(), ruleset)
    _wait_for_the_root(to_init, armed)
    _enter_workdir(run["workdir"])
    program = _resolve(command["argv"][0], command["env"].get("PATH", ""), run["workdir"])
    if ruleset >= 0:
        with armed.arming(Control.LANDLOCK):
            landlock.enforce(ruleset, tuple(PathAccess(path=p, access=a) for p, a in run["landlock"]))
    armed.add(Control.ENVIRONMENT)
    armed.refuse_if_incomplete()
    report = {"kind": "armed", "controls": armed.controls, "missing": armed.missing, "program": program}
    send(supervisor, report)
    if supervisor.recv(16) != b"go":
        os._exit(126)
    try:
        os.execve(program, command["argv"], command["env"])
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        send(
            supervisor,
            {"kind": "exec_failed", "program": program, "message": error.strerror, "errno": name},
        )


def _wait_for_the_root(to_init: socket.socket, armed: Armed) -> None:
    """init has made the root and says what it armed; the root is ours too (pivot_root(2))."""
    raw, _ = receive(to_init)
    if not raw:
        os._exit(126)
    to_init.close()
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
