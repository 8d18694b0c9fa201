"""Owns the commands of the audit trail: verify, show, export, key.
May touch the trail below the state folder, files that are named to it, and standard output.
Never needs a supervisor or the database, and never says intact of what it could not check.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from supervisor.audit import reading
from supervisor.audit.checkpoint import Checkpoint, as_text, checkpoint_of, parse
from supervisor.audit.records import Decision, Record, SealWhy
from supervisor.audit.trail import decision
from supervisor.audit.verify import Verdict
from supervisor.audit.verify import verify as check
from supervisor.audit.writer import INITIAL_KEY, TrailWriter
from supervisor.cli import output
from supervisor.cli.look import json_option
from supervisor.errors import AuditBroken, NotFound, UsageError
from supervisor.identifiers import check_ticket
from supervisor.observe.span import since_instant
from supervisor.paths import Paths, locate


@click.group()
def audit() -> None:
    """The trail of every decision: what was written stays as it was, or it shows."""


@audit.command()
@click.option("--key-file", type=click.Path(), help="The initial key, from `audit key`.")
@click.option(
    "--checkpoint", "checkpoint_file", type=click.Path(), help="From `audit export`, kept elsewhere."
)
@click.option("--folder", type=click.Path(), help="A trail elsewhere; runs' logs are then not compared.")
@json_option
def verify(key_file: str | None, checkpoint_file: str | None, folder: str | None, as_json: bool) -> None:
    """Is every record there, as it was written? Works offline. Exit codes: 0 yes, 1 no.

    Names the first bad record and what is wrong with it. Without the key only the chain is checked,
    which whoever can write the files can make again.
    """
    paths = locate()
    where = folder or paths.audit
    key = _key(key_file, where)
    checkpoint = _checkpoint(checkpoint_file) if checkpoint_file else None
    verdict = check(where, key, checkpoint, None if folder else f"{paths.state}/runs")
    beside = key_file is None and key is not None
    if as_json:
        output.print_json(_as_json(verdict, beside))
        raise SystemExit(0 if verdict.ok else 1)
    _print_verdict(verdict, beside)


def _as_json(verdict: Verdict, beside: bool) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(verdict)
    record = verdict.record if verdict.record >= 0 else None
    return {"ok": verdict.ok, **found, "record": record, "key_beside_trail": beside}


def _print_verdict(verdict: Verdict, beside: bool) -> None:
    if not verdict.ok:
        raise AuditBroken(
            f"record {verdict.record} is bad ({verdict.fault}, {verdict.where}): {verdict.message}",
            hint=f"the {verdict.record} records before it are as they were; keep the folder as evidence",
        )
    how = "chain and MACs" if verdict.keyed else "chain only: no key was given"
    many = "1 segment" if verdict.segments == 1 else f"{verdict.segments} segments"
    output.say(f"{output.GOOD} {verdict.records} records in {many} are as they were written ({how})")
    end = "closed" if verdict.closed else f"last seal {output.ago(verdict.last_seal_at or None)}"
    known = "nothing is missing at the end" if verdict.end_known else "the end is not vouched for"
    output.say(f"  {known} · {end}" + (" · checkpoint fits" if verdict.checkpoint else ""))
    if verdict.logs or verdict.logs_missing:
        gone = f" · {verdict.logs_missing} are gone" if verdict.logs_missing else ""
        pieces = "1 piece" if verdict.logs == 1 else f"{verdict.logs} pieces"
        output.say(f"  of logs, {pieces} as written{gone}")
    for text in [*verdict.gaps, *verdict.notes]:
        output.say(output.visible(f"  {output.NONE} {text}", always=True))
    if beside:
        output.say(
            output.dim("  the key lies beside the trail: who could read it could have rewritten everything")
        )
        output.say(output.dim("next      supervisorctl audit key > FILE, and keep FILE elsewhere"))


def _key(named: str | None, folder: str) -> bytes | None:
    """From the file that is named, else the one beside the trail if it was not taken away."""
    path = named or f"{folder}/{INITIAL_KEY}"
    try:
        with open(path, encoding="ascii") as file:
            key = bytes.fromhex(file.read().split()[-1])
    except FileNotFoundError:
        if named:
            raise NotFound(f"there is no key file {named}") from None
        return None
    except (OSError, ValueError, IndexError):
        raise UsageError(
            f"{path} is no key file", hint="it is what `supervisorctl audit key` printed"
        ) from None
    if len(key) != 32:
        raise UsageError(f"{path} is no key file", hint="it is what `supervisorctl audit key` printed")
    return key


def _checkpoint(path: str) -> Checkpoint:
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read(4096))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


@audit.command()
@click.option("--since", default="", help='A span like "12h" or an instant; everything when left out.')
@click.option("--ticket", default="", help="Only of this ticket.")
@click.option("--kind", default="", help="Only event, decision, log, seal, gap or head records.")
@json_option
def show(since: str, ticket: str, kind: str, as_json: bool) -> None:
    """What was recorded, in order; verify says whether it is still so."""
    start = since_instant(since) if since else ""
    wanted = check_ticket(ticket) if ticket else ""
    for record in _records(locate(), start, wanted, kind):
        if as_json:
            output.print_json(msgspec.to_builtins(record))
            continue
        detail = " ".join(
            f"{key}={_short(value)}" for key, value in record.detail.items() if value not in ("", {})
        )
        of = f"  {record.ticket}" if record.ticket else ""
        line = f"{record.n:>6}  {record.at}  {record.kind:<8}  {record.what}{of}  {detail}"
        output.say(output.visible(output.shorten(line.rstrip(), output.width()), always=True))


def _records(paths: Paths, start: str, ticket: str, kind: str) -> Iterator[Record]:
    for record in reading.records(paths.audit):
        if (
            record.at >= start
            and (not ticket or record.ticket == ticket)
            and (not kind or record.kind == kind)
        ):
            yield record


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}:{_short(item)}" for key, item in value.items())
    return str(value)


@audit.command()
@click.option("--output", "-o", "target", type=click.Path(), help="A file; standard output when left out.")
@json_option
def export(target: str | None, as_json: bool) -> None:
    """Print a checkpoint: keep it on another machine, and no record before it can be changed unseen."""
    paths = locate()
    writer = _writer(paths)
    try:
        made = decision(Decision.CHECKPOINT_MADE, {"uid": os.getuid(), "target": target or "-"})
        writer.append([made], SealWhy.BATCH)
        checkpoint = checkpoint_of(writer.state())
    finally:
        writer.close()
    if as_json:
        output.print_json(msgspec.to_builtins(checkpoint))
        return
    if target is None:
        click.echo(as_text(checkpoint), nl=False)
        return
    try:
        with open(target, "x", encoding="ascii") as file:
            file.write(as_text(checkpoint))
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from None
    output.say(f"{checkpoint.records} records · {target}")


@audit.command()
def key() -> None:
    """Print the initial key once and remove it from this machine. Keep it elsewhere: verify needs it.

    Until it is taken it lies beside the trail. Whoever has it can check every record, and can also
    forge them, so it belongs where the supervisor's root cannot read it.
    """
    paths = locate()
    path = f"{paths.audit}/{INITIAL_KEY}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise NotFound(
            "the initial key is not here", hint="it was taken already, or there is no trail yet"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="try with sudo") from None
    writer = _writer(paths)
    try:
        writer.append([decision(Decision.KEY_TAKEN, {"uid": os.getuid()})])
        text = os.read(fd, 4096)
        click.echo(text.decode("ascii"), nl=False)
        # In place, so that the bytes go and not only the name.
        os.pwrite(fd, bytes(len(text)), 0)
        os.fsync(fd)
        os.unlink(path)
    finally:
        writer.close()
        os.close(fd)


def _writer(paths: Paths) -> TrailWriter:
    if not os.path.isdir(paths.audit):
        raise NotFound(
            f"there is no audit trail in {paths.audit}", hint="a supervisor makes one when it starts"
        )
    return TrailWriter(paths.audit)
