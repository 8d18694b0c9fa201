"""Owns the measures "command" and "help": whole programs from the shell's view, Python's start included.
May touch a daemon of its own, and PyPI's supervisor, installed into the cache folder and started there.
Never leaves a process of a tree alive that the peer has left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import daemon, place, report, tree51
from bench.report import Row
from sandbox import cgroups

_CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"
_PEER = "4.3.0"
_PATIENCE_S = 10.0
_CONFIGURATION = """
[unix_http_server]
file={folder}/peer.sock
[supervisord]
nodaemon=true
logfile={folder}/peer.log
pidfile={folder}/peer.pid
user=root
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{folder}/peer.sock
[program:default]
command={python} -IS {folder}/tree.py
[program:group]
command={python} -IS {folder}/tree.py
stopasgroup=true
killasgroup=true
"""
_EVERY_PROGRAM = (
    "autostart=false\nautorestart=false\nstartsecs=0\nstdout_logfile={folder}/%(program_name)s.out\n"
    "stderr_logfile={folder}/%(program_name)s.err\n"
)


@dataclass(slots=True)
class _Kills:
    times: list[float] = field(default_factory=list)
    survivors: list[int] = field(default_factory=list)

    def add(self, milliseconds: float, watched: place.Watched) -> None:
        self.times.append(milliseconds)
        self.survivors.append(len(watched.alive()))


def timed(argv: list[str], environment: dict[str, str]) -> float:
    """Milliseconds of a command that must succeed, its output thrown away."""
    null = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1)]
    begun = time.perf_counter()
    pid = os.posix_spawn(argv[0], argv, environment, file_actions=null)
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter() - begun) * 1000
    if status:
        raise RuntimeError(f"{' '.join(argv[:3])} ended with status {status}")
    return took


# ---------------------------------------------------------------- help


def measure_help(quick: bool) -> list[Row]:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    ours: list[float] = []
    other: list[float] = []
    for number in range(1 + (5 if quick else 20)):
        report.progress(f"help: {number}")
        pair = (
            timed([daemon.PROGRAM, "--help"], environment),
            timed([sys.executable, "-c", "import click"], environment),
        )
        if number:
            ours.append(pair[0])
            other.append(pair[1])
    return [report.compared("supervisorctl --help, ms", ours, other, 1.5, 'python -c "import click"')]


# ---------------------------------------------------------------- kill as a command


def measure_kill(quick: bool) -> list[Row]:
    repetitions = 3 if quick else 10
    ours = _Kills()
    peers = {"default": _Kills(), "group": _Kills()}
    key = place.key()
    where = cgroups.discover(key)
    try:
        with (
            place.scratch() as folder,
            place.plain_group(where.v2, "peer") as group,
            daemon.serving(folder) as served,
            _peer(folder, group) as peer,
        ):
            tree = place.make_worktree(folder / "tree")
            for number in range(repetitions):
                report.progress(f"command: {number} of {repetitions}")
                _kill_ours(served, tree, f"KILL-{number}", ours)
                for name, kills in peers.items():
                    _stop_peers(peer, name, kills)
    finally:
        cgroups.tidy(where)
    best, default = peers["group"], peers["default"]
    size = tree51.SIZE
    return [
        report.compared(
            "supervisorctl kill, ms",
            ours.times,
            best.times,
            None,
            f"supervisor {_PEER}: supervisorctl stop, with stopasgroup and killasgroup",
        ),
        report.compared("… beside its default settings, ms", ours.times, default.times, None),
        report.bounded(
            f"most survivors of {size} after the command",
            max(ours.survivors),
            0,
            f"other with stopasgroup and killasgroup; {max(default.survivors)} with its default settings",
            max(best.survivors),
        ),
    ]


def _kill_ours(served: daemon.Daemon, tree: Path, ticket: str, kills: _Kills) -> None:
    served.run(ticket, tree, tree51.argv())
    served.wait_line(ticket, tree51.READY.decode())
    folder, init = served.group(ticket)
    watched = _tree_in(folder, init)
    try:
        kills.add(timed([daemon.PROGRAM, "kill", ticket], served.environment), watched)
    finally:
        watched.close()


def _tree_in(folder: str, other: int) -> place.Watched:
    watched = place.Watched([pid for pid in place.members(folder) if pid != other])
    if len(watched.held) != tree51.SIZE:
        raise RuntimeError(f"a tree of {len(watched.held)} processes, not {tree51.SIZE}")
    return watched


@dataclass(frozen=True, slots=True)
class _Peer:
    pid: int
    group: str
    folder: Path
    command: list[str]


@contextmanager
def _peer(folder: Path, group: str) -> Iterator[_Peer]:
    """PyPI's supervisor with one tree per way of stopping; all of it in one control group."""
    programs = _installed()
    (folder / "tree.py").write_text(tree51.CODE)
    every = _EVERY_PROGRAM.format(folder=folder)
    text = _CONFIGURATION.format(folder=folder, python=tree51.PYTHON)
    configuration = folder / "peer.conf"
    configuration.write_text(text.replace("[program:group]", f"{every}[program:group]") + every)
    process = subprocess.Popen(
        place.in_group(group, [str(programs / "supervisord"), "-c", str(configuration)]),
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not (folder / "peer.sock").exists():
            if time.monotonic() > deadline or process.poll() is not None:
                log = folder / "peer.log"
                raise RuntimeError(f"supervisord does not start: {log.read_text() if log.exists() else ''}")
            time.sleep(0.02)
        command = [str(programs / "supervisorctl"), "-c", str(configuration)]
        yield _Peer(process.pid, group, folder, command)
    finally:
        process.terminate()
        process.wait()


def _installed() -> Path:
    """Once; later runs use what is there."""
    folder = _CACHE / f"supervisor-{_PEER}"
    if not (folder / "bin" / "supervisord").exists():
        report.say(f"installing supervisor {_PEER} to compare with")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", *quiet, f"supervisor=={_PEER}"]
        subprocess.run(pip, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return folder / "bin"


def _stop_peers(peer: _Peer, name: str, kills: _Kills) -> None:
    output = peer.folder / f"{name}.out"
    before = _lines(output)
    environment = {"PATH": os.environ["PATH"]}
    timed([*peer.command, "start", name], environment)
    deadline = time.monotonic() + _PATIENCE_S
    while _lines(output) == before:
        if time.monotonic() > deadline:
            raise RuntimeError("supervisor's tree does not start")
        time.sleep(0.01)
    watched = _tree_in(peer.group, peer.pid)
    try:
        kills.add(timed([*peer.command, "stop", name], environment), watched)
    finally:
        watched.kill()
        while watched.alive():
            time.sleep(0.005)
        place.reap(list(watched.held))
        watched.close()


def _lines(path: Path) -> int:
    return path.read_bytes().count(tree51.READY) if path.exists() else 0
