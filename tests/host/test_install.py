"""Owns the tests of setting the daemon up: in a folder that stands for the system, by the real tools.
May touch temporary folders; systemd's tools run with their --root, and speak to no manager.
Never touches the system that runs the tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from supervisor.cli import install as installing
from supervisor.config import load_config
from supervisor.control.server import _KILL_PATIENCE_S
from supervisor.errors import StateError, UsageError
from supervisor.ownership import SERVICE_ACCOUNT

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD = ROOT / "systemd"
SERVICE = "sidecar-supervisor.service"
LAUNCHER = "sidecar-launcher.service"
FILTERING = (
    "SystemCallFilter SystemCallArchitectures RestrictNamespaces RestrictAddressFamilies RestrictRealtime "
    "RestrictSUIDSGID LockPersonality MemoryDenyWriteExecute ProtectClock ProtectHostname PrivateDevices "
    "ProtectKernelModules ProtectKernelLogs"
).split()
"""What systemd does with a seccomp filter."""


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """As much of a system as the tools look at."""
    folder = tmp_path / "system"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc/group").write_text("root:x:0:\n")
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    return folder


def _call(command: Any, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def _install(system: Path, *more: str) -> dict[str, Any]:
    return _call(installing.install, "--root", str(system), *more)


def _uninstall(system: Path, *more: str) -> dict[str, Any]:
    return _call(installing.uninstall, "--root", str(system), *more)


def _actions(done: dict[str, Any]) -> list[str]:
    return [step["action"] for step in done["steps"]]


def _everything(folder: Path) -> dict[str, str]:
    """Every file and link with what it holds; the tools' own lock and backup files left out."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or path.is_file()) and not re.search(r"\.pwd\.lock|shadow|-$", path.name)
    }


def test_it_puts_everything_in_place(system: Path) -> None:
    done = _install(system)
    units = system / "etc/systemd/system"
    for unit in installing.UNITS:
        assert not re.search(r"@[a-z]+@", (units / unit).read_text())
    wanted = {str(path.relative_to(units)) for path in units.rglob("*.wants/*")}
    assert wanted == {
        "sockets.target.wants/sidecar-launcher.socket",
        "sockets.target.wants/sidecar-supervisor.socket",
        "multi-user.target.wants/sidecar-supervisor.service",
    }
    assert "sidecar-supervisor:x:" in (system / "etc/group").read_text()
    user = (system / "etc/passwd").read_text().partition(f"{SERVICE_ACCOUNT}:")[2].split(":")
    assert user[-1].strip().endswith("nologin")
    folders = (
        ("var/lib/sidecar-supervisor", 0o700, int(user[1])),
        ("run/sidecar-supervisor", 0o755, 0),
        ("run/sidecar-supervisor/workers", 0o700, int(user[1])),
    )
    for name, mode, owner in folders:
        found = (system / name).stat()
        assert (found.st_mode & 0o777, found.st_uid) == (mode, owner), name
    assert not (system / "etc/apparmor.d").exists(), "this host restricts nothing"
    assert done["dry_run"] is False and "replaced" not in _actions(done)


