"""Owns that a verification proves what holds and disproves what does not, and how its report is kept.
May touch stands, and boxes that are weakened on purpose.
Never takes a green result for proof: each layer is switched off once, and something must notice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from boxlab import unprotected, without_filters, without_landlock
from stand import Stand

from sandbox.spec import BoxSpec, Hide, Tmpfs
from supervisor.profile.load import load, shipped
from supervisor.runs import boxing
from supervisor.verify import verify as module
from supervisor.verify.verify import ClaimState, Verification, to_data, verify

pytest_plugins = ["stand_fixtures"]


@pytest.mark.parametrize("name", shipped())
def test_every_claim_of_a_shipped_profile_is_proved_or_says_why_not(name: str) -> None:
    found = asyncio.run(verify(load(name)))
    failing = [(r.probe.attempt, r.observed) for r in found.probes if r.tried and not r.passed]
    assert (failing, found.witnesses, found.escapes) == ([], (), 0)
    assert sum(result.tried for result in found.probes) >= 150
    assert found.count(ClaimState.DISPROVED) == 0
    assert all(result.reason for result in found.claims)
    assert {"protect", "hide", "network", "privileges", "processes", "host-files", "env", "armed"} <= {
        result.claim.claim_id for result in found.claims if result.state is ClaimState.PROVED
    }


def weakened(monkeypatch: pytest.MonkeyPatch, weaken: Callable[[BoxSpec], BoxSpec]) -> Verification:
    plan = boxing.plan

    def weaker(*given: Any, **named: Any) -> boxing.BoxPlan:
        made = plan(*given, **named)
        return replace(made, spec=weaken(made.spec), seccomp_sha256="")

    monkeypatch.setattr("supervisor.runs.boxing.plan", weaker)
    monkeypatch.setattr("sandbox.attest.disagreements", lambda *_, **__: [])
    monkeypatch.setattr("sandbox.mount_check.disagreements", lambda *_: [])
    return asyncio.run(verify(load("base")))


def without_hiding(box: BoxSpec) -> BoxSpec:
    return replace(box, steps=tuple(step for step in box.steps if not isinstance(step, Hide)))


def executable_tmp(box: BoxSpec) -> BoxSpec:
    steps = tuple(replace(s, executable=True) if isinstance(s, Tmpfs) else s for s in box.base.steps)
    return without_landlock(replace(box, base=replace(box.base, steps=steps)))


@pytest.mark.parametrize(
    ("weaken", "claim", "attempts"),
    [
        (without_filters, "privileges", {"unshare user", "io_uring_setup", "int 0x80 getpid"}),
        (without_filters, "network", {"socket vsock", "socket netlink generic"}),
        (without_filters, "processes", {"ptrace traceme"}),
        (unprotected, "protect", {"write .git/config", "rename .git"}),
        (without_hiding, "hide", {"read a hidden key"}),
        (executable_tmp, "run-tree", {"exec in /tmp"}),
    ],
)
def test_control_a_layer_that_is_off_disproves_its_claim(
    monkeypatch: pytest.MonkeyPatch, weaken: Callable[[BoxSpec], BoxSpec], claim: str, attempts: set[str]
) -> None:
    found = weakened(monkeypatch, weaken)
    assert attempts <= {result.probe.attempt for result in found.probes if result.escaped}
    states = {result.claim.claim_id: result for result in found.claims}
    assert states[claim].state is ClaimState.DISPROVED and states[claim].reason
    assert found.escapes >= len(attempts)


def test_the_command_says_it_and_keeps_a_signed_report(place: Stand) -> None:
    out = place.folder / "report.json"
    before = place.ctl("profile", "score", "offline", "--json").json
    done = place.ctl("profile", "verify", "offline", "--json", "--out", str(out))
    assert done.code == 0, done.err
    said = done.json
    assert said["escapes"] == 0 and len(said["probes"]) >= 150
    assert {"id", "expected", "observed", "pass"} <= said["probes"][0].keys()
    after = place.ctl("profile", "score", "offline", "--json").json
    assert (before["assurance"], after["assurance"], after["grade"]) == (None, 100, "A")
    assert place.ctl("profile", "check-report", str(out)).code == 0
    report = json.loads(out.read_text())
    report["verification"]["escapes"] = 1
    out.write_text(json.dumps(report))
    altered = place.ctl("profile", "check-report", str(out))
    assert altered.code == 2 and "altered" in altered.err
    assert place.ctl("profile", "verify", "offline").code == 0


def test_a_report_that_was_altered_in_its_place_counts_for_nothing(place: Stand) -> None:
    assert place.ctl("profile", "verify", "base", "--json").code == 0
    (kept,) = (place.state / "verified").glob("*.json")
    kept.write_text(kept.read_text().replace('"escapes":0', '"escapes":7'))
    assert place.ctl("profile", "score", "base", "--json").json["assurance"] is None


def test_a_control_that_this_host_lacks_is_said_and_not_verified(place: Stand) -> None:
    profile = Path(place.profile(more="[files]\nread = ['/opt/not-there']"))
    done = place.ctl("profile", "verify", str(profile))
    assert done.code == 64 and "/opt/not-there" in done.err


def test_verify_first_runs_nothing_of_a_profile_that_is_disproved(
    place: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.ctl("run", "--here", "--verify-first", "--profile", "offline", "--", "true").code == 0

    async def disproved(loaded: Any) -> Verification:
        found = await verify(loaded)
        false = replace(found.claims[0], state=ClaimState.DISPROVED, reason="FS-01 (read /etc/shadow: ok)")
        return replace(found, claims=(false, *found.claims[1:]))

    monkeypatch.setattr(module, "verify", disproved)
    done = place.ctl(
        "run", "--here", "--verify-first", "--ticket", "T-v", "--profile", "offline", "--", "true"
    )
    assert done.code == 64 and "read-system" in done.err and "FS-01" in done.err
    run = place.row("T-v")
    assert run is None or run.started_at is None


def test_what_json_says_is_what_was_found() -> None:
    found = asyncio.run(verify(load("offline")))
    data = to_data(found)
    assert data["escapes"] == found.escapes
    assert [claim["state"] for claim in data["claims"]] == [result.state for result in found.claims]
