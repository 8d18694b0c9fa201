"""Owns the commands that judge profiles: lint, diff, score.
May touch profile files, git to read another revision of one, and standard output.
Never changes a profile.
"""

from __future__ import annotations

import os
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import click

from supervisor.cli import output
from supervisor.cli.access import complete_profile
from supervisor.cli.look import json_option
from supervisor.cli.profile_page import Judged
from supervisor.config import load_config
from supervisor.errors import UsageError
from supervisor.paths import locate
from supervisor.profile.compare import Change, Direction, compare, is_wider
from supervisor.profile.lint.model import REGISTRY, Finding, Outcome, Severity
from supervisor.profile.lint.run import host_facts
from supervisor.profile.lint.run import lint as lint_one
from supervisor.profile.load import Loaded, load, load_text, shipped
from supervisor.profile.score import GATES, Score
from supervisor.profile.score import score as score_of

_LEVELS = ("error", "warning", "note")
_GIT_TIMEOUT_S = 10.0


@click.command()
@click.argument("references", nargs=-1, metavar="PROFILE…", shell_complete=complete_profile)
@click.option(
    "--fail-on",
    type=click.Choice([*_LEVELS, "never"]),
    default="error",
    show_default=True,
    help="Exit with 1 at findings of this level or above.",
)
@click.option("--format", "form", type=click.Choice(["text", "json", "sarif"]), default="text")
@click.option("--host", is_flag=True, help="Also look at this host: files that are named, kernel settings.")
@click.option("--worktree", type=click.Path(exists=True, file_okay=False), help="Also look at this worktree.")
@click.option("--rules", "list_rules", is_flag=True, help="List the rules instead.")
@json_option
def lint(
    references: tuple[str, ...],
    fail_on: str,
    form: str,
    host: bool,
    worktree: str | None,
    list_rules: bool,
    as_json: bool,
) -> int:
    """Look for what a profile should not say, with every rule; all shipped profiles when none is named.

    Needs no root and no daemon. A finding that is accepted is waived in the profile itself, with a
    reason and a date: [[waive]] rule, reason, until. Exit codes: 0 clean, 1 findings at --fail-on or
    above, 2 a profile that cannot be used.
    """
    form = "json" if as_json else form
    if list_rules:
        _print_rules(form)
        return 0
    config, facts = load_config(), host_facts() if host else None
    outcomes = [
        lint_one(load(name), date.today(), config=config, host=facts, worktree=worktree)
        for name in references or shipped()
    ]
    if form == "sarif":
        from importlib import metadata

        from supervisor.profile.lint.sarif import to_sarif

        output.print_json(to_sarif(outcomes, metadata.version("sidecar-supervisor")))
    elif form == "json":
        output.print_json([_outcome_data(outcome) for outcome in outcomes])
    else:
        for outcome in outcomes:
            _print_outcome(outcome)
    worst = _LEVELS[: _LEVELS.index(fail_on) + 1] if fail_on != "never" else ()
    return int(any(finding.rule.severity.level in worst for outcome in outcomes for finding in outcome.open))


def _print_rules(form: str) -> None:
    if form != "text":
        output.print_json(
            [
                {
                    "id": rule.rule_id,
                    "severity": rule.severity,
                    "level": rule.severity.level,
                    "domain": rule.domain,
                    "title": rule.title,
                    "why": rule.why,
                    "fix": rule.fix,
                    "looks_at": rule.looks_at,
                }
                for rule in REGISTRY
            ]
        )
        return
    rows = [["RULE", "LEVEL", "LOOKS AT", "WHAT"]]
    rows += [[rule.rule_id, rule.severity.level, rule.looks_at, rule.title] for rule in REGISTRY]
    output.table(rows)


def _outcome_data(outcome: Outcome) -> dict[str, Any]:
    return {
        "profile": outcome.loaded.profile.name,
        "sources": outcome.loaded.sources,
        "digest": outcome.loaded.digest,
        "findings": [_finding_data(finding) for finding in outcome.findings],
        "passed": [rule.rule_id for rule in outcome.passed],
        "not_looked": [rule.rule_id for rule in outcome.not_looked],
    }


