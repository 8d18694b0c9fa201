"""Owns the rules about how much a run may use: time, memory, processes, calls, money.
May touch nothing: the size of a host is an argument.
Never takes a limit that is missing for one that is large.
"""

from __future__ import annotations

from collections.abc import Iterator

from supervisor.limits.budget import Scope
from supervisor.limits.caps import effective
from supervisor.limits.money import NANOS_PER_USD, show_usd
from supervisor.profile.lint.model import Domain, Found, Severity, Subject, rule
from supervisor.profile.units import show_duration, show_size
from supervisor.runs.spending import profile_caps

_LIM = Domain.LIMITS
_HOUR_S = 3600.0
_GIB = 1 << 30


def _gateway(subject: Subject) -> bool:
    return subject.profile.network.mode == "gateway"


@rule(
    "R-01",
    Severity.HIGH,
    _LIM,
    "a run may take longer than a day",
    why="what hangs that long is found by nobody",
    fix="set limits.wall_clock to what the task needs; run it again if it needs more",
)
def days(subject: Subject) -> Iterator[Found]:
    seconds = subject.profile.limits.wall_clock_s
    if seconds > 24 * _HOUR_S:
        yield Found(f"limits.wall_clock is {show_duration(seconds)}", ("limits", "wall_clock"))


@rule(
    "R-02",
    Severity.MEDIUM,
    _LIM,
    "a run may take longer than four hours",
    why="a loop that succeeds at nothing uses all of it",
    fix="set limits.wall_clock to what the task needs",
)
def hours(subject: Subject) -> Iterator[Found]:
    seconds = subject.profile.limits.wall_clock_s
    if 4 * _HOUR_S < seconds <= 24 * _HOUR_S:
        yield Found(f"limits.wall_clock is {show_duration(seconds)}", ("limits", "wall_clock"))


@rule(
    "R-03",
    Severity.MEDIUM,
    _LIM,
    "a run may use more memory than this host has",
    why="the limit is then the host's own end of memory, where the kernel picks the victim",
    fix="set limits.memory to a share of the host",
    looks_at="host",
)
def host_memory(subject: Subject) -> Iterator[Found]:
    assert subject.host is not None
    if subject.profile.limits.memory_bytes > subject.host.memory_bytes:
        yield Found(
            f"{show_size(subject.profile.limits.memory_bytes)} of {show_size(subject.host.memory_bytes)}",
            ("limits", "memory"),
        )


@rule(
    "R-04",
    Severity.MEDIUM,
    _LIM,
    "the memory limit is very large",
    why="a limit that is never reached protects nobody",
    fix="set limits.memory to what the task needs",
)
def much_memory(subject: Subject) -> Iterator[Found]:
    if subject.profile.limits.memory_bytes > 64 * _GIB:
        yield Found(show_size(subject.profile.limits.memory_bytes), ("limits", "memory"))


@rule(
    "R-05",
    Severity.HIGH,
    _LIM,
    "a run may have tens of thousands of processes",
    why="a fork bomb of that size slows the whole host before it is stopped",
    fix="set limits.pids to a few hundred",
)
def bomb(subject: Subject) -> Iterator[Found]:
    if subject.profile.limits.pids > 16_384:
        yield Found(f"limits.pids is {subject.profile.limits.pids}", ("limits", "pids"))


@rule(
    "R-06",
    Severity.MEDIUM,
    _LIM,
    "a run may have thousands of processes",
    why="few tools need them, and each costs memory of the kernel",
    fix="set limits.pids to a few hundred",
)
def many_pids(subject: Subject) -> Iterator[Found]:
    if 4096 < subject.profile.limits.pids <= 16_384:
        yield Found(f"limits.pids is {subject.profile.limits.pids}", ("limits", "pids"))


@rule(
    "R-07",
    Severity.LOW,
    _LIM,
    "a run may use all processors of this host, or more",
    why="the supervisor that must end it needs some time too",
    fix="leave a part of the cores free in limits.cpu",
    looks_at="host",
)
def all_cores(subject: Subject) -> Iterator[Found]:
    assert subject.host is not None
    if subject.profile.limits.cpu_cores > subject.host.cores:
        yield Found(f"{subject.profile.limits.cpu_cores:g} of {subject.host.cores} cores", ("limits", "cpu"))


