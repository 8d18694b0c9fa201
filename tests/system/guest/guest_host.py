"""Owns the scenarios of the installed daemon: its units, as `supervisorctl install` or the package made them.
May touch this machine's units, group, state and settings, all of which a scenario finds as new.
Never looks inside: what it knows it has from the program's output, from systemd, /proc and the cgroups.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from guest_commands import CGROUPS, PROGRAM, TREE, TREE_SIZE, Place, ended_as, groups, tree_of
from guest_common import check, dead, make_worktree, wait_until

COMMIT = Path(__file__).resolve().parents[3]
SERVICE, LAUNCHER = "sidecar-supervisor.service", "sidecar-launcher.service"
SOCKETS = ("sidecar-launcher.socket", "sidecar-supervisor.socket")
GROUP = "sidecar-supervisor"
ACCOUNT = "sidecar-daemon"
CONFIG = Path("/etc/sidecar-supervisor/config.toml")
STATE, RUN = Path("/var/lib/sidecar-supervisor"), Path("/run/sidecar-supervisor")
DROP_INS = Path(f"/run/systemd/system/{SERVICE}.d")
MEMBER, STRANGER = "tester", "loner"
MODEL = "/run/test-model.sock"
KEY = Path("/root/model-key")
UPSTREAM = "test-model.service"
EXPOSURE_MOST = 4.0

MONEY = f"""
[daily]
global_usd = "0.0115"
[upstreams.local]
api = "anthropic-messages"
url = "unix:{MODEL}"
key = "credential:model"
[prices."local/m-1"]
input = "1"
output = "10"
"""
GATEWAY = """schema = 1
name = "metered"
extends = "base"
[network]
mode = "gateway"
[gateway]
upstreams = ["local"]
models = ["m-*"]
"""
UNTIL_REFUSED = """
import json, os, time, urllib.error, urllib.request
body = {"model": "m-1", "max_tokens": 1000, "messages": [{"role": "user", "content": "hi"}]}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
while True:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        print(error.code, flush=True)
        time.sleep(600)
"""
ROTATE = """
cd "$SUPERVISOR_LOG_DIR"
for n in 1 2 3; do
    printf '{"line": %s}\\n' "$n" >> app.ndjson; sleep 1
    mv app.ndjson "app.$n.ndjson"
