"""Owns the page that `profile explain --html` writes: one file that a reviewer can attach to a ticket.
May touch the file it is told to write.
Never loads anything: no script, no font, no picture from elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from html import escape
from itertools import groupby
from pathlib import Path

from supervisor.errors import UsageError
from supervisor.profile.claims import Claim
from supervisor.profile.credentials import looks_like_one
from supervisor.profile.lint.model import Finding, Outcome
from supervisor.profile.load import Loaded
from supervisor.profile.score import Score

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; --bad: #b3261e; --accent: #0b7285; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0; }
td, th { border-top: 1px solid var(--line); }
th { font-weight: 600; white-space: nowrap; } th.group { width: 9rem; }
td.where, .dim { color: var(--dim); font-size: .85rem; } td.where { width: 14rem; overflow-wrap: anywhere; }
.never { color: var(--accent); } .error { color: var(--bad); font-weight: 600; }
code, pre { font: .9rem/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid var(--line); counter-reset: line; }
pre span { display: block; } pre span:target { background: #ffd54f66; }
pre span::before { counter-increment: line; content: counter(line); display: inline-block; width: 3rem;
  color: var(--dim); }
.numbers { display: flex; gap: 2rem; } .numbers b { font-size: 1.6rem; display: block; }
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """What lint and score say, the same as their commands; assurance as a sentence."""

    outcome: Outcome
    score: Score
    assurance: str


def write_page(path: str, loaded: Loaded, claims: list[Claim], judged: Judged) -> None:
    """Raises UsageError when the file cannot be written."""
    try:
        Path(path).write_text(page(loaded, claims, date.today(), judged), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def page(loaded: Loaded, claims: list[Claim], today: date, judged: Judged) -> str:
    """The whole document; every text in it is escaped, since profiles come from anywhere."""
    outcome = judged.outcome
    name = escape(loaded.profile.name)
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>profile {name}</title><style>{_STYLE}</style>",
        f"<h1>{name}</h1><p>{escape(loaded.profile.description)}</p>",
        f'<p class="dim">effective policy · digest <code>{loaded.digest}</code> · written {today}</p>',
        _numbers(outcome, judged.score),
        f'<p class="dim">{escape(judged.assurance)}</p>',
        "<h2>What an agent may do</h2>",
        _claims(claims),
        "<h2>Findings</h2>",
        _findings(outcome),
        "<h2>Where it is written</h2>",
        *(_source(source, loaded) for source in loaded.sources),
        "</html>",
    ]
    return _linked("\n".join(parts), loaded)


def _numbers(outcome: Outcome, found: Score) -> str:
    errors = sum(finding.rule.severity.level == "error" for finding in outcome.open)
    numbers = [
        (found.grade, "grade"),
        (f"{found.posture} of 100", "posture"),
        (str(errors), "errors"),
        (str(len(outcome.open)), "findings"),
        (str(len(outcome.passed)), "rules passed"),
    ]
    cells = "".join(f"<div><b>{escape(value)}</b>{escape(label)}</div>" for value, label in numbers)
    return f'<div class="numbers">{cells}</div>'


def _claims(claims: list[Claim]) -> str:
    rows = []
    for group, members in groupby(claims, key=lambda claim: claim.group):
        for number, claim in enumerate(members):
            label = escape(group) if number == 0 else ""
            style = ' class="never"' if group == "never" else ""
            where = _where(claim)
            rows.append(
                f'<tr><th class="group">{label}</th><td{style}>{escape(claim.text)}</td>'
                f'<td class="where">{where}</td></tr>'
            )
    return f"<table>{''.join(rows)}</table>"


def _where(claim: Claim) -> str:
    if not claim.origins:
        return escape(claim.otherwise)
    return ", ".join(
        f'<a href="#{_anchor(place.file, place.line)}">{escape(Path(place.file).name)}:{place.line}</a>'
        for place in claim.origins
    )


def _findings(outcome: Outcome) -> str:
    if not outcome.findings:
        return "<p>None.</p>"
    return f"<table>{''.join(map(_finding, outcome.findings))}</table>"


def _finding(finding: Finding) -> str:
    level = "waived" if finding.waived else finding.rule.severity.level
    about = f"{finding.rule.why}. {finding.rule.fix}."
    about += f" Waived: {finding.waived}." if finding.waived else ""
    said = f'<p>{escape(finding.message)}</p><p class="dim">{escape(about)}'
    place = finding.position
    link = f'<a href="#{_anchor(place.file, place.line)}">{escape(Path(place.file).name)}:{place.line}</a>'
    style = ' class="error"' if level == "error" else ""
    return (
        f"<tr><th>{finding.rule.rule_id}</th><td{style}>{level}</td><td>{said}</p></td>"
        f'<td class="where">{link}</td></tr>'
    )


def _source(source: str, loaded: Loaded) -> str:
    """The file as it is, a line each, so that every sentence can be followed to its line.

    But for credentials, which do not belong into a page that is handed on.
    """
    try:
        text = Path(source).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"<p>{escape(source)} (not a file here)</p>"
    for value in loaded.profile.env.set.values():
        if looks_like_one(value):
            text = text.replace(value, "…")
    lines = "".join(
        f'<span id="{_anchor(source, line)}">{escape(content) or " "}</span>'
        for line, content in enumerate(text.splitlines(), start=1)
    )
    return f"<h3>{escape(source)}</h3><pre>{lines}</pre>"


def _anchor(file: str, line: int) -> str:
    """Replaced by a number of the file: a path is no name for an anchor."""
    return f"\0{escape(file)}\0{line}"


def _linked(text: str, loaded: Loaded) -> str:
    for number, source in enumerate(loaded.sources):
        text = text.replace(f"\0{escape(source)}\0", f"f{number}-")
    return text
