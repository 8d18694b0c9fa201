"""Owns that whatever is done to a trail shows, and that the first bad record is named, at every record.
May touch temporary folders.
Never accepts a verdict that is right about the whole and wrong about the place.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
import trails
from trails import (
    chained_again,
    checkpoint,
    count,
    initial_key,
    make,
    read,
    rewrite,
    small_segments,
    tampered,
)

from supervisor.audit.checkpoint import as_text, parse
from supervisor.audit.state import TrailState, read_state
from supervisor.audit.verify import Fault, verify
from supervisor.audit.writer import TrailWriter
from supervisor.errors import NotFound, UsageError

KEYED = pytest.mark.parametrize("keyed", [True, False], ids=["with the key", "without"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "audit"
    make(made)
    return made


@KEYED
def test_control_what_was_not_touched_is_intact(folder: Path, keyed: bool) -> None:
    verdict = verify(str(folder), initial_key(folder) if keyed else None)
    assert (verdict.ok, verdict.records, verdict.closed) == (True, count(folder), True)
    assert verdict.end_known and verdict.keyed is keyed and not verdict.gaps
    assert verdict.last_seal_at == verdict.last_at


@KEYED
def test_alteration_of_every_record(folder: Path, keyed: bool) -> None:
    lines = read(folder)
    changes = [(b'"at":"20', b'"at":"21'), (b'"kind":"', b'"kind":" '), (b'"mac":"', b'"mac":"0')]
    for number, line in enumerate(lines):
        for old, new in changes if keyed else changes[:2]:
            changed = [*lines[:number], line.replace(old, new), *lines[number + 1 :]]
            verdict = tampered(folder, changed, keyed=keyed)
            assert (verdict.fault, verdict.record) == (Fault.ALTERED, number), (line, old)


def test_every_byte_of_a_record_counts(folder: Path) -> None:
    lines = read(folder)
    for position in range(len(lines[4]) - 1):
        changed = lines[4][:position] + bytes([lines[4][position] ^ 1]) + lines[4][position + 1 :]
        verdict = tampered(folder, [*lines[:4], changed, *lines[5:]])
        assert verdict.record == 4 and verdict.fault is not None, position


@KEYED
def test_deletion_of_every_record(folder: Path, keyed: bool) -> None:
    lines = read(folder)
    for number in range(len(lines)):
        verdict = tampered(folder, lines[:number] + lines[number + 1 :], keyed=keyed)
        assert verdict.record == number
        assert verdict.fault is (Fault.TRUNCATED if number == len(lines) - 1 else Fault.DELETED)


@KEYED
def test_truncation_at_every_record(folder: Path, keyed: bool) -> None:
    lines = read(folder)
    for number in range(len(lines)):
        verdict = tampered(folder, lines[:number], keyed=keyed)
        assert (verdict.fault, verdict.record) == (Fault.TRUNCATED, number)
        verdict = tampered(folder, [*lines[:number], lines[number][:-30]], keyed=keyed)
        assert (verdict.fault, verdict.record) == (Fault.TRUNCATED, number)


@KEYED
def test_two_records_that_changed_places(folder: Path, keyed: bool) -> None:
    lines = read(folder)
    for number in range(len(lines) - 1):
        changed = [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]]
        verdict = tampered(folder, changed, keyed=keyed)
        assert (verdict.fault, verdict.record) == (Fault.REORDERED, number)


@KEYED
def test_a_line_that_was_put_in_anywhere(folder: Path, keyed: bool) -> None:
    lines = read(folder)
    forged = lines[3].replace(b'"R', b'"X')
    for number in range(1, len(lines)):
        for line in (forged, b"\n", b'{"n":1}\n', b"\0" * 100 + b"\n"):
            verdict = tampered(folder, [*lines[:number], line, *lines[number:]], keyed=keyed)
            wanted = {Fault.INSERTED}
            if line == forged and not keyed:
                # By its form alone it may be a record from elsewhere in the trail.
                wanted |= {Fault.REPEATED, Fault.REORDERED}
            assert verdict.record == number and verdict.fault in wanted


@KEYED
def test_a_record_that_stands_twice(folder: Path, keyed: bool) -> None:
    lines = read(folder)
    for number in range(len(lines)):
        verdict = tampered(folder, [*lines[: number + 1], lines[number], *lines[number + 1 :]], keyed=keyed)
        assert (verdict.fault, verdict.record) == (Fault.REPEATED, number + 1)


def test_an_intruder_without_old_keys_cannot_make_the_past_again(folder: Path) -> None:
    """All chain values are made again, and even the key in use today is known."""
    made = TrailWriter(str(folder))
    current = bytes.fromhex(made.state().key)
    made.close()
    lines = read(folder)
    for number in range(1, len(lines)):
        changed = lines[number].replace(b'"at":"20', b'"at":"21')
        again = chained_again([*lines[:number], changed, *lines[number + 1 :]], current)
        verdict = tampered(folder, [*lines[:number], *again[number:]])
        assert (verdict.fault, verdict.record) == (Fault.ALTERED, number)


def test_without_key_and_checkpoint_a_chain_that_is_made_again_passes_and_with_one_it_does_not(
    folder: Path,
) -> None:
    """What docs/audit.md says: the chain alone shows accidents, a checkpoint kept elsewhere shows this."""
    kept = checkpoint(folder)

    lines = read(folder)
    (folder / "key").unlink()
    rewrite(folder, chained_again([lines[0], lines[1].replace(b'"at":"20', b'"at":"21'), *lines[2:4]]))
    assert verify(str(folder)).ok
    assert verify(str(folder), checkpoint=kept).fault is Fault.TRUNCATED


def test_records_before_a_checkpoint_that_were_made_again(folder: Path) -> None:
    kept = checkpoint(folder)
    bodies = read(folder)
    seals = {n for n, line in enumerate(bodies) if b'"kind":"seal"' in line}
    for number in set(range(1, len(bodies))) - seals - {0}:
        copy = folder.with_name("forged")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        (copy / "key").unlink()
        changed = [*bodies[:number], bodies[number].replace(b'"at":"20', b'"at":"21'), *bodies[number + 1 :]]
        rewrite(copy, chained_again(changed))
        assert verify(str(copy), checkpoint=kept).fault in (Fault.REPLACED, Fault.ALTERED)


def test_an_older_copy_of_everything_shows_against_a_checkpoint_alone(folder: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    made = TrailWriter(str(folder))
    made.append([trails.draft(50)])
    made.close()
    kept = checkpoint(folder)
    assert verify(str(old), initial_key(folder)).ok, "nothing on this machine remembers more"
    verdict = verify(str(old), initial_key(folder), kept)
    assert (verdict.fault, verdict.record) == (Fault.TRUNCATED, count(old))


def test_an_older_copy_of_the_records_with_the_key_file_of_today(folder: Path) -> None:
    old = read(folder)
    made = TrailWriter(str(folder))
    made.append([trails.draft(50)])
    made.close()
    rewrite(folder, old)
    verdict = verify(str(folder), initial_key(folder))
    assert (verdict.fault, verdict.record) == (Fault.TRUNCATED, len(old))


def test_a_key_file_that_was_edited_to_fit_a_shorter_trail(folder: Path) -> None:
    """An intruder who is root can write any number there, but not the key that belongs to it."""
    lines = read(folder)
    fd = (folder / "key").open("r+b")
    state = read_state(fd.fileno())
    assert state is not None
    from supervisor.audit.state import write_state

    state.records, state.chain = 5, lines[4].split(b'"chain":"')[1][:64].decode()
    write_state(fd.fileno(), state)
    fd.close()
    rewrite(folder, lines[:5])
    assert verify(str(folder)).ok, "without the initial key nobody can tell"
    assert verify(str(folder), initial_key(folder)).fault is Fault.REPLACED


def test_the_wrong_key_is_said_to_be_wrong(folder: Path) -> None:
    verdict = verify(str(folder), bytes(32))
    assert (verdict.fault, verdict.record) == (Fault.WRONG_KEY, 0)


def test_without_a_key_file_the_end_is_not_vouched_for(folder: Path) -> None:
    (folder / "key").unlink()
    rewrite(folder, read(folder)[:5])
    verdict = verify(str(folder), initial_key(folder))
    assert verdict.ok and not verdict.end_known and not verdict.closed
    assert "cannot be told" in verdict.notes[-1]


# ---------------------------------------------------------------- several segments


@KEYED
def test_every_record_of_several_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    small_segments(monkeypatch)
    folder = tmp_path / "audit"
    make(folder, 12, batch=1)
    assert verify(str(folder), initial_key(folder) if keyed else None).segments > 2
    number, segments = 0, verify(str(folder)).segments
    for segment in range(1, segments + 1):
        for at in range(len(read(folder, segment))):
            lines = read(folder, segment)
            verdict = tampered(folder, lines[:at] + lines[at + 1 :], keyed=keyed, segment=segment)
            assert verdict.record == number
            assert verdict.fault in (Fault.DELETED, Fault.TRUNCATED)
            number += 1


def test_a_segment_that_is_gone_or_stands_in_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch)
    folder = tmp_path / "audit"
    make(folder, 12, batch=1)
    key = initial_key(folder)
    first, second = read(folder, 1), read(folder, 2)
    rewrite(folder, [], 2)
    assert verify(str(folder), key).record == len(first)
    (folder / "000002.ndjson").unlink()
    assert verify(str(folder), key).fault is Fault.DELETED
    rewrite(folder, first, 2)
    verdict = verify(str(folder), key)
    assert (verdict.fault, verdict.record) == (Fault.REPEATED, len(first))
    rewrite(folder, second, 2)
    assert verify(str(folder), key).ok


# ---------------------------------------------------------------- logs, and what is no trail


def test_a_runs_log_that_was_altered(tmp_path: Path) -> None:
    import hashlib

    from supervisor.audit.records import RecordKind

    folder, logs = tmp_path / "audit", tmp_path / "runs"
    (logs / "R1").mkdir(parents=True)
    (logs / "R1" / "log.ndjson").write_bytes(b"one\ntwo\nthree\n")
    digest = hashlib.sha256(b"one\ntwo\n").hexdigest()
    made = TrailWriter(str(folder))
    made.append([trails.draft(1, RecordKind.LOG, **{"from": 0, "to": 8, "sha256": digest})])
    made.append([trails.draft(2, RecordKind.LOG, **{"from": 0, "to": 8, "sha256": digest})])
    made.close()
    verdict = verify(str(folder), logs=str(logs))
    assert (verdict.ok, verdict.logs, verdict.logs_missing) == (True, 1, 1)
    (logs / "R1" / "log.ndjson").write_bytes(b"one\ntvo\nthree\n")
    verdict = verify(str(folder), logs=str(logs))
    assert (verdict.fault, verdict.record) == (Fault.LOG_ALTERED, 1)
    (logs / "R1" / "log.ndjson").write_bytes(b"one\n")
    assert verify(str(folder), logs=str(logs)).fault is Fault.LOG_ALTERED


def test_a_checkpoint_survives_being_written_down(folder: Path) -> None:
    made = checkpoint(folder)
    text = as_text(made)
    assert parse(text) == made and len(text) < 400
    assert text.splitlines()[1] == str(count(folder))
    assert verify(str(folder), checkpoint=made).ok
    other = msgspec.structs.replace(made, origin="00")
    assert verify(str(folder), checkpoint=other).fault is Fault.REPLACED
    for wrong in ("", "x\n", text.replace("segment", "element"), text.replace("\n", " ")):
        with pytest.raises(UsageError):
            parse(wrong)


def test_a_clock_that_went_back_is_noted_and_no_fault(tmp_path: Path) -> None:
    made = TrailWriter(str(tmp_path / "audit"))
    early = msgspec.structs.replace(trails.draft(1), at="2020-01-01T00:00:00.000Z")
    made.append([trails.draft(2), early, trails.draft(1)])
    made.close()
    verdict = verify(str(tmp_path / "audit"))
    assert verdict.ok and len([note for note in verdict.notes if "clock" in note]) == 2


def test_no_trail_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        verify(str(tmp_path / "none"))


def test_a_key_that_was_used_is_nowhere_on_the_disk(folder: Path) -> None:
    """Forward security is worth nothing if the old keys lie about."""
    from supervisor.audit.sealing import evolved

    key, raw = initial_key(folder), (folder / "key").read_bytes()
    found = [n for n in range(count(folder) + 1) if evolved(key, n).hex().encode() in raw]
    assert found == [count(folder)]
    assert TrailState.__struct_fields__.count("key") == 1