def _finding_data(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.rule.rule_id,
        "severity": finding.rule.severity,
        "level": finding.rule.severity.level,
        "message": finding.message,
        "key": finding.key,
        "file": finding.position.file,
        "line": finding.position.line,
        "why": finding.rule.why,
        "fix": finding.rule.fix,
        "waived": finding.waived or None,
        "fingerprint": finding.fingerprint,
    }


_WORST = list(Severity)


def _print_outcome(outcome: Outcome) -> None:
    output.say(output.accent(outcome.loaded.profile.name))
    # The worst first: what a reviewer has to decide is not to be looked for below notes.
    findings = sorted(
        outcome.findings, key=lambda found: (bool(found.waived), _WORST.index(found.rule.severity))
    )
    places = [_place(finding) for finding in findings]
    room = max((len(place) for place in places), default=0)
    for finding, place in zip(findings, places, strict=True):
        level = "waived" if finding.waived else finding.rule.severity.level
        text = f"{place:<{room}}  {level:<7}  {finding.rule.rule_id}  {finding.message}"
        output.say(output.bad(text) if level == "error" else text)
        rest = f"waived: {finding.waived}" if finding.waived else f"{finding.rule.why}; {finding.rule.fix}"
        output.say(output.dim(f"{'':<{room}}           {rest}"))
    output.say(_count(outcome))


def _place(finding: Finding) -> str:
    file = finding.position.file
    relative = os.path.relpath(file)
    return f"{Path(file).name if relative.startswith('..') else relative}:{finding.position.line}"


def _count(outcome: Outcome) -> str:
    counts = {level: sum(f.rule.severity.level == level for f in outcome.open) for level in _LEVELS}
    parts = [f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count]
    total = len(outcome.open)
    found = f"{total} finding{'s' if total != 1 else ''}" + (f" ({', '.join(parts)})" if parts else "")
    waived = len(outcome.findings) - total
    tail = f" · {waived} waived" if waived else ""
    looked = f" · {len(outcome.not_looked)} more with --host --worktree" if outcome.not_looked else ""
    return f"{found}{tail} · {len(outcome.passed)} rules passed{looked}"


@click.command()
@click.argument("first", metavar="A", shell_complete=complete_profile)
@click.argument("second", metavar="B", shell_complete=complete_profile)
@json_option
def diff(first: str, second: str, as_json: bool) -> int:
    """What B allows that A does not, and the other way round: power, not text.

    A profile is a shipped name, a file, or REVISION:PATH of the git repository here
    (profile diff main:profiles/coding.toml profiles/coding.toml). Exit codes: 0 B is not wider, 1 B is
    wider or cannot be compared.
    """
    before, after = _resolve(first), _resolve(second)
    changes = compare(before, after)
    wider = is_wider(changes)
    if as_json:
        rows = [_change_data(change) for change in changes]
        output.print_json({"wider": wider, "equal": not changes, "changes": rows})
        return int(wider)
    for change in changes:
        said = " → ".join(part or output.NONE for part in (change.before, change.after))
        text = f"{change.direction:<9} {change.key:<28} {change.text}: {said}"
        output.say(output.bad(text) if change.direction in (Direction.WIDER, Direction.OTHER) else text)
        output.say(output.dim(f"{'':<10}{change.where}"))
    if not changes:
        output.say("equal: both allow the same")
    elif not wider:
        output.say(f"{second} is not wider than {first}")
    else:
        output.say(output.bad(f"{second} is wider than {first}"))
    return int(wider)


def _change_data(change: Change) -> dict[str, Any]:
    return {
        "direction": change.direction,
        "key": change.key,
        "text": change.text,
        "before": change.before or None,
        "after": change.after or None,
        "file": change.where.file,
        "line": change.where.line,
    }


