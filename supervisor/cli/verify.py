"""Owns the command that proves a profile: what it runs, what it shows, where the report is kept.
May touch the state folder's reports, the file it is told to write, and what a verification touches.
Never prints that something is proved which was not tried.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import click

from sandbox.probes.catalogue import CLASSES
from supervisor.cli import output
from supervisor.cli.access import complete_profile
from supervisor.cli.look import json_option
from supervisor.errors import UsageError
from supervisor.paths import locate, prepare
from supervisor.profile.load import load
from supervisor.profile.units import show_duration
from supervisor.verify import reports
from supervisor.verify.verify import ClaimState, Verification, to_data
from supervisor.verify.verify import verify as verify_profile

_DISPROVED = 3
_LABEL = 17
_TEXT_ROOM = 58
_MARKS = {ClaimState.PROVED: "✓", ClaimState.DISPROVED: "✗", ClaimState.NOT_TESTABLE: "–"}


@click.command()
@click.argument("reference", metavar="PROFILE", shell_complete=complete_profile)
@click.option("--out", type=click.Path(dir_okay=False), help="Write the signed report to this file too.")
@json_option
def verify(reference: str, out: str | None, as_json: bool) -> int:
    """Make the profile's box and try to get out of it, with witnesses outside.

    Every claim of `profile explain` ends as proved, disproved or not testable. The worktree is one of
    our own, with all that an agent likes to touch. The report is signed with a key of the state folder
    and kept there, where `profile score` finds it. Exit codes: 0 nothing was disproved and nothing got
    out, 3 something was, 64 the box could not be made.
    """
    loaded = load(reference)
    paths = prepare(locate())
    found = asyncio.run(verify_profile(loaded))
    data = to_data(found)
    report = reports.sign(paths, data)
    reports.keep(paths, report)
    if out is not None:
        reports.write(out, report)
    if as_json:
        output.print_json(data)
    else:
        _print(found)
    return _DISPROVED if found.escapes or found.count(ClaimState.DISPROVED) else 0


def _print(found: Verification) -> None:
    took = show_duration(found.duration_ms / 1000)
    tried = sum(result.tried for result in found.probes)
    output.say(
        f"{output.accent(found.profile)}  {tried} probes in {took} · Linux {found.kernel} · {found.host}"
    )
    counts = Counter(result.probe.kind for result in found.probes if result.tried)
    passed = Counter(result.probe.kind for result in found.probes if result.passed)
    for kind, text in CLASSES.items():
        good = passed[kind] == counts[kind]
        mark = output.GOOD if good else output.bad(output.BAD)
        output.say(f"  {mark} {kind:<4} {text:<34} {passed[kind]:>3} of {counts[kind]}")
    for result in found.probes:
        if result.tried and not result.passed:
            wanted = " or ".join(sorted(result.probe.safe))
            text = f"{result.probe.probe_id}  {result.probe.attempt}: {result.observed}, not {wanted}"
            output.say(output.bad(f"  {text}"))
    for name in found.witnesses:
        output.say(output.bad(f"  the witness {name} outside was reached"))
    group = ""
    for one in found.claims:
        label = one.claim.group if one.claim.group != group else ""
        group = one.claim.group
        mark = _MARKS[one.state]
        mark = output.bad(mark) if one.state is ClaimState.DISPROVED else mark
        text = f"{output.shorten(one.claim.text, _TEXT_ROOM):<{_TEXT_ROOM}}"
        output.say(f"{output.dim(label.ljust(_LABEL))}{mark} {text}  {output.dim(one.reason)}")
    states = [f"{found.count(state)} {state.replace('_', ' ')}" for state in ClaimState]
    output.say(f"result   {' · '.join(states)} · {found.escapes} escapes")


@click.command("check-report")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@json_option
def check_report(file: str, as_json: bool) -> int:
    """Check the signature of a report that this state folder's key has made."""
    report = reports.read(file)
    good = reports.is_genuine(locate(), report)
    data: dict[str, Any] = report["verification"]
    if as_json:
        output.print_json({"genuine": good, "profile": data["profile"], "digest": data["digest"]})
    elif good:
        output.say(f"{file}  genuine: {data['profile']} on {data['host']}, {data['escapes']} escapes")
    else:
        raise UsageError(f"{file} was altered, or signed with another key")
    return 0 if good else 1
