"""Owns setting the daemon up on a host and taking it off again: files, group, units; each step is shown.
May touch the folders of the system's configuration, below --root where one is given, and run systemd's tools.
Never replaces a file of settings, and never removes a record unless told to purge.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import click

from supervisor.cli import output
from supervisor.errors import StateError, UsageError
from supervisor.ownership import SERVICE_ACCOUNT

GROUP = "sidecar-supervisor"
UNITS = (
    "sidecar-launcher.socket",
    "sidecar-launcher.service",
    "sidecar-supervisor.socket",
    "sidecar-supervisor.service",
)
ENABLED = ("sidecar-launcher.socket", "sidecar-supervisor.socket", "sidecar-supervisor.service")
_SYSUSERS = "/etc/sysusers.d/sidecar-supervisor.conf"
_TMPFILES = "/etc/tmpfiles.d/sidecar-supervisor.conf"
_APPARMOR = "/etc/apparmor.d/sidecar-supervisor"
_CONFIG = "/etc/sidecar-supervisor/config.toml"
_STATE = "/var/lib/sidecar-supervisor"
_RUN = "/run/sidecar-supervisor"
_RESTRICTS = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
"""Where this says 1, no ordinary user makes a user namespace without a profile (Ubuntu since 23.10)."""


@dataclass(slots=True)
class Host:
    """The system that is changed: the real one, or a folder that stands for it. Keeps what was done."""

    root: str
    dry_run: bool
    steps: list[dict[str, str]] = field(default_factory=list)

    @property
    def is_real(self) -> bool:
        return self.root == "/"

    def path(self, name: str) -> str:
        return name if self.is_real else self.root.rstrip("/") + name

    def note(self, action: str, what: str) -> None:
        self.steps.append({"action": action, "what": what})

    def write(self, name: str, text: str, *, keep: bool = False) -> bool:
        """Whether the file is another one now. keep: one that exists is the administrator's."""
        path = self.path(name)
        try:
            there: str | None = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            there = None
        if there is not None and (keep or there == text):
            self.note("unchanged" if there == text else "kept", name)
            return False
        self.note("replaced" if there is not None else "wrote", name)
        if not self.dry_run:
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            _replace(path, text)
        return True

    def remove(self, name: str) -> None:
        path = self.path(name)
        if not os.path.lexists(path):
            return
        self.note("removed", name)
        if self.dry_run:
            return
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def run(self, *command: str, only_real: bool = False) -> None:
        """Raises StateError with what the tool said. only_real: it speaks to a running system."""
        if only_real and not self.is_real:
            return
        self.note("ran", " ".join(command))
        if self.dry_run:
            return
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except FileNotFoundError:
            raise StateError(f"{command[0]} is not on this host", hint="install systemd's packages") from None
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise StateError(f"`{' '.join(command)}` ended with {done.returncode}: {said}")

    def tool(self, program: str) -> list[str]:
        """A tool of systemd's, pointed at the folder where that is not the system itself."""
        return [program] if self.is_real else [program, f"--root={self.root}"]


