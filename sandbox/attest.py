"""Owns reading back, from outside, what is really armed on a process that waits to become the agent.
May touch /proc of that process and its cgroup's files.
Never believes a report: what cannot be read back here is labelled so.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

from sandbox import cgroups, syscalls

_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
_STATUS_KEYS = (
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
)

NOT_READABLE = ("landlock", "memfd_noexec")
"""Armed and reported by the box's own init; the kernel shows neither from outside (proc(5))."""


class AttestError(OSError):
    """The process could not be read: it has gone, or this process may not look."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The seccomp programs of a process, read before anybody waits for it.

    A program can be added and never be taken away or changed (seccomp(2)): as long as the process
    has no more of them than these, these are the ones in force.
    """

    pid: int
    programs: list[str]


def read_programs(init_pid: int) -> Programs | None:
    """None while the process that waits to become the agent has none yet, or cannot be read."""
    try:
        agent = _only_child(init_pid)
        if _status(f"/proc/{agent}").get("Seccomp") != "2":
            return None
        return Programs(agent, _programs(agent))
    except OSError:
        return None


def read(init_pid: int, group: cgroups.RunGroup, known: Programs | None = None) -> dict[str, Any]:
    """Facts as the kernel states them, in plain JSON shapes. Raises AttestError."""
    try:
        agent = _only_child(init_pid)
        base = f"/proc/{agent}"
        status = _status(base)
        return {
            "pid": agent,
            "status": status,
            "namespaces": _namespaces(base),
            "network": _network(base),
            "mounts": _mounts(base),
            "descriptors": _descriptors(base),
            "limits": _limits(base),
            "cgroup": _cgroup(group),
            "controlling_terminal": _field_after_name(base, 4) != "0",
            "seccomp": _seccomp(agent, status, known),
            "not_readable": list(NOT_READABLE),
        }
    except OSError as error:
        raise AttestError(
            error.errno, f"cannot read process back: {error.strerror}", error.filename
        ) from error


def _only_child(init_pid: int) -> int:
    children = cgroups.read_text(f"/proc/{init_pid}/task/{init_pid}/children").split()
    if len(children) != 1:
        raise ProcessLookupError(3, f"init has {len(children)} children, not the one it should have")
    return int(children[0])


