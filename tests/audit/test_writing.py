"""Owns that the trail goes on: over crashes, torn records, other processes, lost files and full disks.
May touch temporary folders, and processes of its own.
Never asserts how long anything takes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trails import count, draft, initial_key, make, read, rewrite

from supervisor.audit import reading
from supervisor.audit.records import (
    MAX_DETAIL,
    Decision,
    Draft,
    GapWhy,
    Record,
    RecordKind,
    SealWhy,
    encode,
)
from supervisor.audit.sealing import Tree, leaf
from supervisor.audit.trail import Trail, decision, note
from supervisor.audit.verify import Fault, verify
from supervisor.audit.writer import SEAL_EVERY, TrailWriter
from supervisor.errors import StateError
from supervisor.events import Event, EventKind

ROOT = Path(__file__).resolve().parents[2]


def records(folder: Path) -> list[Record]:
    return list(reading.records(str(folder)))


def test_a_new_trail_begins_with_a_head_and_each_seal_covers_what_is_before_it(tmp_path: Path) -> None:
    make(tmp_path / "audit")
    found = records(tmp_path / "audit")
    assert [record.n for record in found] == list(range(len(found)))
    assert found[0].kind is RecordKind.HEAD and found[-1].what == SealWhy.CLOSING
    tree = Tree()
    for number, line in enumerate(read(tmp_path / "audit")):
        if found[number].kind is RecordKind.SEAL:
            assert found[number].detail["root"] == tree.root().hex()
            assert found[number].detail["records"] == number
        tree.add(leaf(line[: line.index(b',"chain":"')] + b"}"))


def test_seals_come_by_themselves(tmp_path: Path) -> None:
    made = TrailWriter(str(tmp_path / "audit"))
    for number in range(SEAL_EVERY * 2):
        made.append([draft(number)])
    made.close()
    seals = [record for record in records(tmp_path / "audit") if record.kind is RecordKind.SEAL]
    assert {record.what for record in seals} == {SealWhy.BATCH, SealWhy.HEARTBEAT} - (
        {SealWhy.HEARTBEAT} if all(record.what != SealWhy.HEARTBEAT for record in seals) else set()
    )
    assert len(seals) >= 2


def test_a_heartbeat_seals_though_nothing_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = TrailWriter(str(tmp_path / "audit"))
    made.append([draft()], SealWhy.BATCH)
    made.append([])
    before = count(tmp_path / "audit")
    monkeypatch.setattr("supervisor.audit.writer.HEARTBEAT_S", 0.0)
    made.append([])
    made.close()
    assert count(tmp_path / "audit") == before + 1
    assert records(tmp_path / "audit")[-1].what == SealWhy.HEARTBEAT


def test_a_restart_continues_the_chain(tmp_path: Path) -> None:
    for number in range(5):
        made = TrailWriter(str(tmp_path / "audit"))
        made.append([draft(number)])
        made.close()
    assert verify(str(tmp_path / "audit"), initial_key(tmp_path / "audit")).ok


# ---------------------------------------------------------------- crashes


def test_a_crash_after_any_byte_of_a_batch(tmp_path: Path) -> None:
    """The records are on the disk as far as they came, and the key file does not know of them."""
    folder = tmp_path / "audit"
    make(folder, 3)
    before, key_file = read(folder), (folder / "key").read_bytes()
    made = TrailWriter(str(folder))
    made.append([draft(7), draft(8)])
    made.close()
    new = b"".join(read(folder))[len(b"".join(before)) :]
    first = len(new.splitlines(keepends=True)[0])
    for length in [0, 1, first - 1, first, first + 1, len(new) - 1, len(new)]:
        (folder / "key").write_bytes(key_file)
        rewrite(folder, [*before, new[:length]])
        made = TrailWriter(str(folder))
        made.append([draft(9)])
        made.close()
        verdict = verify(str(folder), initial_key(folder))
        assert verdict.ok, (length, verdict.message)
        # A newline alone that is missing takes nothing from a record.
        whole = (length >= first - 1) + (length >= len(new) - 1)
        torn = length not in (0, first - 1, first, len(new) - 1, len(new))
        assert len(verdict.gaps) == torn
        assert verdict.records == len(before) + whole + torn + 1
        if torn:
            gap = next(record for record in records(folder) if record.kind is RecordKind.GAP)
            assert gap.what == GapWhy.TORN
            assert gap.detail["to"] - gap.detail["from"] == length - (first if whole else 0)


def test_a_torn_record_cannot_be_used_to_hide_another(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    make(folder, 3)
    rewrite(folder, [*read(folder), b'{"n":'])
    made = TrailWriter(str(folder))
    made.append([draft(1)])
    made.close()
    assert verify(str(folder)).ok
    rewrite(folder, [line.replace(b'{"n":\n', b'{"x":\n') for line in read(folder)])
    assert verify(str(folder)).fault is not None


def test_records_that_were_cut_off_while_nobody_looked_are_a_gap_and_found(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    make(folder, 6)
    lines = read(folder)
    rewrite(folder, [*lines[:4], lines[4][:20]])
    made = TrailWriter(str(folder))
    made.append([draft(1)])
    made.close()
    gap = next(record for record in records(folder) if record.kind is RecordKind.GAP)
    assert (gap.what, gap.n) == (GapWhy.MISSING, len(lines))
    verdict = verify(str(folder), initial_key(folder))
    assert (verdict.ok, verdict.record) == (False, 4)


def test_a_segment_that_is_removed_under_the_writer(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    made = TrailWriter(str(folder))
    made.append([draft(1)])
    (folder / "000001.ndjson").unlink()
    made.append([draft(2)])
    made.close()
    assert [record.what for record in records(folder)] == [GapWhy.MISSING, "run_started"]
    assert verify(str(folder)).fault is Fault.DELETED


def test_a_key_that_is_gone_is_no_reason_to_begin_anew_unseen(tmp_path: Path) -> None:
    make(tmp_path / "audit")
    (tmp_path / "audit" / "key").unlink()
    with pytest.raises(StateError) as raised:
        TrailWriter(str(tmp_path / "audit"))
    assert "move it away" in raised.value.hint


def test_a_key_file_of_which_one_slot_is_torn(tmp_path: Path) -> None:
    """The other one is the state before: its records are taken from the segment."""
    folder = tmp_path / "audit"
    made = TrailWriter(str(folder))
    made.append([draft(1)])
    old = (folder / "key").read_bytes()
    made.append([draft(2)])
    new = (folder / "key").read_bytes()
    halves = [
        old[at : at + 4096] if old[at : at + 4096].strip(b"\0") else new[at : at + 100] for at in (0, 4096)
    ]
    (folder / "key").write_bytes(b"".join(half.ljust(4096, b"\0") for half in halves))
    made.append([draft(3)])
    made.close()
    verdict = verify(str(folder), initial_key(folder))
    assert verdict.ok and not verdict.gaps
    assert [record.run_id for record in records(folder) if record.run_id] == ["R1", "R2", "R3"]


_WRITES = """
import sys
from supervisor.audit.records import Decision
from supervisor.audit.trail import decision, note
for number in range(int(sys.argv[2])):
    note(sys.argv[1], decision(Decision.RUN_ADMITTED, {"number": number}, sys.argv[3]))
    print(number, flush=True)
