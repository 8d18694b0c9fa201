"""Owns the check that a system test's report cannot pass by saying nothing.
May touch vm_report alone.
Never starts a machine.
"""

from __future__ import annotations

from vm_report import END, START, Report


def _fed(*lines: str) -> Report:
    report = Report()
    for line in lines:
        report.feed(line)
    return report


def test_a_complete_run_passes() -> None:
    report = _fed(START, "FACT kernel 6.1.0", "SCENARIO one ok 1.5 all 51 dead\r", f"{END} 1")
    assert report.good
    assert report.summary() == "1 passed, 0 failed"
    assert report.facts == {"kernel": "6.1.0"}
    assert "all 51 dead" in report.table()


def test_silence_fails() -> None:
    assert _fed().summary() == "0 passed, 1 failed"
    assert not _fed(START, f"{END} 0").good


def test_a_guest_that_stopped_half_way_fails() -> None:
    report = _fed(START, "SCENARIO one ok 1.5")
    assert not report.good
    assert report.summary() == "1 passed, 1 failed"


def test_a_failed_scenario_fails_the_run() -> None:
    report = _fed(START, "SCENARIO one ok 1.5", "SCENARIO two FAILED 2.0 a survivor", f"{END} 2")
    assert not report.good
    assert report.summary() == "1 passed, 1 failed"


def test_an_outcome_that_was_announced_and_is_missing_fails() -> None:
    report = _fed(START, "SCENARIO one ok 1.5", f"{END} 2")
    assert not report.good
