"""Owns the commands that end or hold runs: kill, stop, pause, resume.
May touch control sockets; kill --force also the cgroups and pidfds of a run, without any supervisor.
Never says dead before it was observed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from supervisor.cli import output
from supervisor.cli.access import (
    Access,
    complete_any_ticket,
    complete_ticket,
    daemon_answers,
    open_access,
    system_daemon,
)
from supervisor.cli.look import json_option
from supervisor.clock import CLOCK_JUMP
from supervisor.control.client import ask
from supervisor.errors import NotFound, NotYetDead, StateError, SupervisorError, UsageError
from supervisor.identifiers import check_project, check_ticket
from supervisor.limits.money import show_usd
from supervisor.observe.queries import kill_result
from supervisor.paths import Paths
from supervisor.profile.units import parse_duration, show_duration
from supervisor.store.records import Run

_SLACK_S = 20.0
_LOOK_EVERY_S = 0.1


@click.command()
@click.argument("tickets", nargs=-1, shell_complete=complete_ticket)
@click.option("--all", "everything", is_flag=True, help="Every run of this state folder.")
@click.option("--reason", default="", help="Written into the record of the run.")
@click.option(
    "--force", is_flag=True, help="Without the supervisor: also when it is hung or dead (needs its user)."
)
@json_option
def kill(tickets: tuple[str, ...], everything: bool, reason: str, force: bool, as_json: bool) -> None:
    """Kill runs now: nothing of them is alive when this returns with 0.

    Works for runs of the daemon and of any other shell. Exit codes: 0 dead (or was already), 3 no
    such ticket, 4 accepted but not yet dead, 5 no supervisor.
    """
    if force:
        from supervisor.runs.force import force_kill

        with open_access() as access:
            wanted = _wanted(access, tickets, everything)
            results = [_attempt(t, lambda t: force_kill(access.store, t, reason)) for t in wanted]
            _note_forced(access, results, reason)
            _report(results, as_json)
        return
    _end(tickets, everything, as_json, "kill", note=reason)


@click.command()
@click.argument("tickets", nargs=-1, shell_complete=complete_ticket)
@click.option("--all", "everything", is_flag=True, help="Every run of this state folder.")
@click.option("--reason", default="", help="Written into the record of the run.")
@click.option(
    "--grace", default="", help='How long the agent may take, like "10s"; else as its profile says.'
)
@json_option
def stop(tickets: tuple[str, ...], everything: bool, reason: str, grace: str, as_json: bool) -> None:
    """Ask runs to end (TERM); what is still alive after the grace is killed.

    Exit codes as for kill.
    """
    extra: dict[str, Any] = {"note": reason}
    if grace:
        try:
            extra["grace_s"] = parse_duration(grace)
        except ValueError as error:
            raise UsageError(str(error)) from None
    _end(tickets, everything, as_json, "stop", **extra)


def _end(tickets: tuple[str, ...], everything: bool, as_json: bool, op: str, **extra: Any) -> None:
    timeout_s = float(extra.get("grace_s", 600.0)) + _SLACK_S if op == "stop" else _SLACK_S
    with open_access() as access:
        wanted = _wanted(access, tickets, everything)
        sockets = {ticket: _where(access, ticket) for ticket in wanted}

        def one(ticket: str) -> dict[str, Any]:
            where = sockets[ticket]
            if isinstance(where, Elsewhere):
                return _kill_elsewhere(access, where.run, op, timeout_s)
            if isinstance(where, dict):
                return where
            if isinstance(where, SupervisorError):
                raise where
            return _ask_each(where, op, timeout_s, {"ticket": ticket, **extra})

        _report(_together(lambda ticket: _attempt(ticket, one), wanted), as_json)


def _together(one: Callable[[str], dict[str, Any]], wanted: list[str]) -> list[dict[str, Any]]:
    """All at once: what is slow to die must not keep the others alive."""
    if len(wanted) == 1:
        return [one(wanted[0])]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=min(32, max(1, len(wanted)))) as pool:
        return list(pool.map(one, wanted))


def _wanted(access: Access, tickets: tuple[str, ...], everything: bool) -> list[str]:
    if everything and tickets:
        raise UsageError("give tickets or --all, not both")
    if everything:
        return [row["ticket"] for row in access.query("ps")]
    if not tickets:
        raise UsageError("which run?", hint="supervisorctl ps lists them; --all means every one")
    return [check_ticket(ticket) for ticket in dict.fromkeys(tickets)]


def _ask_each(sockets: list[str], op: str, timeout_s: float, arguments: dict[str, Any]) -> dict[str, Any]:
    """Ask one supervisor after the other, until one has the run."""
    for number, path in enumerate(sockets, start=1):
        try:
            answer: dict[str, Any] = ask(path, op, timeout_s=timeout_s, **arguments)
            return answer
        except NotFound:
            if number == len(sockets):
                raise
    raise AssertionError("there is always one to ask")


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A run of another host that shares the database: its supervisor is told by the flag."""

    run: Run


