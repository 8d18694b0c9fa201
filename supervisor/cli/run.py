"""Owns the command that boxes one agent: where it runs, what is shown meanwhile, how it exits.
May touch the terminal and, through the daemon or a supervisor of its own, one run.
Never leaves a run behind that nobody asked to detach.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import time
from typing import Any

import click
import msgspec

from supervisor.cli import output
from supervisor.cli.access import complete_profile, daemon_answers
from supervisor.cli.live import LiveView
from supervisor.control.client import ask
from supervisor.errors import NoSupervisor, NotStarted, SupervisorError, UsageError
from supervisor.identifiers import check_ticket, new_ulid
from supervisor.paths import Paths, locate, prepare
from supervisor.runs.reasons import EXIT_CODES, MEANING, StopReason

_POLL_EVERY_S = 0.2
_DAEMON_PATIENCE_S = 5.0
_SECOND_CTRL_C = "press Ctrl-C again to kill it now"

_EXIT_HELP = "\n\n\b\nExit codes: the agent's own, or\n" + "\n".join(
    f"  {code}  {reason}: {MEANING[reason]}" for reason, code in EXIT_CODES.items()
)


@click.command(
    context_settings={"allow_interspersed_args": False},
    help="Run one agent in a box, with the current folder as its worktree.\n\n"
    "\b\nExamples:\n"
    '  supervisorctl run --profile coding -- claude -p "fix the VAT rounding"\n'
    "  supervisorctl run --ticket ENG-1234 --profile offline -- python3 convert.py\n\n"
    "Uses the daemon if one answers, else supervises the run itself until it ends. Ctrl-C asks the "
    f"agent to end, a second one kills it.{_EXIT_HELP}",
)
@click.option("--ticket", default="", help="What this run is called; made up if left out.")
@click.option(
    "--profile",
    default="offline",
    show_default=True,
    help="A shipped profile, or a .toml file.",
    shell_complete=complete_profile,
)
@click.option(
    "--worktree", default=".", help="The folder the agent works in.", type=click.Path(file_okay=False)
)
@click.option("--project", default="", help="What the ticket belongs to.")
@click.option(
    "--limit", "limits", multiple=True, metavar="KEY=VALUE", help="A key of [limits] for this run: usd=1.00."
)
@click.option(
    "--verify-first", is_flag=True, help="First try to get out of such a box; a claim that is false ends it."
)
@click.option("--here", is_flag=True, help="Supervise it in this process although a daemon answers.")
@click.option("--detach", is_flag=True, help="Return as soon as the agent was started (needs the daemon).")
@click.option("--apply", "apply_", is_flag=True, help="If it ends as done, carry its changes over.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the run ends.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD…")
def run(
    ticket: str,
    profile: str,
    worktree: str,
    project: str,
    limits: tuple[str, ...],
    verify_first: bool,
    here: bool,
    detach: bool,
    apply_: bool,
    as_json: bool,
    argv: tuple[str, ...],
) -> int:
    if not argv:
        raise UsageError(
            "no command was given", hint="supervisorctl run --profile offline -- python3 script.py"
        )
    _refuse_what_is_not_text(argv)
    paths = locate()
    wanted: dict[str, Any] = {
        "ticket": check_ticket(ticket) if ticket else _made_up(worktree),
        "profile": os.path.abspath(profile) if "/" in profile or profile.endswith(".toml") else profile,
        "worktree": os.path.abspath(worktree),
        "argv": list(argv),
        "project": project,
        "environment": _passed_environment(profile),
        "limits": dict(map(_limit, limits)),
    }
    if here and detach:
        raise UsageError("--here ends with this command, and --detach does not; give one of them")
    if verify_first:
        _verify(profile)
    view = LiveView(paths, wanted["ticket"], quiet=as_json or detach)
    try:
        if (not here and daemon_answers(paths)) or (detach and _daemon_comes_up(paths)):
            ended = _through_daemon(paths, wanted, view, detach, as_json)
        elif detach:
            raise NoSupervisor("--detach needs the daemon", hint="supervisorctl serve &")
        else:
            ended = asyncio.run(_by_itself(prepare(paths), wanted, view))
    finally:
        view.close()
    if ended is None:
        return 0
    if apply_ and ended["reason"] == StopReason.DONE:
        from supervisor.cli.changes import apply_changes

        ended["applied"] = apply_changes(wanted["ticket"], quiet=as_json)
    if as_json:
        output.print_json(ended)
    return _exit_code(ended)


def _verify(profile: str) -> None:
    """Raises NotStarted naming the first claim that is not true on this host."""
    from supervisor.profile.load import load
    from supervisor.verify import verify

    found = asyncio.run(verify.verify(load(profile)))
    for one in found.claims:
        if one.state is verify.ClaimState.DISPROVED:
            raise NotStarted(
                f"the claim {one.claim.claim_id} is not true here: {one.reason}",
                control=one.claim.claim_id,
                hint=f"supervisorctl profile verify {profile}",
            )
    if found.escapes:
        raise NotStarted(
            f"{found.escapes} probes got out of such a box", hint=f"supervisorctl profile verify {profile}"
        )


def _limit(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise UsageError(f"--limit {text!a} is not KEY=VALUE", hint="like --limit usd=1.00")
    return key.removeprefix("limits."), value


def _refuse_what_is_not_text(argv: tuple[str, ...]) -> None:
    """Bytes that are not UTF-8 come as surrogates; the record and the socket hold text."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"{word!a} is not UTF-8", hint="give such a name inside the box, for example by a pattern"
            ) from None


