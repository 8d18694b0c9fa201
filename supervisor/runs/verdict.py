"""Owns deciding which one reason a run ended with, from what was seen.
May touch nothing.
Never makes success out of the unknown.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import msgspec

from supervisor.runs.reasons import StopReason, StopRequest


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known at the end. wait_status: of the agent (wait(2)), None when the box just went.

    request: the stop that was asked for, if one was. forced: was KILL needed for it? oom_kills: the
    kernel's count for this run's own group.
    """

    wait_status: int | None
    request: StopRequest | None
    forced: bool
    oom_kills: int
    launcher_gone: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """The reason with who or what is behind it."""

    reason: StopReason
    by: str
    who: str = ""
    note: str = ""


def decide(seen: Seen) -> Verdict:
    """Asked-for ends first: whatever the agent's status, somebody's request is why it ended."""
    request = seen.request
    if request is not None:
        # Without an exit status nobody saw it end by itself.
        reason = request.on_force if seen.forced or seen.wait_status is None else request.on_exit
        return Verdict(reason, request.by, request.who, request.note)
    if seen.wait_status is None:
        if seen.oom_kills:
            return Verdict(StopReason.OUT_OF_MEMORY, "limit", "memory")
        if seen.launcher_gone:
            return Verdict(StopReason.SUPERVISOR_LOST, "supervisor", note="the launcher ended")
        return Verdict(StopReason.FAILED, "agent", note="the box ended without an exit status")
    code = os.waitstatus_to_exitcode(seen.wait_status)
    if code == 0:
        return Verdict(StopReason.DONE, "agent")
    if code == -signal.SIGKILL and seen.oom_kills:
        return Verdict(StopReason.OUT_OF_MEMORY, "limit", "memory")
    if code < 0:
        return Verdict(StopReason.FAILED, "agent", note=f"ended by {signal_name(-code)}")
    return Verdict(StopReason.FAILED, "agent", note=f"exit code {code}")


def signal_name(number: int) -> str:
    """SIGSEGV; "signal 35" for one without a name of its own: an agent may end itself with any."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def agent_exit_code(wait_status: int | None) -> int | None:
    """As a shell would say it: 128 + signal for a signal, None when there is no status."""
    if wait_status is None:
        return None
    code = os.waitstatus_to_exitcode(wait_status)
    return 128 - code if code < 0 else code
