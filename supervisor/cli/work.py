"""Owns the command that works the queue: what it runs, what it shows, how it ends.
May touch the terminal and, through a supervisor of its own, the runs of the tickets it claims.
Never leaves a run behind: when it ends, its runs end.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from typing import Any

import click

from supervisor.cli import output
from supervisor.cli.access import complete_profile
from supervisor.errors import SupervisorError, UsageError
from supervisor.limits.money import show_usd
from supervisor.paths import locate, prepare
from supervisor.profile.units import show_duration

_FIELDS = ("{ticket}", "{goal}", "{project}")
_FIELD = re.compile(r"\{[a-z_]+\}")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--profile",
    required=True,
    help="A shipped profile, or a .toml file.",
    shell_complete=complete_profile,
)
@click.option("--concurrency", default=1, type=click.IntRange(1, 256), help="How many at a time.")
@click.option("--project", "projects", multiple=True, help="Only tickets of this project; may be repeated.")
@click.option(
    "--worktree", default=".", help="The folder the agents work in.", type=click.Path(file_okay=False)
)
@click.option("--until-empty", is_flag=True, help="End when no ticket is left that can be claimed today.")
@click.option(
    "--stop-after-failures",
    "patience",
    type=click.IntRange(1),
    metavar="N",
    help="Claim no more when N runs in a row were not done, and exit with 1.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per run that ended, a line each.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD…")
def work(
    profile: str,
    concurrency: int,
    projects: tuple[str, ...],
    worktree: str,
    until_empty: bool,
    patience: int | None,
    as_json: bool,
    argv: tuple[str, ...],
) -> None:
    """Claim tickets from the queue and run an agent for each, until told to end.

    \b
    {ticket}, {goal} and {project} in the command are replaced; the agent also finds them as
    SUPERVISOR_TICKET, SUPERVISOR_GOAL and SUPERVISOR_PROJECT:
      supervisorctl work --profile night.toml --concurrency 4 -- claude -p "{goal}"

    A profile with the gateway needs limits.usd and a daily cap: nobody watches. What a run may spend
    is held against the day's caps when its ticket is claimed. The first Ctrl-C or TERM stops the
    claiming and waits for the runs, a second one kills them.
    """
    if not argv:
        raise UsageError("no command was given", hint='supervisorctl work --profile P -- claude -p "{goal}"')
    reference = os.path.abspath(profile) if "/" in profile or profile.endswith(".toml") else profile
    given: dict[str, Any] = {
        "profile": reference,
        "worktree": os.path.abspath(worktree),
        "argv": list(argv),
        "environment": dict(os.environ),
        "projects": list(projects),
        "concurrency": concurrency,
        "until_empty": until_empty,
    }
    _warn_of_unknown_fields(argv)
    asyncio.run(_work(given, patience, as_json))


def _warn_of_unknown_fields(argv: tuple[str, ...]) -> None:
    unknown = dict.fromkeys(field for part in argv for field in _FIELD.findall(part) if field not in _FIELDS)
    for field in unknown:
        click.echo(f"note: {field} in the command stays as it is; replaced are {' '.join(_FIELDS)}", err=True)


async def _work(given: dict[str, Any], patience: int | None, as_json: bool) -> None:
    from supervisor.config import load_config
    from supervisor.control.server import ControlServer
    from supervisor.daemon import Supervisor
    from supervisor.observe.queries import result
    from supervisor.queue_worker import Assignment, QueueWorker, Watcher
    from supervisor.runs.life import LiveRun
    from supervisor.runs.reasons import StopReason, kill_request
    from supervisor.store.tickets import Claimed, Nothing

    count: Counter[str] = Counter()
    spent, failures = [0], [0]

    def say(text: str) -> None:
        if not as_json:
            output.say(f"{output.dim(output.clock_time())}  {text}")

    def claimed(one: Claimed) -> None:
        say(f"{output.accent(one.ticket.key)}  claimed")

    def ended(live: LiveRun) -> None:
        count[str(live.run.reason)] += 1
        spent[0] += int(live.run.totals.get("spent_nanos", 0))
        show(live)
        judge(live.run.reason is StopReason.DONE, by_hand=live.run.reason_by == "operator")

    def judge(done: bool, *, by_hand: bool = False) -> None:
        if by_hand or failures[0] == patience:
            return
        failures[0] = 0 if done else failures[0] + 1
        if failures[0] == patience:
            click.echo(f"claiming no more: {patience} runs in a row were not done", err=True)
            worker.end()

    def show(live: LiveRun) -> None:
        if as_json:
            output.print_json(result(live.run))
            return
        totals = live.run.totals
        parts = [str(live.run.reason), show_duration(float(totals.get("seconds", 0)))]
        if totals.get("calls"):
            parts.append(f"{totals['calls']} calls · {show_usd(int(totals['spent_nanos']))}")
        if live.run.reason_note:
            parts.append(output.visible(live.run.reason_note, always=True))
        say(f"{output.accent(live.order.ticket)}  {' · '.join(parts)}")

    def failed(one: Claimed, error: SupervisorError) -> None:
        say(output.bad(f"{one.ticket.key}  not started: {error.message}"))
        judge(False)

    def idle(why: Nothing) -> None:
        say(output.dim("the queue is empty" if why.why == "empty" else f"no claims: {why.detail}"))

    paths = prepare(locate())
    loop = asyncio.get_running_loop()
    async with Supervisor(paths, load_config(), "worker") as supervisor, ControlServer(supervisor):
        worker = QueueWorker(
            supervisor, Assignment(**given), Watcher(claimed=claimed, ended=ended, idle=idle, failed=failed)
        )
        asked = 0

        def end() -> None:
            nonlocal asked
            asked += 1
            worker.end()
            if asked == 1:
                left = len(supervisor.runs)
                runs = "1 run" if left == 1 else f"{left} runs"
                wait = f"; waiting for {runs} (again: kill them)" if left else ""
                click.echo(f"claiming no more{wait}", err=True)
                return
            for live in supervisor.runs.values():
                live.request_stop(
                    kill_request("operator", who=f"{os.getuid()}:terminal", note="worker ended")
                )

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end)
        try:
            await worker.work()
        finally:
            if count:
                say(" · ".join([*(f"{many} {reason}" for reason, many in count.items()), show_usd(spent[0])]))
    if failures[0] == patience:
        raise SystemExit(1)
