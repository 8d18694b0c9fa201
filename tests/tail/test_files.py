"""Owns following the log files that an agent writes: rotated, truncated, replaced, and no plain files.
May touch a temporary folder that stands for the box's.
Never lets a line be lost or told twice.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from supervisor.logs.tail.files import FileTail, Found, Gap
from supervisor.logs.tail.lines import cut_bytes


@pytest.fixture
def tail(tmp_path: Path) -> Iterator[FileTail]:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    made = FileTail(folder, ["/run/agent/*.ndjson"], 1 << 20)
    yield made
    made.close()
    os.close(folder)


def lines(found: Iterable[Found]) -> list[bytes]:
    return [line for one in found for line in one.lines]


def test_lines_as_they_come(tmp_path: Path, tail: FileTail) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"one\ntw")
    (tmp_path / "other.txt").write_bytes(b"not ours\n")
    assert tail.poll() == [Found("a.ndjson", [b"one"])]
    with path.open("ab") as file:
        file.write(b"o\nthree")
    assert lines(tail.poll()) == [b"two"]
    assert lines(tail.poll()) == []
    assert lines(tail.finish()) == [b"three"]


def test_everything_is_read_at_the_end_however_much(tmp_path: Path, tail: FileTail) -> None:
    wanted = [b"%d" % number for number in range(1_500_000)]
    (tmp_path / "a.ndjson").write_bytes(b"\n".join(wanted) + b"\n")
    first = lines(tail.poll())
    assert first + lines(tail.finish()) == wanted


def test_rotation_tells_nothing_twice_and_loses_nothing(tmp_path: Path, tail: FileTail) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"1\n")
    told = lines(tail.poll())
    with path.open("ab") as file:
        file.write(b"2\n3")
    path.rename(tmp_path / "a.1.ndjson")
    path.write_bytes(b"4\n")
    told += lines(tail.poll())
    path.rename(tmp_path / "hidden")
    told += lines(tail.poll()) + lines(tail.finish())
    assert sorted(told) == [b"1", b"2", b"3", b"4"]


def test_replaced_by_rename(tmp_path: Path, tail: FileTail) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"old\nunfinished")
    told = lines(tail.poll())
    (tmp_path / "new").write_bytes(b"new\n")
    (tmp_path / "new").rename(path)
    told += lines(tail.poll()) + lines(tail.finish())
    assert sorted(told) == [b"new", b"old", b"unfinished"]


def test_truncated(tmp_path: Path, tail: FileTail) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"first\nsecond\n")
    assert lines(tail.poll()) == [b"first", b"second"]
    path.write_bytes(b"third\n")
    assert lines(tail.poll()) == [b"third"]
    list(tail.finish())


def test_removed_while_it_was_written(tmp_path: Path, tail: FileTail) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"1\n")
    with path.open("ab") as file:
        told = lines(tail.poll())
        file.write(b"2\n")
        file.flush()
        path.unlink()
        told += lines(tail.poll())
    assert told == [b"1", b"2"]
    list(tail.finish())


def test_what_is_no_plain_file_is_refused_by_name(tmp_path: Path, tail: FileTail) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret\n")
    (tmp_path / "link.ndjson").symlink_to(secret)
    (tmp_path / "hard.ndjson").hardlink_to(secret)
    os.mkfifo(tmp_path / "fifo.ndjson")
    (tmp_path / "folder.ndjson").mkdir()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket.ndjson"))
    listening.close()
    (tmp_path / "plain.ndjson").write_bytes(b"control\n")
    assert lines(tail.poll()) == [b"control"]
    assert tail.refused == {"link.ndjson", "hard.ndjson", "fifo.ndjson", "folder.ndjson", "socket.ndjson"}
    list(tail.finish())


def test_a_name_that_is_no_text(tmp_path: Path, tail: FileTail) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.ndjson")).write_bytes(b"line\n")
    ((name, some, _),) = tail.poll()
    assert (name, some) == ("\\xff.ndjson", [b"line"])
    name.encode()
    list(tail.finish())


def test_no_more_files_are_open_than_may_be_and_all_are_read(tmp_path: Path, tail: FileTail) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}.ndjson").write_bytes(b"%d\n" % number)
    before = len(os.listdir("/proc/self/fd"))
    told = lines(tail.poll())
    assert len(os.listdir("/proc/self/fd")) <= before + 64
    for number in range(300):
        with (tmp_path / f"{number:03}.ndjson").open("ab") as file:
            file.write(b"more %d\n" % number)
    told += lines(tail.poll())
    assert len(os.listdir("/proc/self/fd")) <= before + 64
    assert lines(tail.poll()) == []
    wanted = [f"{word}{number}".encode() for number in range(300) for word in ("", "more ")]
    assert sorted(told) == sorted(wanted)
    list(tail.finish())
    assert len(os.listdir("/proc/self/fd")) == before


def test_more_files_than_can_be_followed_are_said_once(tmp_path: Path, tail: FileTail) -> None:
    for number in range(100):
        (tmp_path / f"{number:03}.ndjson").write_bytes(b"unfinished")
    assert [one.gap for one in tail.poll()] == [Gap.TOO_MANY_FILES]
    assert tail.poll() == []
    assert len(lines(tail.finish())) == 64


def test_what_is_held_of_endless_lines_is_bounded_over_all_files(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    tail = FileTail(folder, ["/run/agent/*"], 1000)
    for number in range(50):
        (tmp_path / f"{number}").write_bytes(b"x" * 900)
    for _ in range(3):
        tail.poll()
        assert sum(len(entry.splitter.held) for entry in tail._followed.values()) <= 9 * 1000
        for number in range(50):
            with (tmp_path / f"{number}").open("ab") as file:
                file.write(b"x" * 900)
    for number in range(50):
        with (tmp_path / f"{number}").open("ab") as file:
            file.write(b"\nshort\n")
    found = lines(tail.finish())
    assert found.count(b"short") == 50 and len(found) == 100
    assert sum(len(line) for line in found) + cut_bytes(found) == 50 * (3 * 900 + 900 + 5)
    os.close(folder)


def test_a_hole_of_a_terabyte_is_counted_and_not_read(tmp_path: Path, tail: FileTail) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"one\n")
    told = lines(tail.poll())
    with path.open("r+b") as file:
        file.seek(1 << 40)
        file.write(b"two\n")
    told += lines(tail.poll())
    assert told == [b"one", b"two"]
    assert cut_bytes(told) == (1 << 40) - 4


def test_a_writer_that_makes_room_first(tmp_path: Path, tail: FileTail) -> None:
    """NULs at the end are where its lines will stand."""
    path = tmp_path / "a.ndjson"
    with path.open("wb") as file:
        file.write(bytes(1 << 20))
    assert tail.poll() == []
    told: list[bytes] = []
    with path.open("r+b") as file:
        for number in range(5):
            file.write(b"line %d\n" % number)
            file.flush()
            told += lines(tail.poll())
    told += lines(tail.finish())
    assert told == [b"line %d" % number for number in range(5)]


def test_bytes_that_are_no_text_pass_as_they_are(tmp_path: Path, tail: FileTail) -> None:
    raw = bytes(range(1, 256)).replace(b"\n", b"") + b"\xed\xa0\x80"
    (tmp_path / "a.ndjson").write_bytes(raw + b"\n")
    assert lines(tail.poll()) == [raw]


def test_rewritten_to_the_same_size(tmp_path: Path, tail: FileTail) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"first\n")
    told = lines(tail.poll())
    path.write_bytes(b"third\n")
    found = tail.poll()
    assert told + lines(found) == [b"first", b"third"]
    assert [one.gap for one in found if one.gap] == [Gap.REWRITTEN]


def test_an_inode_that_is_used_again_is_another_file(tmp_path: Path) -> None:
    """After a restart the inode alone says nothing: the bytes and the time of birth do."""
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    first = FileTail(folder, ["/run/agent/*.ndjson"], 1000)
    (tmp_path / "a.ndjson").write_bytes(b"one\ntwo\n")
    assert lines(first.poll()) == [b"one", b"two"]
    (place,) = first.saved()
    first.close()
    (tmp_path / "a.ndjson").write_bytes(b"six\nten\nmore\n")
    for known in (place, msgspec.structs.replace(place, born_ns=place.born_ns - 1)):
        again = FileTail(folder, ["/run/agent/*.ndjson"], 1000, [known])
        assert lines(again.poll()) == [b"six", b"ten", b"more"]
        again.close()
    os.close(folder)
