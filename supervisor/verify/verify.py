"""Owns verifying a profile: its box, the probes in it, witnesses outside, and what they say of each claim.
May touch a folder of its own, a launcher, and one box.
Never calls a claim proved because nothing spoke against it: something must have tried.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sandbox import attest, mount_check
from sandbox.client import Box, BoxError, LauncherClient, Streams
from sandbox.probes.catalogue import Expect, Probe, probes
from sandbox.probes.program import program
from sandbox.syscalls import landlock_abi
from supervisor.agents import PLACEHOLDER_KEY, settings_for
from supervisor.errors import NotStarted, SupervisorError
from supervisor.profile.claims import Claim, claims_of
from supervisor.profile.load import Loaded
from supervisor.profile.schema import Profile
from supervisor.runs import boxing
from supervisor.verify import fixture
from supervisor.verify.witnesses import Witnesses
from supervisor.workspace.apply import discard
from supervisor.workspace.patterns import covers, is_literal
from supervisor.workspace.tree import inspect

_PYTHON = "/usr/bin/python3"
_WORKERS = 6
_PATIENCE_S = 60.0
_ABOUT = {"SUPERVISOR_TICKET": "", "SUPERVISOR_PROJECT": "", "SUPERVISOR_GOAL": ""}


class ClaimState(StrEnum):
    """What the probes came to for one claim."""

    PROVED = "proved"
    DISPROVED = "disproved"
    NOT_TESTABLE = "not_testable"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """observed: what the attempt answered; "" when it was not tried, and then why says so."""

    probe: Probe
    observed: str
    why: str = ""

    @property
    def tried(self) -> bool:
        return not self.why

    @property
    def passed(self) -> bool:
        return self.tried and self.observed in self.probe.safe

    @property
    def escaped(self) -> bool:
        return self.tried and self.probe.way_out and not self.passed


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """One claim; reason says what proved it, what spoke against it, or why nobody could try."""

    claim: Claim
    state: ClaimState
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """All of it. witnesses: what outside was reached, which is an escape whatever a probe said of itself."""

    profile: str
    digest: str
    host: str
    kernel: str
    at_unix_s: float
    duration_ms: float
    claims: tuple[ClaimResult, ...]
    probes: tuple[ProbeResult, ...]
    witnesses: tuple[str, ...]

    @property
    def escapes(self) -> int:
        return sum(result.escaped for result in self.probes) + len(self.witnesses)

    def count(self, state: ClaimState) -> int:
        return sum(result.state is state for result in self.claims)


async def verify(loaded: Loaded) -> Verification:
    """Make the profile's box and try to get out of it. Raises NotStarted when there is no such box here."""
    base = "/var/tmp" if os.access("/var/tmp", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="verify-", dir=base)
    os.chmod(folder, 0o755)
    began_s = time.monotonic()
    try:
        with Witnesses(folder) as witnesses:
            tree = fixture.make(folder)
            os.mkdir(f"{folder}/overlay", 0o700)
            facts, answers = await _in_the_box(loaded.profile, tree, folder, witnesses)
            seen = witnesses.seen() | ({"folder"} if os.path.exists(f"{folder}/planted") else set())
    finally:
        discard(f"{folder}/overlay")
        shutil.rmtree(folder)
    catalogue = _catalogue(loaded.profile)
    results = tuple(_judge(loaded.profile, probe, answers, facts.armed) for probe in catalogue)
    return Verification(
        profile=loaded.profile.name,
        digest=loaded.digest,
        host=socket.gethostname(),
        kernel=platform.release(),
        at_unix_s=time.time(),
        duration_ms=round((time.monotonic() - began_s) * 1000, 1),
        claims=tuple(_claim(claim, results, loaded.profile, facts) for claim in claims_of(loaded)),
        probes=results,
        witnesses=tuple(sorted(seen)),
    )


