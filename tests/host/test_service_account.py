"""Owns the proof that the daemon needs no root: a user of its own, beside root's launcher and commands.
May touch folders, sockets and processes of its own; it plays systemd's part, and makes no account.
Never lets anything in the state belong to another user than the daemon's, but for what is a run's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.ownership import SERVICE_ACCOUNT

PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[2]
UID = 64_321
"""Of nobody on this host; the name is told to the programs below, and stands in no file."""
CAPABILITIES = (1 << 2) | (1 << 5)  # CAP_DAC_READ_SEARCH, CAP_KILL (capability.h)

KNOWN = f"""
import os, pwd, sys
real = pwd.getpwnam
ours = pwd.struct_passwd(({SERVICE_ACCOUNT!r}, "x", {UID}, {UID}, "", "/", "/bin/false"))
pwd.getpwnam = lambda name: ours if name == {SERVICE_ACCOUNT!r} else real(name)
"""
CTL = f"{KNOWN}\nfrom supervisor.cli.main import main\nmain()"
DAEMON = f"""{KNOWN}
os.dup2(int(sys.argv[1]), 3)
os.environ |= {{"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "control"}}
from supervisor.cli.main import main
sys.argv[1:] = ["serve"]
main()
"""
LAUNCHER = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.argv[2], sys.argv[2:])"


@dataclass(slots=True)
class Service:
    """The two units' processes, and root's command line beside them."""

    folder: Path
    environment: dict[str, str]
    daemon: subprocess.Popen[bytes] | None

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def ctl(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-c", CTL, *words],
            env=self.environment,
            cwd=self.folder / "tree",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def run_of(self, ticket: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.ctl("status", ticket, "--json"))
        return found

    def strangers(self) -> list[str]:
        """What of the state belongs to another user; a run's own files are in its overlay, and its uid's."""
        found = []
        for folder, folders, files in os.walk(self.state):
            folders[:] = [name for name in folders if name not in ("upper", "work")]
            paths = [f"{folder}/{name}" for name in (*folders, *files)]
            found += [path for path in paths if os.lstat(path).st_uid != UID]
        return found


@contextlib.contextmanager
def _process(argv: list[str], listening: socket.socket, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(argv, pass_fds=[listening.fileno()], **more) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def _listening(path: Path, kind: socket.SocketKind, owner: int) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    os.chown(path, owner, owner)
    os.chmod(path, 0o600)
    made.listen()
    return made


def _until_ready(notifications: socket.socket) -> None:
    while notifications.recv(100) != b"READY=1":
        pass


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "SUPERVISOR_STATE_DIR": str(folder / "state"),
        "SUPERVISOR_RUN_DIR": str(folder / "run"),
        "SUPERVISOR_CONFIG": str(folder / "config.toml"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@contextlib.contextmanager
def _service(folder: Path) -> Iterator[Service]:
    """As the units say it; what belongs to the daemon's user is what systemd gives it."""
    environment = _environment(folder)
    at, notify = folder / "launcher.sock", folder / "notify"
    for path in (at, notify, folder / "run/control.sock"):
        path.unlink(missing_ok=True)
    theirs = environment | {"SUPERVISOR_LAUNCHER": str(at), "NOTIFY_SOCKET": str(notify)}
    become = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--no-new-privs"]
    for kind in ("inh-caps", "ambient-caps", "bounding-set"):
        become.append(f"--{kind}=-all,+dac_read_search,+kill")
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        told.bind(str(notify))
        os.chown(notify, UID, UID)
        told.settimeout(PATIENCE_S)
        control = stack.enter_context(_listening(folder / "run/control.sock", socket.SOCK_STREAM, 0))
        launching = stack.enter_context(_listening(at, socket.SOCK_SEQPACKET, UID))
        launcher = [sys.executable, "-c", LAUNCHER, str(launching.fileno()), sys.executable, "-IS"]
        stack.enter_context(_process([*launcher, str(ROOT / "sandbox")], launching))
        serve = [*become, sys.executable, "-c", DAEMON, str(control.fileno())]
        daemon = stack.enter_context(_process(serve, control, env=theirs, cwd="/"))
        _until_ready(told)
        yield Service(folder, environment, daemon)
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sv-account-", dir="/var/tmp") as name:
        made = Path(name)
        made.chmod(0o755)
        for part in ("state", "run", "run/workers", "tree"):
            (made / part).mkdir()
        for part in ("state", "run/workers"):
            os.chown(made / part, UID, UID)
            (made / part).chmod(0o700)
        (made / "config.toml").write_text("")
        yield made


def test_a_daemon_that_is_not_root_makes_kills_and_records_runs(folder: Path) -> None:
    with _service(folder) as service:
        assert service.daemon is not None
        about = Path(f"/proc/{service.daemon.pid}/status").read_text()
        uids = re.findall(r"Uid:\s+(.*)", about)[0].split()
        assert uids == [str(UID)] * 4
        for kind in ("CapEff", "CapPrm", "CapBnd"):
            assert int(re.findall(rf"{kind}:\s+(\w+)", about)[0], 16) == CAPABILITIES
        service.ctl(
            "run", "--ticket", "T-1", "--profile", "coding", "--", "sh", "-c", "echo said; echo x > made"
        )
        assert "said" in service.ctl("logs", "T-1") and "made" in service.ctl("diff", "T-1")
        found = json.dumps(service.run_of("T-1")["attestation"])
        assert '"read_back": true' in found
        service.ctl("apply", "T-1")
        assert (folder / "tree/made").read_text() == "x\n"
        service.ctl("run", "--detach", "--ticket", "T-2", "--profile", "offline", "--", "sleep", "600")
        killed = json.loads(service.ctl("kill", "T-2", "--json"))
        assert service.run_of("T-2")["reason"] == "killed", killed
        (service.state / "stop").joinpath("T-3").touch()
        service.ctl("run", "--ticket", "T-3", "--profile", "offline", "--", "true", code=64)
        (service.state / "stop").joinpath("T-3").unlink()
        service.ctl("audit", "verify")
        assert service.strangers() == []


def test_what_root_makes_in_the_daemons_state_is_the_daemons(folder: Path) -> None:
    """Root's command comes first, and makes everything; then both work in it by turns."""
    before = Service(folder, _environment(folder), None)
    before.ctl("tickets", "add", "A")
    before.ctl("run", "--ticket", "R-1", "--profile", "offline", "--", "true")
    assert before.strangers() == []
    with _service(folder) as service:
        service.ctl("run", "--ticket", "D-1", "--profile", "offline", "--", "true")
        service.ctl("run", "--here", "--ticket", "R-2", "--profile", "offline", "--", "true")
        service.ctl("work", "--until-empty", "--profile", "offline", "--", "true")
        service.ctl("profile", "verify", "offline")
        service.ctl("pause")
        service.ctl("resume")
        assert {service.run_of(ticket)["reason"] for ticket in ("R-1", "D-1", "R-2", "A")} == {"done"}
        service.ctl("run", "--verify-first", "--ticket", "D-2", "--profile", "offline", "--", "true")
        service.ctl("audit", "verify")
        assert service.strangers() == []


def test_what_a_dead_supervisor_of_roots_left_is_ended_by_the_daemon(folder: Path) -> None:
    with _service(folder) as service:
        words = ("run", "--here", "--ticket", "L-1", "--profile", "offline", "--", "sleep", "600")
        left = subprocess.Popen(
            [sys.executable, "-c", CTL, *words],
            env=service.environment,
            cwd=folder / "tree",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE_S
        while '"state":"running"' not in service.ctl("ps", "--json"):
            assert time.monotonic() < deadline
        left.send_signal(signal.SIGKILL)
        left.wait(PATIENCE_S)
    with _service(folder) as service:
        run = service.run_of("L-1")
        assert (run["reason"], run["state"]) == ("supervisor_lost", "ended")
        assert service.strangers() == []


def test_control_another_users_state_is_refused_by_root(folder: Path) -> None:
    os.chown(folder / "state", UID + 1, UID + 1)
    Service(folder, _environment(folder), None).ctl("tickets", "list", code=6)
