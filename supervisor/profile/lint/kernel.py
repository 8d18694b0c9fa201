"""Owns the rules about what must be armed, and about the kernel of the host.
May touch nothing: facts about the host are an argument.
Never tries to arm anything: `doctor` and `profile verify` do.
"""

from __future__ import annotations

from collections.abc import Iterator

from sandbox.spec import ALWAYS_REQUIRED, CONTROL_GROUPS, Control
from supervisor.profile.lint.model import Domain, Found, Severity, Subject, rule
from supervisor.runs.boxing import required_controls

_REQUIRE = ("require",)


def _not_required(rule_id: str, control: Control, severity: Severity, domain: Domain, why: str) -> None:
    @rule(
        rule_id,
        severity,
        domain,
        f"{control} is not required",
        why=why,
        fix=f'add "{control}" to require, where every host of yours can arm it',
    )
    def check(subject: Subject) -> Iterator[Found]:
        if control not in required_controls(subject.profile):
            yield Found(f"a host that cannot arm {control} starts this profile without it", _REQUIRE, control)


_not_required(
    "K-01",
    Control.SECCOMP,
    Severity.CRITICAL,
    Domain.KERNEL,
    "without it every system call of the kernel can be reached from the box",
)
_not_required(
    "K-02",
    Control.LANDLOCK,
    Severity.MEDIUM,
    Domain.KERNEL,
    "it is the second opinion on files: a mistake in the mounts is then the only layer",
)
_not_required(
    "K-03",
    Control.MEMORY_LIMIT,
    Severity.HIGH,
    Domain.LIMITS,
    "without it a run takes the host's memory, and the kernel picks another victim",
)
_not_required(
    "K-04",
    Control.PIDS_LIMIT,
    Severity.HIGH,
    Domain.LIMITS,
    "without it a fork bomb stops the host",
)
_not_required(
    "K-05",
    Control.CPU_LIMIT,
    Severity.MEDIUM,
    Domain.LIMITS,
    "without it a run takes the time that the supervisor needs to end it",
)
_not_required(
    "K-06",
    Control.CGROUP_KILL,
    Severity.MEDIUM,
    Domain.PRIVILEGE,
    "without it a kill rests on the box's first process alone",
)
_not_required(
    "K-07",
    Control.PRIVATE_UID,
    Severity.LOW,
    Domain.PRIVILEGE,
    "runs that share a uid share its limits, keyrings and semaphores",
)
_not_required(
    "K-08",
    Control.CGROUP_NAMESPACE,
    Severity.INFO,
    Domain.KERNEL,
    "without it the agent sees where its groups are on the host",
)
_not_required(
    "K-09",
    Control.TIME_NAMESPACE,
    Severity.INFO,
    Domain.KERNEL,
    "without it the agent sees how long the host is up",
)


@rule(
    "K-10",
    Severity.LOW,
    Domain.KERNEL,
    "programs may be run from anonymous memory",
    why="files in the worktree cannot be executed, but what is copied into a memfd can",
    fix='add "memfd_noexec" to require (Linux 6.3), or accept it for older hosts',
)
def memfd(subject: Subject) -> Iterator[Found]:
    wanted = required_controls(subject.profile)
    if not subject.profile.files.executable and Control.MEMFD_NOEXEC not in wanted:
        yield Found("memfd_noexec is not required, and files.executable is false", _REQUIRE)


@rule(
    "K-11",
    Severity.INFO,
    Domain.AUDIT,
    "a control is listed that is required anyway",
    why="the list then looks like the whole of what is required",
    fix="take it out",
)
def listed_anyway(subject: Subject) -> Iterator[Found]:
    for name in subject.profile.require:
        if name not in CONTROL_GROUPS and Control(name) in ALWAYS_REQUIRED:
            yield Found(f"{name} is always required", _REQUIRE, name)


@rule(
    "K-12",
    Severity.HIGH,
    Domain.HOST,
    "this host cannot arm what the profile requires",
    why="no run of this profile starts here",
    fix="see `supervisorctl doctor` for what is missing and why",
    looks_at="host",
)
def cannot_arm(subject: Subject) -> Iterator[Found]:
    assert subject.host is not None
    for name, reason in (subject.host.missing or {}).items():
        if Control(name) in required_controls(subject.profile):
            yield Found(f"{name}: {reason}", _REQUIRE, name)


