"""Owns the checks of the Debian package's scripts that need no package; the machine tests the rest.
May touch the scripts, read-only.
Never builds or installs anything.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from supervisor.cli.install import ENABLED, GROUP, UNITS
from supervisor.ownership import SERVICE_ACCOUNT

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
SCRIPTS = ("build-deb", "debian/postinst", "debian/prerm", "debian/postrm")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_at_the_first_failure_and_is_a_shells(name: str) -> None:
    text = (PACKAGING / name).read_text()
    assert text.startswith("#!/bin/sh\n") and "\nset -e" in text
    assert subprocess.run(["sh", "-n", PACKAGING / name], check=False).returncode == 0


def test_the_package_has_the_units_that_the_command_installs() -> None:
    build = (PACKAGING / "build-deb").read_text()
    listed = build.partition("for unit in ")[2].partition(";")[0].split()
    assert sorted(listed) == sorted(UNITS)


def test_the_package_enables_what_the_command_enables() -> None:
    enabled = (PACKAGING / "debian/postinst").read_text().partition('units="')[2].partition('"')[0]
    assert sorted(enabled.split()) == sorted(ENABLED)
    stopped = (PACKAGING / "debian/prerm").read_text().partition('units="')[2].partition('"')[0]
    assert sorted(stopped.split()) == sorted(UNITS)


def test_the_group_and_the_user_are_the_same_everywhere() -> None:
    systemd = PACKAGING.parent / "systemd"
    assert f"\ng {GROUP} -" in (systemd / "sysusers.conf").read_text()
    assert f"SocketGroup={GROUP}\n" in (systemd / "sidecar-supervisor.socket").read_text()
    assert f"groupdel {GROUP};" in (PACKAGING / "debian/postrm").read_text()
    assert f"\nu {SERVICE_ACCOUNT} -" in (systemd / "sysusers.conf").read_text()
    assert f"userdel {SERVICE_ACCOUNT};" in (PACKAGING / "debian/postrm").read_text()
