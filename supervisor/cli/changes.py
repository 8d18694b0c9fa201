"""Owns the commands about a run's overlay: diff, apply, discard.
May touch the overlay, and by apply the worktree, as root or as its owner.
Never applies what was not vetted, and says what it refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from supervisor.cli import output
from supervisor.cli.access import Access, complete_any_ticket, open_access
from supervisor.cli.look import json_option
from supervisor.clock import SystemClock, parse_rfc3339, rfc3339
from supervisor.errors import NotFound, StateError, UsageError
from supervisor.events import Event, EventKind
from supervisor.identifiers import check_ticket
from supervisor.profile.units import show_size
from supervisor.store.records import Run
from supervisor.workspace.apply import Vetted, keep_refused, vetted_changes
from supervisor.workspace.apply import apply as write_changes
from supervisor.workspace.apply import discard as remove_overlay
from supervisor.workspace.overlay import Change, Trees, open_beneath

_MARK = {"added": "+", "modified": "~", "deleted": "−"}
_MAX_DIFF_BYTES = 1 << 20


@click.command()
@click.argument("ticket", shell_complete=complete_any_ticket)
@click.option("--stat", "only_names", is_flag=True, help="Names only, without the contents.")
@json_option
def diff(ticket: str, only_names: bool, as_json: bool) -> None:
    """What a run changed, and what of it would be refused. The worktree itself is as it was."""
    with _vetted(ticket) as (_, _access, trees, vetted):
        if as_json:
            output.print_json(_as_json(vetted))
            return
        if not vetted.accepted and not vetted.refused:
            output.say(f"{ticket} changed nothing")
            return
        for change in vetted.accepted:
            output.say(output.visible(_line(change), always=True))
            if not only_names and change.what == "file":
                _print_text_diff(trees, change)
        _print_refused(vetted, None if only_names else trees)
        words = ["apply", "discard"] if vetted.accepted else ["discard"]
        output.say(output.dim("next      " + " · ".join(f"supervisorctl {word} {ticket}" for word in words)))


@click.command()
@click.argument("ticket", shell_complete=complete_any_ticket)
@json_option
def apply(ticket: str, as_json: bool) -> int:
    """Carry a run's changes over to its worktree. Protected paths and escaping links are refused.

    What is refused is kept, to be looked at with `diff`, until `discard`. Exit code 1 when something was
    refused because the host changed it since the run began, else 0.
    """
    outcome = apply_changes(ticket, quiet=as_json)
    if as_json:
        output.print_json(outcome)
    return 1 if outcome["conflicts"] else 0


@click.command()
@click.argument("ticket", shell_complete=complete_any_ticket)
@json_option
def discard(ticket: str, as_json: bool) -> None:
    """Throw away what a run changed; its record and log stay."""
    with open_access() as access:
        run = _ended(access, ticket)
        remove_overlay(run.overlay)
        _record(access, run, "discarded", {"discarded": True})
    if as_json:
        output.print_json({"ticket": ticket, "discarded": True})
    else:
        output.say(f"{output.accent(ticket)}  changes discarded")


def apply_changes(ticket: str, *, quiet: bool) -> dict[str, Any]:
    """Vet, write, tell; the outcome as JSON shapes."""
    with _vetted(ticket) as (run, access, trees, vetted):
        owner = os.stat(run.worktree)
        written = write_changes(trees, vetted.accepted, owner.st_uid, owner.st_gid)
        outcome = {"ticket": ticket, "written": written, **_as_json(vetted)}
        outcome["conflicts"] = sum(refusal.conflicts for refusal in vetted.refused)
        if vetted.refused:
            keep_refused(run.overlay, vetted)
        word = "partly applied" if vetted.refused else "applied"
        _record(access, run, word, {"written": written, "refused": outcome["refused"][:100]})
        if not quiet:
            _say_applied(run, written, vetted)
    if not vetted.refused:
        remove_overlay(run.overlay)
    return outcome


def _say_applied(run: Run, written: int, vetted: Vetted) -> None:
    if not written and not vetted.refused:
        output.say(f"{output.accent(run.ticket)}  changed nothing")
        return
    all_of_it = written + len(vetted.refused)
    count = f"{written} of {all_of_it}" if vetted.refused else str(written)
    many = f"{count} change" if all_of_it == 1 else f"{count} changes"
    output.say(f"{output.accent(run.ticket)}  {many} applied to {run.worktree}")
    _print_refused(vetted, None)
    if vetted.refused:
        kept = f"kept in {run.overlay}/upper until supervisorctl discard {run.ticket}"
        output.say(output.dim(f"refused   {kept} · supervisorctl diff {run.ticket}"))


@contextmanager
def _vetted(ticket: str) -> Iterator[tuple[Run, Access, Trees, Vetted]]:
    with open_access() as access:
        run = _ended(access, ticket)
        started_ns = int(parse_rfc3339(run.created_at).timestamp() * 1e9)
        protect = _protect_of(run)
        trees, vetted = vetted_changes(run.overlay, run.worktree, protect, started_ns)
        try:
            yield run, access, trees, vetted
        finally:
            trees.close()


def _protect_of(run: Run) -> list[str]:
    """The patterns that were in force, from the run's own record, not from a profile edited since."""
    if run.attestation is None:
        raise UsageError(f"{run.ticket} was never started, so it changed nothing")
    return list(run.attestation["protect"])


