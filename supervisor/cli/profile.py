"""Owns the profile commands: list, explain.
May touch profile files, read-only.
Never judges a profile.
"""

from __future__ import annotations

import click
import msgspec

from sandbox.client import Capabilities
from supervisor.cli import output
from supervisor.cli.access import complete_profile
from supervisor.cli.lazy import LazyCommands
from supervisor.cli.look import json_option
from supervisor.limits.money import show_usd
from supervisor.profile.load import load, shipped
from supervisor.profile.schema import Profile
from supervisor.runs import boxing


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
@json_option
def explain(reference: str, worktree: str, show_plan: bool, as_json: bool) -> None:
    """What an agent may see, write and use under a profile; with --plan the steps that make it so."""
    loaded = load(reference)
    kept = loaded.profile
    if as_json:
        output.print_json(
            {"digest": loaded.digest, "sources": loaded.sources, "profile": msgspec.to_builtins(kept)}
        )
        return
    files, limits = kept.files, kept.limits
    overlay = files.worktree == "overlay"
    rows = [
        ["may read", " ".join(["/usr", "parts of /etc", *files.read]) + " (read-only) and the worktree"],
        [
            "may write",
            f"the worktree ({'overlay: applied later, vetted' if overlay else 'directly'}), /tmp, home",
        ],
        ["never", " ".join([*files.protect, *(f"(hidden) {p}" for p in files.hide)])],
        ["may run", f"programs in /usr{_in_worktree(files.executable)}"],
        ["may reach", _reach(kept)],
        ["may spend", _spend(kept)],
        ["may use", output.limits_text(msgspec.structs.asdict(limits))],
        ["requires", " ".join(sorted(map(str, boxing.required_controls(kept))))],
        ["from", " ← ".join(loaded.sources)],
    ]
    for name, text in rows:
        output.say(f"{output.dim(name.ljust(10))}{text}")
    if show_plan:
        _print_plan(reference, worktree)


def _reach(kept: Profile) -> str:
    if kept.network.mode == "none":
        return "nothing: a loopback of its own"
    models, upstreams = " ".join(kept.gateway.models), " ".join(kept.gateway.upstreams)
    return f"nothing; models {models} of {upstreams} through the gateway on its loopback"


def _spend(kept: Profile) -> str:
    """Money alone; calls and tokens stand with the other limits."""
    if kept.network.mode == "none":
        return "nothing through us; what its own log says is counted, and marked as self-reported"
    limits, daily = kept.limits, kept.daily
    amounts = (
        ("a run", limits.usd_nanos),
        ("a ticket", limits.ticket_usd_nanos),
        ("a project and day", daily.project_nanos),
        ("a day in all", daily.global_nanos),
    )
    parts = [f"{show_usd(nanos)} {whose}" for whose, nanos in amounts if nanos is not None]
    return " · ".join(parts) or "without a limit of this profile; the configuration may have daily caps"


def _in_worktree(executable: bool) -> str:
    return ", and files in the worktree" if executable else "; no file of the worktree directly"


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
