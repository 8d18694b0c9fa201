"""Owns who the agent is: one fresh uid per run, its user namespaces, and giving up every privilege.
May touch the calling process's credentials and abstract socket names that reserve uids.
Never maps the host's root into a box.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from dataclasses import dataclass, field

from sandbox import syscalls
from sandbox.spec import AGENT_UID, ResourceLimit

_FIRST_UID = 0x7000_0000
_LAST_UID = 0x7FFF_FFF0
"""Outside every range systemd hands out (systemd.io/UIDS-GIDS) and below the signed limit."""

_TRIES = 64


class NoFreeUid(OSError):
    """Every uid that was tried is reserved by another run."""


@dataclass(slots=True)
class Identity:
    """A reserved uid outside, and descriptors of the namespaces that map to it.

    user_namespace maps the agent's own uid; idmaps maps an on-disk owner, by (uid, gid).
    """

    uid: int
    reservation: socket.socket
    user_namespace: int
    idmaps: dict[tuple[int, int], int] = field(default_factory=dict)

    def idmap(self, owner_uid: int, owner_gid: int) -> int:
        key = (owner_uid, owner_gid)
        if key not in self.idmaps:
            self.idmaps[key] = make_user_namespace(owner_uid, owner_gid, self.uid)
        return self.idmaps[key]

    def close(self) -> None:
        """Only once nothing of the run is alive."""
        for fd in (self.user_namespace, *self.idmaps.values()):
            os.close(fd)
        self.reservation.close()


def take() -> Identity:
    """A uid that no other run on this host has, whichever supervisor started it. Raises NoFreeUid.

    It is reserved by binding an abstract socket named after it: atomic, and gone with its owner. None is
    given to a second run: a process of that uid is one of this run's, or of the box prepared for it.
    """
    for _ in range(_TRIES):
        uid = _FIRST_UID + int.from_bytes(os.urandom(8)) % (_LAST_UID - _FIRST_UID)
        reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            reservation.bind(f"\0sidecar-supervisor/uid/{uid}")
        except OSError as error:
            reservation.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return Identity(uid, reservation, make_user_namespace(AGENT_UID, AGENT_UID, uid))
    raise NoFreeUid(errno.EADDRINUSE, "no free uid for a run", "identity")


def make_user_namespace(inside_uid: int, inside_gid: int, outside: int) -> int:
    """A descriptor of a user namespace with one uid and one gid mapped; needs CAP_SETUID.

    Held open by the descriptor alone: the process that was made for it has gone (user_namespaces(7)).
    """
    sleeper = syscalls.Sleeper()
    try:
        write_map(sleeper.pid, "uid_map", inside_uid, outside)
        write_map(sleeper.pid, "gid_map", inside_gid, outside)
        return os.open(f"/proc/{sleeper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        sleeper.end()


def write_map(pid: int, name: str, inside: int, outside: int) -> None:
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{inside} {outside} 1".encode())
    finally:
        os.close(descriptor)


def set_resource_limits(limits: tuple[ResourceLimit, ...]) -> None:
    """Never above what the launcher itself has: raising a hard limit needs CAP_SYS_RESOURCE."""
    for limit in limits:
        kind = getattr(resource, f"RLIMIT_{limit.name}")
        _, hard = resource.getrlimit(kind)
        value = limit.value if hard == resource.RLIM_INFINITY else min(limit.value, hard)
        resource.setrlimit(kind, (value, value))


def drop_bounding_set() -> None:
    """After this no exec can gain a capability, whatever file it runs (capabilities(7))."""
    for number in range(64):
        if not syscalls.drop_bounding_capability(number):
            return


def become_agent(privileged: bool) -> None:
    """Take the agent's uid for good. Without root the user namespace has given it already."""
    if privileged:
        os.setgroups([])
        os.setresgid(AGENT_UID, AGENT_UID, AGENT_UID)
        os.setresuid(AGENT_UID, AGENT_UID, AGENT_UID)
    syscalls.clear_capabilities()