"""


def start(folder: Path, many: int, name: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", _WRITES, str(folder), str(many), name]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_several_processes_write_one_trail(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    writers = [start(folder, 30, name) for name in ("a", "b", "c")]
    for process in writers:
        process.communicate(timeout=60)
    assert verify(str(folder), initial_key(folder)).ok
    for name in ("a", "b", "c"):
        mine = [record.detail["number"] for record in records(folder) if record.run_id == name]
        assert mine == list(range(30))


def test_a_writer_that_is_killed_at_any_moment(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    for told in range(1, 8):
        process = start(folder, 1000, f"p{told}")
        assert process.stdout is not None
        for _ in range(told):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        mine = [record for record in records(folder) if record.run_id == f"p{told}"]
        assert len(mine) >= told, "what was told as written is there"
    note(str(folder), decision(Decision.RUN_LOST, {}))
    assert verify(str(folder), initial_key(folder)).ok


# ---------------------------------------------------------------- the supervisor's end of it


def test_a_trail_that_cannot_be_written_is_a_problem_and_then_a_gap(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("in the way")
    trail = Trail(str(tmp_path / "audit"))
    with pytest.raises(StateError):
        trail.check()
    trail.decide(Decision.RUN_REFUSED, {})
    (tmp_path / "audit").unlink()
    trail.decide(Decision.RUN_ADMITTED, {})
    trail.close()
    found = records(tmp_path / "audit")
    assert found[-1].what == SealWhy.CLOSING
    gaps = [record for record in found if record.kind is RecordKind.GAP]
    assert [gap.what for gap in gaps] in ([], [GapWhy.UNWRITTEN])
    told = sum(int(gap.detail["records"]) for gap in gaps)
    assert told + sum(record.kind is RecordKind.DECISION for record in found) == 2
    assert verify(str(tmp_path / "audit")).ok


def test_events_and_decisions_are_in_the_order_they_were_given(tmp_path: Path) -> None:
    trail = Trail(str(tmp_path / "audit"))
    event = Event(at="2026-09-01T02:14:07.512Z", run_id="R", ticket="T", kind=EventKind.RUN_STARTED)
    for number in range(200):
        trail.decide(Decision.TICKET_CLAIMED, {"number": number}, "R", "T")
        trail.event(event)
    trail.log("R", "T", {"from": 0, "to": 1, "sha256": ""})
    trail.close()
    found = [record for record in records(tmp_path / "audit") if record.kind is not RecordKind.SEAL]
    assert [record.detail.get("number") for record in found[1:-1:2]] == list(range(200))
    assert {record.what for record in found[2:-1:2]} == {EventKind.RUN_STARTED}
    assert found[-1].kind is RecordKind.LOG


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=50), st.dictionaries(st.text(max_size=20), st.text(max_size=3000), max_size=4))
def test_any_text_is_one_line_of_bounded_size(what: str, detail: dict[str, str]) -> None:
    body = encode(Draft(kind=RecordKind.EVENT, what=what, at="", detail=detail), 1)
    assert b"\n" not in body and len(body) < MAX_DETAIL + 1000


@pytest.mark.parametrize("detail", [{"a": "\ud800"}, {"a": object()}, {1: {2: {3: b"x" * 5000}}}])
def test_a_detail_that_is_no_json_does_not_end_the_trail(tmp_path: Path, detail: Any) -> None:
    trail = Trail(str(tmp_path / "audit"))
    trail.decide(Decision.RUN_ADMITTED, detail)
    trail.decide(Decision.RUN_LOST, {"last": True})
    trail.close()
    found = [record for record in records(tmp_path / "audit") if record.kind is RecordKind.DECISION]
    assert len(found) == 2 and found[1].detail == {"last": True} and verify(str(tmp_path / "audit")).ok


def test_the_decisions_there_are() -> None:
    """Each is made somewhere in the program; what they mean stands in docs/audit.md."""
    paths = [path for path in (ROOT / "supervisor").rglob("*.py") if path.name != "records.py"]
    sources = "".join(path.read_text() for path in paths)
    assert [
        one for one in Decision if f"Decision.{one.name}" not in sources and f'"{one}"' not in sources
    ] == []
    assert {one.value for one in SealWhy} == {"batch", "heartbeat", "closing", "segment"}
    assert {one.value for one in GapWhy} == {"torn", "missing", "unwritten"}
    assert {one.value for one in RecordKind} == {"head", "event", "decision", "log", "seal", "gap"}


def test_only_its_owner_may_read_a_trail(tmp_path: Path) -> None:
    make(tmp_path / "audit")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "audit").iterdir()}
    assert modes == {0o600} and os.stat(tmp_path / "audit").st_mode & 0o777 == 0o700