def _replace(path: str, text: str) -> None:
    """Whole or not at all: systemd may read it at any moment."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o644)
    os.replace(f"{path}.new", path)


def _source(name: str) -> str:
    folder = Path(str(resources.files("supervisor").joinpath("_systemd")))
    if not folder.is_dir():
        folder = Path(__file__).resolve().parents[2] / "systemd"
    return (folder / name).read_text(encoding="utf-8")


def rendered(name: str, program: str) -> str:
    """A file of ours with the places of this installation in it."""
    packages = str(Path(__file__).resolve().parents[2])
    text = _source(name)
    for mark, value in (("supervisorctl", program), ("python", sys.executable), ("packages", packages)):
        if any(character.isspace() or character in "%\"'\\$" for character in value):
            raise UsageError(f"{value!a} cannot be written in a unit file", hint="install it elsewhere")
        text = text.replace(f"@{mark}@", value)
    return text


def changeable_by_others(path: str) -> Iterator[str]:
    """Which parts of a path, as it is written and as it resolves, others than root could replace."""
    for name in dict.fromkeys((path, os.path.realpath(path))):
        for part in (name, *(str(parent) for parent in Path(name).parents)):
            found = os.lstat(part)
            writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
            if found.st_uid != 0 or (writable and not stat.S_ISLNK(found.st_mode)):
                yield part


def _check_system(host: Host, program: str) -> None:
    """Nothing is written before this has passed."""
    if not host.is_real or host.dry_run:
        return
    if os.geteuid() != 0:
        raise UsageError("only root can set the daemon up", hint="--dry-run shows what would be done")
    if not os.path.isdir("/run/systemd/system"):
        raise UsageError("systemd does not run this host", hint="supervisorctl serve runs under any manager")
    if os.path.exists(f"/usr/lib/systemd/system/{UNITS[-1]}"):
        raise UsageError("the package has set this host up", hint="systemctl status sidecar-supervisor")
    for path in (program, sys.executable, __file__):
        for place in changeable_by_others(path):
            raise UsageError(
                f"root's service would run {path}, and others than root can change {place}",
                hint="install the package where only root can write, as in /opt/sidecar-supervisor",
            )


def _program() -> str:
    """This very command: it stands beside the interpreter that runs it, else where it was called from."""
    beside = os.path.join(os.path.dirname(sys.executable), "supervisorctl")
    return beside if os.path.exists(beside) else os.path.abspath(sys.argv[0])


def install_on(host: Host) -> None:
    """Every step can be done again: what is there already is left as it is."""
    program = _program()
    _check_system(host, program)
    changed = [host.write(f"/etc/systemd/system/{unit}", rendered(unit, program)) for unit in UNITS]
    host.write(_SYSUSERS, rendered("sysusers.conf", program))
    host.write(_TMPFILES, rendered("tmpfiles.conf", program))
    host.write(_CONFIG, rendered("config.toml", program), keep=True)
    if _restricts_namespaces(host) and host.write(_APPARMOR, rendered("apparmor.conf", program)):
        host.run("apparmor_parser", "-r", _APPARMOR, only_real=True)
    # By the group's own line, and not for all files there are: other packages' are not our business.
    host.run(*host.tool("systemd-sysusers"), _file_for(host, _SYSUSERS))
    host.run(*host.tool("systemd-tmpfiles"), "--create", _file_for(host, _TMPFILES))
    host.run("systemctl", "daemon-reload", only_real=True)
    host.run(*host.tool("systemctl"), "enable", "--quiet", *ENABLED)
    host.run("systemctl", "start", *ENABLED, only_real=True)
    if host.is_real and any(changed):
        host.note("left", "a daemon that ran already goes on as it was until it is restarted")


def uninstall_from(host: Host, purge: bool) -> None:
    """Runs are ended by the daemon's end. Settings, state, user and group stay unless purged."""
    if host.is_real and not host.dry_run and os.geteuid() != 0:
        raise UsageError("only root can take the daemon off", hint="--dry-run shows what would be done")
    there = [unit for unit in UNITS if os.path.exists(host.path(f"/etc/systemd/system/{unit}"))]
    if there:
        host.run("systemctl", "stop", *reversed(there), only_real=True)
        host.run(*host.tool("systemctl"), "disable", "--quiet", *(unit for unit in ENABLED if unit in there))
    if os.path.exists(host.path(_APPARMOR)):
        host.run("apparmor_parser", "-R", _APPARMOR, only_real=True)
    for name in (*(f"/etc/systemd/system/{unit}" for unit in UNITS), _SYSUSERS, _TMPFILES, _APPARMOR):
        host.remove(name)
    host.run("systemctl", "daemon-reload", only_real=True)
    host.remove(_RUN)
    if not purge:
        for name in (_CONFIG, _STATE):
            if os.path.exists(host.path(name)):
                host.note("kept", name)
        return
    for name in (os.path.dirname(_CONFIG), _STATE):
        host.remove(name)
    accounts = (
        ("passwd", SERVICE_ACCOUNT, "userdel"),  # which takes its group along where login.defs says so
        ("group", SERVICE_ACCOUNT, "groupdel"),
        ("group", GROUP, "groupdel"),
    )
    for kind, name, tool in accounts:
        if _has(host, kind, name):
            host.run(tool, *([] if host.is_real else ["--prefix", host.root]), name)


def _file_for(host: Host, name: str) -> str:
    """systemd's tools take an absolute path as it is and a bare name from below their root."""
    return name if host.is_real else os.path.basename(name)


def _restricts_namespaces(host: Host) -> bool:
    try:
        return Path(host.path(_RESTRICTS)).read_text(encoding="ascii").strip() == "1"
    except OSError:
        return False


def _has(host: Host, kind: str, name: str) -> bool:
    """kind: passwd or group."""
    try:
        lines = Path(host.path(f"/etc/{kind}")).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    return any(line.startswith(f"{name}:") for line in lines)


def _show(host: Host, as_json: bool) -> None:
    if as_json:
        shown: dict[str, Any] = {"dry_run": host.dry_run, "root": host.root, "steps": host.steps}
        output.print_json(shown)
        return
    for step in host.steps:
        output.say(f"{step['action']:<9}  {step['what']}")
    if host.dry_run:
        output.say("nothing was changed: --dry-run")


def _host(root: str, dry_run: bool) -> Host:
    return Host(os.path.abspath(root), dry_run)


_ROOT = click.option(
    "--root", default="/", metavar="DIR", help="A folder that stands for the system; nothing is started."
)
_DRY = click.option("--dry-run", is_flag=True, help="Show the steps and do none.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the steps as one JSON object.")


@click.command()
@_ROOT
@_DRY
@_JSON
def install(root: str, dry_run: bool, as_json: bool) -> None:
    """Set the daemon up on this host: units, user, group, folders, settings; then start it.

    Doing it again changes what differs and nothing else. Settings that exist are kept.
    """
    host = _host(root, dry_run)
    try:
        install_on(host)
    finally:
        _show(host, as_json)


@click.command()
@_ROOT
@_DRY
@click.option(
    "--purge", is_flag=True, help="Remove settings, state with every record, its user and group too."
)
@_JSON
def uninstall(root: str, dry_run: bool, purge: bool, as_json: bool) -> None:
    """Take the daemon off this host. Its runs are ended first; settings and records stay."""
    host = _host(root, dry_run)
    try:
        uninstall_from(host, purge)
    finally:
        _show(host, as_json)
