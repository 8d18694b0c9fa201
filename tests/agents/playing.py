"""Owns the one check that every agent program is held to, and what a cap does to it.
May touch the stand's runs.
Never believes what a program says of itself: the file, the upstream and the ledger are looked at.
"""

from __future__ import annotations

import subprocess

from agent_stand import INPUT_NANOS, OUTPUT_NANOS, AgentStand, Ended, command
from plays import RIGHT, TASK, WRONG, Play

from supervisor.agents import PLACEHOLDER_KEY
from supervisor.runs.reasons import StopReason

_MOST_CALLS = "iterations = 12\n"
"""So that a play that never ends does."""


def fresh(agents: AgentStand) -> None:
    """A worktree that has the mistake, in a repository without a commit."""
    agents.put("greet.py", WRONG)
    if not (agents.place.tree / ".git").exists():
        subprocess.run(["git", "init", "-q", agents.place.tree], check=True)
        subprocess.run(["chown", "-R", "--reference=.", ".git"], cwd=agents.place.tree, check=True)


def run(agents: AgentStand, play: Play, limits: str = _MOST_CALLS) -> Ended:
    fresh(agents)
    profile = agents.profile(play.kind, more=f"[limits]\n{limits}{play.gateway}")
    return agents.run(command(play.kind, play.model, TASK), profile, apply=True)


def completes_a_task(agents: AgentStand, play: Play) -> None:
    """It edits the file by its own tools; every call is charged as reported; it asks nobody else."""
    book = play.book()
    agents.play(book)
    ended = run(agents, play)
    assert ended.run.reason is StopReason.DONE, ended.all()
    assert (agents.place.tree / "greet.py").read_text() == RIGHT, ended.all()
    assert len(book.reported) == len(play.turns) + play.asides, ended.all()
    assert play.tools() <= set().union(*book.tools), book.tools
    cost = book.cost(INPUT_NANOS, OUTPUT_NANOS)
    assert ended.run.totals["spent_nanos"] == cost > 0
    assert ended.run.totals["calls"] == len(book.reported)
    assert {call["usage_source"] for call in ended.calls()} == {"provider"}
    assert ended.run.totals["calls_refused"] == 0, ended.events
    assert PLACEHOLDER_KEY not in repr(agents.upstream.asked)
    assert ended.names <= play.looks_up, ended.names
    assert ended.unreachable == 0


def ends_at_its_cap(agents: AgentStand, play: Play) -> None:
    """The second call does not fit: it never leaves, and the run ends whatever the program does then."""
    book = play.book()
    book.first_input = 133_000
    agents.play(book)
    ended = run(agents, play, 'usd = "0.40"\nstop_grace = "2s"\n')
    assert (ended.run.reason, ended.run.reason_by) == (StopReason.MAX_COST, "limit"), ended.all()
    assert len(agents.upstream.asked) == 1, ended.all()
    assert ended.run.totals["calls_refused"] >= 1
    assert ended.run.totals["spent_nanos"] == book.cost(INPUT_NANOS, OUTPUT_NANOS) <= 400_000_000


def is_heard_without_our_settings(agents: AgentStand, play: Play) -> None:
    """Control: with what silences it undone, the same program looks up names, and that is seen."""
    agents.play(play.book())
    fresh(agents)
    words, variables = play.undo
    listed = ", ".join(f'{name} = "{value}"' for name, value in variables.items())
    more = f"[limits]\n{_MOST_CALLS}[env]\nset = {{ {listed} }}\n"
    first, subcommand, *rest = command(play.kind, play.model, TASK)
    ended = agents.run([first, subcommand, *words, *rest], agents.profile(play.kind, more=more))
    assert ended.run.reason is StopReason.DONE, ended.all()
    assert play.loud <= ended.names, ended.names
