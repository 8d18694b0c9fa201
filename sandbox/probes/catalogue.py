"""Owns the list of probes: what is tried from inside, which answers are safe, what each one proves.
May touch nothing.
Never runs a probe: the program in inside/ does that, in a box.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sandbox import layout

CLASSES = {
    "FS": "files, the worktree, git",
    "PR": "procfs and sysfs",
    "DV": "devices and terminals",
    "PV": "privilege",
    "NS": "namespaces and mounts",
    "PI": "processes, tracing, signals",
    "NET": "network and sockets",
    "KS": "kernel surface",
    "EX": "execution",
    "RS": "resources",
    "EN": "environment and descriptors",
}

_SAFE: dict[str, dict[str, str]] = {
    "FS": {
        "read /etc/shadow": "ENOENT",
        "read /root": "ENOENT",
        "read /sys": "ENOENT",
        "read /proc/self/root/etc/shadow": "ENOENT",
        "read /../../etc/shadow": "ENOENT",
        "read beside the worktree": "ENOENT",
        "create /x": "EROFS",
        "create /usr/x": "EROFS",
        "create /etc/x": "EROFS",
        "create /dev/x": "EROFS",
        "create /var/x": "EROFS",
        "create /run/x": "EROFS",
        "set-gid folder": "no bits",
        "create /tmp/x": "ok",
        "create /dev/shm/x": "ok",
        "read /run/docker.sock": "ENOENT",
        "create beside the worktree": "EROFS|EACCES|private folder",
        "create .git/hooks/pre-commit": "EROFS",
        "rename over .git/hooks/pre-commit": "EROFS|EXDEV|EBUSY",
        "write .git/config": "EROFS",
        "unlink .git/config": "EBUSY",
        "rename over .git/config": "EXDEV|EBUSY",
        "link .git/config": "EXDEV",
        "create .git/commondir": "EEXIST|EROFS",
        "create .git/config.worktree": "EEXIST|EROFS",
        "create .git/modules/x": "EROFS",
        "rename .git": "EBUSY",
        "rename .git/hooks": "EBUSY|EXDEV",
        "write .env": "EROFS",
        "link a program of the host": "EXDEV",
        "read a hidden key": "EACCES",
        "read the host through a link": "ENOENT",
        "mount flags": "quiet",
        "set-uid programs that work": "none",
        "create .claude/settings.json": "EROFS|EEXIST",
        "create .codex/config.toml": "EROFS|EEXIST",
        "create .gemini/settings.json": "EROFS|EEXIST",
        "create .cursor/rules": "EROFS|EEXIST",
        "create .agents/x": "EROFS|EEXIST",
        "create .mcp.json": "EROFS|EEXIST",
        "create .vscode/tasks.json": "EROFS|EEXIST",
        "create .idea/x.xml": "EROFS|EEXIST",
        "create .devcontainer/devcontainer.json": "EROFS|EEXIST",
        "create .envrc": "EROFS|EEXIST",
        "create .husky/pre-commit": "EROFS|EEXIST",
        "write in the worktree": "ok",
    },
    "PR": {
        "read /proc/1/environ": "ENOENT",
        "read /proc/1/maps": "ENOENT",
        "read /proc/1/mem": "ENOENT",
        "read /proc/1/root": "ENOENT",
        "read /proc/1/cwd": "ENOENT",
        "read /proc/1/cmdline": "ENOENT",
        "read /proc/1/status": "ENOENT",
        "read /proc/1/fd": "ENOENT",
        "read /proc/1/ns": "ENOENT",
        "read /proc/keys": "EACCES",
        "read /proc/kallsyms": "EACCES",
        "write /proc/sys/kernel/core_pattern": "EACCES",
        "write /proc/sys/vm/memfd_noexec": "EACCES",
        "read /proc/timer_list": "EACCES|ENOENT",
        "write /proc/self/oom_score_adj": "EROFS",
        "write /proc/self/uid_map": "EROFS",
        "create /proc/x": "ENOENT|EROFS",
        "read /proc/kcore": "ENOENT|EACCES",
        "write /proc/sysrq-trigger": "ENOENT|EACCES|EROFS",
        "write /proc/sys/kernel/modprobe": "ENOENT|EACCES|EROFS",
        "write /proc/sys/user/max_user_namespaces": "EACCES|EROFS",
    },
    "DV": {
        "TIOCSTI": "EPERM",
        "TIOCSTI high bits": "EPERM",
        "TIOCLINUX": "EPERM",
        "device node": "EACCES|EPERM",
        "open /dev/tty": "ENXIO",
        "read /dev/mem": "ENOENT",
        "read /dev/kmsg": "ENOENT",
        "read /dev/kvm": "ENOENT",
        "read /dev/vda": "ENOENT",
        "read /dev/fuse": "ENOENT",
        "devices": "DEVICES",
    },
    "PV": {
        "setuid 0": "EINVAL",
        "setresuid other": "EINVAL",
        "setgid 0": "EINVAL",
        "setgroups": "EPERM",
        "identity": "(1000, 1000, 1000) (1000, 1000, 1000) []",
        "set-uid chmod": "EPERM",
        "set-gid fchmod": "EPERM",
        "set-uid fchmodat2": "EPERM",
        "set-uid open": "EPERM",
        "set-uid O_TMPFILE": "EPERM",
        "set-uid mknod": "EPERM",
        "set-uid creat": "EPERM",
        "set-uid openat2": "ENOSYS",
        "capabilities": "zero",
        "no_new_privs off": "EINVAL",
        "setxattr capability": "EPERM",
        "chown to root": "EINVAL|EPERM",
    },
    "NS": {
        "unshare user": "EPERM",
        "clone newuser": "EPERM",
        "clone3 newuser": "ENOSYS",
        "fsopen": "ENOSYS",
        "fspick": "ENOSYS",
        "open_tree": "ENOSYS",
        "move_mount": "ENOSYS",
        "mount_setattr": "ENOSYS",
        "unshare mount": "EPERM",
        "unshare net": "EPERM",
        "unshare pid": "EPERM",
        "unshare uts": "EPERM",
        "mount tmpfs": "EPERM",
        "remount writable": "EPERM",
        "umount proc mask": "EPERM",
        "setns own uts": "EPERM",
        "pivot_root": "EPERM",
        "chroot": "EPERM",
        "sethostname": "EPERM",
        "host name": "HOSTNAME",
        "mounts that propagate": "none",
    },
    "PI": {
        "ptrace traceme": "EPERM",
        "ptrace own child": "EPERM",
        "process_vm_readv self": "EPERM",
        "pidfd_getfd self": "EPERM",
        "kcmp self": "EPERM",
        "process_mrelease": "EPERM",
        "process_madvise": "EPERM",
        "signal init": "EPERM",
        "kill by host pid": "ESRCH",
        "processes seen": "own only",
        "ptrace init": "EPERM",
    },
    "NET": {
        "socket vsock": "EAFNOSUPPORT",
        "socket mptcp": "EAFNOSUPPORT",
        "socket netlink audit": "EAFNOSUPPORT",
        "socket netlink uevent": "EAFNOSUPPORT",
        "socket netlink sock_diag": "EAFNOSUPPORT",
        "socket netlink netfilter": "EAFNOSUPPORT",
        "socket netlink generic": "EAFNOSUPPORT",
        "socket packet": "EAFNOSUPPORT",
        "socket raw icmp": "EAFNOSUPPORT",
        "tcp public v4": "ENETUNREACH",
        "tcp metadata v4": "ENETUNREACH",
        "tcp private v4": "ENETUNREACH",
        "tcp fast open": "ENETUNREACH",
        "udp public v4": "ENETUNREACH",
        "udp metadata v4": "ENETUNREACH",
        "udp private v4": "ENETUNREACH",
        "udp public v6": "ENETUNREACH",
        "udp metadata v6": "ENETUNREACH",
        "witness tcp v4": "ECONNREFUSED",
        "witness tcp v6": "ECONNREFUSED",
        "witness udp": "ECONNREFUSED",
        "witness abstract": "ECONNREFUSED",
        "witness path": "ENOENT",
        "loopback down": "EPERM",
        "socket netlink route": "ok",
        "own server": "ok",
        "interfaces": "lo",
        "tcp public v6": "ENETUNREACH",
        "tcp metadata v6": "ENETUNREACH",
        "socket alg": "EAFNOSUPPORT",
        "socket key": "EAFNOSUPPORT",
        "socket tipc": "EAFNOSUPPORT",
        "socket bluetooth": "EAFNOSUPPORT",
        "socket xdp": "EAFNOSUPPORT",
        "look up a name": "ENETUNREACH",
    },
    "KS": {
        "add_key": "EPERM",
        "request_key": "EPERM",
        "keyctl": "EPERM",
        "io_uring_setup": "ENOSYS",
        "io_uring_setup twice wrong": "ENOSYS",
        "personality no randomisation": "EPERM",
        "fanotify_init": "EPERM",
        "set_mempolicy": "EPERM",
        "modify_ldt": "EPERM",
        "perf_event_open": "EPERM",
        "userfaultfd user mode": "EPERM",
        "memfd_secret": "EPERM",
        "name_to_handle_at": "EPERM",
        "int 0x80 getpid": "SIGSYS",
        "x32 getpid": "SIGSYS",
        "kexec_load": "EPERM",
        "init_module": "EPERM",
        "bpf map": "EPERM",
        "open_by_handle_at": "EPERM",
        "syslog size": "EPERM",
        "swapon": "EPERM",
        "acct": "EPERM",
        "reboot": "EPERM",
        "personality query": "ok",
        "unknown call": "ENOSYS",
    },
    "EX": {
        "exec in /tmp": "EACCES",
        "exec in /var/tmp": "EACCES",
        "exec in /dev/shm": "EACCES",
        "exec in home": "EACCES",
        "loader in /tmp": "EACCES",
        "memfd exec": "EACCES",
        "memfd with exec flag": "EACCES",
        "exec in worktree": "ok",
    },
    "RS": {
        "raise core limit": "ValueError('not allowed to raise maximum limit')",
        "core of a crash": "no core",
        "open files limit": "EMFILE",
        "raise the open files limit": "ValueError('not allowed to raise maximum limit')",
        "file above the limit": "EFBIG",
        "huge argument list": "E2BIG",
        "better priority": "EACCES|EPERM",
        "real-time scheduling": "EPERM",
        "size of /tmp": "TMP",
        "inodes of /tmp": "bounded",
    },
    "EN": {
        "secrets in environments": "absent",
        "environment": "ENVIRONMENT",
        "descriptors": "0 1 2",
        "names that look secret": "none",
        "variables that load code": "none",
        "sockets of the session": "none",
        "terminal on standard input": "none",
    },
}
"""Attempt and the answers that are safe, alternatives with "|". Where an answer depends on the host or the
profile it is filled in below. Facts: research on escapes, and tests/security, where each of these has a
control: the same attempt with its layer off answers otherwise."""

_WORKS = frozenset(
    {
        "personality query",
        "socket netlink route",
        "own server",
        "create /tmp/x",
        "create /dev/shm/x",
        "write in the worktree",
        "interfaces",
        "host name",
        "environment",
    }
)
"""Not ways out: what a box must let its tools do, or say of itself."""

_CLAIMS = {
    "FS": ("host-files", "read-system"),
    "PR": ("host-files", "processes"),
    "DV": ("host-files",),
    "PV": ("privileges",),
    "NS": ("privileges",),
    "PI": ("processes",),
    "NET": ("network",),
    "KS": ("privileges",),
    "EX": ("run-tree",),
    "RS": ("single",),
    "EN": ("env",),
}
"""What the probes of a class prove unless one of them is named below."""

_OF_ONE = {
    "read a hidden key": ("hide",),
    "write .env": ("protect-new",),
    "write in the worktree": ("write-tree",),
    "exec in worktree": ("run-tree",),
    "size of /tmp": ("write-tmp",),
    "inodes of /tmp": ("write-tmp",),
    "create /tmp/x": ("write-tmp",),
    "create /dev/shm/x": ("write-tmp",),
    "secrets in environments": ("env", "keys"),
    "names that look secret": ("env",),
    "memfd exec": (),
    "memfd with exec flag": (),
}
_NEEDS = {
    "memfd exec": "memfd_noexec",
    "memfd with exec flag": "memfd_noexec",
    "write /proc/sys/vm/memfd_noexec": "memfd_noexec",
    "signal init": "landlock",
    "identity": "private_uid",  # without root the caller's other groups stay, as nobody's
}
"""Controls that a probe stands on; without it the probe cannot be judged."""

_LANDLOCK_SINCE = {"signal init": 6}
"""Landlock's version that refuses it; before that, init takes no signal that it has no handler for."""

