"""Owns the one list of reasons a run can end with, and the exit code each gives `run`.
May touch nothing.
Never grows by a string written elsewhere: a test demands a test and a line of docs for each member.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class StopReason(StrEnum):
    """Why a run ended. Exactly one per run; unknown is never success."""

    DONE = "done"
    FAILED = "failed"
    MAX_ITERATIONS = "max_iterations"
    MAX_TOKENS = "max_tokens"
    MAX_SECONDS = "max_seconds"
    MAX_COST = "max_cost"
    DAILY_CAP = "daily_cap"
    MAX_ACTIONS = "max_actions"
    STUCK = "stuck"
    STOPPED = "stopped"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    VERIFICATION_FAILED = "verification_failed"
    POLICY_VIOLATION = "policy_violation"
    NOT_STARTED = "not_started"
    LEASE_LOST = "lease_lost"
    SUPERVISOR_LOST = "supervisor_lost"
    UNKILLABLE = "unkillable"


MEANING: dict[StopReason, str] = {
    StopReason.DONE: "the agent ended by itself with exit code 0",
    StopReason.FAILED: "the agent ended by itself with another exit code or a signal",
    StopReason.MAX_ITERATIONS: "limits.iterations model calls were made",
    StopReason.MAX_TOKENS: "limits.tokens were used",
    StopReason.MAX_SECONDS: "limits.wall_clock passed",
    StopReason.MAX_COST: "the next model call could have passed limits.usd",
    StopReason.DAILY_CAP: "a daily cap is used up",
    StopReason.MAX_ACTIONS: "the action budget is used up",
    StopReason.STUCK: "the same thing was tried again and again",
    StopReason.STOPPED: "somebody asked, and the agent ended by itself",
    StopReason.KILLED: "somebody asked, and the agent was ended by force",
    StopReason.OUT_OF_MEMORY: "the kernel ended it at limits.memory",
    StopReason.VERIFICATION_FAILED: "the result did not pass the profile's checks",
    StopReason.POLICY_VIOLATION: "something forbidden was done, not only tried",
    StopReason.NOT_STARTED: "a control could not be armed, or a stop was there first; nothing ran",
    StopReason.LEASE_LOST: "another worker owns the ticket now",
    StopReason.SUPERVISOR_LOST: "the supervisor died, and the run with it",
    StopReason.UNKILLABLE: "something of the run is still alive after the deadline",
}

EXIT_CODES: dict[StopReason, int] = {
    reason: 64 + number
    for number, reason in enumerate(
        (
            StopReason.NOT_STARTED,
            StopReason.MAX_SECONDS,
            StopReason.MAX_COST,
            StopReason.MAX_TOKENS,
            StopReason.MAX_ITERATIONS,
            StopReason.MAX_ACTIONS,
            StopReason.DAILY_CAP,
            StopReason.OUT_OF_MEMORY,
            StopReason.STUCK,
            StopReason.STOPPED,
            StopReason.KILLED,
            StopReason.VERIFICATION_FAILED,
            StopReason.POLICY_VIOLATION,
            StopReason.LEASE_LOST,
            StopReason.SUPERVISOR_LOST,
            StopReason.UNKILLABLE,
        )
    )
}
"""`run` exits with these; a run that ended by itself gives the agent's own code."""


class StopRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody or something wants a run to end.

    by: "operator", "stop_file", "database_flag" or "limit". who: uid and name of an operator, or the
    name of the limit. grace_s: how long the agent may take after TERM; 0 kills at once. on_force: the
    reason when it had to be forced, on_exit when the agent ended by itself within the grace.
    """

    by: str
    on_force: StopReason
    on_exit: StopReason
    grace_s: float
    who: str = ""
    note: str = ""
    figures: dict[str, int | float | str] = {}


def kill_request(by: str, *, who: str = "", note: str = "") -> StopRequest:
    """Force, at once."""
    return StopRequest(
        by=by, on_force=StopReason.KILLED, on_exit=StopReason.KILLED, grace_s=0.0, who=who, note=note
    )


def stop_request(by: str, grace_s: float, *, who: str = "", note: str = "") -> StopRequest:
    """Ask first, then force."""
    return StopRequest(
        by=by, on_force=StopReason.KILLED, on_exit=StopReason.STOPPED, grace_s=grace_s, who=who, note=note
    )


def limit_request(
    reason: StopReason, grace_s: float, *, who: str, figures: dict[str, int | float | str]
) -> StopRequest:
    """A limit was reached; the reason is the limit's whether the agent obeyed or not."""
    return StopRequest(by="limit", on_force=reason, on_exit=reason, grace_s=grace_s, who=who, figures=figures)