def _daemon_comes_up(paths: Paths) -> bool:
    """A daemon that was started a moment ago is worth a short wait."""
    deadline_s = time.monotonic() + _DAEMON_PATIENCE_S
    while time.monotonic() < deadline_s:
        time.sleep(_POLL_EVERY_S / 2)
        if daemon_answers(paths):
            return True
    return False


def _passed_environment(profile: str) -> dict[str, str]:
    """Only what the profile passes on leaves this process; a profile that is wrong is refused later."""
    from supervisor.profile.load import load

    try:
        names = load(profile).profile.env.passed
    except SupervisorError:
        return {}
    return {name: os.environ[name] for name in names if name in os.environ}


def _made_up(worktree: str) -> str:
    """A name somebody can type at three in the morning: the folder's, and four characters."""
    folder = re.sub(r"[^A-Za-z0-9]+", "-", os.path.basename(os.path.abspath(worktree))).strip("-")
    return f"{folder[:40] or 'run'}-{new_ulid()[-4:].lower()}"


def _exit_code(ended: dict[str, Any]) -> int:
    reason = StopReason(ended["reason"])
    if reason in EXIT_CODES:
        return EXIT_CODES[reason]
    status: int | None = ended["exit_status"]
    return status if status is not None else 1


# ---------------------------------------------------------------- through the daemon


def _through_daemon(
    paths: Paths, wanted: dict[str, Any], view: LiveView, detach: bool, as_json: bool
) -> dict[str, Any] | None:
    ticket = wanted["ticket"]
    try:
        started = ask(paths.control_socket, "run", timeout_s=60.0, **wanted)
    except NotStarted as error:
        if not as_json:
            raise
        _print_problem(error)
        refused: dict[str, Any] = ask(paths.control_socket, "wait", ticket=ticket)
        return refused
    if detach:
        if as_json:
            output.print_json(started)
        else:
            output.say(f"{output.accent(ticket)}  started")
            output.say(f"next      supervisorctl logs -f {ticket} · supervisorctl kill {ticket}")
        return None
    view.begin(started["summary"])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _hang_up)
    pressed = 0
    offset = after = 0
    while True:
        try:
            offset, after, more = _show_page(paths, ticket, view, offset, after)
            if not more:
                break
            time.sleep(_POLL_EVERY_S)
        except KeyboardInterrupt:
            pressed += 1
            _interrupt_daemon_run(paths, ticket, pressed)
        except _HangUp as error:
            # Nobody asked to detach: a closed terminal ends what was started from it.
            ask(paths.control_socket, "stop", timeout_s=None, ticket=ticket, note="the terminal has gone")
            raise SystemExit(error.code) from None
    ended: dict[str, Any] = ask(paths.control_socket, "wait", ticket=ticket)
    view.end(ended)
    return ended


