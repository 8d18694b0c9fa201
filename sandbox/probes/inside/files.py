"""Owns the attempts on files: procfs, the host's, the worktree's, and secrets in other processes.
May touch what it is let touch.
Never keeps what it reads.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

from sandbox.probes.inside.base import ARGUMENTS, ATTEMPTS, attempt, new_name, scratch_file


def _open(name: str, path: str, flags: int) -> None:
    def run() -> str | None:
        fd = os.open(path, flags)
        try:
            if flags == os.O_RDONLY and not os.path.isdir(f"/proc/self/fd/{fd}"):
                return None if os.read(fd, 1) else "empty"
            return None
        finally:
            os.close(fd)

    ATTEMPTS[name] = run


for _name in ("environ", "maps", "mem", "cmdline", "status"):
    _open(f"read /proc/1/{_name}", f"/proc/1/{_name}", os.O_RDONLY)
for _name in ("root", "cwd", "fd", "ns"):
    _open(f"read /proc/1/{_name}", f"/proc/1/{_name}", os.O_RDONLY | os.O_DIRECTORY)
for _path in (
    "/etc/shadow",
    "/root",
    "/home",
    "/sys",
    "/run/docker.sock",
    "/dev/kmsg",
    "/dev/mem",
    "/dev/kvm",
    "/dev/vda",
    "/dev/fuse",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kallsyms",
    "/proc/timer_list",
    "/proc/self/root/etc/shadow",
    "/../../etc/shadow",
):
    _open(f"read {_path}", _path, os.O_RDONLY)
for _path in (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/memfd_noexec",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sysrq-trigger",
    "/proc/self/oom_score_adj",
    "/proc/self/uid_map",
):
    _open(f"write {_path}", _path, os.O_WRONLY)


def _create(path: str) -> None:
    def run() -> None:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        os.unlink(path)

    ATTEMPTS[f"create {path}"] = run


for _path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/var/x", "/run/x", "/proc/x", "/tmp/x", "/dev/shm/x"):
    _create(_path)


@attempt("create beside the worktree")
def _beside() -> str:
    os.close(os.open("../planted", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    # A worktree below /var/tmp lies in the box's private folder; without root it may write there.
    return "private folder" if os.stat("..").st_dev == os.stat("/var/tmp").st_dev else "ok"


@attempt("read beside the worktree")
def _read_beside() -> None:
    Path("../beside.txt").read_text()


@attempt("processes seen")
def _processes() -> str:
    token = ARGUMENTS["process"][::-1].encode()  # told backwards: it stands in our own arguments too
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and int(name) != os.getppid():
            try:
                if token in Path(f"/proc/{name}/cmdline").read_bytes():
                    return "host process seen"
            except OSError:
                continue
    return "own only"


@attempt("secrets in environments")
def _environments() -> str:
    token = ARGUMENTS["secret"][::-1].encode()
    for name in os.listdir("/proc"):
        if name.isdigit() or name in ("self", "thread-self"):
            for file in ("environ", "cmdline"):
                try:
                    if token in Path(f"/proc/{name}/{file}").read_bytes():
                        return f"found in {file}"
                except OSError:
                    continue
    return "absent"


@attempt("environment")
def _environment() -> str:
    return " ".join(sorted(os.environ))


@attempt("kill by host pid")
def _kill_host() -> None:
    os.kill(int(ARGUMENTS["pid"]), 0)


def _on_path(name: str, act: Callable[[], object]) -> None:
    def run() -> None:
        act()

    ATTEMPTS[name] = run


def _write_to(path: str) -> Callable[[], object]:
    return lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


def _make(path: str) -> Callable[[], object]:
    return lambda: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o755))


def _over(path: str) -> Callable[[], object]:
    return lambda: os.rename(scratch_file(), path)


_on_path("create .git/hooks/pre-commit", _make(".git/hooks/pre-commit"))
_on_path("rename over .git/hooks/pre-commit", _over(".git/hooks/pre-commit"))
_on_path("write .git/config", _write_to(".git/config"))
_on_path("unlink .git/config", lambda: os.unlink(".git/config"))
_on_path("rename over .git/config", _over(".git/config"))
_on_path("link .git/config", lambda: os.link(".git/config", "alias-of-config"))
_on_path("create .git/commondir", _make(".git/commondir"))
_on_path("create .git/config.worktree", _make(".git/config.worktree"))
_on_path("create .git/modules/x", lambda: os.mkdir(".git/modules/x"))
_on_path("rename .git", lambda: os.rename(".git", ".git_away"))
_on_path("rename .git/hooks", lambda: os.rename(".git/hooks", ".git/hooks_away"))
_on_path("write .env", _write_to(".env"))
_on_path("link a program of the host", lambda: os.link("/usr/bin/true", "true-of-the-host"))
_on_path("write in the worktree", _make("written-by-a-probe"))


def _make_below(path: str) -> None:
    """The file, and its folder where there is none."""
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    _make(path)()


def _settings(path: str) -> None:
    _on_path(f"create {path}", lambda: _make_below(path))


for _path in (
    ".claude/settings.json",
    ".codex/config.toml",
    ".gemini/settings.json",
    ".cursor/rules",
    ".agents/x",
    ".mcp.json",
    ".vscode/tasks.json",
    ".idea/x.xml",
    ".devcontainer/devcontainer.json",
    ".envrc",
    ".husky/pre-commit",
):
    _settings(_path)


@attempt("read a hidden key")
def _hidden() -> None:
    os.close(os.open("keys/server.pem", os.O_RDONLY))


@attempt("read the host through a link")
def _through_link() -> None:
    path = new_name()
    os.symlink("/etc/shadow", path)
    try:
        os.close(os.open(path, os.O_RDONLY))
    finally:
        os.unlink(path)


@attempt("setxattr capability")
def _file_capability() -> None:
    path = scratch_file()
    try:
        os.setxattr(path, "security.capability", struct.pack("<IIIII", 0x02000001, 1, 0, 0, 0))
    finally:
        os.unlink(path)


@attempt("chown to root")
def _chown() -> None:
    path = scratch_file()
    try:
        os.chown(path, 0, 0)
    finally:
        os.unlink(path)
