"""Owns the shape of every box's root: which steps make it, before and around the worktree.
May touch the host read-only, to see which system folders it has.
Never shows more of the host than system programs, a few files of /etc and what the profile names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from sandbox import landlock
from sandbox.spec import (
    AGENT_UID,
    Bind,
    Devices,
    Etc,
    EtcFile,
    Landlock,
    LogFolder,
    MountStep,
    PathAccess,
    Proc,
    Symlink,
    Terminals,
    Tmpfs,
    Worktree,
)

HOSTNAME = "box"
HOME = "/home/agent"
LOG_FOLDER = "/run/agent"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_FROM_ETC = (
    "alternatives",
    "ld.so.cache",
    "mime.types",
    "protocols",
    "services",
    "ssl/openssl.cnf",
)
_CA_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_MASKED = (
    "kcore",
    "keys",
    "key-users",
    "timer_list",
    "kallsyms",
    "sched_debug",
    "latency_stats",
    "config.gz",
)
_TMP_INODES = 400_000
_SHM_INODES = 4096

_PASSWD = f"""root:x:0:0:root:/nonexistent:/usr/sbin/nologin
agent:x:{AGENT_UID}:{AGENT_UID}:agent:{HOME}:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP = f"root:x:0:\nagent:x:{AGENT_UID}:\nnogroup:x:65534:\n"
_NSSWITCH = "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n"


@dataclass(frozen=True, slots=True)
class Rooms:
    """What profiles decide. Sizes in bytes; read lists further read-only host paths."""

    read: tuple[str, ...]
    tmp_bytes: int
    log_bytes: int


def base_steps(rooms: Rooms) -> tuple[MountStep, ...]:
    """The steps before the worktree's: the system and private folders, alike for all runs of a profile."""
    return (
        *_system(),
        _etc(),
        *(Bind(source=path, target=path) for path in rooms.read if not _below(path, "/usr")),
        Devices(target="/dev", nodes=_NODES),
        Terminals(target="/dev/pts"),
        Tmpfs(target="/dev/shm", size_bytes=rooms.tmp_bytes, inodes=_SHM_INODES, mode=0o1777),
        Proc(target="/proc", masked=_MASKED),
        Tmpfs(target="/tmp", size_bytes=rooms.tmp_bytes, inodes=_TMP_INODES, mode=0o1777),
        Tmpfs(target="/var/tmp", size_bytes=rooms.tmp_bytes, inodes=_TMP_INODES, mode=0o1777),
        Tmpfs(
            target=HOME,
            size_bytes=rooms.tmp_bytes,
            inodes=_TMP_INODES,
            mode=0o700,
            owned_by_agent=True,
        ),
        LogFolder(target=LOG_FOLDER, size_bytes=rooms.log_bytes),
    )


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _system() -> list[MountStep]:
    """/usr, and the old top-level names as the links or folders they are on this host."""
    made: list[MountStep] = [Bind(source="/usr", target="/usr")]
    for name in _MERGED:
        if os.path.islink(name):
            made.append(Symlink(target=name, to=os.readlink(name)))
        elif os.path.isdir(name):
            made.append(Bind(source=name, target=name))
    return made


def _etc() -> Etc:
    """Made from nothing, but for files that hold no secret and that programs cannot do without."""
    texts = {
        "passwd": _PASSWD,
        "group": _GROUP,
        "nsswitch.conf": _NSSWITCH,
        "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost\n",
        "hostname": f"{HOSTNAME}\n",
        "resolv.conf": "",
    }
    sources = {name: f"/etc/{name}" for name in _FROM_ETC}
    sources["localtime"] = "/etc/localtime"
    sources["ssl/certs/ca-certificates.crt"] = next(filter(os.path.exists, _CA_FILES), "")
    files = [EtcFile(name=name, text=text) for name, text in texts.items()]
    files += [
        EtcFile(name=name, source=os.path.realpath(source))
        for name, source in sources.items()
        if os.path.exists(source)
    ]
    return Etc(target="/etc", files=tuple(files))


def landlock_rules(abi: int, rooms: Rooms) -> Landlock | None:
    """The same picture for Landlock; "/" can be listed, and read nowhere that is not named."""
    return landlock.compile_rules(
        abi,
        list_only=("/",),
        read=("/etc", "/proc"),
        execute=("/usr", *(name for name in _MERGED if os.path.isdir(name)), *rooms.read),
        write=("/tmp", "/var/tmp", HOME, LOG_FOLDER, "/dev/shm"),
        devices=("/dev",),
    )


def landlock_paths(abi: int, worktree: Worktree, read: tuple[str, ...]) -> tuple[PathAccess, ...]:
    """The rules of one run: its worktree, and what else of the host is shown to it alone."""
    target = (worktree.target,)
    execute = target if worktree.executable else ()
    rules = landlock.compile_rules(abi, read=read, execute=execute, write=target)
    return rules.paths if rules else ()
