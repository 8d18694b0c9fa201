"""Owns verifying an audit trail offline: is every record there, as it was written, in its order?
May touch the trail's files and the runs' logs, read-only.
Never believes the files about themselves: what cannot be told without a key or a checkpoint is said so.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from supervisor.audit import sealing
from supervisor.audit.checkpoint import Checkpoint
from supervisor.audit.reading import Line, lines_of, segments, state_of
from supervisor.audit.records import GapWhy, Record, RecordKind, SealWhy
from supervisor.clock import parse_rfc3339

_CHUNK = 1 << 20
_CLOCK_SLACK_S = 60.0
_MAX_NOTES = 20
_MAX_SKIP = 10_000_000


class Fault(StrEnum):
    """What is wrong with a trail; docs/audit.md."""

    ALTERED = "altered"
    INSERTED = "inserted"
    DELETED = "deleted"
    REORDERED = "reordered"
    REPEATED = "repeated"
    TRUNCATED = "truncated"
    REPLACED = "replaced"
    WRONG_KEY = "wrong_key"
    LOG_ALTERED = "log_altered"


@dataclass(slots=True)
class Verdict:
    """record: the number of the first bad record, -1 while there is none. keyed: the MACs were checked.

    closed: the last record is a closing seal. end_known: something said how many records there must be.
    """

    fault: Fault | None = None
    record: int = -1
    where: str = ""
    message: str = ""
    records: int = 0
    segments: int = 0
    keyed: bool = False
    end_known: bool = False
    checkpoint: bool = False
    closed: bool = False
    last_at: str = ""
    last_seal_at: str = ""
    gaps: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    logs: int = 0
    logs_missing: int = 0

    @property
    def ok(self) -> bool:
        return self.fault is None


class _Bad(Exception):
    def __init__(self, fault: Fault, record: int, where: str, message: str) -> None:
        super().__init__(message)
        self.fault, self.record, self.where = fault, record, where


def verify(
    folder: str, key: bytes | None = None, checkpoint: Checkpoint | None = None, logs: str | None = None
) -> Verdict:
    """key: the initial one. logs: the folder of the runs, to compare their logs too.

    One pass in constant memory. Raises NotFound where there is no trail, OSError.
    """
    check = _Check(folder, key, checkpoint, logs)
    verdict = check.verdict
    try:
        check.walk()
        check.compare_end()
    except _Bad as bad:
        verdict.fault, verdict.record, verdict.where = bad.fault, bad.record, bad.where
        verdict.message = str(bad)
    return verdict


class _Check:
    def __init__(
        self, folder: str, key: bytes | None, checkpoint: Checkpoint | None, logs: str | None
    ) -> None:
        self.folder = folder
        self.verdict = Verdict(keyed=key is not None, checkpoint=checkpoint is not None)
        self._initial = key
        self._key = key or b""
        self._next = 0
        self._chain = sealing.GENESIS
        self._tree = sealing.Tree()
        self._last_root = ""
        self._origin = ""
        self._checkpoint = checkpoint
        self._logs = logs
        self._log_fault: _Bad | None = None
        self._latest_s = 0.0

    # ------------------------------------------------------------ the records

    def walk(self) -> None:
        for number in segments(self.folder):
            self.verdict.segments += 1
            self._last_root = self._tree.root().hex() if self._tree.count else ""
            self._tree = sealing.Tree()
            lines = lines_of(self.folder, number)
            for line in lines:
                if self._is_next(line):
                    self._accept(line)
                elif not self._accept_torn(line, lines):
                    raise self._classified(line)

    def _is_next(self, line: Line) -> bool:
        """The record that must come here, as it was written?"""
        if line.sealed is None or line.record is None or line.record.n != self._next:
            return False
        return line.sealed.follows(self._chain) and (not self._initial or line.sealed.is_by(self._key))

    def _accept(self, line: Line) -> None:
        assert line.sealed is not None and line.record is not None
        record, verdict = line.record, self.verdict
        if record.kind is RecordKind.HEAD:
            self._check_head(line, record)
        elif record.kind is RecordKind.SEAL:
            self._check_seal(line, record)
        elif record.kind is RecordKind.GAP:
            self._note_gap(line, record)
        elif record.kind is RecordKind.LOG and self._logs is not None:
            self._check_log(line, record, self._logs)
        self._chain = line.sealed.chain
        self._tree.add(sealing.leaf(line.sealed.body))
        self._next += 1
        if self._initial:
            self._key = sealing.evolve(self._key)
        self._note_clock(record)
        verdict.records = self._next
        verdict.closed = record.kind is RecordKind.SEAL and record.what == SealWhy.CLOSING
        self._compare_checkpoint(line)

    def _note_clock(self, record: Record) -> None:
        """Records carry the time of what they tell, so a little disorder means nothing."""
        verdict = self.verdict
        try:
            back_s = self._latest_s - parse_rfc3339(record.at).timestamp()
        except ValueError:
            back_s = 0.0
        if back_s > _CLOCK_SLACK_S and len(verdict.notes) < _MAX_NOTES:
            verdict.notes.append(f"the clock went back before record {record.n} ({record.at})")
        self._latest_s -= back_s if back_s < 0 or back_s > _CLOCK_SLACK_S else 0.0
        verdict.last_at = record.at

    def _check_head(self, line: Line, record: Record) -> None:
        self._origin = str(record.detail.get("origin", ""))
        same = record.detail.get("last_root") == self._last_root
        if not same or record.detail.get("segment") != line.segment:
            raise self._bad(Fault.REPLACED, line, "the segment does not follow the one before it")

    def _check_seal(self, line: Line, record: Record) -> None:
        detail = record.detail
        said = (detail.get("records"), detail.get("leaves"), detail.get("root"))
        if said != (self._next, self._tree.count, self._tree.root().hex()):
            raise self._bad(Fault.ALTERED, line, "the seal is not of the records before it")
        self.verdict.last_seal_at = record.at

    def _note_gap(self, line: Line, record: Record) -> None:
        detail = record.detail
        if record.what == GapWhy.MISSING:
            # Whatever was there had a number, so the numbers say whether a record is missing.
            text = f"the writer found the segment cut from byte {detail.get('to')} to {detail.get('from')}"
        elif record.what == GapWhy.TORN:
            text = f"bytes {detail.get('from')} to {detail.get('to')} were torn by a crash"
        else:
            text = f"up to {detail.get('records')} records could not be written: {detail.get('why')}"
        self.verdict.gaps.append(f"record {record.n} ({record.at}): {text}")

    def _accept_torn(self, first: Line, lines: Iterator[Line]) -> bool:
        """Bytes that are no record, if the next record is the writer's own word on exactly these bytes."""
        digest = hashlib.sha256()
        pending, at = first, first.offset
        for line in lines:
            if self._is_next(line):
                assert line.record is not None
                if line.record.kind is not RecordKind.GAP or line.record.what != GapWhy.TORN:
                    return False
                detail, end = line.record.detail, line.offset
                if detail.get("to") == line.offset - 1:  # the newline was put there by the writer
                    digest.update(pending.raw[:-1])
                    end -= 1
                else:
                    digest.update(pending.raw)
                said = (detail.get("segment"), detail.get("from"), detail.get("to"), detail.get("sha256"))
                if said != (line.segment, at, end, digest.hexdigest()):
                    return False
                self._accept(line)
                return True
            digest.update(pending.raw)
            pending = line
        return False

    # ------------------------------------------------------------ what is wrong

    def _bad(self, fault: Fault, line: Line, message: str) -> _Bad:
        where = f"{line.segment:06}.ndjson, byte {line.offset}"
        return _Bad(fault, self._next, where, message)

    def _classified(self, line: Line) -> _Bad:
        """Name what happened to the record that should stand here, by what stands here and what follows."""
        number = line.record.n if line.record is not None else -1
        genuine = line.sealed is not None and number >= 0 and self._is_genuine(line, number)
        later = self._comes_later(line)
        if not line.raw.endswith(b"\n") and self._is_last(line):
            return self._bad(Fault.TRUNCATED, line, f"record {self._next} is cut off at the end of the trail")
        if self._initial and self._next == 0 and not self._key_fits(self._initial):
            return self._bad(Fault.WRONG_KEY, line, "no record is sealed with that key, from the first on")
        if genuine and number < self._next:
            return self._bad(Fault.REPEATED, line, f"record {number} stands here once more")
        if genuine and number > self._next:
            if later:
                return self._bad(Fault.REORDERED, line, f"record {number} stands before record {self._next}")
            missing = _span(self._next, number - 1)
            return self._bad(Fault.DELETED, line, f"{missing} missing")
        if later:
            return self._bad(
                Fault.INSERTED, line, f"a line that was never written stands before {self._next}"
            )
        return self._bad(Fault.ALTERED, line, f"record {self._next} is not as it was written")

    def _is_genuine(self, line: Line, number: int) -> bool:
        """Was it written under that number? Without the key its form is all there is to judge by."""
        assert line.sealed is not None
        if self._initial is None:
            return number != self._next
        if abs(number - self._next) > _MAX_SKIP:
            return False
        ahead = number - self._next
        key = sealing.evolved(self._key, ahead) if ahead >= 0 else sealing.evolved(self._initial, number)
        return line.sealed.is_by(key)

    def _key_fits(self, initial: bytes) -> bool:
        """Is any of the first records by that key?"""
        first = itertools.islice(lines_of(self.folder, segments(self.folder)[0]), 8)
        return any(
            line.sealed is not None
            and line.record is not None
            and 0 <= line.record.n < 64
            and line.sealed.is_by(sealing.evolved(initial, line.record.n))
            for line in first
        )

    def _comes_later(self, line: Line) -> bool:
        """Does the record that should stand here stand further on in the segment?"""
        after = line.offset + len(line.raw)
        return any(self._is_next(other) for other in lines_of(self.folder, line.segment, after))

    def _is_last(self, line: Line) -> bool:
        return line.segment == segments(self.folder)[-1]

    # ------------------------------------------------------------ the end, and what is kept elsewhere

    def _compare_checkpoint(self, line: Line) -> None:
        wanted = self._checkpoint
        if wanted is None or wanted.records != self._next:
            return
        if wanted.chain != self._chain.hex() or wanted.root != self._tree.root().hex():
            message = f"the first {self._next} records are not those that the checkpoint was made of"
            raise self._bad(Fault.REPLACED, line, message)

    def compare_end(self) -> None:
        """Against the checkpoint and the key file: are there as many records as there were?"""
        verdict, wanted = self.verdict, self._checkpoint
        where = f"after {self._next} records"
        if wanted is not None:
            if self._next and wanted.origin != self._origin:
                message = "the checkpoint is of another trail"
                raise _Bad(Fault.REPLACED, 0, where, message)
            if wanted.records > self._next:
                message = f"{_span(self._next, wanted.records - 1)} missing that the checkpoint counted"
                raise _Bad(Fault.TRUNCATED, self._next, where, message)
        state = state_of(self.folder)
        if state is None:
            verdict.notes.append("the key file is not here: whether the end was cut off cannot be told")
        elif self._next and state.origin != self._origin:
            raise _Bad(Fault.REPLACED, 0, where, "the key file is of another trail")
        elif state.records > self._next:
            missing = _span(self._next, state.records - 1)
            raise _Bad(Fault.TRUNCATED, self._next, where, f"{missing} missing at the end")
        else:
            verdict.end_known = True
            self._compare_key(state.records, bytes.fromhex(state.key), where)
        if self._log_fault is not None:
            raise self._log_fault

    def _compare_key(self, records: int, current: bytes, where: str) -> None:
        """The key file cannot be set back: who has the current key cannot compute an earlier one."""
        if self._initial is None:
            return
        if sealing.evolved(self._initial, records) != current:
            message = (
                "the key in use is not the one that comes after the last record: it was set back or replaced"
            )
            raise _Bad(Fault.REPLACED, self._next, where, message)

    # ------------------------------------------------------------ logs

    def _check_log(self, line: Line, record: Record, logs: str) -> None:
        """A piece of a run's log against what was written. One that is gone is counted, not judged."""
        start, end = record.detail.get("from"), record.detail.get("to")
        if not isinstance(start, int) or not isinstance(end, int):
            return
        found = _digest_of(f"{logs}/{record.run_id}/log.ndjson", start, end)
        if not found:
            self.verdict.logs_missing += 1
            return
        self.verdict.logs += 1
        if found != record.detail.get("sha256") and self._log_fault is None:
            message = f"the log of run {record.run_id} is not as it was written, bytes {start} to {end}"
            self._log_fault = self._bad(Fault.LOG_ALTERED, line, message)


def _digest_of(path: str, start: int, end: int) -> str:
    """SHA-256 of a part of a file; "" where there is no such file."""
    digest = hashlib.sha256()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        while start < end and (chunk := os.pread(fd, min(_CHUNK, end - start), start)):
            digest.update(chunk)
            start += len(chunk)
    finally:
        os.close(fd)
    return digest.hexdigest()


def _span(first: int, last: int) -> str:
    return f"record {first} is" if first == last else f"records {first} to {last} are"