def _catalogue(profile: Profile) -> list[Probe]:
    environment = boxing.environment(profile, {}, dict.fromkeys(profile.env.secret, "x"), _ABOUT)
    expect = Expect(
        executable=profile.files.executable,
        tmp_bytes=profile.limits.tmp_bytes,
        environment=frozenset(environment),
    )
    return list(probes(expect))


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the box said and what was read back from outside."""

    armed: frozenset[str]
    missing: dict[str, str]
    read_back: dict[str, Any]


async def _in_the_box(
    profile: Profile, tree: str, folder: str, witnesses: Witnesses
) -> tuple[_Facts, dict[str, str]]:
    wanted = [probe.attempt for probe in _catalogue(profile)]
    told = {**witnesses.arguments, "secrets": " ".join([*profile.env.secret, *_placeholders(profile)])}
    argv = [_PYTHON, "-c", program(), json.dumps(told), json.dumps(wanted), str(_WORKERS)]
    # Sources of secrets are not asked: a verification must be possible without them.
    environment = boxing.environment(profile, {}, dict.fromkeys(profile.env.secret, "x"), _ABOUT)
    async with LauncherClient("verify") as launcher:
        plan = boxing.plan(
            profile,
            inspect(tree),
            launcher.capabilities,
            run_id="VERIFY",
            namespace_key="verify",
            worker_id=f"verify{os.getpid()}",
            overlay_folder=f"{folder}/overlay" if profile.files.worktree == "overlay" else None,
        )
        read_end, write_end = os.pipe()
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            box = await launcher.start(plan.spec, Streams(null, write_end, null), argv, environment)
        except BoxError as error:
            os.close(read_end)
            name = f"{error.control} cannot be armed: " if error.control else ""
            raise NotStarted(f"{name}{error.message}", control=error.control, hint=error.hint) from None
        finally:
            os.close(write_end)
            os.close(null)
        try:
            return await _observe(box, plan, read_end)
        finally:
            os.close(read_end)
            await box.kill()
            await box.wait_empty(_PATIENCE_S)
            box.close()


def _placeholders(profile: Profile) -> list[str]:
    """Variables that programs insist on; with the gateway they hold a word that opens nothing."""
    if profile.network.mode != "gateway":
        return []
    given = settings_for(profile.agent.kind, profile.gateway.models).environment
    return [name for name, value in given.items() if value == PLACEHOLDER_KEY]


async def _observe(box: Box, plan: boxing.BoxPlan, read_end: int) -> tuple[_Facts, dict[str, str]]:
    facts = await box.attest()
    required = frozenset(box.spec.base.required)
    wrong = attest.disagreements(facts, uid=box.uid, seccomp_sha256=plan.seccomp_sha256, required=required)
    wrong += mount_check.disagreements(facts["mounts"], (*box.spec.base.steps, *box.spec.steps))
    if wrong:
        raise NotStarted(f"not as it was reported: {'; '.join(wrong)}")
    await box.release()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            text = await asyncio.to_thread(_read_all, read_end)
    except TimeoutError:
        raise SupervisorError("the probes did not come to an end") from None
    try:
        answers = json.loads(text)
    except ValueError:
        raise SupervisorError(
            "the probes said nothing", hint="they need /usr/bin/python3 on this host"
        ) from None
    return _Facts(frozenset(box.armed), dict(box.missing), facts), answers


def _read_all(fd: int) -> str:
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    return b"".join(parts).decode("utf-8", errors="replace")


# ---------------------------------------------------------------- what it comes to


def _judge(profile: Profile, probe: Probe, answers: dict[str, str], armed: frozenset[str]) -> ProbeResult:
    files = profile.files
    if probe.needs and probe.needs not in armed:
        return ProbeResult(probe, "", f"{probe.needs} is not armed here, and the profile does not require it")
    if probe.landlock_abi > landlock_abi():
        return ProbeResult(probe, "", f"this kernel's Landlock does not refuse it (version {landlock_abi()})")
    pattern = covers(files.protect, probe.protects) if probe.protects else ""
    if pattern is None:
        return ProbeResult(probe, "", f"the profile does not protect {probe.protects}")
    if pattern and not is_literal(pattern) and probe.protects not in fixture.NAMES:
        return ProbeResult(probe, "", f"a new name under {pattern} can be made, and is refused by apply")
    if probe.attempt == "read a hidden key" and covers(files.hide, "keys/server.pem") is None:
        return ProbeResult(probe, "", "the profile does not hide it")
    return ProbeResult(probe, answers.get(probe.attempt, "no answer"))


def _claim(claim: Claim, results: Iterable[ProbeResult], profile: Profile, facts: _Facts) -> ClaimResult:
    known = _from_outside(claim.claim_id, profile, facts)
    if known is not None:
        return ClaimResult(claim, *known)
    about = [result for result in results if claim.claim_id in result.probe.claims]
    tried = [result for result in about if result.tried]
    failed = [result for result in tried if not result.passed]
    if failed:
        said = ", ".join(f"{r.probe.probe_id} ({r.probe.attempt}: {r.observed})" for r in failed[:3])
        return ClaimResult(claim, ClaimState.DISPROVED, said)
    if tried:
        many = "1 probe" if len(tried) == 1 else f"{len(tried)} probes"
        return ClaimResult(claim, ClaimState.PROVED, many)
    reason = about[0].why if about else _WHY_NOT.get(claim.claim_id.split("-")[0], _HELD_OUTSIDE)
    return ClaimResult(claim, ClaimState.NOT_TESTABLE, reason)


_HELD_OUTSIDE = "held outside of the box, where no probe can try"
_WHY_NOT = {
    "run": "what may be run is not tried; what may not is",
    "read": "what may be read is not tried; what may not is",
    "wall": "counted by the supervisor, and longer than a verification",
    "log": "kept by the supervisor, outside of the box",
}


def _from_outside(claim_id: str, profile: Profile, facts: _Facts) -> tuple[ClaimState, str] | None:
    """Claims that are read back from the kernel, not tried."""
    limits, group = profile.limits, facts.read_back["cgroup"]
    if claim_id == "armed":
        wanted = {str(control) for control in boxing.required_controls(profile)}
        lacking = sorted(wanted - facts.armed)
        if lacking:
            return ClaimState.DISPROVED, f"not armed: {' '.join(lacking)}"
        return ClaimState.PROVED, f"{len(wanted)} controls reported and read back"
    expected = {
        "memory": ("memory_limit", limits.memory_bytes),
        "pids": ("pids_limit", limits.pids),
    }.get(claim_id)
    if claim_id == "cpu" or expected is not None:
        control, value = expected or ("cpu_limit", limits.cpu_cores)
        if control not in facts.armed:
            return ClaimState.NOT_TESTABLE, facts.missing.get(control, f"{control} is not armed here")
        if not group:
            return ClaimState.NOT_TESTABLE, "this host's control groups cannot be read back"
        said = group.get(control)
        if said is not None and float(said) != float(value):
            return ClaimState.DISPROVED, f"the kernel says {said}"
        return ClaimState.PROVED, "read back from the control group"
    return None


def to_data(found: Verification) -> dict[str, Any]:
    """What `profile verify --json` prints."""
    return {
        "profile": found.profile,
        "digest": found.digest,
        "host": found.host,
        "kernel": found.kernel,
        "at_unix_s": round(found.at_unix_s, 3),
        "duration_ms": found.duration_ms,
        "claims": [
            {
                "id": result.claim.claim_id,
                "group": result.claim.group,
                "text": result.claim.text,
                "state": result.state,
                "reason": result.reason,
            }
            for result in found.claims
        ],
        "probes": [
            {
                "id": result.probe.probe_id,
                "class": result.probe.kind,
                "attempt": result.probe.attempt,
                "expected": sorted(result.probe.safe),
                "observed": result.observed or None,
                "pass": result.passed if result.tried else None,
                "why": result.why or None,
            }
            for result in found.probes
        ],
        "witnesses": list(found.witnesses),
        "escapes": found.escapes,
    }