class _HangUp(Exception):
    """TERM or HUP came; code is what a shell would say of it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


def _hang_up(number: int, _: object) -> None:
    raise _HangUp(number)


def _show_page(paths: Paths, ticket: str, view: LiveView, offset: int, after: int) -> tuple[int, int, bool]:
    log = ask(paths.control_socket, "log", ticket=ticket, offset=offset)
    view.lines(log["lines"])
    events = ask(paths.control_socket, "events", ticket=ticket, after=after)
    for event in events["events"]:
        view.event(event)
    ended = log["ended"] and log["next"] == offset and events["next"] == after
    view.tick()
    return log["next"], events["next"], not ended


def _interrupt_daemon_run(paths: Paths, ticket: str, pressed: int) -> None:
    import threading

    op = "stop" if pressed == 1 else "kill"
    click.echo(
        f"\nasking {ticket} to end; {_SECOND_CTRL_C}" if pressed == 1 else f"\nkilling {ticket}", err=True
    )

    def send() -> None:
        with contextlib.suppress(SupervisorError):  # it has ended meanwhile, or the loop will say so
            ask(paths.control_socket, op, timeout_s=None, ticket=ticket, note="Ctrl-C")

    threading.Thread(target=send, daemon=True).start()


# ---------------------------------------------------------------- without a daemon


async def _by_itself(paths: Paths, wanted: dict[str, Any], view: LiveView) -> dict[str, Any]:
    """A supervisor of its own for one run; it can be stopped from any other shell all the same."""
    from supervisor.config import load_config
    from supervisor.control.server import ControlServer, make_order, summary
    from supervisor.daemon import Supervisor
    from supervisor.logs.book import LogLine
    from supervisor.observe.queries import result
    from supervisor.runs.life import LiveRun
    from supervisor.runs.reasons import kill_request, stop_request

    def show_lines(lines: list[LogLine]) -> None:
        view.lines([msgspec.to_builtins(line) for line in lines])

    order = make_order(wanted)
    order = dataclasses.replace(
        order, on_lines=show_lines, on_event=lambda event: view.event(msgspec.to_builtins(event))
    )
    loop = asyncio.get_running_loop()
    async with Supervisor(paths, load_config(), "foreground") as supervisor, ControlServer(supervisor):
        view.lost(supervisor.lost)
        live: LiveRun = await supervisor.launch(order)
        pressed = 0

        def interrupt() -> None:
            nonlocal pressed
            pressed += 1
            who = f"{os.getuid()}:terminal"
            if pressed == 1:
                click.echo(f"\nasking {order.ticket} to end; {_SECOND_CTRL_C}", err=True)
                live.request_stop(
                    stop_request("operator", live.profile.limits.stop_grace_s, who=who, note="Ctrl-C")
                )
            else:
                live.request_stop(kill_request("operator", who=who, note="Ctrl-C"))

        def end() -> None:
            live.request_stop(kill_request("operator", who="signal", note="the supervisor got TERM or HUP"))

        loop.add_signal_handler(signal.SIGINT, interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end)
        await live.started.wait()
        if live.problem is None:
            view.begin(summary(live))
        while not live.ended.is_set():
            view.tick()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(live.ended.wait(), _POLL_EVERY_S)
        ended = result(live.run)
        view.end(ended)
        if live.problem is not None and not view.quiet:
            raise live.problem
        if isinstance(live.problem, NotStarted):
            _print_problem(live.problem)
        return ended


def _print_problem(error: SupervisorError) -> None:
    """Beside the JSON object, which goes to standard output all the same."""
    click.echo(f"{output.bad('error:')} {error.message}", err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)