@rule(
    "R-08",
    Severity.MEDIUM,
    _LIM,
    "private folders may hold more than the memory limit",
    why="they are kept in memory: filling one ends the run as out_of_memory",
    fix="make limits.tmp smaller than limits.memory",
)
def tmp_over_memory(subject: Subject) -> Iterator[Found]:
    limits = subject.profile.limits
    if limits.tmp_bytes > limits.memory_bytes:
        yield Found(f"{show_size(limits.tmp_bytes)} of {show_size(limits.memory_bytes)}", ("limits", "tmp"))


@rule(
    "R-09",
    Severity.LOW,
    _LIM,
    "an agent gets no time to end",
    why="it cannot put its work into order when it is stopped or a limit is reached",
    fix="set limits.stop_grace to some seconds; `kill` has none all the same",
)
def no_grace(subject: Subject) -> Iterator[Found]:
    if subject.profile.limits.stop_grace_s == 0:
        yield Found("limits.stop_grace is 0", ("limits", "stop_grace"))


@rule(
    "R-10",
    Severity.MEDIUM,
    _LIM,
    "an agent may take minutes to end",
    why="a limit that is reached is then passed by that long",
    fix="set limits.stop_grace to some seconds",
)
def long_grace(subject: Subject) -> Iterator[Found]:
    if subject.profile.limits.stop_grace_s > 60:
        yield Found(
            f"limits.stop_grace is {show_duration(subject.profile.limits.stop_grace_s)}",
            ("limits", "stop_grace"),
        )


@rule(
    "R-11",
    Severity.HIGH,
    _LIM,
    "nothing bounds what a run may spend",
    why="an agent in a loop spends until somebody looks",
    fix='set limits.usd, like usd = "0.50"',
)
def no_usd(subject: Subject) -> Iterator[Found]:
    limits = subject.profile.limits
    if _gateway(subject) and limits.usd_nanos is None:
        yield Found("limits.usd is not set", ("network", "mode"))


@rule(
    "R-12",
    Severity.MEDIUM,
    _LIM,
    "nothing bounds how many calls a run may make",
    why="cheap calls in a loop cost time and fill the log long before they cost money",
    fix="set limits.iterations",
)
def no_iterations(subject: Subject) -> Iterator[Found]:
    if _gateway(subject) and subject.profile.limits.iterations is None:
        yield Found("limits.iterations is not set", ("network", "mode"))


@rule(
    "R-13",
    Severity.LOW,
    _LIM,
    "nothing bounds how many tokens a run may use",
    why="prices change; tokens say the same tomorrow",
    fix="set limits.tokens",
)
def no_tokens(subject: Subject) -> Iterator[Found]:
    if _gateway(subject) and subject.profile.limits.tokens is None:
        yield Found("limits.tokens is not set", ("network", "mode"))


@rule(
    "R-14",
    Severity.HIGH,
    _LIM,
    "nothing bounds what a day may cost",
    why="many runs that each stay below their limit spend any amount together",
    fix="set daily.global_usd in the configuration, or [daily] in the profile",
    looks_at="config",
)
def no_daily(subject: Subject) -> Iterator[Found]:
    assert subject.config is not None
    caps = effective(profile_caps(subject.profile), subject.config.daily.caps, "")
    if _gateway(subject) and caps.global_day_nanos is None and caps.project_day_nanos is None:
        yield Found("no daily cap holds for this profile", ("daily",))


@rule(
    "R-15",
    Severity.MEDIUM,
    _LIM,
    "a run may spend more than fifty dollars",
    why="that is the price of one mistake",
    fix="set limits.usd to what the task is worth",
)
def much_money(subject: Subject) -> Iterator[Found]:
    nanos = subject.profile.limits.usd_nanos
    if nanos is not None and nanos > 50 * NANOS_PER_USD:
        yield Found(f"limits.usd is {show_usd(nanos)}", ("limits", "usd"))


