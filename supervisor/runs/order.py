"""Owns what somebody asked to be run, and the names of the steps of its life.
May touch nothing.
Never changes once a run was made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from supervisor.events import Event
from supervisor.logs.book import LogLine
from supervisor.profile.load import Loaded
from supervisor.store.tickets import Claimed
from supervisor.workspace.tree import Tree


class Step(StrEnum):
    """The named points of a run's life; crash tests end the supervisor at each of them."""

    CREATED = "created"
    BOX_MADE = "box_made"
    ATTESTED = "attested"
    RELEASED = "released"
    STOP_WRITTEN = "stop_written"
    TERM_SENT = "term_sent"
    KILL_SENT = "kill_sent"
    EMPTY = "empty"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody asked to be run. caller_environment is only looked at for [env] pass.

    claim: the ticket was taken from the queue; the run ends when somebody else has it.
    """

    ticket: str
    loaded: Loaded
    tree: Tree
    argv: list[str]
    caller_environment: dict[str, str]
    secrets: dict[str, str]
    project: str = ""
    goal: str = ""
    claim: Claimed | None = None
    on_lines: Callable[[list[LogLine]], None] = lambda _: None
    on_event: Callable[[Event], None] = lambda _: None
