"""Owns the tests of what the daemon says to systemd, and of the sockets it is handed.
May touch temporary sockets, and starts daemons with folders of their own.
Never needs a systemd: the tests play its part.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandbox
from supervisor import systemd

PATIENCE_S = 60.0
ROOT = Path(sandbox.__file__).resolve().parent.parent
HAND_OVER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "control"}
from supervisor.cli.main import main
sys.argv[1:] = ["serve"]
main()
"""


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Path]:
    """A folder whose name leaves room for a socket's (108 bytes, unix(7))."""
    with tempfile.TemporaryDirectory(prefix="h-") as folder:
        yield Path(folder)


@pytest.fixture
def notifications(short: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(short / "notify"))
        listening.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(short / "notify"))
        yield listening


def test_without_systemd_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_PID"):
        monkeypatch.delenv(name, raising=False)
    systemd.notify("READY=1")
    assert systemd.watchdog_interval_s() is None
    assert systemd.inherited_socket("control") is None


def test_a_notification_arrives(notifications: socket.socket) -> None:
    systemd.notify("READY=1")
    assert notifications.recv(100) == b"READY=1"


def test_a_socket_that_is_gone_ends_nothing(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(short / "nobody"))
    systemd.notify("READY=1")


@pytest.mark.parametrize(
    ("microseconds", "pid", "expected"),
    [
        ("30000000", "", 10.0),
        ("30000000", "self", 10.0),
        ("30000000", "1", None),
        ("0", "", None),
        ("soon", "", None),
        ("", "", None),
    ],
)
def test_signs_of_life_are_due_when_this_process_is_meant(
    microseconds: str, pid: str, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "self" else pid)
    assert systemd.watchdog_interval_s() == expected


def test_pings_go_on_while_the_loop_turns_and_not_while_it_hangs(
    notifications: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)

    async def watched() -> int:
        pings = asyncio.create_task(systemd.keep_watchdog_quiet())
        for _ in range(3):
            assert await asyncio.to_thread(notifications.recv, 100) == b"WATCHDOG=1"
        notifications.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                notifications.recv(100)
        signal.sigtimedwait([], 0.2)  # the loop hangs for many intervals
        said = 0
        with contextlib.suppress(BlockingIOError):
            while notifications.recv(100):
                said += 1
        pings.cancel()
        return said

    assert asyncio.run(watched()) == 0


def _listening(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(str(path))
    made.listen()
    return made


def test_the_named_socket_is_taken(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "_FIRST_DESCRIPTOR", (one := _listening(short / "a")).fileno())
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_FDNAMES", "control")
    assert systemd.inherited_socket("other") is None
    taken = systemd.inherited_socket("control")
    assert taken is not None and not taken.get_inheritable()
    assert taken.getsockname() == str(short / "a")
    taken.detach()
    one.close()


def test_a_socket_meant_for_another_process_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", "1")
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_FDNAMES", "control")
    assert systemd.inherited_socket("control") is None


def test_a_socket_of_another_kind_is_refused(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = _listening(short / "a", socket.SOCK_SEQPACKET)
    monkeypatch.setattr(systemd, "_FIRST_DESCRIPTOR", given.fileno())
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_FDNAMES", "control")
    with pytest.raises(OSError, match="control"):
        systemd.inherited_socket("control")
    given.detach()


# ---------------------------------------------------------------- a daemon between its two sockets


@contextlib.contextmanager
def _daemon(short: Path, control: socket.socket, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A daemon as the unit starts it: its control socket handed over, its readiness awaited."""
    environment = os.environ | {
        "SUPERVISOR_STATE_DIR": str(short / "state"),
        "SUPERVISOR_RUN_DIR": str(short / "run"),
        **more,
    }
    with subprocess.Popen(
        [sys.executable, "-c", HAND_OVER, str(control.fileno())],
        env=environment,
        pass_fds=[control.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _ask(path: Path, op: str) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        connection.sendall(json.dumps({"op": op, "arguments": {}}).encode() + b"\n")
        with connection.makefile() as file:
            answer: dict[str, object] = json.loads(file.readline())
    return answer


def _until_ready(notifications: socket.socket) -> None:
    while notifications.recv(100) != b"READY=1":
        pass


def test_a_request_that_came_before_the_daemon_is_answered_and_the_path_outlives_it(
    short: Path, notifications: socket.socket
) -> None:
    (short / "run").mkdir()
    path = short / "run" / "control.sock"
    with _listening(path) as control:
        os.chmod(path, 0o660)
        with _daemon(short, control) as first:
            answer = _ask(path, "ping")
            assert answer["kind"] == "result"
            _until_ready(notifications)
            first.kill()  # its row stays; the next one must not take the path away with it
            first.wait(PATIENCE_S)
        with _daemon(short, control) as second:
            _until_ready(notifications)
            assert _ask(path, "ping")["value"] != answer["value"]
            second.terminate()
            assert second.wait(PATIENCE_S) == 0
        assert path.is_socket() and path.stat().st_mode & 0o777 == 0o660


@contextlib.contextmanager
def _launcher(listening: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    """As its unit starts it: the listening socket as descriptor 3, one supervisor and then the end."""
    command = [sys.executable, "-IS", str(ROOT / "sandbox")]
    code = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.argv[2], sys.argv[2:])"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(listening.fileno()), *command],
        pass_fds=[listening.fileno()],
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_daemon_uses_the_launcher_it_is_pointed_to_and_ends_when_that_ends(
    short: Path, notifications: socket.socket
) -> None:
    (short / "run").mkdir()
    path, at = short / "run" / "control.sock", short / "launcher.sock"
    with _listening(path) as control, _listening(at, socket.SOCK_SEQPACKET) as listening:
        with _launcher(listening) as launcher, _daemon(short, control, SUPERVISOR_LAUNCHER=str(at)) as daemon:
            _until_ready(notifications)
            children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
            assert children == [], "it has no launcher of its own"
            launcher.kill()
            assert daemon.wait(PATIENCE_S) != 0
            assert daemon.stdout is not None and "the launcher has ended" in daemon.stdout.read()
        with _launcher(listening) as launcher, _daemon(short, control, SUPERVISOR_LAUNCHER=str(at)) as daemon:
            _until_ready(notifications)
            daemon.kill()
            assert launcher.wait(PATIENCE_S) == 0, "it ends with its supervisor"


def test_a_daemon_without_its_launcher_does_not_start(short: Path) -> None:
    (short / "run").mkdir()
    with (
        _listening(short / "run" / "control.sock") as control,
        _daemon(short, control, SUPERVISOR_LAUNCHER=str(short / "nobody")) as daemon,
    ):
        assert daemon.wait(PATIENCE_S) != 0
        assert daemon.stdout is not None and "no launcher answers on" in daemon.stdout.read()