_PROTECTED = {
    "create .git/hooks/pre-commit": ".git/hooks",
    "rename over .git/hooks/pre-commit": ".git/hooks",
    "rename .git/hooks": ".git/hooks",
    "write .git/config": ".git/config",
    "unlink .git/config": ".git/config",
    "rename over .git/config": ".git/config",
    "link .git/config": ".git/config",
    "create .git/commondir": ".git/commondir",
    "create .git/config.worktree": ".git/config.worktree",
    "create .git/modules/x": ".git/modules",
    "rename .git": ".git/config",
}
"""Probes of a protected path, and the path; they are judged where the profile protects it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One attempt. safe: the answers that are. way_out: would another answer be an escape?

    claims: ids of supervisor/profile/claims.py. needs: a control without which it cannot be judged.
    protects: the path of the worktree that it is about, "" for none. landlock_abi: the least version of
    Landlock with which it can be judged.
    """

    probe_id: str
    kind: str
    attempt: str
    safe: frozenset[str]
    way_out: bool
    claims: tuple[str, ...]
    needs: str = ""
    protects: str = ""
    landlock_abi: int = 0


@dataclass(frozen=True, slots=True)
class Expect:
    """What of a profile decides which answers are safe."""

    executable: bool
    tmp_bytes: int
    environment: frozenset[str]