def _resolve(reference: str) -> Loaded:
    """A name or a file; what is neither and has a colon is REVISION:PATH."""
    revision, colon, path = reference.partition(":")
    if not colon or os.path.exists(reference) or not path.endswith(".toml"):
        return load(reference)
    # cat-file runs no filter and no program that the repository names; fsmonitor is the one left.
    command = ["git", "-c", "core.fsmonitor=", "cat-file", "blob", f"{revision}:./{path.removeprefix('./')}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise UsageError(
            f"git cannot show {reference}: {said[-1] if said else error}",
            hint="REVISION:PATH, from this folder",
        ) from None
    return load_text(reference, done.stdout, Path(path).resolve().parent)


@click.command()
@click.argument("reference", metavar="PROFILE", shell_complete=complete_profile)
@click.option("--host", is_flag=True, help="Count this host's settings too.")
@json_option
def score(reference: str, host: bool, as_json: bool) -> None:
    """Two numbers: posture, from the findings of lint, and assurance, from what probes have proved.

    Posture starts at 100; each finding takes a share of what is left of its domain. One open critical
    finding holds it at 39, one high finding at 74, whatever else is good. Assurance is the share
    that the last `profile verify` of this very profile on this host has proved, of the claims that a probe
    can try.
    """
    loaded = load(reference)
    judged = judge(loaded, host=host)
    found = judged.score
    if as_json:
        output.print_json(_score_data(loaded, found))
        return
    output.say(f"{output.accent(loaded.profile.name)}  {found.grade}")
    output.say(f"posture   {found.posture:>3} of 100  {output.bar(found.posture / 100)}")
    if found.gate is not None:
        output.say(
            output.bad(f"          at most {dict(GATES)[found.gate]} while a {found.gate} finding is open")
        )
    if found.posture_raw != found.posture:
        output.say(f"          {found.posture_raw} without its waivers")
    output.say(f"assurance {judged.assurance}")
    for number, gain in enumerate(found.improvements):
        label = "cheapest  " if number == 0 else " " * 10
        points = f"+{gain.points}" if gain.points else " 0"
        finding = gain.finding
        output.say(f"{label}{points:>3}  {finding.rule.rule_id}  {_place(finding)}  {finding.rule.fix}")


def judge(loaded: Loaded, *, host: bool = False) -> Judged:
    """One judgement for `score` and for the page of `explain`."""
    outcome = lint_one(loaded, date.today(), config=load_config(), host=host_facts() if host else None)
    verified = _verified(loaded.digest)
    found = score_of(outcome, **{name: verified[name] for name in ("proved", "provable", "disproved")})
    unknown = "not verified yet: the ? behind the grade goes with `supervisorctl profile verify`"
    return Judged(outcome, found, unknown if found.assurance is None else _assured(verified))


def _verified(digest: str) -> dict[str, int]:
    """What the last verification of this very profile has counted; zeros without one."""
    from supervisor.verify.reports import latest

    report = latest(locate(), digest) if os.path.isdir(locate().state) else None
    states = [claim["state"] for claim in report["claims"]] if report else []
    proved, disproved = states.count("proved"), states.count("disproved")
    return {
        "proved": proved,
        "provable": proved + disproved,
        "disproved": disproved,
        "not_testable": states.count("not_testable"),
    }


def _assured(verified: dict[str, int]) -> str:
    said = f"{verified['proved']} of {verified['provable']} claims that can be tried are proved"
    left = verified["not_testable"]
    return f"{said} · {left} are held outside of the box, where no probe comes" if left else said


def _score_data(loaded: Loaded, found: Score) -> dict[str, Any]:
    return {
        "profile": loaded.profile.name,
        "digest": loaded.digest,
        "grade": found.grade,
        "posture": found.posture,
        "posture_raw": found.posture_raw,
        "gate": found.gate,
        "assurance": found.assurance,
        "disproved": found.disproved,
        "improvements": [
            {"points": gain.points, **_finding_data(gain.finding)} for gain in found.improvements
        ],
    }
