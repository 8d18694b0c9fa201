"""Owns making small audit trails, and doing to them what an intruder or a crash does.
May touch a temporary folder.
Never uses the writer to tamper: an intruder has the files, and at most the current key.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from supervisor.audit import sealing, writer
from supervisor.audit.checkpoint import Checkpoint, checkpoint_of
from supervisor.audit.reading import lines_of, segments
from supervisor.audit.records import Decision, Draft, RecordKind, SealWhy
from supervisor.audit.verify import Verdict, verify
from supervisor.audit.writer import INITIAL_KEY, TrailWriter

Lines = list[bytes]


def draft(number: int = 0, kind: RecordKind = RecordKind.EVENT, **detail: Any) -> Draft:
    at = f"2026-09-01T02:14:{number % 60:02}.000Z"
    return Draft(kind=kind, what="run_started", at=at, run_id=f"R{number}", ticket="T-1", detail=detail)


def make(folder: Path, records: int = 12, *, batch: int = 3) -> None:
    """Written in several batches, a seal amid them and a closing one at the end."""
    made = TrailWriter(str(folder))
    for start in range(0, records, batch):
        middle = SealWhy.BATCH if start == batch else None
        made.append([draft(number, of=number) for number in range(start, start + batch)], middle)
    stopped = Draft(kind=RecordKind.DECISION, what=Decision.SUPERVISOR_STOPPED, at="2026-09-01T03:00:00.000Z")
    made.append([stopped], SealWhy.CLOSING)
    made.close()


def small_segments(monkeypatch: pytest.MonkeyPatch, size: int = 1200) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES", size)


def initial_key(folder: Path) -> bytes:
    return bytes.fromhex((folder / INITIAL_KEY).read_text().split()[1])


def checkpoint(folder: Path) -> Checkpoint:
    made = TrailWriter(str(folder))
    found = checkpoint_of(made.state())
    made.close()
    return found


def read(folder: Path, segment: int = 1) -> Lines:
    return (folder / f"{segment:06}.ndjson").read_bytes().splitlines(keepends=True)


def rewrite(folder: Path, lines: Lines, segment: int = 1) -> None:
    (folder / f"{segment:06}.ndjson").write_bytes(b"".join(lines))


def count(folder: Path) -> int:
    return sum(1 for number in segments(str(folder)) for _ in lines_of(str(folder), number))


def tampered(folder: Path, lines: Lines, *, keyed: bool = True, segment: int = 1) -> Verdict:
    """The verdict over a copy in which one segment holds these lines."""
    copy = folder.with_name(f"{folder.name}-tampered")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    rewrite(copy, lines, segment)
    return verify(str(copy), initial_key(folder) if keyed else None)


def chained_again(lines: Lines, key: bytes | None = None) -> Lines:
    """As an intruder without the keys of the past does it: chain values made again, MACs made up."""
    made, chain = [], sealing.GENESIS
    for line in lines:
        sealed = sealing.take_apart(line[:-1])
        assert sealed is not None
        chain = sealing.link(chain, sealing.leaf(sealed.body))
        made.append(sealing.seal_line(sealed.body, chain, key or bytes(32)))
    return made
