"""Owns that a verification judges a probe only where the kernel has what refuses it.
May touch nothing; the kernel's answers are given.
Never makes a box.
"""

from __future__ import annotations

import pytest

from sandbox.probes.catalogue import Expect, Probe, probes
from supervisor.profile.load import load
from supervisor.verify import verify

SIGNAL = "signal init"


def _probe() -> Probe:
    every = probes(Expect(executable=True, tmp_bytes=1, environment=frozenset()))
    (found,) = (probe for probe in every if probe.attempt == SIGNAL)
    return found


@pytest.mark.parametrize(("abi", "tried"), [(0, False), (2, False), (5, False), (6, True), (7, True)])
def test_a_probe_of_a_newer_landlock_is_not_judged_by_an_older(
    abi: int, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "landlock_abi", lambda: abi)
    judged = verify._judge(load("base").profile, _probe(), {SIGNAL: "ok"}, frozenset({"landlock"}))
    assert judged.tried == tried
    assert not judged.passed or not tried, "answered where it should have been refused"
    assert tried or f"version {abi}" in judged.why
