"""Owns which one reason a run ends with, for everything that can have been seen.
May touch nothing.
Never accepts success without an exit status of 0 and nobody's request.
"""

from __future__ import annotations

import itertools
import signal

import pytest

from supervisor.runs.reasons import StopReason, StopRequest, kill_request, limit_request, stop_request
from supervisor.runs.verdict import Seen, agent_exit_code, decide

EXIT_0, EXIT_1, EXIT_255 = 0, 1 << 8, 255 << 8
KILL, TERM, CORE = int(signal.SIGKILL), int(signal.SIGTERM), int(signal.SIGSEGV) | 128


@pytest.mark.parametrize(
    ("seen", "reason", "by"),
    [
        (Seen(EXIT_0, None, True, 0), StopReason.DONE, "agent"),
        (Seen(EXIT_0, None, True, 1), StopReason.DONE, "agent"),
        (Seen(EXIT_1, None, True, 0), StopReason.FAILED, "agent"),
        (Seen(EXIT_255, None, True, 1), StopReason.FAILED, "agent"),
        (Seen(KILL, None, True, 0), StopReason.FAILED, "agent"),
        (Seen(KILL, None, True, 1), StopReason.OUT_OF_MEMORY, "limit"),
        (Seen(TERM, None, True, 1), StopReason.FAILED, "agent"),
        (Seen(CORE, None, True, 0), StopReason.FAILED, "agent"),
        (Seen(None, None, True, 0), StopReason.FAILED, "agent"),
        (Seen(None, None, True, 2), StopReason.OUT_OF_MEMORY, "limit"),
        (Seen(None, None, True, 0, launcher_gone=True), StopReason.SUPERVISOR_LOST, "supervisor"),
        (Seen(EXIT_0, kill_request("operator"), True, 0), StopReason.KILLED, "operator"),
        (Seen(EXIT_0, stop_request("operator", 5), False, 0), StopReason.STOPPED, "operator"),
        (Seen(KILL, stop_request("operator", 5), True, 0), StopReason.KILLED, "operator"),
        (Seen(None, stop_request("operator", 5), False, 0), StopReason.KILLED, "operator"),
        (Seen(KILL, kill_request("stop_file"), True, 1), StopReason.KILLED, "stop_file"),
    ],
)
def test_table(seen: Seen, reason: StopReason, by: str) -> None:
    verdict = decide(seen)
    assert (verdict.reason, verdict.by) == (reason, by)


def test_done_is_only_ever_an_exit_code_of_0_that_nobody_asked_for() -> None:
    requests: list[StopRequest | None] = [
        None,
        kill_request("operator"),
        stop_request("operator", 1),
        limit_request(StopReason.MAX_SECONDS, 1, who="wall_clock", figures={}),
    ]
    statuses = [None, *range(127), *(code << 8 for code in range(256))]
    for status, request, forced, oom, gone in itertools.product(
        statuses, requests, (False, True), (0, 1), (False, True)
    ):
        verdict = decide(Seen(status, request, forced, oom, gone))
        assert (verdict.reason is StopReason.DONE) == (status == 0 and request is None)


@pytest.mark.parametrize("number", [*range(1, 65)])
def test_an_agent_may_end_itself_with_any_signal(number: int) -> None:
    verdict = decide(Seen(number, None, True, 0))
    assert verdict.reason is StopReason.FAILED and "ended by" in verdict.note


@pytest.mark.parametrize("forced", [False, True])
def test_a_limits_reason_is_the_limits_whether_it_obeyed(forced: bool) -> None:
    request = limit_request(StopReason.MAX_SECONDS, 5, who="wall_clock", figures={"limit_s": 1})
    verdict = decide(Seen(EXIT_0, request, forced, 0))
    assert (verdict.reason, verdict.by, verdict.who) == (StopReason.MAX_SECONDS, "limit", "wall_clock")


@pytest.mark.parametrize(("status", "code"), [(None, None), (0, 0), (3 << 8, 3), (9, 137), (15, 143)])
def test_exit_codes_as_a_shell_says_them(status: int | None, code: int | None) -> None:
    assert agent_exit_code(status) == code
