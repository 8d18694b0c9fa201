"""Owns which system calls a box may make: the lists, and compiling them to a BPF program.
May touch libseccomp for the numbers of the calls, in the supervisor only; the box gets bytes.
Never answers a native call with a kill: a refused call gets an errno that programs understand.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
from dataclasses import dataclass

from sandbox.bpf import ALLOW, Action, Branch, Check, assemble, refuse

ALLOWED: tuple[str, ...] = tuple(
    """
    accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chown chown32
    clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep
    clock_nanosleep_time64 close close_range connect copy_file_range dup dup2 dup3 epoll_create
    epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd
    eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate
    fchdir fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork
    fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64
    futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat get_mempolicy
    get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid getegid32 geteuid
    geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpeername getpgid getpgrp getpid
    getppid getpriority getrandom getresgid getresgid32 getresuid getresuid32 getrlimit getrusage
    getsid getsockname getsockopt gettid gettimeofday getuid getuid32 getxattr getxattrat
    inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents
    io_pgetevents io_pgetevents_time64 io_setup io_submit ioprio_get ioprio_set ipc kill
    landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32 lgetxattr link
    linkat listen listxattr listxattrat llistxattr _llseek lremovexattr lseek lsetxattr lstat
    lstat64 madvise map_shadow_stack membarrier memfd_create mincore mkdir mkdirat mlock mlock2
    mlockall mmap mmap2 mprotect mq_getsetattr mq_notify mq_open mq_timedreceive
    mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget
    msgrcv msgsnd msync munlock munlockall munmap nanosleep newfstatat pause pidfd_open
    pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl
    pread64 preadv preadv2 pselect6 pselect6_time64 pwrite64 pwritev pwritev2 read
    readahead readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg
    remap_file_pages removexattr removexattrat rename renameat renameat2 restart_syscall
    riscv_hwprobe rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
    rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
    sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr
    sched_setparam sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop
    semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto set_robust_list
    set_thread_area set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32
    setgroups setgroups32 setitimer setpgid setpriority setregid setregid32 setresgid setresgid32
    setresuid setresuid32 setreuid setreuid32 setsid setsockopt setuid setuid32 setxattr
    setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 sigprocmask
    sigreturn splice stat stat64 statfs statfs64 statmount statx symlink symlinkat sync
    sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun
    timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime
    timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 ugetrlimit
    umask uname unlink unlinkat utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid
    waitpid write writev
    """.split()
)
"""Answered by the kernel. From what developer tools (git, Python, node, gcc, make, npm) call."""

REFUSED: tuple[str, ...] = tuple(
    """
    unshare setns mount umount umount2 pivot_root chroot ptrace process_vm_readv process_vm_writev
    process_madvise process_mrelease kcmp pidfd_getfd bpf perf_event_open userfaultfd fanotify_init
    fanotify_mark add_key keyctl request_key open_by_handle_at name_to_handle_at init_module
    finit_module delete_module create_module kexec_load kexec_file_load reboot swapon swapoff acct
    quotactl quotactl_fd syslog iopl ioperm settimeofday clock_settime clock_settime64 clock_adjtime
    clock_adjtime64 adjtimex stime sethostname setdomainname vhangup move_pages migrate_pages mbind
    set_mempolicy set_mempolicy_home_node modify_ldt uselib nfsservctl _sysctl lookup_dcookie ustat
    sysfs memfd_secret
    """.split()
)
"""Answered with EPERM, so that a tool prints something that makes sense."""

ABSENT: tuple[str, ...] = (
    "clone3",  # its flags are in memory; with ENOSYS glibc falls back to clone, with EPERM threads fail
    "openat2",  # its mode is in memory, so set-uid bits could not be seen
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
)
"""Answered with ENOSYS, like every call on no list: programs then take their older way."""

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* by uname's machine (include/uapi/linux/audit.h)."""
_X32_BIT = 0x40000000

_NEW_NAMESPACES = 0x7E020000  # the CLONE_NEW* bits that clone can carry (include/uapi/linux/sched.h)
_SET_ID_BITS = 0o6000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_O_CREAT_OR_TMPFILE = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)
_PERSONALITY_QUERY = 0xFFFFFFFF
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCKET_TYPE = 0xF  # without SOCK_CLOEXEC and SOCK_NONBLOCK
_STREAM, _DGRAM = 1, 2
_IPPROTO_TCP, _IPPROTO_UDP = 6, 17


@dataclass(frozen=True, slots=True)
class Filter:
    """A finished program: struct sock_filter entries, how many, and their SHA-256."""

    program: bytes
    instructions: int
    sha256: str


