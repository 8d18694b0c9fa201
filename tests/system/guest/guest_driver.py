"""Owns the guest's side of a system test: sets the place up, runs each scenario in its context, reports.
May touch anything of this machine, which exists for one run.
Never runs on a machine that was not made for it: it wants to be that machine's own unit.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMIT = HERE.parent.parent.parent
VENV = "/opt/supervisor"
USER = "tester"

Wrap = Callable[[list[str]], list[str]]


def _root_scope(command: list[str]) -> list[str]:
    """Root with a delegated group of its own: what the unit file and the documentation give."""
    return ["systemd-run", "--quiet", "--scope", "-p", "Delegate=yes", *command]


def _root_plain_service(command: list[str]) -> list[str]:
    return ["systemd-run", "--quiet", "--pipe", "--wait", *command]


def _root_session(command: list[str]) -> list[str]:
    """A login of root, as by ssh: a session scope below user.slice, nothing delegated."""
    return [*"systemd-run --quiet --pipe --wait -p PAMName=login -p User=root".split(), *command]


def _user_session(command: list[str]) -> list[str]:
    return [
        "systemd-run",
        "--quiet",
        "--pipe",
        "--wait",
        "-p",
        "PAMName=login",
        "-p",
        f"User={USER}",
        *command,
    ]


def _user_scope(command: list[str]) -> list[str]:
    uid = pwd.getpwnam(USER).pw_uid
    return _user_session(
        [
            *("env", f"XDG_RUNTIME_DIR=/run/user/{uid}"),
            *("systemd-run", "--user", "--quiet", "--scope", "-p", "Delegate=yes", *command),
        ]
    )


def _user_alone(command: list[str]) -> list[str]:
    """A user with neither a session nor a manager that could delegate anything."""
    return [*"systemd-run --quiet --pipe --wait -p User=loner".split(), *command]


CONTEXTS: dict[str, Wrap] = {
    "root-scope": _root_scope,
    "root-plain-service": _root_plain_service,
    "root-session": _root_session,
    "user-session": _user_session,
    "user-scope": _user_scope,
    "user-alone": _user_alone,
    "unit": lambda command: command,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A function of guest_boxes, guest_commands or guest_host, and the context it is run in.

    when_named: takes as long as all others together, and shows on this kernel what `make test` shows on
    another; `verified` makes the same attempts without their controls.
    """

    function: str
    context: str
    patience_s: float = 240.0
    when_named: bool = False

    @property
    def name(self) -> str:
        return f"{self.function}@{self.context}"


SCENARIOS = (
    Scenario("installed", "unit"),
    Scenario("operators", "unit"),
    Scenario("three_kills", "unit"),
    Scenario("daemon_lost", "unit"),
    Scenario("launcher_lost_under_daemon", "unit"),
    Scenario("both_lost", "unit"),
    Scenario("watchdog", "unit"),
    Scenario("restarted", "unit"),
    Scenario("daemon_hung", "unit"),
    Scenario("daily_cap", "unit"),
    Scenario("log_rotation", "unit"),
    Scenario("uninstalled", "unit"),
    Scenario("packaged", "unit", patience_s=600.0),
    Scenario("armed", "root-scope"),
    Scenario("missing_is_said", "root-scope"),
    Scenario("tree_killed", "root-scope"),
    Scenario("memory_bomb", "root-scope"),
    Scenario("fork_bomb", "root-scope"),
    Scenario("launcher_lost", "root-scope"),
    Scenario("overlay", "root-scope"),
    Scenario("direct", "root-scope"),
    Scenario("gateway_listener", "root-scope"),
    Scenario("armed_anywhere", "root-session"),
    Scenario("armed_anywhere", "root-plain-service"),
    Scenario("armed_anywhere", "user-scope"),
    Scenario("tree_killed", "user-scope"),
    Scenario("armed_anywhere", "user-session"),
    Scenario("without_cgroup", "user-alone"),
    Scenario("overlay", "user-scope"),
    Scenario("doctor", "root-session"),
    Scenario("doctor", "user-session"),
    Scenario("doctor", "user-alone"),
    Scenario("run_once", "root-session"),
    Scenario("run_once", "user-scope"),
    Scenario("out_of_memory", "root-session"),
    Scenario("foreground_lost", "root-session"),
    Scenario("foreground_lost", "user-scope"),
    Scenario("verified", "root-session", patience_s=400.0),
    Scenario("security_tests", "root-scope", patience_s=1800.0, when_named=True),
)


class Results:
    """The host's end: a serial line of its own, so that no kernel message can break one of ours."""

    def __init__(self, path: str) -> None:
        self._terminal = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)

    def say(self, line: str) -> None:
        raw = (line.replace("\r", "") + "\n").encode(errors="replace")
        while raw:
            raw = raw[os.write(self._terminal, raw) :]


def main() -> None:
    results = Results(sys.argv[1])
    results.say("SYSTEM-TEST-START")
    _facts(results)
    _set_up(results)
    only = (COMMIT / "only").read_text().strip()
    chosen = [
        scenario
        for scenario in SCENARIOS
        if only in scenario.name and (not scenario.when_named or scenario.function in only)
    ]
    for scenario in chosen:
        _run(scenario, results)
    results.say(f"SYSTEM-TEST-END {len(chosen)}")
    time.sleep(1)  # the line has to drain before the machine is switched off


def _facts(results: Results) -> None:
    version = subprocess.run(["systemctl", "--version"], capture_output=True, text=True).stdout.split()
    facts = {
        "kernel": os.uname().release,
        "systemd": version[1] if len(version) > 1 else "?",
        "lsm": _read("/sys/kernel/security/lsm"),
        "controllers": _read("/sys/fs/cgroup/cgroup.controllers"),
    }
    for key, value in facts.items():
        results.say(f"FACT {key} {value}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        return str(error.strerror)


def _set_up(results: Results) -> None:
    """Install the wheel as a user would, and give the unprivileged user its own manager."""
    start = time.monotonic()
    wheels = [str(path) for path in (COMMIT / "wheel").glob("*.whl")]
    pip = [f"{VENV}/bin/pip", "install", "-q", "--no-index", "--no-deps", *wheels]
    for command in (pip, ["loginctl", "enable-linger", USER]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            results.say(f"{command[0]}: {done.stdout}{done.stderr}")
    results.say(f"set up in {time.monotonic() - start:.0f} s")


def _run(scenario: Scenario, results: Results) -> None:
    command = [f"{VENV}/bin/python", str(HERE / "guest_main.py"), scenario.function, scenario.context]
    start = time.monotonic()
    try:
        done = subprocess.run(
            CONTEXTS[scenario.context](command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=scenario.patience_s,
            cwd="/",
        )
        output, code = done.stdout, str(done.returncode)
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        output = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
        code = f"nothing after {scenario.patience_s:.0f} s"
    lines = output.strip().splitlines()
    passed = code == "0" and bool(lines) and lines[-1].startswith("PASSED")
    detail = lines[-1].removeprefix("PASSED").strip() if lines else "no output"
    if not passed:
        detail = f"({code}) {detail}"
        for line in lines[-120:]:
            results.say(f"| {line}")
    verdict = "ok" if passed else "FAILED"
    results.say(f"SCENARIO {scenario.name} {verdict} {time.monotonic() - start:.1f} {detail}")


if __name__ == "__main__":
    main()
