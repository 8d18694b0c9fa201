"""Owns the commands of the queue: add, list, requeue, remove.
May touch the queue in the state's database, and standard output.
Never runs anything: a worker does.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from supervisor.cli import output
from supervisor.cli.access import open_access
from supervisor.cli.look import json_option
from supervisor.clock import rfc3339
from supervisor.identifiers import check_project, check_ticket
from supervisor.store.records import Ticket, TicketState

MOST = (1 << 31) - 1
"""Either database can hold it."""
_COLUMNS = ["PROJECT", "LAST END", "RUNS", "SINCE", "GOAL"]
_STATES = [str(state) for state in TicketState]


@click.group()
def tickets() -> None:
    """The queue: tickets wait here until a worker claims them (supervisorctl work)."""


@tickets.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY…")
@click.option("--goal", default="", help="What is to be done; {goal} in the worker's command.")
@click.option("--project", default="", help="Whose budget it is, and what it is paused with.")
@click.option(
    "--priority",
    default=0,
    type=click.IntRange(-MOST, MOST),
    help="The highest is claimed first; 0 if left out.",
)
@json_option
def add(keys: tuple[str, ...], goal: str, project: str, priority: int, as_json: bool) -> None:
    """Put tickets into the queue."""
    at = rfc3339(datetime.now(UTC))
    wanted = [check_ticket(key) for key in dict.fromkeys(keys)]
    with open_access() as access:
        queue = access.store.tickets
        made = [queue.add(key, project=project, goal=goal, priority=priority, at=at) for key in wanted]
    if as_json:
        output.print_json([_as_data(ticket) for ticket in made])
        return
    for ticket in made:
        output.say(f"{output.accent(ticket.key)}  open")
    output.say(output.dim("next      supervisorctl work --profile P -- CMD…"))


@tickets.command("list")
@click.option("--state", type=click.Choice(_STATES), help="Only these.")
@click.option("--project", default=None, help="Only of this project.")
@json_option
def list_(state: str | None, project: str | None, as_json: bool) -> None:
    """Tickets, in the order in which they would be claimed; those that have ended come last."""
    if project is not None:
        check_project(project)
    with open_access() as access:
        found = access.store.tickets.listed(state=state or "", project=project)
    found.sort(key=lambda ticket: ticket.state is TicketState.ENDED)
    if as_json:
        output.print_json([_as_data(ticket) for ticket in found])
        return
    if not found:
        such = f" {state}" if state else ""
        of = f" of project {project}" if project else ""
        more = "supervisorctl tickets list" if such or of else "supervisorctl tickets add KEY --goal …"
        output.say(f"no{such} tickets{of} · {more}")
        return
    ranked = any(ticket.priority for ticket in found)
    rows = [["TICKET", "STATE", *(["PRIORITY"] if ranked else []), *_COLUMNS]]
    rows += [
        [
            ticket.key,
            _state(ticket),
            *([str(ticket.priority)] if ranked else []),
            output.visible(ticket.project, always=True) or output.NONE,
            ticket.stop_reason or output.NONE,
            str(ticket.attempts),
            output.ago(ticket.created_at or ticket.updated_at),
            output.visible(ticket.goal, always=True),
        ]
        for ticket in found
    ]
    output.table(rows, right=frozenset({2, 5} if ranked else {4}))


def _state(ticket: Ticket) -> str:
    return f"{ticket.state} (stop requested)" if ticket.stop_requested else str(ticket.state)


@tickets.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY…")
@json_option
def requeue(keys: tuple[str, ...], as_json: bool) -> None:
    """Let tickets that have ended, or that need a review, run again."""
    at = rfc3339(datetime.now(UTC))
    with open_access() as access:
        queue = access.store.tickets
        made = [queue.requeue(check_ticket(key), at) for key in dict.fromkeys(keys)]
    if as_json:
        output.print_json([_as_data(ticket) for ticket in made])
        return
    for ticket in made:
        output.say(f"{output.accent(ticket.key)}  open again")


@tickets.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY…")
@json_option
def remove(keys: tuple[str, ...], as_json: bool) -> None:
    """Take tickets out of the queue that have never run."""
    with open_access() as access:
        queue = access.store.tickets
        gone = [queue.remove(check_ticket(key)) for key in dict.fromkeys(keys)]
    if as_json:
        output.print_json([_as_data(ticket) for ticket in gone])
        return
    for ticket in gone:
        output.say(f"{output.accent(ticket.key)}  taken out of the queue")


def _as_data(ticket: Ticket) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(ticket)
    return data
