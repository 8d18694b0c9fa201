"""Owns `redact`: the log's redactor as a filter and on files, for people who want only that.
May touch standard input and output, the files that are named, and a new file beside one it replaces.
Never keeps a copy of what it took secrets out of, and never prints one.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from supervisor.cli.output import print_json, table
from supervisor.errors import SupervisorError, UsageError
from supervisor.logs.redact.known import KnownSecrets
from supervisor.logs.redact.redactor import Redactor
from supervisor.logs.redact.table import shipped

_CHUNK = 1 << 18
_LONGEST_LINE = 1 << 26


class _Refused(SupervisorError):
    """A file that is not replaced, or a check that found something."""


@click.command()
@click.argument("files", nargs=-1, type=click.Path(dir_okay=False))
@click.option(
    "--check", is_flag=True, help="Print where something would be redacted; exit with 1 if anything."
)
@click.option(
    "--in-place", is_flag=True, help="Replace the files. No backup is made: it would hold the secrets."
)
@click.option("--env", "names", multiple=True, metavar="NAME", help="Also redact the value of this variable.")
@click.option("--rules", is_flag=True, help="List the rules instead.")
@click.option("--json", "as_json", is_flag=True, help="A summary on standard error, as one JSON object.")
def redact(
    files: tuple[str, ...], check: bool, in_place: bool, names: tuple[str, ...], rules: bool, as_json: bool
) -> int:
    """Take secrets out of text. Without FILES a filter from standard input to standard output.

    \b
    Known credential formats, assignments, headers, URLs with passwords and private keys are replaced
    by a marker that names the rule: [redacted:github-pat#3fa2]. The four characters tell whether two
    places hold the same secret, within one call. A line of JSON stays valid JSON.
    """
    if rules:
        return _list_rules(as_json)
    if in_place and (check or not files):
        raise UsageError("--in-place goes with files, and not with --check")
    redactor = Redactor(KnownSecrets(_values(names)), bounded=False)
    redactor.engines.ready()
    if not files:
        found = _filter(0, redactor, _report("-", redactor) if check else _print)
    else:
        found = sum(_one(path, redactor, check, in_place) for path in files)
    if as_json:
        summary = {"redacted": found, "rules": dict(redactor.counts.most_common()), "engine": redactor.engine}
        click.echo(msgspec.json.encode(summary).decode(), err=True)
    return 1 if check and found else 0


def _list_rules(as_json: bool) -> int:
    rows = [(rule.id, rule.kind, rule.title, rule.source) for rule in shipped()]
    if as_json:
        print_json([dict(zip(("id", "kind", "title", "source"), row, strict=True)) for row in rows])
    else:
        table([["rule", "kind", "what"], *([id_, kind, title] for id_, kind, title, _ in rows)])
    return 0


def _values(names: tuple[str, ...]) -> dict[str, str]:
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise UsageError(
            f"there is no variable {missing[0]!a}", hint="--env takes the name of one that is set"
        )
    return {name: os.environ[name] for name in names}


Take = Callable[[list[bytes], list[bytes], list[int], bool], None]
"""(lines, the same redacted, how many in each, does the last one end with a newline)"""


def _filter(fd: int, redactor: Redactor, take: Take) -> int:
    """Everything that can be read, as it comes. How much was redacted."""
    found = 0
    for lines, ended in _reads(fd):
        cleaned = redactor.redact_lines(lines)
        counts = [count for _, count in cleaned]
        found += sum(counts)
        take(lines, [clean or b"" for clean, _ in cleaned], counts, ended)
    return found


def _reads(fd: int) -> Iterator[tuple[list[bytes], bool]]:
    """Whole lines, and whether the last one ended. Raises for a line that would not fit into memory."""
    held: list[bytes] = []
    while chunk := os.read(fd, _CHUNK):
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            held.append(chunk)
            if len(held) * _CHUNK > _LONGEST_LINE and sum(map(len, held)) > _LONGEST_LINE:
                raise _Refused(f"a line is longer than {_LONGEST_LINE >> 20} MiB", hint="split it before")
            continue
        yield b"".join((*held, head)).split(b"\n"), True
        held = [tail] if tail else []
    if held:
        yield [b"".join(held)], False


def _print(_: list[bytes], cleaned: list[bytes], __: list[int], ended: bool) -> None:
    _write(1, b"\n".join(cleaned) + (b"\n" if ended else b""))


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _report(path: str, redactor: Redactor) -> Take:
    """Prints path:line and the rules, never the text."""
    number = 0

    def take(_: list[bytes], cleaned: list[bytes], counts: list[int], __: bool) -> None:
        nonlocal number
        for clean, count in zip(cleaned, counts, strict=True):
            number += 1
            if count:
                rules = sorted({rule for rule in redactor.counts if f"[redacted:{rule}".encode() in clean})
                click.echo(f"{path}:{number}: {', '.join(rules)}")

    return take


def _one(path: str, redactor: Redactor, check: bool, in_place: bool) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NOFOLLOW if in_place else 0))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    try:
        if not in_place:
            return _filter(fd, redactor, _report(path, redactor) if check else _print)
        return _replace(path, fd, redactor)
    finally:
        os.close(fd)


def _replace(path: str, fd: int, redactor: Redactor) -> int:
    """A new file in the place of the old one, or nothing at all; never half of one."""
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
        raise _Refused(
            f"{path} is not a regular file with one name", hint="redact it to another file instead"
        )
    made, name = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".redact-")
    try:
        found = _filter(
            fd, redactor, lambda _, cleaned, __, ended: _write(made, b"\n".join(cleaned) + b"\n" * ended)
        )
        if found:
            _keep_owner(made, about)
            os.fsync(made)
            os.replace(name, path)
    finally:
        os.close(made)
        if os.path.lexists(name):
            os.unlink(name)
    return found


def _keep_owner(fd: int, about: Any) -> None:
    if (about.st_uid, about.st_gid) != (os.geteuid(), os.getegid()):
        os.fchown(fd, about.st_uid, about.st_gid)
    os.fchmod(fd, stat.S_IMODE(about.st_mode))