def _status(base: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in cgroups.read_text(f"{base}/status").splitlines():
        key, _, value = line.partition(":")
        if key in _STATUS_KEYS:
            found[key] = " ".join(value.split())
    return found


def _namespaces(base: str) -> dict[str, bool]:
    """For each kind: is it another one than ours?"""
    found: dict[str, bool] = {}
    for kind in _NAMESPACES:
        try:
            found[kind] = os.readlink(f"{base}/ns/{kind}") != _own_namespace(kind)
        except FileNotFoundError:
            found[kind] = False
    return found


@functools.cache
def _own_namespace(kind: str) -> str:
    """The supervisor's, which is our parent's: our own mount namespace is a copy."""
    return os.readlink(f"/proc/{os.getppid() if kind == 'mnt' else 'self'}/ns/{kind}")


def _network(base: str) -> dict[str, Any]:
    devices = [line.split(":")[0].strip() for line in cgroups.read_text(f"{base}/net/dev").splitlines()[2:]]
    routes = len(cgroups.read_text(f"{base}/net/route").splitlines()) - 1
    return {"devices": devices, "routes": max(routes, 0)}


def _mounts(base: str) -> list[dict[str, Any]]:
    """mountinfo(5) fields: mount point, its flags, type; propagation shows as shared or master."""
    found: list[dict[str, Any]] = []
    for line in cgroups.read_text(f"{base}/mountinfo").splitlines():
        words = line.split(" ")
        optional = words[6 : words.index("-")]
        found.append(
            {
                "target": _unescaped(words[4]),
                "flags": _flags(words[5]),
                "propagates": any(word.startswith(("shared:", "master:")) for word in optional),
                "type": words[len(optional) + 7],
            }
        )
    return found


def _unescaped(name: str) -> str:
    """mountinfo writes four characters in octal (fs/proc_namespace.c, show_mountinfo); the backslash last."""
    if "\\" in name:
        for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
            name = name.replace(code, character)
    return name


@functools.lru_cache(maxsize=64)
def _flags(text: str) -> list[str]:
    return sorted(set(text.split(",")) & {"ro", "rw", "nosuid", "nodev", "noexec"})


def _descriptors(base: str) -> dict[str, str]:
    """Descriptor numbers and what kind of thing each is; never a path of the host."""
    found: dict[str, str] = {}
    for name in os.listdir(f"{base}/fd"):
        link = os.readlink(f"{base}/fd/{name}")
        found[name] = link.split(":")[0] if ":[" in link else link if link.startswith("/dev/") else "file"
    return found


def _limits(base: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in cgroups.read_text(f"{base}/limits").splitlines()[1:]:
        found[line[:26].strip()] = line[26:47].strip()
    return found


def _cgroup(group: cgroups.RunGroup) -> dict[str, str]:
    """The limit files as they stand, and which folder each was read from."""
    found: dict[str, str] = {}
    for controller, names in (
        ("memory", ("memory.max", "memory.limit_in_bytes", "memory.swap.max", "memory.oom.group")),
        ("pids", ("pids.max",)),
        ("cpu", ("cpu.max", "cpu.cfs_quota_us")),
    ):
        folder = group.limits.get(controller)
        for name in names:
            try:
                found[name] = cgroups.read_text(f"{folder}/{name}").strip() if folder else ""
            except FileNotFoundError:
                continue
    return {name: value for name, value in found.items() if value}


def _field_after_name(base: str, index: int) -> str:
    """A field of /proc/pid/stat counted from the state; the name before it may hold anything."""
    return cgroups.read_text(f"{base}/stat").rpartition(")")[2].split()[index]


def _seccomp(pid: int, status: dict[str, str], known: Programs | None) -> dict[str, Any]:
    """The filters as the kernel returns them, or why they could not be had. Digests are the client's."""
    try:
        if known and known.pid == pid and status.get("Seccomp_filters") == str(len(known.programs)):
            filters = known.programs
        else:
            filters = _programs(pid)
    except OSError as error:
        return {"read_back": False, "why_not": error.strerror or str(error)}
    return {
        "read_back": True,
        "filters": len(filters),
        "instructions": sum(len(program) // 16 for program in filters),
        "programs": filters,
    }


def _programs(pid: int) -> list[str]:
    """In hexadecimal, 16 digits each instruction."""
    return [program.hex() for program in syscalls.read_seccomp_filters(pid)]


def disagreements(
    facts: dict[str, Any], *, uid: int, seccomp_sha256: str, required: frozenset[str]
) -> list[str]:
    """What the kernel says that a correctly armed agent would not show. Pure; empty when all is well.

    uid: the run's uid outside. seccomp_sha256: of the filter that was sent in. required: control names.
    """
    status = facts["status"]
    wrong: list[str] = []
    if status["Uid"] != " ".join([str(uid)] * 4) or status["Gid"].split()[0] == "0":
        wrong.append(f"identity: uid is {status['Uid']}, not {uid}")
    wrong += [
        f"capabilities: {key} is {status[key]}"
        for key in _STATUS_KEYS
        if key.startswith("Cap") and int(status[key], 16)
    ]
    if status["NoNewPrivs"] != "1":
        wrong.append("no_new_privs: not set")
    if "seccomp" in required:
        wrong += _seccomp_disagreements(facts, seccomp_sha256)
    for kind, apart in facts["namespaces"].items():
        name = {"mnt": "mount", "net": "network"}.get(kind, kind) + "_namespace"
        if not apart and name in required:
            wrong.append(f"{name}: shared with the supervisor")
    if facts["network"]["devices"] != ["lo"] or facts["network"]["routes"]:
        wrong.append(f"network_namespace: {facts['network']}")
    for mount in facts["mounts"]:
        if mount["propagates"]:
            wrong.append(f"mount_namespace: {mount['target']} propagates to the host")
        if "nosuid" not in mount["flags"]:
            wrong.append(f"root: {mount['target']} is not nosuid")
    if facts["controlling_terminal"]:
        wrong.append("descriptors: there is a controlling terminal")
    return wrong


def _seccomp_disagreements(facts: dict[str, Any], sha256: str) -> list[str]:
    if facts["status"]["Seccomp"] != "2":
        return ["seccomp: no filter is in force"]
    back = facts["seccomp"]
    if back["read_back"] and back["sha256"][:1] != [sha256]:
        return ["seccomp: the filter in force is not the one that was sent"]
    return []