done
printf '{"line": 4}\\n' >> app.ndjson
"""


def _systemctl(*arguments: str, code: int | None = 0) -> str:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True)
    check(code is None or done.returncode == code, f"systemctl {arguments}: {done.stderr} {_journal()}")
    return done.stdout.strip()


def _journal() -> str:
    command = ["journalctl", "-u", SERVICE, "-u", LAUNCHER, "-n", "40", "-o", "short-monotonic"]
    return subprocess.run(command, capture_output=True, text=True).stdout


def _installed(where: Place) -> list[dict[str, str]]:
    steps: list[dict[str, str]] = where.ask("install")["steps"]
    return steps


@contextlib.contextmanager
def unit(settings: str = "", drop_in: str = "", program: str = PROGRAM) -> Iterator[Place]:
    """The installed daemon, just started, with no record of another scenario.

    settings: more lines of its configuration. drop_in: more of its [Service].
    """
    with tempfile.TemporaryDirectory(prefix="place-", dir="/var/tmp") as name:
        where = Place(Path(name), installed=True, program=program)
        if not Path(f"/etc/systemd/system/{SERVICE}").exists() and program == PROGRAM:
            _installed(where)
        _end_all()
        CONFIG.write_text(f'[control]\ngroup = "{GROUP}"\n{settings}')
        if drop_in:
            DROP_INS.mkdir(parents=True)
            (DROP_INS / "scenario.conf").write_text(f"[Service]\n{drop_in}\n")
            _systemctl("daemon-reload")
        _systemctl("start", *SOCKETS, SERVICE)
        try:
            yield where
        except BaseException:
            _show(where)
            raise
        finally:
            _end_all()


def _end_all() -> None:
    for name in (SERVICE, LAUNCHER):
        _systemctl("kill", "--kill-who=all", "-s", "KILL", name, code=None)
    _systemctl("stop", SERVICE, *SOCKETS, LAUNCHER, code=None)
    shutil.rmtree(DROP_INS, ignore_errors=True)
    _systemctl("daemon-reload")
    _systemctl("reset-failed", SERVICE, LAUNCHER, *SOCKETS, code=None)
    for entry in STATE.iterdir() if STATE.exists() else ():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _show(where: Place) -> None:
    """What somebody who looks into a failure would ask for first."""
    print(_journal())
    print(_systemctl("status", "--no-pager", "-n", "0", SERVICE, LAUNCHER, code=None))
    with contextlib.suppress(AssertionError, ValueError):
        for run in where.ask("ps", "--all"):
            print(json.dumps({key: run[key] for key in ("ticket", "state", "reason", "by", "supervised")}))
            print(where.call("events", run["ticket"])[-1500:])
    for thread in Path(f"/proc/{_pid(SERVICE)}/task").glob("*"):
        with contextlib.suppress(OSError):
            print(thread.name, (thread / "comm").read_text().strip(), (thread / "wchan").read_text())


def _pid(name: str) -> int:
    return int(_systemctl("show", "-P", "MainPID", name) or 0)


def _restarted(old: int) -> int:
    """The pid of a daemon that has come up in place of another, and is ready."""

    def ready() -> bool:
        shown = _systemctl("show", "-P", "ActiveState", SERVICE)
        return shown == "active" and _pid(SERVICE) not in (0, old)

    wait_until("another daemon", ready, _journal)
    return _pid(SERVICE)


def _detached(where: Place, *tickets: str) -> dict[str, list[int]]:
    for ticket in tickets:
        tree = where.worktree(ticket)
        options = ("--detach", "--ticket", ticket, "--profile", "coding")
        where.call("run", *options, "--", "sh", "-c", TREE, cwd=tree)
    return {ticket: tree_of(where, ticket) for ticket in tickets}


def _nothing_lives(pids: list[int]) -> None:
    alive = sorted(set(pids) - set(dead(pids)))
    check(not alive, f"alive: {alive}")


def _runs_again(where: Place, ticket: str) -> None:
    where.call("run", "--ticket", ticket, "--profile", "coding", "--", "true", cwd=where.worktree(ticket))


# ---------------------------------------------------------------- scenarios


def installed(_: str) -> str:
    """The command sets it up, again changes nothing; the daemon is low in exposure and makes its boxes."""
    with unit() as where:
        actions = {step["action"] for step in _installed(where)}
        check(actions == {"unchanged", "kept", "ran"}, actions)
        for name in (*SOCKETS, SERVICE):
            check(_systemctl("is-enabled", name) == "enabled", name)
        control = (RUN / "control.sock").stat()
        check(control.st_mode & 0o777 == 0o660, oct(control.st_mode))
        check((RUN / "launcher.sock").stat().st_mode & 0o777 == 0o600, "the launcher's socket")
        tree = where.worktree("T-1")
        options = ("run", "--json", "--ticket", "T-1", "--profile", "coding", "--")
        found = json.loads(where.call(*options, "sh", "-c", "echo said; exit 3", cwd=tree, code=3))
        check(found["reason"] == "failed" and found["exit_status"] == 3, found)
        check("said" in where.call("logs", "T-1"), "the log lacks what the agent said")
        attested = json.dumps(where.ask("status", "T-1")["attestation"])
        check('"read_back": true' in attested, f"the filter was not read back: {attested[:3000]}")
        about = Path(f"/proc/{_pid(SERVICE)}/status").read_text()
        account = str(pwd.getpwnam(ACCOUNT).pw_uid)
        check(re.findall(r"Uid:\s+(.*)", about)[0].split() == [account] * 4, f"the daemon's uid: {about}")
        effective = int(re.findall(r"CapEff:\s+(\w+)", about)[0], 16)
        check(effective == (1 << 2) | (1 << 5), f"capabilities of the daemon {effective:x}")
        exposure = {name: _exposure(name) for name in (SERVICE, LAUNCHER)}
        check(exposure[SERVICE] <= EXPOSURE_MOST, exposure)
    return f"exposure {exposure[SERVICE]}, of the launcher {exposure[LAUNCHER]}"


def _exposure(name: str) -> float:
    command = ["systemd-analyze", "security", "--no-pager", name]
    shown = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.search(r"exposure level for \S+: ([0-9.]+)", shown)
    check(found, shown[-500:])
    assert found is not None
    return float(found.group(1))


def operators(_: str) -> str:
    """A member of the group runs and kills in a folder of its own; a stranger stays outside."""
    with unit() as where:
        subprocess.run(["gpasswd", "-a", MEMBER, GROUP], check=True, capture_output=True)
        where.folder.chmod(0o755)
        tree = make_worktree(where.folder / "tree")
        subprocess.run(["chown", "-R", f"{MEMBER}:{MEMBER}", tree], check=True)
        options = ["--detach", "--ticket", "T-1", "--profile", "coding"]
        code, said = _as(MEMBER, tree, PROGRAM, "run", *options, "--", "sh", "-c", TREE)
        check(code == 0, said)
        pids = tree_of(where, "T-1")
        code, said = _as(STRANGER, tree, PROGRAM, "kill", "T-1")
        check(code not in (0, 4) and len(dead(pids)) == 0, f"{code} {said}")
        code, said = _as(MEMBER, tree, PROGRAM, "kill", "T-1", "--json")
        check(code == 0, said)
        _nothing_lives(pids)
        found = ended_as(where, "T-1", "killed", "operator")
        check(found["who"].endswith(f":{MEMBER}"), found["who"])
    return f"killed by {found['who']}"


def _as(user: str, folder: Path, *command: str) -> tuple[int, str]:
    done = subprocess.run(
        ["/usr/sbin/runuser", "-u", user, "--", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "SUPERVISOR_RUN_DIR": str(RUN)},
    )
    return done.returncode, done.stdout + done.stderr


def three_kills(_: str) -> str:
    """Command, stop-file, database flag: three hostile trees in one daemon, each gone in its own way."""
    with unit() as where:
        trees = _detached(where, "T-1", "T-2", "T-3")
        for ticket in trees:
            (group, *_rest) = where.groups(ticket)
            check(group.is_relative_to(CGROUPS / "system.slice" / LAUNCHER), group)
        (killed,) = where.ask("kill", "T-1", "--reason", "by hand")
        check(killed["dead"] and killed["survivors"] == 0 and killed["processes"] == TREE_SIZE, killed)
        _nothing_lives(trees["T-1"])
        check(len(dead(trees["T-2"] + trees["T-3"])) == 0, "others were hit")
        (STATE / "stop" / "T-2").write_text("the pager went\n")
        with contextlib.closing(sqlite3.connect(STATE / "supervisor.db", timeout=30)) as database, database:
            database.execute(
                "INSERT INTO tickets (key, stop_requested, updated_at) VALUES ('T-3', 1, '') "
                "ON CONFLICT (key) DO UPDATE SET stop_requested = 1"
            )
        ended_as(where, "T-2", "killed", "stop_file")
        ended_as(where, "T-3", "killed", "database_flag")
        _nothing_lives(trees["T-2"] + trees["T-3"])
        for ticket in trees:
            left = [group for group in where.groups(ticket) if group.exists()]
            check(not left, f"{ticket} left {left}")
    return f"{3 * TREE_SIZE} processes, 0 left"


def daemon_lost(_: str) -> str:
    """SIGKILL to the daemon: its runs die with it; systemd starts the next, which records supervisor_lost."""
    with unit() as where:
        trees = _detached(where, "T-1")
        socket = (RUN / "control.sock").stat().st_ino
        pid = _pid(SERVICE)
        os.kill(pid, signal.SIGKILL)
        wait_until("their end", lambda: len(dead(trees["T-1"])) == TREE_SIZE)
        _restarted(pid)
        check((RUN / "control.sock").stat().st_ino == socket, "another socket")
        check(not any(group.exists() for group in where.groups("T-1")), "T-1 left its group")
        ended_as(where, "T-1", "supervisor_lost", "supervisor")
        _runs_again(where, "T-2")
    return f"{TREE_SIZE} dead, recorded as supervisor_lost, the socket stayed, new runs start"


def launcher_lost_under_daemon(_: str) -> str:
    """SIGKILL to the launcher: no box outlives it, the daemon says why and comes back with another."""
    with unit() as where:
        trees = _detached(where, "T-1")
        daemon, launcher = _pid(SERVICE), _pid(LAUNCHER)
        os.kill(launcher, signal.SIGKILL)
        wait_until("their end", lambda: len(dead(trees["T-1"])) == TREE_SIZE)
        _restarted(daemon)
        check(_pid(LAUNCHER) not in (0, launcher), "no other launcher")
        check("the launcher has ended" in _journal(), _journal())
        found = ended_as(where, "T-1", "supervisor_lost", "supervisor")
        check(not any(group.exists() for group in where.groups("T-1")), "T-1 left its group")
        _runs_again(where, "T-2")
    return f"{TREE_SIZE} dead, {found['note']!r}"


def both_lost(_: str) -> str:
    """SIGKILL to both at once, as by a careless `kill -9`: the same."""
    with unit() as where:
        trees = _detached(where, "T-1")
        daemon = _pid(SERVICE)
        for pid in (daemon, _pid(LAUNCHER)):
            os.kill(pid, signal.SIGKILL)
        wait_until("their end", lambda: len(dead(trees["T-1"])) == TREE_SIZE)
        _restarted(daemon)
        ended_as(where, "T-1", "supervisor_lost", "supervisor")
        wait_until("all groups to go", lambda: not groups(), groups)
        _runs_again(where, "T-2")
    return f"{TREE_SIZE} dead, recorded as supervisor_lost"


def watchdog(_: str) -> str:
    """A daemon that hangs is replaced by systemd; its runs died, and the record says so."""
    with unit(drop_in="WatchdogSec=10\nTimeoutAbortSec=10") as where:
        trees = _detached(where, "T-1")
        pid = _pid(SERVICE)
        os.kill(pid, signal.SIGSTOP)
        next_pid = _restarted(pid)
        check(_systemctl("show", "-P", "NRestarts", SERVICE) == "1", "not by systemd")
        check("Watchdog timeout" in _journal(), _journal())
        wait_until("their end", lambda: len(dead(trees["T-1"])) == TREE_SIZE)
        ended_as(where, "T-1", "supervisor_lost", "supervisor")
        _runs_again(where, "T-2")
        check(_pid(SERVICE) == next_pid, "the one that came up hangs as well")
    return f"hung, replaced, {TREE_SIZE} dead, recorded as supervisor_lost"


def restarted(_: str) -> str:
    """systemctl restart ends every run first, each with its reason; the record and the socket stay."""
    with unit() as where:
        trees = _detached(where, "T-1", "T-2")
        pid = _pid(SERVICE)
        _systemctl("restart", SERVICE)
        _nothing_lives(trees["T-1"] + trees["T-2"])
        check(_restarted(pid) != pid, "the same")
        for ticket in trees:
            ended_as(where, ticket, "killed", "supervisor")
        _systemctl("stop", SERVICE, *SOCKETS)
        for name in (SERVICE, LAUNCHER):
            wait_until(f"the end of {name}", lambda name=name: not (CGROUPS / "system.slice" / name).exists())  # type: ignore[misc]
    return f"{2 * TREE_SIZE} processes dead, reasons recorded"


def daemon_hung(_: str) -> str:
    """The daemon is stopped in its tracks: kill --force needs nobody, and the reason is kept."""
    with unit() as where:
        trees = _detached(where, "T-1")
        pid = _pid(SERVICE)
        os.kill(pid, signal.SIGSTOP)
        try:
            (killed,) = where.ask("kill", "T-1", "--force", "--reason", "hung")
            check(killed["dead"] and killed["survivors"] == 0, killed)
            running = [p for p in set(trees["T-1"]) - set(dead(trees["T-1"])) if _process_state(p) != "Z"]
            check(not running, f"alive: {running}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        found = ended_as(where, "T-1", "killed", "operator")
        check(found["note"] == "hung", found)
        wait_until("its groups to go", lambda: not any(group.exists() for group in where.groups("T-1")))
    return f"{killed['processes']} processes, 0 left, reason kept"


def _process_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def daily_cap(_: str) -> str:
    """What a day may cost ends the run that would go over it, through the gateway and this unit's walls."""
    upstream = COMMIT / "tests/gateway/scripted_upstream.py"
    KEY.write_text("a-key-of-root\n")
    KEY.chmod(0o600)
    with unit(MONEY, f"LoadCredential=model:{KEY}") as where:
        command = ["/usr/bin/python3", str(upstream), "--socket", MODEL]
        # The daemon is nobody special: a model's socket has to let its user in.
        options = ["--quiet", "--collect", "--property=UMask=0000", f"--unit={UPSTREAM}"]
        subprocess.run(["systemd-run", *options, *command], check=True)
        try:
            wait_until("the model", lambda: Path(MODEL).exists())
            profile = where.folder / "metered.toml"
            profile.write_text(GATEWAY)
            words = ("run", "--json", "--ticket", "T-1", "--profile", str(profile), "--")
            process = where.start(*words, "python3", "-c", UNTIL_REFUSED, cwd=where.worktree("T-1"))
            out, said = process.communicate(timeout=120)
            check(out, f"{process.returncode} {said[-900:]}")
            found = json.loads(out)
            check(found["reason"] == "daily_cap", f"{found} {where.call('logs', 'T-1')}")
            spent, calls = int(found["totals"]["spent_nanos"]), found["totals"]["calls"]
            check(0 < spent <= 11_500_000 and calls > 0, found["totals"])
        finally:
            _systemctl("stop", UPSTREAM, code=None)
    return f"{calls} calls, {spent} of 11500000 nano-dollars, then daily_cap"


