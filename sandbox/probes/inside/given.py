"""Owns what a process in the box was given, and how much of it: descriptors, variables, limits, devices.
May touch its own limits.
Never judges.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
from pathlib import Path

from sandbox.probes.inside.base import ARGUMENTS, AT_START, attempt, scratch_file


@attempt("descriptors")
def _descriptors() -> str:
    """Of the process that runs the probes, before this child opened anything."""
    return " ".join(str(fd) for fd in AT_START)


@attempt("names that look secret")
def _secret_names() -> str:
    allowed = set(ARGUMENTS.get("secrets", "").split())
    marks = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "AWS_")
    names = [n for n in os.environ if any(mark in n.upper() for mark in marks) and n not in allowed]
    return " ".join(sorted(names)) or "none"


@attempt("variables that load code")
def _loaders() -> str:
    marks = ("LD_", "PYTHONPATH", "NODE_OPTIONS", "BASH_ENV", "PERL5", "RUBYOPT", "GIT_", "JAVA_TOOL")
    return " ".join(sorted(n for n in os.environ if n.startswith(marks))) or "none"


@attempt("sockets of the session")
def _session() -> str:
    names = ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_DISPLAY")
    return " ".join(name for name in names if name in os.environ) or "none"


@attempt("terminal on standard input")
def _stdin() -> str:
    return "terminal" if any(os.isatty(fd) for fd in (0, 1, 2)) else "none"


@attempt("host name")
def _host_name() -> str:
    return socket.gethostname()


@attempt("look up a name")
def _look_up() -> None:
    try:
        socket.getaddrinfo("example.org", 80)
    except socket.gaierror as error:
        raise OSError(errno.ENETUNREACH, str(error)) from None


@attempt("open files limit")
def _open_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    while True:
        os.dup(0)


@attempt("raise the open files limit")
def _more_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))


@attempt("file above the limit")
def _huge_file() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path = scratch_file()
    try:
        os.truncate(path, resource.getrlimit(resource.RLIMIT_FSIZE)[1] + 1)
    finally:
        os.unlink(path)


@attempt("huge argument list")
def _huge_arguments() -> None:
    os.execv("/usr/bin/true", ["true", *(["x" * 100_000] * 200)])


@attempt("better priority")
def _nice() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, -20)


@attempt("real-time scheduling")
def _real_time() -> None:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@attempt("size of /tmp")
def _tmp_size() -> str:
    found = os.statvfs("/tmp")
    return str(found.f_frsize * found.f_blocks)


@attempt("inodes of /tmp")
def _tmp_inodes() -> str:
    return "bounded" if 0 < os.statvfs("/tmp").f_files <= 1 << 21 else "unbounded"


@attempt("mount flags")
def _mount_flags() -> str:
    """Every mount that can be written is nosuid and nodev, but for the devices themselves."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        options = set(line.split(" ")[5].split(","))
        target = line.split(" ")[4]
        device = target.startswith("/dev/") and target != "/dev/shm"
        wanted = {"nosuid"} if device else {"nosuid", "nodev"}
        if "rw" in options and not wanted <= options:
            return target
    return "quiet"


@attempt("mounts that propagate")
def _propagation() -> str:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if any(field.startswith(("shared:", "master:")) for field in line.split(" - ")[0].split(" ")[6:]):
            return line.split(" ")[4]
    return "none"


@attempt("devices")
def _device_list() -> str:
    return " ".join(sorted(os.listdir("/dev")))


@attempt("set-uid programs that work")
def _set_uid_programs() -> str:
    """Any that is found lies on a mount without set-uid bits, or it would be one that works."""
    for folder in ("/usr/bin", "/usr/sbin"):
        for entry in os.scandir(folder):
            set_uid = entry.stat(follow_symlinks=False).st_mode & 0o6000 and not entry.is_symlink()
            if set_uid and not os.statvfs(entry.path).f_flag & os.ST_NOSUID:
                return entry.path
    return "none"
