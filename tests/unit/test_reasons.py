"""Owns that the lists of reasons, events and errors are complete and do not overlap.
May touch nothing.
Never lets a member be without a meaning.
"""

from __future__ import annotations

from supervisor import errors, events
from supervisor.runs.reasons import EXIT_CODES, MEANING, StopReason


def test_every_reason_has_a_meaning_and_an_exit_code_or_is_the_agents_own() -> None:
    assert set(MEANING) == set(StopReason)
    assert set(StopReason) - set(EXIT_CODES) == {StopReason.DONE, StopReason.FAILED}


def test_exit_codes_are_apart() -> None:
    codes = list(EXIT_CODES.values())
    assert len(set(codes)) == len(codes)
    assert all(64 <= code < 126 for code in codes), "not a shell's own, not a signal's"


def test_every_event_kind_has_a_meaning() -> None:
    assert set(events.MEANING) == set(events.EventKind)


def test_reasons_are_as_the_design_lists_them() -> None:
    assert {str(reason) for reason in StopReason} == set(
        "done failed max_iterations max_tokens "
        "max_seconds max_cost daily_cap max_actions stuck stopped killed "
        "out_of_memory verification_failed policy_violation not_started lease_lost supervisor_lost"
        " unkillable".split()
    )


def test_error_exit_codes() -> None:
    found = {
        name: kind.exit_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.SupervisorError)
    }
    assert found == {
        "SupervisorError": 1,
        "AuditBroken": 1,
        "UsageError": 2,
        "ProfileError": 2,
        "NotFound": 3,
        "NotYetDead": 4,
        "NoSupervisor": 5,
        "NotAnswering": 5,
        "StateError": 6,
        "DamagedState": 6,
        "UnreadableRow": 6,
        "NotStarted": 64,
    }
    assert found["NotStarted"] == EXIT_CODES[StopReason.NOT_STARTED]
