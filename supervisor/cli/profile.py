"""Owns the profile commands: list, explain.
May touch profile files, read-only.
Never judges a profile.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from sandbox.client import Capabilities
from supervisor.cli import output
from supervisor.cli.access import complete_profile
from supervisor.cli.lazy import LazyCommands
from supervisor.cli.look import json_option
from supervisor.profile.claims import Claim, claims_of
from supervisor.profile.load import load, shipped
from supervisor.runs import boxing

_LABEL = 17
_TEXT_ROOM = 62


@click.group(cls=LazyCommands)
def profile() -> None:
    """Look at profiles: what they allow, what is wrong with them, what changed, what is proved."""


@profile.command("list")
@json_option
def list_(as_json: bool) -> None:
    """The shipped profiles."""
    rows = [[name, load(name).profile.description] for name in shipped()]
    if as_json:
        output.print_json([{"name": name, "description": text} for name, text in rows])
    else:
        output.table([["PROFILE", "WHAT FOR"], *rows])


@profile.command()
@click.argument("reference", metavar="PROFILE", shell_complete=complete_profile)
@click.option("--worktree", default=".", help="The folder to plan for.")
@click.option("--plan", "show_plan", is_flag=True, help="Also the mount steps, as they will be carried out.")
@click.option(
    "--html", "html", type=click.Path(dir_okay=False), help="Write one self-contained page instead."
)
@json_option
def explain(reference: str, worktree: str, show_plan: bool, html: str | None, as_json: bool) -> None:
    """What an agent may see, write, run, reach and spend, and which line of which file says so.

    With --plan also the very steps that make it so; with --html one page for a reviewer, findings of
    lint included.
    """
    loaded = load(reference)
    claims = claims_of(loaded)
    if html is not None:
        from supervisor.cli.profile_audit import judge
        from supervisor.cli.profile_page import write_page

        write_page(html, loaded, claims, judge(loaded))
        if not as_json:
            output.say(f"{html}  written")
            return
    if as_json:
        output.print_json(
            {
                "digest": loaded.digest,
                "sources": loaded.sources,
                "claims": [_claim_data(claim) for claim in claims],
                "profile": msgspec.to_builtins(loaded.profile),
            }
        )
        return
    group = ""
    for claim in claims:
        label = claim.group if claim.group != group else ""
        group = claim.group
        where = _short_where(claim)
        if len(claim.text) <= _TEXT_ROOM:
            output.say(
                f"{output.dim(label.ljust(_LABEL))}{claim.text.ljust(_TEXT_ROOM)}  {output.dim(where)}"
            )
        else:
            output.say(f"{output.dim(label.ljust(_LABEL))}{claim.text}")
            output.say(output.dim(f"{'':<{_LABEL + _TEXT_ROOM + 2}}{where}"))
    if show_plan:
        _print_plan(reference, worktree)


def _claim_data(claim: Claim) -> dict[str, object]:
    return {
        "id": claim.claim_id,
        "group": claim.group,
        "text": claim.text,
        "origins": [{"file": place.file, "line": place.line} for place in claim.origins],
    }


def _short_where(claim: Claim) -> str:
    return ", ".join(f"{Path(place.file).name}:{place.line}" for place in claim.origins) or claim.otherwise


def _print_plan(reference: str, worktree: str) -> None:
    """For a host that can arm everything: what it cannot, the run itself refuses."""
    from sandbox.syscalls import landlock_abi
    from supervisor.workspace.tree import inspect

    every = dict.fromkeys(("memory", "pids", "cpu"), "")
    host = Capabilities(True, max(landlock_abi(), 1), "", every, "", 0)
    loaded = load(reference)
    overlay = "OVERLAY" if loaded.profile.files.worktree == "overlay" else None
    made = boxing.plan(
        loaded.profile,
        inspect(worktree),
        host,
        run_id="RUN",
        namespace_key="STATE",
        worker_id="SUPERVISOR",
        overlay_folder=overlay,
    )
    output.say()
    for number, step in enumerate((*made.spec.base.steps, *made.spec.steps), start=1):
        output.say(f"{number:>3}  {output.visible(step.describe(), always=True)}")