def test_the_default_settings_can_be_read_and_name_the_group(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(system)
    monkeypatch.setenv("SUPERVISOR_CONFIG", str(system / "etc/sidecar-supervisor/config.toml"))
    assert load_config().control.group == installing.GROUP


def test_doing_it_again_changes_nothing(system: Path) -> None:
    _install(system)
    before = _everything(system)
    assert set(_actions(_install(system))) == {"unchanged", "ran"}
    assert _everything(system) == before


def test_a_dry_run_shows_the_same_steps_and_does_none(system: Path) -> None:
    before = _everything(system)
    shown = _install(system, "--dry-run")
    assert _everything(system) == before
    assert shown["steps"] == _install(system)["steps"]


def test_an_older_unit_is_replaced_and_settings_are_kept(system: Path) -> None:
    _install(system)
    unit = system / "etc/systemd/system" / SERVICE
    unit.write_text("[Service]\nExecStart=/gone\n")
    settings = system / "etc/sidecar-supervisor/config.toml"
    settings.write_text("[daily]\n")
    done = _install(system)
    assert {"action": "replaced", "what": f"/etc/systemd/system/{SERVICE}"} in done["steps"]
    assert {"action": "kept", "what": "/etc/sidecar-supervisor/config.toml"} in done["steps"]
    assert "serve" in unit.read_text() and settings.read_text() == "[daily]\n"


def test_a_host_that_restricts_user_namespaces_gets_the_profile(system: Path) -> None:
    setting = system / "proc/sys/kernel/apparmor_restrict_unprivileged_userns"
    setting.parent.mkdir(parents=True)
    setting.write_text("0\n")
    _install(system)
    profile = system / "etc/apparmor.d/sidecar-supervisor"
    assert not profile.exists()
    setting.write_text("1\n")
    _install(system)
    assert f"profile sidecar-supervisor {sys.executable} flags=(unconfined)" in profile.read_text()
    assert "\n  userns,\n" in profile.read_text()
    _uninstall(system)
    assert not profile.exists()


def test_uninstall_keeps_settings_and_records(system: Path) -> None:
    _install(system)
    (system / "var/lib/sidecar-supervisor/supervisor.db").write_text("records")
    done = _uninstall(system)
    assert [step["what"] for step in done["steps"] if step["action"] == "kept"] == [
        "/etc/sidecar-supervisor/config.toml",
        "/var/lib/sidecar-supervisor",
    ]
    left = {name for name in _everything(system) if "group" not in name and "passwd" not in name}
    assert left == {"etc/sidecar-supervisor/config.toml", "var/lib/sidecar-supervisor/supervisor.db"}
    assert "kept" in _actions(_uninstall(system)), "again is no error"


def test_purge_leaves_the_system_as_it_was(system: Path) -> None:
    before = _everything(system)
    _install(system)
    (system / "var/lib/sidecar-supervisor/supervisor.db").write_text("records")
    _uninstall(system, "--purge")
    assert _everything(system) == before
    assert _actions(_uninstall(system, "--purge")) == []


def test_purge_does_not_follow_a_link_out_of_the_state(system: Path, tmp_path: Path) -> None:
    _install(system)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("mine")
    (system / "var/lib/sidecar-supervisor/link").symlink_to(tmp_path / "precious")
    _uninstall(system, "--purge")
    assert (tmp_path / "precious/file").read_text() == "mine"


def test_a_tool_that_fails_is_an_error_with_its_words(system: Path) -> None:
    host = installing.Host(str(system), dry_run=False)
    with pytest.raises(StateError, match="ended with 3: a word"):
        host.run("sh", "-c", "echo a word >&2; exit 3")
    with pytest.raises(StateError, match="no-such-tool is not on this host"):
        host.run("no-such-tool")


def test_a_program_that_others_can_change_is_not_given_to_root(tmp_path: Path) -> None:
    assert list(installing.changeable_by_others("/usr/bin/env")) == []
    place = tmp_path / "bin"
    place.mkdir()
    (place / "program").write_text("")
    place.chmod(0o775)
    assert str(place) in list(installing.changeable_by_others(str(place / "program")))
    place.chmod(0o755)
    (tmp_path / "link").symlink_to(place / "program")
    (place / "program").chmod(0o666)
    assert str(place / "program") in list(installing.changeable_by_others(str(tmp_path / "link")))


def test_a_path_that_a_unit_file_would_read_otherwise_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be written in a unit file"):
        installing.rendered(SERVICE, "/opt/with space/supervisorctl")


# ---------------------------------------------------------------- the units themselves


@pytest.fixture
def units(system: Path, tmp_path: Path) -> list[str]:
    _install(system)
    return [str(system / "etc/systemd/system" / unit) for unit in installing.UNITS]


def test_systemd_finds_nothing_wrong_with_the_units(units: list[str]) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def _exposure(unit: str) -> float:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit], capture_output=True, text=True
    )
    found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    return float(found.group(1))