def probes(expect: Expect) -> Iterator[Probe]:
    """All of them, numbered within their class."""
    for kind, table in _SAFE.items():
        for number, (attempt, safe) in enumerate(table.items(), start=1):
            protects = ".env" if attempt == "write .env" else _PROTECTED.get(attempt, "")
            if kind == "FS" and not protects and attempt.startswith("create ."):
                protects = attempt.removeprefix("create ").split("/")[0]
            yield Probe(
                probe_id=f"{kind}-{number:02}",
                kind=kind,
                attempt=attempt,
                safe=_safe(attempt, safe, expect),
                way_out=attempt not in _WORKS,
                claims=("protect",)
                if protects and attempt not in _OF_ONE
                else _OF_ONE.get(attempt, _CLAIMS[kind]),
                needs=_NEEDS.get(attempt, ""),
                protects=protects,
                landlock_abi=_LANDLOCK_SINCE.get(attempt, 0),
            )


def expected(attempt: str) -> str:
    """The safe answers of an attempt as they are written, for tests that have controls of their own."""
    return next(table[attempt] for table in _SAFE.values() if attempt in table)


def _safe(attempt: str, safe: str, expect: Expect) -> frozenset[str]:
    if attempt == "environment":
        return frozenset({" ".join(sorted(expect.environment))})
    if attempt == "exec in worktree":
        return frozenset({"ok"} if expect.executable else {"EACCES"})
    if attempt == "size of /tmp":
        return frozenset({str(expect.tmp_bytes)})
    if attempt == "host name":
        return frozenset({layout.HOSTNAME})
    if attempt == "devices":
        return frozenset({DEVICES})
    return frozenset(safe.split("|"))


DEVICES = "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
"""All that is in /dev."""
