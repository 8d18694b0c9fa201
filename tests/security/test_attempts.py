"""Owns the table of attempts: what each answers in a box, and with the layer that stops it gone.
May touch boxes and witnesses of its own; controls outside a box run in namespaces of their own.
Never accepts "some error": the expectation is an errno, and the control must answer otherwise.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from boxlab import (
    PYTHON,
    Lab,
    Outcome,
    Weaken,
    as_planned,
    make_repository,
    remove_tree,
    scratch_folder,
    without_filters,
    without_landlock,
)
from witnesses import Witnesses

from sandbox.probes.program import program

INSIDE = program()

ROUTED = """
import ctypes, fcntl, socket, struct
from sandbox import network
_raise = network.raise_loopback
_lo = ctypes.create_string_buffer(b"lo")
def _routed():
    _raise()
    any4 = struct.pack("=HHI8x", 2, 0, 0)
    route = struct.pack("=8x16s16s16sH6x8x8xh6xQ24x", any4, any4, any4, 1, 0, ctypes.addressof(_lo))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, 0x890B, route)
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, 0x890B, struct.pack("=48xIHHI4xQIi", 0, 0, 0, 1, 0, 1, 1))
network.raise_loopback = _routed
"""
SHARED = """
from sandbox import network, syscalls
syscalls.CLONE_NEWNET = 0
network.raise_loopback = lambda: None
"""
WRITABLE = "from sandbox import syscalls; syscalls.MOUNT_ATTR_RDONLY = 0"
EXECUTABLE = """
from sandbox import mounts, syscalls
syscalls.MOUNT_ATTR_NOEXEC = 0
mounts._set_memfd_noexec = lambda proc: True
"""
PRIVILEGED = """
from sandbox import identity, syscalls
syscalls.clear_capabilities = lambda: None
identity.drop_bounding_set = lambda: None
"""
UNMASKED = """
from sandbox import mounts, syscalls
_new = syscalls.new_mount
syscalls.new_mount = lambda kind, options, bits: _new(kind, {} if kind == "proc" else options, bits)
mounts._cover = lambda target, folder, stage: None
"""

CONTROLS: dict[str, tuple[str, Weaken]] = {
    "box": ("pass  # after the witnesses", as_planned),
    "nofilters": ("", without_filters),
    "routed": (ROUTED, as_planned),
    "shared": (SHARED, without_filters),
    "shared+landlock": (SHARED, as_planned),
    "writable": (WRITABLE, without_landlock),
    "executable": (EXECUTABLE, without_filters),
    "privileged": (PRIVILEGED, as_planned),
    "unmasked": (UNMASKED, as_planned),
}
"""Boxes by name; "root" besides is no box: root in fresh mount, net, uts and ipc namespaces, and
"host" is root without any."""

Row = tuple[str, str, str, str]
"""Attempt, answer in the box, name of the control, its answer; alternatives with "|"."""


def rows(control: str, table: dict[str, tuple[str, str]]) -> list[Row]:
    return [(name, expected, control, freed) for name, (expected, freed) in table.items()]


NAMESPACES = rows(
    "nofilters",
    {
        "unshare user": ("EPERM", "ok"),
        "clone newuser": ("EPERM", "ok"),
        "clone3 newuser": ("ENOSYS", "ok"),
        "fsopen": ("ENOSYS", "EPERM"),
        "fspick": ("ENOSYS", "EPERM"),
        "open_tree": ("ENOSYS", "EPERM"),
        "move_mount": ("ENOSYS", "EPERM"),
        "mount_setattr": ("ENOSYS", "EINVAL"),
    },
) + rows(
    "root",
    {
        "unshare mount": ("EPERM", "ok"),
        "unshare net": ("EPERM", "ok"),
        "unshare pid": ("EPERM", "ok"),
        "unshare uts": ("EPERM", "ok"),
        "mount tmpfs": ("EPERM", "ok"),
        "remount writable": ("EPERM", "EINVAL"),
        "umount proc mask": ("EPERM", "EINVAL|ENOENT"),
        "setns own uts": ("EPERM", "ok"),
        "pivot_root": ("EPERM", "ENOENT"),
        "chroot": ("EPERM", "ok"),
        "sethostname": ("EPERM", "ok"),
    },
)

PROCESSES = rows(
    "nofilters",
    {
        "ptrace traceme": ("EPERM", "ok"),
        "ptrace own child": ("EPERM", "ok"),
        "process_vm_readv self": ("EPERM", "ok"),
        "pidfd_getfd self": ("EPERM", "ok"),
        "kcmp self": ("EPERM", "ok"),
        "process_mrelease": ("EPERM", "EBADF"),
        "process_madvise": ("EPERM", "ok"),
        "signal init": ("EPERM", "ok"),
    },
) + rows(
    "host",
    {
        "kill by host pid": ("ESRCH", "ok"),
        "processes seen": ("own only", "host process seen"),
        "secrets in environments": ("absent", "found in environ"),
    },
)

KERNEL = rows(
    "nofilters",
    {
        "add_key": ("EPERM", "ok"),
        "request_key": ("EPERM", "ENOKEY"),
        "keyctl": ("EPERM", "ok"),
        "io_uring_setup": ("ENOSYS", "ok"),
        "io_uring_setup twice wrong": ("ENOSYS", "EFAULT"),
        "personality no randomisation": ("EPERM", "ok"),
        "fanotify_init": ("EPERM", "ok"),
        "set_mempolicy": ("EPERM", "ok"),
        "modify_ldt": ("EPERM", "ok"),
        "perf_event_open": ("EPERM", "ok"),
        "userfaultfd user mode": ("EPERM", "ok"),
        "memfd_secret": ("EPERM", "ok|ENOSYS"),
        "name_to_handle_at": ("EPERM", "ok"),
        "int 0x80 getpid": ("SIGSYS", "ok"),
        "x32 getpid": ("SIGSYS", "ok|ENOSYS"),
        "TIOCSTI": ("EPERM", "ok|EIO"),
        "TIOCSTI high bits": ("EPERM", "ok|EIO"),
        "TIOCLINUX": ("EPERM", "ENOTTY"),
        "kexec_load": ("EPERM", "ENOSYS|EPERM"),
        "init_module": ("EPERM", "ENOSYS|EPERM"),
    },
) + rows(
    "root",
    {
        "bpf map": ("EPERM", "ok"),
        "open_by_handle_at": ("EPERM", "ok|ESTALE|EOPNOTSUPP"),
        "syslog size": ("EPERM", "ok"),
        "swapon": ("EPERM", "ENOENT"),
        "acct": ("EPERM", "ENOENT"),
        "reboot": ("EPERM", "EINVAL"),
    },
)

IDENTITY = rows(
    "root",
    {
        "setuid 0": ("EINVAL", "ok"),  # EINVAL: no such uid in the box's user namespace
        "setresuid other": ("EINVAL", "ok"),
        "setgid 0": ("EINVAL", "ok"),
        "setgroups": ("EPERM", "ok"),
        "raise core limit": ("ValueError('not allowed to raise maximum limit')", "ok"),
        "core of a crash": ("no core", "core"),
        "identity": ("(1000, 1000, 1000) (1000, 1000, 1000) []", "(0, 0, 0) (0, 0, 0) []"),
    },
) + rows(
    "nofilters",
    {
        "set-uid chmod": ("EPERM", "ok"),
        "set-gid fchmod": ("EPERM", "ok"),
        "set-uid fchmodat2": ("EPERM", "ok|ENOSYS"),
        "set-uid open": ("EPERM", "ok"),
        "set-uid O_TMPFILE": ("EPERM", "ok"),
        "set-uid mknod": ("EPERM", "ok"),
        "set-uid creat": ("EPERM", "ok"),
        "set-uid openat2": ("ENOSYS", "ok"),
        "device node": ("EACCES", "EPERM"),  # Landlock, then capabilities
    },
)

EXECUTION = rows(
    "executable",
    {
        "exec in /tmp": ("EACCES", "ok"),
        "exec in /var/tmp": ("EACCES", "ok"),
        "exec in /dev/shm": ("EACCES", "ok"),
        "exec in home": ("EACCES", "ok"),
        "loader in /tmp": ("EACCES", "ok"),
        "memfd exec": ("EACCES", "ok"),
        "memfd with exec flag": ("EACCES", "ok"),
    },
)

SOCKETS = rows(
    "nofilters",
    {
        "socket vsock": ("EAFNOSUPPORT", "ok"),
        "socket mptcp": ("EAFNOSUPPORT", "ok"),
        "socket netlink audit": ("EAFNOSUPPORT", "ok|EPROTONOSUPPORT"),
        "socket netlink uevent": ("EAFNOSUPPORT", "ok"),
        "socket netlink sock_diag": ("EAFNOSUPPORT", "ok|EPROTONOSUPPORT"),
        "socket netlink netfilter": ("EAFNOSUPPORT", "ok|EPROTONOSUPPORT"),
        "socket netlink generic": ("EAFNOSUPPORT", "ok"),
        "socket packet": ("EAFNOSUPPORT", "EPERM"),
        "socket raw icmp": ("EAFNOSUPPORT", "EPERM"),
    },
)

_ROUTED = """tcp public v4,tcp metadata v4,tcp private v4,tcp fast open,udp public v4,udp metadata v4
udp private v4,udp public v6,udp metadata v6""".replace("\n", ",")
ROUTES = rows("routed", dict.fromkeys(_ROUTED.split(","), ("ENETUNREACH", "ok")))

WITNESSES = (
    rows(
        "shared",
        {
            "witness tcp v4": ("ECONNREFUSED", "ok"),
            "witness tcp v6": ("ECONNREFUSED", "ok"),
            "witness udp": ("ECONNREFUSED", "timed out"),  # sent, and nobody answers
            "witness abstract": ("ECONNREFUSED", "ok"),
        },
    )
    + rows("shared+landlock", {"witness abstract": ("ECONNREFUSED", "EPERM")})
    + rows("host", {"witness path": ("ENOENT", "ok")})
    + rows("root", {"loopback down": ("EPERM", "ok")})
)

PROCFS = (
    rows(
        "unmasked",
        {f"read /proc/1/{name}": ("ENOENT", "EACCES") for name in ("environ", "maps", "mem", "root", "cwd")}
        | {f"read /proc/1/{name}": ("ENOENT", "ok") for name in ("cmdline", "status")}
        | {f"read /proc/1/{name}": ("ENOENT", "EACCES|ok") for name in ("fd", "ns")}
        | {
            "read /proc/keys": ("EACCES", "ok|empty"),
            "read /proc/kallsyms": ("EACCES", "ok"),
        },
    )
    + rows(
        "root",
        {
            "write /proc/sys/kernel/core_pattern": ("EACCES", "ok"),
            "write /proc/sys/vm/memfd_noexec": ("EACCES", "ok"),
            "read /proc/timer_list": ("EACCES|ENOENT", "ok|ENOENT"),
        },
    )
    + rows(
        "writable",
        {
            "write /proc/self/oom_score_adj": ("EROFS", "ok"),
            "write /proc/self/uid_map": ("EROFS", "EPERM|EACCES|ok"),
        },
    )
)

FILES = rows(
    "root",
    {f"read {path}": ("ENOENT", "ok") for path in ("/etc/shadow", "/root", "/sys")}
    | {
        "read /proc/self/root/etc/shadow": ("ENOENT", "ok"),
        "read /../../etc/shadow": ("ENOENT", "ok"),
        "read beside the worktree": ("ENOENT", "ok"),
    },
) + rows(
    "writable",
    {f"create {path}/x": ("EROFS", "EACCES") for path in ("", "/usr", "/etc", "/dev", "/var", "/run")},
)

FREE = {
    "personality query": "ok",
    "socket netlink route": "ok",
    "own server": "ok",
    "interfaces": "lo",
    "unknown call": "ENOSYS",
    "no_new_privs off": "EINVAL",
    "open /dev/tty": "ENXIO",
    "set-gid folder": "no bits",
    "exec in worktree": "ok",
    "create /tmp/x": "ok",
    "create /dev/shm/x": "ok",
    "tcp public v6": "ENETUNREACH",  # a route through lo lets only UDP leave: the control is there
    "tcp metadata v6": "ENETUNREACH",
    "socket alg": "EAFNOSUPPORT",
    "socket key": "EAFNOSUPPORT",
    "socket tipc": "EAFNOSUPPORT",
    "socket bluetooth": "EAFNOSUPPORT",
    "socket xdp": "EAFNOSUPPORT",
    "ptrace init": "EPERM",
    "read /dev/mem": "ENOENT",
    "read /dev/kmsg": "ENOENT",
    "read /dev/kvm": "ENOENT",
    "read /dev/vda": "ENOENT",
    "read /dev/fuse": "ENOENT",
    "read /run/docker.sock": "ENOENT",
    "create beside the worktree": "EROFS|EACCES",  # by where it lies; it is the box's own folder
    "create /proc/x": "ENOENT|EROFS",
    "read /proc/kcore": "ENOENT|EACCES",
    "write /proc/sysrq-trigger": "ENOENT|EACCES|EROFS",
    "write /proc/sys/kernel/modprobe": "ENOENT|EACCES|EROFS",
    "write /proc/sys/user/max_user_namespaces": "EACCES|EROFS",
    "environment": (
        "CI HOME LANG LOGNAME PATH PYTHONUNBUFFERED SHELL SSL_CERT_FILE SUPERVISOR_LOG_DIR TERM TMPDIR USER"
        "|CI HOME LANG LOGNAME PATH PYTHONUNBUFFERED SHELL SSL_CERT_FILE SUPERVISOR_LOG_DIR TMPDIR USER"
    ),
}
"""What a box must let its tools do, and what no layer of ours can be switched off for on any host."""

TABLE: list[Row] = [
    *NAMESPACES,
    *PROCESSES,
    *KERNEL,
    *IDENTITY,
    *EXECUTION,
    *SOCKETS,
    *ROUTES,
    *WITNESSES,
    *PROCFS,
    *FILES,
    ("capabilities", "zero", "privileged", "*"),
]


class Answers:
    """Runs the attempts once per box and remembers what they said, and what the witnesses saw."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.witnesses = Witnesses(folder)
        self.tree = make_repository(folder / "tree")
        (folder / "beside.txt").write_text("beside\n")
        self.seen: dict[str, set[str]] = {}
        self.outcome: dict[str, Outcome] = {}
        self._said: dict[str, dict[str, str]] = {}

    def of(self, control: str) -> dict[str, str]:
        if control not in self._said:
            names = [row[0] for row in TABLE if control in (row[2], "box")] + list(FREE) * (control == "box")
            self.witnesses.seen()
            text = (
                self._outside(control, names) if control in ("root", "host") else self._boxed(control, names)
            )
            self._said[control] = json.loads(text)
            self.seen[control] = self.witnesses.seen()
        return self._said[control]

    def _command(self, names: list[str], **more: str) -> list[str]:
        return [PYTHON, "-c", INSIDE, json.dumps(self.witnesses.arguments | more), json.dumps(names)]

    def _boxed(self, control: str, names: list[str]) -> str:
        patch, weaken = CONTROLS[control]
        outcome = self.lab.run(self.tree, self._command(names), patch=patch, weaken=weaken)
        self.outcome[control] = outcome
        assert outcome.code == 0, outcome.err
        return outcome.out

    def _outside(self, control: str, names: list[str]) -> str:
        apart = ["unshare", "-m", "-n", "-u", "-i", "-f"] if control == "root" else []
        command = self._command(names, core="1", folder="/tmp")
        done = subprocess.run(
            [*apart, *command], cwd=self.tree, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout


@pytest.fixture(scope="module")
def answers(lab: Lab) -> Iterator[Answers]:
    folder = scratch_folder()
    found = Answers(lab, folder)
    try:
        yield found
    finally:
        found.witnesses.close()
        remove_tree(folder)


@pytest.mark.parametrize(("name", "expected", "control", "freed"), TABLE, ids=lambda value: str(value)[:40])
def test_refused_in_the_box_and_not_without_the_layer(
    answers: Answers, name: str, expected: str, control: str, freed: str
) -> None:
    without = answers.of(control)[name]
    within = answers.of("box")[name]
    if freed == "*":
        assert without not in expected.split("|")
    else:
        assert without in freed.split("|"), f"the control ({control}) answers {without}"
    assert within in expected.split("|")


@pytest.mark.parametrize(("name", "expected"), FREE.items())
def test_answer_in_the_box(answers: Answers, name: str, expected: str) -> None:
    assert answers.of("box")[name] in expected.split("|")


def test_witnesses_saw_the_controls_and_never_the_box(answers: Answers) -> None:
    answers.of("shared"), answers.of("host"), answers.of("box")
    assert answers.seen["shared"] == {"tcp4", "tcp6", "udp4", "abstract"}
    assert "path" in answers.seen["host"]
    assert answers.seen["box"] == set()


def test_attestation_finds_nothing_wrong_with_the_box_and_names_what_is_weakened(answers: Answers) -> None:
    for control in ("box", "nofilters", "shared", "privileged"):
        answers.of(control)
    assert answers.outcome["box"].wrong == []
    assert any(text.startswith("network_namespace") for text in answers.outcome["shared"].wrong)
    assert any(text.startswith("capabilities") for text in answers.outcome["privileged"].wrong)


def test_a_filter_that_was_dropped_on_the_way_is_found(lab: Lab, worktree: Path) -> None:
    """The launcher reports it as armed; the kernel, asked from outside, does not."""
    patch = "from sandbox import syscalls; syscalls.install_seccomp = lambda program: None"
    assert lab.run(worktree, ["true"], patch=patch).wrong == ["seccomp: no filter is in force"]


def test_no_descriptor_is_inherited(lab: Lab, answers: Answers) -> None:
    code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))"
    careless = subprocess.run(
        [PYTHON, "-c", code], close_fds=False, capture_output=True, text=True, check=True
    )
    assert str(answers.witnesses.descriptor) in careless.stdout
    outcome = lab.run(answers.tree, [PYTHON, "-c", code], patch="pass  # after the descriptor")
    assert outcome.out == "[0, 1, 2, 3]\n"  # 3 is the listing itself