def log_rotation(_: str) -> str:
    """An agent that rotates its own log: each line is kept, and kept once."""
    with unit() as where:
        tree = where.worktree("T-1")
        where.call("run", "--ticket", "T-1", "--profile", "coding", "--", "sh", "-c", ROTATE, cwd=tree)
        said = where.call("logs", "T-1", "--stream", "file")
        lines = re.findall(r'"line": (\d)', said)
        check(sorted(lines) == ["1", "2", "3", "4"], said)
    return f"lines {' '.join(lines)}"


def uninstalled(_: str) -> str:
    """A run is ended, units and sockets go; settings and records stay until they are purged."""
    with unit() as where:
        trees = _detached(where, "T-1")
        where.call("uninstall")
        _nothing_lives(trees["T-1"])
        check(not RUN.exists() and not list(Path("/etc/systemd/system").rglob("sidecar-*")), "units are left")
        check((STATE / "supervisor.db").exists() and CONFIG.exists(), "settings or records are gone")
        ended_as(where, "T-1", "killed", "supervisor")
        where.call("uninstall", "--purge")
        check(not STATE.exists() and not CONFIG.parent.exists(), "settings or records are left")
        check(f"{GROUP}:" not in Path("/etc/group").read_text(), "the group is left")
        check(f"{ACCOUNT}:" not in Path("/etc/passwd").read_text(), "the daemon's user is left")
        _installed(where)
        _runs_again(where, "T-2")
    return f"{TREE_SIZE} dead, nothing left, and it can be installed again"