def test_the_exposure_of_the_daemon_stays_low(units: list[str], tmp_path: Path) -> None:
    bare = tmp_path / "bare.service"
    bare.write_text("[Service]\nExecStart=/bin/true\n")
    assert _exposure(str(bare)) > 9, "control"
    assert _exposure(units[3]) <= 4.0


def _directives(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (SYSTEMD / name).read_text().splitlines():
        key, mark, value = line.partition("=")
        if mark and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_the_daemon_is_a_user_of_its_own_with_two_capabilities_and_no_way_to_more() -> None:
    has = _directives(SERVICE)
    assert has["CapabilityBoundingSet"] == ["CAP_DAC_READ_SEARCH CAP_KILL"]
    assert has["AmbientCapabilities"] == has["CapabilityBoundingSet"] and has["NoNewPrivileges"] == ["yes"]
    assert has["User"] == has["Group"] == [SERVICE_ACCOUNT]
    assert has["RestrictNamespaces"] == ["yes"]


def test_the_launcher_is_under_no_filter_of_systemds() -> None:
    """With one, the kernel refuses to show it the agents' filters, and attestation loses its proof."""
    assert set(FILTERING) & set(_directives(LAUNCHER)) == set()
    for name in FILTERING:
        assert f"{name}=" in (SYSTEMD / LAUNCHER).read_text(), f"{name} is left out without a reason"


def test_the_capabilities_of_the_launcher_are_those_that_the_security_document_explains() -> None:
    given = set(" ".join(_directives(LAUNCHER)["CapabilityBoundingSet"]).split())
    explained = set(re.findall(r"CAP_[A-Z_]+", (ROOT / "SECURITY.md").read_text()))
    assert given == explained - {"CAP_DAC_READ_SEARCH"}


def test_nobody_but_the_daemon_and_root_reaches_the_launcher() -> None:
    socket = _directives("sidecar-launcher.socket")
    assert (socket["SocketUser"], socket["SocketMode"]) == ([SERVICE_ACCOUNT], ["0600"])
    control = _directives("sidecar-supervisor.socket")
    assert (control["SocketGroup"], control["SocketMode"]) == ([installing.GROUP], ["0660"])


def test_every_directive_that_hardens_has_a_comment_in_its_paragraph() -> None:
    for name in (SERVICE, LAUNCHER):
        body = (SYSTEMD / name).read_text().partition("[Service]")[2].partition("[Install]")[0]
        for paragraph in body.split("\n\n"):
            lines = [line for line in paragraph.splitlines() if line and not line.startswith("[")]
            assert not lines or any(line.startswith("# ") for line in lines), paragraph


def test_the_end_has_more_time_than_the_longest_that_a_request_waits() -> None:
    has = _directives(SERVICE)
    assert int(has["TimeoutStopSec"][0]) > _KILL_PATIENCE_S
    assert int(has["TimeoutStopSec"][0]) > int(_directives(LAUNCHER)["TimeoutStopSec"][0])


def test_agents_inherit_no_protection_from_the_hosts_out_of_memory_killer() -> None:
    assert "OOMScoreAdjust" not in _directives(LAUNCHER)
    assert int(_directives(SERVICE)["OOMScoreAdjust"][0]) < 0


def test_the_daemon_can_open_what_an_agent_writes() -> None:
    """systemd's filter for RestrictSUIDSGID= refuses openat2 with ENOSYS, and logs are lost."""
    assert "RestrictSUIDSGID" not in _directives(SERVICE)
    assert "RestrictSUIDSGID= " in (SYSTEMD / SERVICE).read_text()