def _kill_elsewhere(access: Access, run: Run, op: str, timeout_s: float) -> dict[str, Any]:
    """Set the flag that its supervisor looks at every second, and wait until it has seen it dead."""
    if op != "kill":
        raise UsageError(f"{run.ticket} runs on {run.host}", hint=f"stop it there, or kill {run.ticket} here")
    access.store.set_flag(run.ticket)
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        found = access.store.run(run.run_id)
        if found is not None and found.ended_at is not None:
            access.store.clear_flag(run.ticket)
            return kill_result(found)
        time.sleep(_LOOK_EVERY_S)
    raise NotYetDead(
        f"{run.ticket} runs on {run.host}, which has not ended it yet; the flag stays set",
        hint=f"supervisorctl status {run.ticket}",
    )


def _where(access: Access, ticket: str) -> list[str] | dict[str, Any] | SupervisorError | Elsewhere:
    """The sockets to ask, or the answer that is known already, or the error it comes to.

    Without a database that can be read, whoever answers is asked.
    """
    queries = access.local
    if queries is None:
        return access.sockets() or [access.paths.control_socket]
    try:
        run = queries.find(ticket)
        if run.ended_at is not None:
            return {
                "ticket": ticket,
                "run_id": run.run_id,
                "dead": True,
                "elapsed_ms": 0.0,
                "survivors": 0,
                "stage": run.stage,
                "processes": 0,
                "reason": run.reason,
                "already": True,
            }
        if run.host != socket.gethostname():
            return Elsewhere(run)
        return [access.socket_of(run)]
    except NotFound as error:
        # Not a run of this user: perhaps one of root's daemon, whose group lets this user in.
        elsewhere = system_daemon(access.paths)
        return [elsewhere] if elsewhere else error
    except SupervisorError as error:
        return error


def _note_forced(access: Access, results: list[dict[str, Any]], reason: str) -> None:
    """Into the audit trail, after the fact: nothing may keep a kill waiting, its imports neither."""
    from supervisor.audit.records import Decision
    from supervisor.audit.trail import decision, note

    drafts = [
        decision(
            Decision.FORCE_KILLED,
            {"uid": os.getuid(), "note": reason, "dead": row["dead"], "processes": row.get("processes")},
            str(row.get("run_id", "")),
            row["ticket"],
        )
        for row in results
        if not row.get("already")
    ]
    try:
        if drafts:
            note(access.paths.audit, *drafts)
    except StateError as error:
        click.echo(f"{output.bad('warning:')} {error.message}", err=True)