def _setting(
    rule_id: str, severity: Severity, path: str, good: set[str], title: str, why: str, fix: str
) -> None:
    @rule(rule_id, severity, Domain.HOST, title, why=why, fix=fix, looks_at="host")
    def check(subject: Subject) -> Iterator[Found]:
        assert subject.host is not None
        value = subject.host.settings.get(path)
        if value is not None and value not in good:
            yield Found(f"/proc/sys/{path} is {value}", (), path)


_setting(
    "H-01",
    Severity.MEDIUM,
    "kernel/unprivileged_bpf_disabled",
    {"1", "2"},
    "programs without privilege may load bpf programs on this host",
    "the box refuses the call; anything else on the host that an agent gets to run would not",
    "sysctl kernel.unprivileged_bpf_disabled=1",
)
_setting(
    "H-02",
    Severity.LOW,
    "kernel/kptr_restrict",
    {"1", "2"},
    "addresses of the kernel can be read on this host",
    "they make a bug of the kernel easier to use",
    "sysctl kernel.kptr_restrict=1",
)
_setting(
    "H-03",
    Severity.LOW,
    "kernel/dmesg_restrict",
    {"1"},
    "the kernel's log can be read without privilege on this host",
    "it holds addresses and what other programs did",
    "sysctl kernel.dmesg_restrict=1",
)
_setting(
    "H-04",
    Severity.LOW,
    "kernel/perf_event_paranoid",
    {"2", "3", "4"},
    "performance counters can be used without privilege on this host",
    "their code in the kernel has often been wrong",
    "sysctl kernel.perf_event_paranoid=2",
)
_setting(
    "H-05",
    Severity.LOW,
    "dev/tty/legacy_tiocsti",
    {"0"},
    "characters can be pushed into a terminal on this host",
    "the box has no terminal and refuses the call; programs without a box are not protected",
    "sysctl dev.tty.legacy_tiocsti=0",
)
_setting(
    "H-06",
    Severity.LOW,
    "fs/protected_symlinks",
    {"1"},
    "links in folders that all can write are followed on this host",
    "an old trick against programs that write to /tmp",
    "sysctl fs.protected_symlinks=1",
)
_setting(
    "H-07",
    Severity.LOW,
    "fs/protected_hardlinks",
    {"1"},
    "links to files of others can be made on this host",
    "a second name of a file passes every rule about its first",
    "sysctl fs.protected_hardlinks=1",
)
_setting(
    "H-08",
    Severity.LOW,
    "fs/protected_fifos",
    {"1", "2"},
    "FIFOs of others in folders that all can write are opened on this host",
    "a program that believes to make a file hangs, or writes to somebody else",
    "sysctl fs.protected_fifos=1",
)
_setting(
    "H-09",
    Severity.LOW,
    "fs/protected_regular",
    {"1", "2"},
    "files of others in folders that all can write are opened for writing on this host",
    "a program that believes to make a file writes into one that was prepared",
    "sysctl fs.protected_regular=1",
)


@rule(
    "H-10",
    Severity.LOW,
    Domain.HOST,
    "cores of crashed programs are piped to a program of the host",
    why="a limit on cores does not hold for a pipe, so memory of an agent reaches a program of root",
    fix="see core(5), or accept it where a crash reporter is wanted",
    looks_at="host",
)
def piped_cores(subject: Subject) -> Iterator[Found]:
    assert subject.host is not None
    value = subject.host.settings.get("kernel/core_pattern", "")
    if value.startswith("|"):
        yield Found(f"/proc/sys/kernel/core_pattern is {value.split()[0]}", (), "kernel/core_pattern")


@rule(
    "H-11",
    Severity.MEDIUM,
    Domain.HOST,
    "this kernel is older than the box needs",
    why="worktrees cannot be mapped to a run's uid before Linux 5.19",
    fix="use Debian 12 or newer",
    looks_at="host",
)
def old_kernel(subject: Subject) -> Iterator[Found]:
    assert subject.host is not None
    if subject.host.kernel < (5, 19):
        yield Found(f"Linux {subject.host.kernel[0]}.{subject.host.kernel[1]}", (), "kernel")
