"""Owns the command that shows how known agent programs are pointed at the gateway.
May touch standard output.
Never changes anything: a profile's [agent] kind is what applies the settings.
"""

from __future__ import annotations

import json

import click
from click.shell_completion import CompletionItem

from supervisor.agents import KINDS, AgentKind, nearest, settings_for
from supervisor.cli import output
from supervisor.cli.look import json_option
from supervisor.errors import NotFound, UsageError

_PROFILE = """\
schema = 1
name = "{name}"
description = "{title} on a repository, with caps"
extends = "coding"

[limits]
usd = "2.00"
ticket_usd = "5.00"
iterations = 200
tokens = 5_000_000

[daily]
global_usd = "20"

[network]
mode = "gateway"

[gateway]
upstreams = {upstreams}
models = {models}

[agent]
kind = "{name}"
"""


def _complete(_: click.Context, __: click.Parameter, start: str) -> list[CompletionItem]:
    return [CompletionItem(name, help=kind.title) for name, kind in KINDS.items() if name.startswith(start)]


@click.command()
@click.argument("kind", required=False, shell_complete=_complete)
@click.option("--profile", "only_profile", is_flag=True, help="Only the profile, to be written to a file.")
@json_option
def agents(kind: str | None, only_profile: bool, as_json: bool) -> None:
    """Agent programs that are known, and what a profile with [agent] kind puts into their box.

    The settings point the program at the gateway on the box's loopback and silence its other traffic.
    """
    if kind is not None and kind not in KINDS:
        raise NotFound(f"no agent program is known as {kind!a}", hint=nearest(kind))
    if only_profile:
        if kind is None:
            raise UsageError("whose profile?", hint="supervisorctl agents claude-code --profile")
        output.say(_profile(KINDS[kind]).rstrip())
        return
    chosen = [KINDS[kind]] if kind else list(KINDS.values())
    if as_json:
        output.print_json([_as_data(one) for one in chosen])
    elif kind:
        _print_one(KINDS[kind])
    else:
        rows = [[one.name, one.speaks, one.title] for one in chosen]
        output.table([["KIND", "SPEAKS", "PROGRAM"], *rows])
        output.say(output.dim("supervisorctl agents KIND shows its settings and a profile for it"))


def _as_data(kind: AgentKind) -> dict[str, object]:
    made = settings_for(kind.name, [])
    return {
        "kind": kind.name,
        "title": kind.title,
        "speaks": kind.speaks,
        "start": kind.start,
        "environment": made.environment,
        "files": made.files,
        "note": kind.note,
        "profile": _profile(kind),
    }


def _profile(kind: AgentKind) -> str:
    upstreams, models = (json.dumps(names) for names in (kind.upstreams, kind.models))
    return _PROFILE.format(name=kind.name, title=kind.title, upstreams=upstreams, models=models)


def _print_one(kind: AgentKind) -> None:
    made = settings_for(kind.name, [])
    output.say(f"{output.accent(kind.name)}  {kind.title}")
    output.say(f"speaks    {kind.speaks}")
    output.say(f"start     {kind.start}")
    if kind.note:
        output.say(f"note      {kind.note}")
    for number, (name, value) in enumerate(made.environment.items()):
        output.say(f"{'variables' if number == 0 else '':<10}{name}={value}")
    for name, text in made.files.items():
        output.say(f"file      ~/{name}")
        for line in text.splitlines():
            output.say(output.dim(f"          {line}"))
    output.say("profile")
    for line in _profile(kind).splitlines():
        output.say(f"          {line}".rstrip())