def _ended(access: Access, ticket: str) -> Run:
    run = access.store.latest_run(check_ticket(ticket))
    if run is None:
        raise NotFound(f"no ticket {ticket} has ever run here", hint="supervisorctl ps -a")
    if run.ended_at is None:
        raise UsageError(f"{ticket} is still running", hint=f"supervisorctl stop {ticket}")
    if run.overlay and os.path.realpath(run.overlay) != os.path.realpath(access.paths.run_folder(run.run_id)):
        raise StateError(
            f"the row of {ticket} names {run.overlay!a} as its overlay, which is not in this state",
            hint="use the state folder and the host of that run; or somebody has changed the database",
        )
    if not run.overlay:
        raise UsageError(f"{ticket} worked in its worktree directly; there is nothing to carry over")
    if run.applied in ("applied", "discarded"):
        raise UsageError(f"the changes of {ticket} were {run.applied} already")
    return run


def _record(access: Access, run: Run, word: str, detail: dict[str, Any]) -> None:
    from supervisor.audit.records import Decision
    from supervisor.audit.trail import decision, note

    what = Decision.CHANGES_DISCARDED if word == "discarded" else Decision.CHANGES_APPLIED
    note(access.paths.audit, decision(what, {**detail, "uid": os.getuid()}, run.run_id, run.ticket))
    at = rfc3339(SystemClock().utc())
    event = Event(at=at, run_id=run.run_id, ticket=run.ticket, kind=EventKind.WORKTREE_APPLIED, detail=detail)
    access.store.update_run(msgspec.structs.replace(run, applied=word), event)


def _as_json(vetted: Vetted) -> dict[str, Any]:
    changes = [
        {"path": _text_of(c.path), "how": c.how, "what": c.what, "size": c.size, "mode": f"{c.mode:o}"}
        for c in vetted.accepted
    ]
    refused = [{"path": _text_of(r.path), "why": _text_of(r.why)} for r in vetted.refused]
    return {"changes": changes, "refused": refused, "look_at": [_text_of(path) for path in vetted.look_at]}


def _text_of(path: str) -> str:
    """A name that is no UTF-8 is none in JSON or the database either: its bytes as \\xff."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def _line(change: Change) -> str:
    tail = "/" if change.what == "folder" else f" -> {change.link}" if change.what == "symlink" else ""
    size = f"  {show_size(change.size)}" if change.what == "file" and change.how != "deleted" else ""
    return f"{_MARK[change.how]} {change.path}{tail}{size}"


def _print_refused(vetted: Vetted, trees: Trees | None) -> None:
    """trees: to show what is refused as well."""
    for refusal in vetted.refused:
        output.say(output.bad(f"refused   {output.visible(refusal.path, always=True)}: {refusal.why}"))
        if trees is not None and refusal.change.what == "file":
            _print_text_diff(trees, refusal.change)
    if vetted.look_at:
        names = ", ".join(output.visible(name, always=True) for name in vetted.look_at[:10])
        output.say(f"look at   {names} (programs on this host obey these)")


def _print_text_diff(trees: Trees, change: Change) -> None:
    import difflib

    if change.how == "deleted":
        return
    in_upper, path = change.source
    new = _text(trees.upper if in_upper else trees.lower, path)
    old = [] if change.how == "added" else _text(trees.lower, change.path)
    if new is None or old is None:
        return
    for line in list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]:
        shown = output.visible(line, always=True)
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        output.say("    " + (click.style(shown, fg=colour) if colour else shown))


def _text(root: int, path: str) -> list[str] | None:
    """The lines of a file, or None when it is large, binary, or gone."""
    try:
        fd = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    with open(fd, "rb") as file:
        raw = file.read(_MAX_DIFF_BYTES + 1)
    if len(raw) > _MAX_DIFF_BYTES or b"\0" in raw:
        return None
    return raw.decode("utf-8", errors="replace").splitlines()