class SeccompUnavailable(Exception):
    """No filter can be compiled here: libseccomp is missing, or the machine is not a known one."""


@functools.lru_cache(maxsize=1)
def compile_filter() -> Filter:
    """The one filter of every box, for this machine's architecture. Raises SeccompUnavailable.

    A foreign ABI (int 0x80, x32) is killed: a 32-bit program that gets an errno cannot even exit.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise SeccompUnavailable(f"no filter is known for {machine}")
    program = assemble(
        _ARCHITECTURES[machine],
        _numbered(actions()),
        refuse(errno.ENOSYS),
        foreign_from=_X32_BIT if machine == "x86_64" else None,
    )
    return Filter(program, len(program) // 8, hashlib.sha256(program).hexdigest())


def actions() -> dict[str, Action]:
    """What each named call is answered with; a call that is not here gets ENOSYS."""
    eperm = refuse(errno.EPERM)
    named: dict[str, Action] = dict.fromkeys(ALLOWED, ALLOW)
    named |= dict.fromkeys(REFUSED, eperm)
    named["clone"] = Branch(Check(0, "any", _NEW_NAMESPACES), eperm, ALLOW)
    named["ioctl"] = _one_of(1, (_TIOCSTI, _TIOCLINUX), eperm, ALLOW)
    named["personality"] = _one_of(0, (0, _PERSONALITY_QUERY), ALLOW, eperm)
    named["socket"] = _sockets()
    named["socketpair"] = _one_of(0, (_AF_UNIX,), ALLOW, refuse(errno.EAFNOSUPPORT))
    named |= _set_id_bits()
    # Not for another process (PID 1 has the agent's uid), and never the core limit: 0 lets a core
    # through to a piped core_pattern, 1 does not (core(5), fs/coredump.c).
    core = Branch(Check(1, "is", 4), Branch(Check(2, "any", 0xFFFFFFFF), eperm, ALLOW), ALLOW)
    named["prlimit64"] = Branch(Check(0, "is", 0), core, eperm)
    named["setrlimit"] = Branch(Check(0, "is", 4), eperm, ALLOW)
    return named


def _one_of(argument: int, values: tuple[int, ...], then: Action, otherwise: Action) -> Action:
    result = otherwise
    for value in reversed(values):
        result = Branch(Check(argument, "is", value), then, result)
    return result


def _set_id_bits() -> dict[str, Action]:
    """Refuse to make a set-uid or set-gid file: in a direct worktree it would lie on the host."""
    eperm = refuse(errno.EPERM)
    named: dict[str, Action] = {}
    for name, argument in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)):
        named[name] = Branch(Check(argument, "any", _SET_ID_BITS), eperm, ALLOW)
    for name, argument in (("creat", 1), ("mknod", 1), ("mknodat", 2)):
        named[name] = Branch(Check(argument, "any", _SET_ID_BITS), eperm, ALLOW)
    for name, flags in (("open", 1), ("openat", 2)):
        # Without O_CREAT the mode argument is whatever the register held.
        creating = Branch(Check(flags + 1, "any", _SET_ID_BITS), eperm, ALLOW)
        named[name] = Branch(Check(flags, "any", _O_CREAT_OR_TMPFILE), creating, ALLOW)
    return named


def _sockets() -> Action:
    """Unix, TCP and UDP over IP, and route netlink (node's networkInterfaces needs it); no other."""
    no = refuse(errno.EAFNOSUPPORT)
    protocol = _one_of(2, (0, _IPPROTO_TCP, _IPPROTO_UDP), ALLOW, no)
    kind: Action = no
    for value in (_DGRAM, _STREAM):
        kind = Branch(Check(1, "is", value, _SOCKET_TYPE), protocol, kind)
    route = _one_of(2, (0,), ALLOW, no)
    families: Action = Branch(Check(0, "is", _AF_NETLINK), route, no)
    for family in (_AF_INET6, _AF_INET):
        families = Branch(Check(0, "is", family), kind, families)
    return Branch(Check(0, "is", _AF_UNIX), ALLOW, families)


def _numbered(named: dict[str, Action]) -> dict[int, Action]:
    """Calls that this machine or this libseccomp does not know are left to the default: ENOSYS."""
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError) as error:
        raise SeccompUnavailable("libseccomp is not installed (Debian: libseccomp2)") from error
    numbered: dict[int, Action] = {}
    for name, action in named.items():
        number = pyseccomp.resolve_syscall(pyseccomp.system_arch(), name)
        if number >= 0:
            numbered[number] = action
    return numbered
