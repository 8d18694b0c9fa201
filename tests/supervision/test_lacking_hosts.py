"""Owns that a host which lacks a control is told so by every command, and that nothing runs on it unarmed.
May touch stands, and surroundings made for one command each by lacking_host.py.
Never takes a refusal for proof without the same command on a whole host.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stand import CTL, PYTHON, Done, Stand

from supervisor.profile.load import shipped

pytest_plugins = ["stand_fixtures"]

LACKING_HOST = str(Path(__file__).with_name("lacking_host.py"))


def on_a_host_without(what: str, place: Stand, *words: str) -> Done:
    process = place.spawn_program([PYTHON, LACKING_HOST, what, CTL, *words])
    out, err = process.communicate(timeout=120)
    return Done(process.returncode, out, err)


def ran(place: Stand, ticket: str) -> bool:
    return "RAN" in place.lines(ticket)


HOSTS = {
    "cgroups": ("memory_limit", "does not require cgroup"),
    "landlock": ("landlock", "does not require it"),
    "user namespaces": ("user_namespace", "max_user_namespaces"),
    "privilege": ("mount_namespace", "CAP_SYS_ADMIN"),
}


@pytest.mark.parametrize("what", HOSTS)
def test_what_is_required_and_not_there_is_named_and_nothing_runs(place: Stand, what: str) -> None:
    control, hint = HOSTS[what]
    doctor = on_a_host_without(what, place, "doctor", "--json")
    assert doctor.code == 1, doctor
    found = json.loads(doctor.out)
    lacking = {row["name"] for row in found["controls"] if not row["armed"]}
    assert control in lacking and found["ok"] is False
    shown = on_a_host_without(what, place, "doctor")
    assert shown.code == 1 and "hint:" in shown.out and "Traceback" not in shown.err

    command = ("run", "--here", "--ticket", "T-1", "--profile", "offline", "--", "echo", "RAN")
    refused = on_a_host_without(what, place, *command)
    assert refused.code == 64 and f"{control} cannot be armed" in refused.err and hint in refused.err
    assert refused.clear_error() and not ran(place, "T-1")
    verified = on_a_host_without(what, place, "profile", "verify", "offline")
    assert verified.code == 64 and f"{control} cannot be armed" in verified.err


def test_control_a_host_that_lacks_nothing(place: Stand) -> None:
    doctor = on_a_host_without("nothing", place, "doctor", "--json")
    found = json.loads(doctor.out)
    assert (doctor.code, found["ok"], found["problem"]) == (0, True, ""), found
    rows = {row["name"]: row for row in found["controls"]}
    assert all(row["armed"] for row in rows.values())
    assert "attempts to get out" in rows["probes"]["detail"]
    command = ("run", "--here", "--ticket", "T-1", "--profile", "offline", "--", "echo", "RAN")
    assert on_a_host_without("nothing", place, *command).code == 0 and ran(place, "T-1")


WITHOUT_LANDLOCK = """
schema = 1
name = "old-kernel"
extends = "base"
require = ["cgroup", "seccomp"]
"""


def test_a_profile_that_inherits_a_requirement_cannot_drop_it(place: Stand) -> None:
    """Lists under require add up: on an old kernel a profile of one's own must start from nothing."""
    profile = place.folder / "old.toml"
    profile.write_text(WITHOUT_LANDLOCK)
    command = ("run", "--here", "--ticket", "T-1", "--profile", str(profile), "--", "echo", "RAN")
    assert on_a_host_without("landlock", place, *command).code == 64
    profile.write_text(shipped()["base"].read_text().replace('"landlock"', '"seccomp"'))
    done = on_a_host_without("landlock", place, *command)
    assert done.code == 0 and ran(place, "T-1")
    shown = place.ctl("status", "T-1", "--attestation", "--json")
    assert "landlock" not in shown.json["armed"] and "landlock" in shown.json["missing"]
    verified = on_a_host_without("landlock", place, "profile", "verify", str(profile), "--json")
    assert verified.code == 0 and verified.json["escapes"] == 0, verified