def packaged(_: str) -> str:
    """The Debian package: installed, upgraded under a live run with every record kept, removed, purged."""
    older, newer = (COMMIT / "deb" / f"{name}.deb" for name in ("older", "newer"))
    if Path(f"/etc/systemd/system/{SERVICE}").exists():
        subprocess.run([PROGRAM, "uninstall", "--purge"], check=True, capture_output=True)
    _dpkg("-i", str(older))
    for name in (*SOCKETS, SERVICE):
        check(_systemctl("is-active", name) == "active", name)
    with unit(program="/usr/bin/supervisorctl") as where:
        _runs_again(where, "T-1")
        trees = _detached(where, "T-2")
        before = where.call("events", "T-1")
        daemon, version = _pid(SERVICE), where.call("--version")
        where.call("install", code=2)  # one of the two sets a host up
        _dpkg("-i", str(newer))
        _nothing_lives(trees["T-2"])
        check(_restarted(daemon) != daemon, "the old daemon serves on")
        ended_as(where, "T-2", "killed", "supervisor")
        check(where.call("events", "T-1") == before, "the record of T-1 is another one")
        shown = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", GROUP], capture_output=True, text=True, check=True
        ).stdout
        check(shown.endswith("+newer"), shown)
        with contextlib.closing(sqlite3.connect(STATE / "supervisor.db", timeout=30)) as database:
            check(database.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "the database")
        _runs_again(where, "T-3")
        _dpkg("-r", GROUP)
        check(CONFIG.exists() and (STATE / "supervisor.db").exists(), "removal took settings or records")
        check(not list(Path("/etc/systemd/system").rglob("sidecar-*")), "links to units are left")
        _dpkg("-P", GROUP)
        check(not STATE.exists() and not CONFIG.parent.exists(), "settings or records are left")
        check(f"{GROUP}:" not in Path("/etc/group").read_text(), "the group is left")
        check(f"{ACCOUNT}:" not in Path("/etc/passwd").read_text(), "the daemon's user is left")
    return f"{version.strip()} to {shown}, {TREE_SIZE} dead, records kept, nothing left"


def _dpkg(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(["dpkg", *arguments], capture_output=True, text=True, env=environment)
    check(done.returncode == 0, f"dpkg {arguments}: {done.stdout[-600:]} {done.stderr[-900:]} {_journal()}")