@rule(
    "R-16",
    Severity.MEDIUM,
    _LIM,
    "a day's cap is smaller than what one run may spend",
    why="a worker holds the whole of it at its claim, so no ticket is ever claimed",
    fix="make limits.usd smaller or the cap larger",
    looks_at="config",
)
def cap_below_run(subject: Subject) -> Iterator[Found]:
    assert subject.config is not None
    caps = effective(profile_caps(subject.profile), subject.config.daily.caps, "")
    for scope in (Scope.PROJECT_DAY, Scope.GLOBAL_DAY):
        cap = caps.nanos(scope)
        if caps.run_nanos is not None and cap is not None and cap < caps.run_nanos:
            yield Found(
                f"{show_usd(caps.run_nanos)} of {show_usd(cap)} ({scope})", ("limits", "usd"), str(scope)
            )


@rule(
    "R-17",
    Severity.LOW,
    _LIM,
    "all runs of a ticket may spend less than one of them",
    why="the smaller limit is the one that holds, and the other misleads",
    fix="make limits.ticket_usd at least limits.usd",
)
def ticket_below_run(subject: Subject) -> Iterator[Found]:
    limits = subject.profile.limits
    run, ticket = limits.usd_nanos, limits.ticket_usd_nanos
    if run is not None and ticket is not None and ticket < run:
        yield Found(f"{show_usd(ticket)} of {show_usd(run)}", ("limits", "ticket_usd"))


@rule(
    "R-18",
    Severity.INFO,
    _LIM,
    "a limit of zero lets no call through",
    why="that is what it means; a limit that is left out is none",
    fix="nothing, if it is meant",
)
def zero(subject: Subject) -> Iterator[Found]:
    limits, daily = subject.profile.limits, subject.profile.daily
    amounts = {
        ("limits", "iterations"): limits.iterations,
        ("limits", "tokens"): limits.tokens,
        ("limits", "usd"): limits.usd_nanos,
        ("limits", "ticket_usd"): limits.ticket_usd_nanos,
        ("daily", "project_usd"): daily.project_nanos,
        ("daily", "global_usd"): daily.global_nanos,
    }
    for path, amount in amounts.items():
        if amount == 0:
            yield Found(f"{'.'.join(path)} is 0", path)


@rule(
    "R-19",
    Severity.MEDIUM,
    Domain.AUDIT,
    "more than a gigabyte of output is kept of one run",
    why="a flood of output fills the disk that every run's record is on",
    fix="set limits.output to some tens of MiB",
)
def much_output(subject: Subject) -> Iterator[Found]:
    if subject.profile.limits.output_bytes > _GIB:
        yield Found(show_size(subject.profile.limits.output_bytes), ("limits", "output"))


@rule(
    "R-20",
    Severity.MEDIUM,
    Domain.AUDIT,
    "no output is kept",
    why="a run that leaves no log cannot be explained afterwards",
    fix="set limits.output to some MiB",
)
def no_output(subject: Subject) -> Iterator[Found]:
    if subject.profile.limits.output_bytes < 1 << 16:
        yield Found(show_size(subject.profile.limits.output_bytes), ("limits", "output"))


@rule(
    "R-21",
    Severity.LOW,
    _LIM,
    "a process may open very many files",
    why="each costs memory of the kernel that the memory limit does not see in full",
    fix="set limits.open_files to a few thousand",
)
def many_files(subject: Subject) -> Iterator[Found]:
    if subject.profile.limits.open_files > 65_536:
        yield Found(f"{subject.profile.limits.open_files} files", ("limits", "open_files"))


@rule(
    "R-22",
    Severity.MEDIUM,
    _LIM,
    "one file may be very large",
    why="an overlay can fill the file system that it is on up to this size per file",
    fix="set limits.file_size to some GiB",
)
def large_files(subject: Subject) -> Iterator[Found]:
    if subject.profile.limits.file_bytes > 64 * _GIB:
        yield Found(show_size(subject.profile.limits.file_bytes), ("limits", "file_size"))
