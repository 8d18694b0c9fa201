"""Owns who may speak to a supervisor, and that there is only one where there may be only one.
May touch the stands' sockets, also as other users through short programs of their own.
Never trusts a file mode alone: another user tries.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from stand import CTL, Stand, until

from supervisor.control.server import ControlServer
from supervisor.errors import NotYetDead
from supervisor.runs.reasons import StopReason, kill_request

pytest_plugins = ["stand_fixtures"]

ASK = """
import json, os, socket, sys
os.setgroups(json.loads(sys.argv[3])); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as s:
    try:
        s.connect(sys.argv[1])
        s.sendall(sys.argv[4].encode() + b"\\n")
        print(s.makefile().readline())
    except OSError as error:
        print(json.dumps({"kind": "refused by the kernel", "message": error.strerror}))
"""


def ask_as(path: str, uid: int, groups: list[int], op: str, **arguments: object) -> dict[str, object]:
    request = json.dumps({"op": op, "arguments": arguments})
    done = subprocess.run(
        [sys.executable, "-IS", "-c", ASK, path, str(uid), json.dumps(groups), request],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def mode_of(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_sockets_are_their_owners_alone(anywhere: Stand) -> None:
    ticket = anywhere.start("print('UP', flush=True); import time; time.sleep(600)")
    with anywhere.store() as store:
        (worker,) = store.workers()
    assert mode_of(worker.socket) == 0o600 and stat.S_ISSOCK(os.stat(worker.socket).st_mode)
    assert ask_as(worker.socket, 0, [], "ping")["kind"] == "result", "control"
    for groups in ([], [0]):
        assert ask_as(worker.socket, 65534, groups, "ping")["kind"] == "refused by the kernel"
    for folder in (anywhere.state, anywhere.state / "stop", anywhere.state / "runs"):
        assert mode_of(str(folder)) == 0o700
    assert anywhere.ctl("kill", ticket).code == 0


@pytest.fixture
def grouped(place: Stand) -> Stand:
    """A daemon whose control group is "games" (every Debian has it)."""
    config = place.folder / "config.toml"
    config.write_text('[control]\ngroup = "games"\n')
    place.environment["SUPERVISOR_CONFIG"] = str(config)
    place.serve()
    return place


def test_a_control_group(grouped: Stand) -> None:
    import grp

    games = grp.getgrnam("games").gr_gid
    path = grouped.paths.control_socket
    found = os.stat(path)
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, games)
    ticket = grouped.start()
    stranger = ask_as(path, 65534, [], "kill", ticket=ticket)
    assert stranger["kind"] == "refused by the kernel" and grouped.survivors()
    os.chmod(path, 0o666)
    for groups in ([], [65534]):
        refused = ask_as(path, 65534, groups, "kill", ticket=ticket)
        assert (refused["kind"], refused["error"]) == ("error", "UsageError")
        assert "may not control" in str(refused["message"]) and grouped.survivors()
    as_member = "import os, sys; os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(65534)"
    program = ASK.replace(
        ASK.splitlines()[2], as_member.replace("sys.argv[1]", "sys.argv[3]").split("; ", 1)[1]
    )
    request = json.dumps({"op": "kill", "arguments": {"ticket": ticket, "note": "by the group"}})
    done = subprocess.run(
        [sys.executable, "-IS", "-c", program, path, "0", str(games), request],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert json.loads(done.stdout)["kind"] == "result", done
    run = grouped.ended(ticket)
    assert grouped.survivors() == []
    assert (run.reason, run.reason_by, run.reason_who) == (StopReason.KILLED, "operator", "65534:nobody")
    assert run.reason_note == "by the group"


def test_members_get_no_more_than_they_have(grouped: Stand) -> None:
    import grp

    games = grp.getgrnam("games").gr_gid
    path = grouped.paths.control_socket
    os.chmod(path, 0o666)
    member = "import os, sys; os.setgroups([]); os.setgid(int(sys.argv[3])); os.setuid(65534)"
    program = ASK.replace(ASK.splitlines()[2], member.split("; ", 1)[1])

    def ask(**changes: object) -> dict[str, object]:
        order = {**grouped.order("T-member", "print('UP')", "offline"), **changes}
        done = subprocess.run(
            [
                sys.executable,
                "-IS",
                "-c",
                program,
                path,
                "0",
                str(games),
                json.dumps({"op": "run", "arguments": order}),
            ],
            capture_output=True,
            text=True,
            check=True,
            cwd="/",
        )
        answer: dict[str, object] = json.loads(done.stdout)
        return answer

    theirs = grouped.folder / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    own_profile = ask(profile=grouped.profile(), worktree=str(theirs))
    assert own_profile["kind"] == "error" and "only root" in str(own_profile["message"])
    other_tree = ask()
    assert other_tree["kind"] == "error" and "another user" in str(other_tree["message"])
    assert ask(worktree=str(theirs))["kind"] == "result", "control"
    assert grouped.ended("T-member").reason is StopReason.DONE


def test_a_group_that_does_not_exist(place: Stand) -> None:
    config = place.folder / "config.toml"
    config.write_text('[control]\ngroup = "no-such-group"\n')
    place.environment["SUPERVISOR_CONFIG"] = str(config)
    done = place.ctl("serve")
    assert done.code == 2 and done.clear_error() and "no-such-group" in done.err


def test_one_run_of_a_ticket(anywhere: Stand) -> None:
    ticket = anywhere.start("print('UP', flush=True); import time; time.sleep(600)")
    first = anywhere.row(ticket)
    done = anywhere.ctl("run", "--ticket", ticket, "--", "/bin/true")
    assert done.code == 2 and done.clear_error() and "live run already" in done.err
    assert f"supervisorctl kill {ticket}" in done.err
    assert anywhere.row(ticket) == first
    assert len(list((anywhere.state / "runs").iterdir())) >= 1
    assert anywhere.ctl("kill", ticket).code == 0
    assert anywhere.ctl("run", "--ticket", ticket, "--", "/bin/true").code == 0, "control"


def test_one_daemon(served: Stand) -> None:
    ticket = served.start("print('UP', flush=True); import time; time.sleep(600)")
    os.unlink(served.paths.control_socket)
    for _ in range(2):
        done = served.ctl("serve")
        assert done.code == 2 and done.clear_error() and "running already" in done.err
    row = served.row(ticket)
    assert row is not None and row.ended_at is None, "a swept socket is no reason for a second daemon"


def test_a_dead_daemons_socket_is_replaced(place: Stand) -> None:
    place.serve().kill()
    until(lambda: not place.answers())
    assert os.path.exists(place.paths.control_socket)
    place.serve()
    assert place.ask("ping")["kind"] == "daemon"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\n",
        b"not json\n",
        b"[]\n",
        b'{"op": "no such thing"}\n',
        b'{"op": "kill"}\n',
        b'{"op": "kill", "arguments": []}\n',
        b'{"op": "kill", "arguments": {"ticket": 7}}\n',
        b'{"op": "kill", "arguments": {"ticket": "../../etc"}}\n',
        b'{"op": "events", "arguments": {"ticket": "T", "after": "x"}}\n',
        b'{"op": "stop", "arguments": {"ticket": "T", "grace_s": "x"}}\n',
        b'{"op": "run", "arguments": {"argv": []}}\n',
        b'{"op": "report", "arguments": {"since": {}}}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"op": "ping"}' + b" " * (9 << 20) + b"\n",
    ],
    ids=range(16),
)
def test_nonsense_on_the_socket(daemon: Stand, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(daemon.paths.control_socket)
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").readline()
        except OSError:
            answer = b""
    assert b"Traceback" not in answer and b'"kind":"result"' not in answer
    assert daemon.answers()


def test_asking_for_everything(daemon: Stand) -> None:
    """ping, ps, status, events, log, report, kill, stop, run, wait, pause, resume: as data."""
    ticket = daemon.start("print('UP', flush=True); import time; time.sleep(600)")
    ping = daemon.ask("ping")
    assert (ping["kind"], ping["you"]) == ("daemon", "0:root")
    assert [row["ticket"] for row in daemon.ask("ps")] == [ticket]
    assert daemon.ask("status", ticket=ticket)["state"] == "running"
    assert daemon.ask("log", ticket=ticket)["lines"][0]["t"] == "UP"
    assert daemon.ask("events", ticket=ticket)["ended"] is False
    assert daemon.ask("pause") == {"paused": "true"}
    assert daemon.ask("resume") == {"paused": "false"}
    assert daemon.ask("stop", ticket=ticket, grace_s=0.1)["dead"] is True
    assert daemon.ask("wait", ticket=ticket)["reason"] in ("stopped", "killed")
    assert daemon.ask("report", since="1h")["runs"] >= 1


def test_paused(anywhere: Stand) -> None:
    ticket = anywhere.start("print('UP', flush=True); import time; time.sleep(600)")
    words = ("run", "--project", "billing", "--", "/bin/true")
    for pause in (("pause",), ("pause", "--project", "billing")):
        assert anywhere.ctl(*pause).code == 0
        refused = anywhere.ctl(*words)
        assert refused.code == 2 and refused.clear_error() and "paused" in refused.err
        assert "resume" in refused.err
        row = anywhere.row(ticket)
        assert row is not None and row.ended_at is None, "what runs goes on"
        if len(pause) > 1:
            assert anywhere.ctl("run", "--project", "other", "--", "/bin/true").code == 0
        assert anywhere.ctl("resume", *pause[1:]).code == 0
        assert anywhere.ctl(*words).code == 0
    assert anywhere.ctl("kill", ticket).code == 0


def test_accepted_but_not_yet_dead_is_exit_code_4() -> None:
    """What nothing kills cannot be made on purpose: the waiting is tried alone, with no patience."""
    import asyncio
    from types import SimpleNamespace
    from typing import Any

    async def attempt() -> None:
        asked: list[object] = []
        live: Any = SimpleNamespace(
            request_stop=asked.append, ended=asyncio.Event(), order=SimpleNamespace(ticket="T-1")
        )
        server = ControlServer.__new__(ControlServer)
        with pytest.raises(NotYetDead) as caught:
            await server._end(live, kill_request("operator"), 0.01)
        assert asked and caught.value.exit_code == 4 and "status T-1" in caught.value.hint

    asyncio.run(attempt())


def test_the_program_is_there() -> None:
    assert Path(CTL).exists()
