"""Owns the commands that only look: ps, status, logs, events.
May touch what Access reaches, and standard output.
Never changes anything.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from supervisor.cli import output
from supervisor.cli.access import Access, complete_any_ticket, open_access
from supervisor.cli.event_text import sentence
from supervisor.cli.money_text import used
from supervisor.clock import parse_rfc3339
from supervisor.identifiers import check_ticket
from supervisor.profile.units import show_duration, show_size
from supervisor.runs.reasons import MEANING, StopReason

_FOLLOW_EVERY_S = 0.2

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Also runs that ended in the last day.")
@json_option
def ps(everything: bool, as_json: bool) -> None:
    """What is running: ticket, state, profile, time and command."""
    with open_access() as access:
        rows = access.query("ps", all=everything)
    if as_json:
        output.print_json(rows)
        return
    if not rows:
        output.say("nothing is running" + ("" if everything else " · supervisorctl ps -a shows the last day"))
        return
    lines = [["TICKET", "STATE", "PROFILE", "SINCE", "COMMAND"]]
    lines += [
        [r["ticket"], _state(r), r["profile"], output.ago(r["started_at"] or r["created_at"]), _command(r)]
        for r in rows
    ]
    output.table(lines)


def _state(row: dict[str, Any]) -> str:
    if row["state"] == "ended":
        return str(row["reason"])
    return str(row["state"]) if row["supervised"] else f"{row['state']} (supervisor gone)"


def _command(row: dict[str, Any]) -> str:
    return output.visible(" ".join(row["command"]), always=True)


@click.command()
@click.argument("ticket", shell_complete=complete_any_ticket)
@click.option("--attestation", is_flag=True, help="Show what the kernel says is armed.")
@json_option
def status(ticket: str, attestation: bool, as_json: bool) -> None:
    """One run in full: its state or how it ended, limits, what is armed, and the next commands."""
    with open_access() as access:
        found = access.query("status", ticket=check_ticket(ticket))
    if as_json:
        output.print_json(found["attestation"] if attestation else found)
    elif attestation:
        _print_attestation(found)
    else:
        _print_status(found)


def _print_status(run: dict[str, Any]) -> None:
    limits, totals = run["limits"], run["totals"]
    head = run["reason"] or run["state"]
    output.say(f"{output.accent(run['ticket'])}  {head}")
    if run["reason"]:
        output.say(f"reason    {MEANING[StopReason(run['reason'])]}")
        asked = " · ".join(str(part) for part in (run["by"], run["who"], run["note"]) if part)
        if asked and run["by"] != "agent":
            output.say(f"by        {output.visible(asked, always=True)}")
    elif not run["supervised"]:
        output.say(output.bad("          its supervisor is gone; the next start of one closes this run"))
    output.say(f"command   {_command(run)}")
    output.say(f"worktree  {run['worktree']} · profile {run['profile']}")
    output.say(f"started   {output.ago(run['started_at'])}{_span(run)}")
    if limits:
        output.say(f"limits    {output.limits_text(limits)}")
    if totals:
        output.say(f"used      {_totals(totals)}")
    if run["attestation"]:
        armed, missing = run["attestation"]["armed"], run["attestation"]["missing"]
        output.say(f"armed     {len(armed)} controls{_missing(missing)}")
    if run["kill"] and run["reason"] and run["started_at"]:
        kill = run["kill"]
        output.say(
            f"end       {kill['stage']} · box observed empty after {show_duration(kill['elapsed_ms'] / 1000)}"
        )
    next_ = "logs" if run["reason"] else "kill"
    output.say(
        output.dim(f"next      supervisorctl {next_} {run['ticket']} · supervisorctl events {run['ticket']}")
    )


def _span(run: dict[str, Any]) -> str:
    if not (run["started_at"] and run["ended_at"]):
        return ""
    seconds = (parse_rfc3339(run["ended_at"]) - parse_rfc3339(run["started_at"])).total_seconds()
    return f", took {show_duration(max(seconds, 0))}"


def _totals(totals: dict[str, Any]) -> str:
    parts = [*used(totals), show_duration(float(totals.get("seconds", 0)))]
    if totals.get("memory_peak_bytes"):
        parts.append(f"{show_size(int(totals['memory_peak_bytes']))} at most")
    if totals.get("pids_peak"):
        parts.append(f"{totals['pids_peak']} processes at most")
    parts.append(f"{totals.get('log_lines', 0)} lines logged")
    parts.append(f"{totals.get('redacted', 0)} secrets redacted")
    if totals.get("dropped_bytes"):
        parts.append(f"{show_size(int(totals['dropped_bytes']))} of output dropped")
    return " · ".join(parts)


def _missing(missing: dict[str, str]) -> str:
    return "".join(f" · {name} not armed: {why}" for name, why in missing.items())


def _print_attestation(run: dict[str, Any]) -> None:
    known = run["attestation"]
    if not known:
        output.say(f"{run['ticket']} was never armed")
        return
    facts, status_ = known["facts"], known["facts"]["status"]
    seccomp = facts["seccomp"]
    rows = [
        ["uid outside", str(known["uid"]), "read back"],
        ["capabilities", status_["CapEff"], "read back"],
        ["no_new_privs", status_["NoNewPrivs"], "read back"],
        [
            "seccomp",
            f"mode {status_['Seccomp']} · {seccomp.get('instructions', '?')} instructions",
            "read back" if seccomp["read_back"] else "reported",
        ],
        ["landlock", "in force" if "landlock" in known["armed"] else output.NONE, "reported by the box"],
        ["namespaces", " ".join(k for k, apart in facts["namespaces"].items() if apart), "read back"],
        [
            "network",
            " ".join(facts["network"]["devices"]) + f" · {facts['network']['routes']} routes",
            "read back",
        ],
        ["mounts", f"{len(facts['mounts'])}, as planned, none propagates", "read back"],
        ["cgroup", " · ".join(f"{k}={v}" for k, v in facts["cgroup"].items()) or output.NONE, "read back"],
    ]
    output.table([["CLAIM", "VALUE", "HOW"], *rows])


@click.command()
@click.argument("ticket", shell_complete=complete_any_ticket)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option("--stream", type=click.Choice(["out", "err", "file"]), help="Only this stream.")
@json_option
def logs(ticket: str, follow: bool, stream: str | None, as_json: bool) -> None:
    """What the agent printed and logged, as it was, with secrets replaced."""
    check_ticket(ticket)
    with open_access() as access:
        offset = 0
        while True:
            page = access.query("log", ticket=ticket, offset=offset)
            for line in page["lines"]:
                if stream is None or line["s"] == stream:
                    output.print_json(line) if as_json else output.say(output.visible(line["t"]))
            more = page["next"] != offset
            offset = page["next"]
            if not more and (page["ended"] or not follow):
                return
            if not more:
                time.sleep(_FOLLOW_EVERY_S)


@click.command()
@click.argument("ticket", shell_complete=complete_any_ticket)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@json_option
def events(ticket: str, follow: bool, as_json: bool) -> None:
    """What happened to a run, in order. With --json one event per line (docs/events.md)."""
    check_ticket(ticket)
    with open_access() as access:
        for event in _all_events(access, ticket, follow):
            if as_json:
                output.print_json(event)
            else:
                line = f"{output.time_of_day(event['at'])}  {event['kind']:<16}  {sentence(event)}"
                room = output.width() if sys.stdout.isatty() else len(line)
                output.say(output.visible(output.shorten(line, room), always=True))


def _all_events(access: Access, ticket: str, follow: bool) -> Any:
    after = 0
    while True:
        page = access.query("events", ticket=ticket, after=after)
        yield from page["events"]
        more = page["next"] != after
        after = page["next"]
        if not more and (page["ended"] or not follow):
            return
        if not more:
            time.sleep(_FOLLOW_EVERY_S)