def _attempt(ticket: str, one: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    try:
        return one(ticket)
    except SupervisorError as error:
        return {"ticket": ticket, "dead": False, "error": error}


def _report(results: list[dict[str, Any]], as_json: bool) -> None:
    """Print every result, then exit with the worst code among them."""
    errors = [row["error"] for row in results if "error" in row]
    if as_json:
        plain = [{**row, "error": row["error"].message} if "error" in row else row for row in results]
        output.print_json(plain)
    else:
        for row in results:
            if "error" not in row:
                output.say(_sentence(row))
        if not results:
            output.say("nothing is running")
    if len(errors) == 1 and not as_json:
        raise errors[0]
    if errors:
        if not as_json:
            for error in errors:
                click.echo(f"{output.bad('error:')} {error.message}", err=True)
        raise SystemExit(max(error.exit_code for error in errors))


def _sentence(row: dict[str, Any]) -> str:
    if row["already"]:
        return f"{output.accent(row['ticket'])}  had ended already ({row['reason']})"
    many = f"{row['processes']} processes gone" if row["processes"] else "ended"
    took = show_duration(row["elapsed_ms"] / 1000)
    spent = f" · {show_usd(row['spent_nanos'])} spent" if row.get("spent_nanos") else ""
    return f"{output.accent(row['ticket'])}  {row['reason']} · {many} in {took}, box observed empty{spent}"


@click.command()
@click.option("--project", default="", help="Only this project.")
@json_option
def pause(project: str, as_json: bool) -> None:
    """Let no new run start; what runs goes on (kill --all ends it)."""
    _set_paused(project, "true", as_json)


@click.command()
@click.argument("ticket", required=False, shell_complete=complete_any_ticket)
@click.option("--project", default="", help="Only this project.")
@json_option
def resume(ticket: str | None, project: str, as_json: bool) -> None:
    """Let runs start again; with TICKET clear that ticket's stop flag instead."""
    if ticket is None:
        _set_paused(project, "false", as_json)
        return
    with open_access() as access:
        if access.store.ticket(check_ticket(ticket)) is None:
            raise NotFound(f"no ticket {ticket} is known")
        cleared = access.store.clear_flag(ticket)
        _note("flag_cleared", access, {}, ticket)
    if as_json:
        output.print_json({"ticket": ticket, "cleared": cleared})
    else:
        output.say(f"{ticket}  {'stop flag cleared' if cleared else 'had no stop flag'}")
        _say_what_still_holds(access.paths, ticket)


def _note(what: str, access: Access, detail: dict[str, Any], ticket: str = "") -> None:
    """A decision of this user, who acts on the state without a supervisor."""
    from supervisor.audit.records import Decision
    from supervisor.audit.trail import decision, note

    note(access.paths.audit, decision(Decision(what), {**detail, "uid": os.getuid()}, ticket=ticket))


def _set_paused(project: str, value: str, as_json: bool) -> None:
    check_project(project)
    key = f"paused:{project}" if project else "paused"
    with open_access() as access:
        if access.local is not None:
            access.store.set_setting(key, value)
            if value == "false" and not project:
                access.store.set_setting(CLOCK_JUMP, "")
            _note("starts_paused" if value == "true" else "starts_resumed", access, {"project": project})
        elif daemon_answers(access.paths):
            ask(access.paths.control_socket, "pause" if value == "true" else "resume", project=project)
        else:
            raise UsageError(f"{access.paths.state} cannot be written by this user", hint="try with sudo")
    if as_json:
        output.print_json({key: value})
        return
    what = f"project {project}" if project else "everything"
    again = f"supervisorctl resume --project {project}" if project else "supervisorctl resume"
    if value == "true":
        output.say(f"{what} is paused: no new run starts ({again})")
        return
    output.say(f"{what} may start again")
    with open_access() as access:
        settings = access.store.settings() if access.local is not None else {}
        paths = access.paths
    for other in sorted(key for key, value in settings.items() if value == "true"):
        if other == "paused" and project:
            output.say("but everything is paused: supervisorctl resume")
        elif other.startswith("paused:") and not project:
            name = other.removeprefix("paused:")
            output.say(f"but project {name} is still paused: supervisorctl resume --project {name}")
    _say_what_still_holds(paths, "")


def _say_what_still_holds(paths: Paths, ticket: str) -> None:
    """Stop-files are the operator's: no command removes one."""
    for path in [paths.stop_everything, *([f"{paths.stop_folder}/{ticket}"] if ticket else [])]:
        if os.path.lexists(path):
            output.say(f"but a stop-file still holds it: rm {path}")
