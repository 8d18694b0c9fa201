"""Owns a run's log on disk: what is kept, what is counted, what it may weigh.
May touch a temporary folder.
Never lets a line be written that is longer or more than was asked for.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.logs.book import LogBook, read_lines
from supervisor.logs.redact.known import KnownSecrets
from supervisor.logs.tail.lines import LineSplitter

NOW = datetime(2026, 9, 1, 2, 14, 7, 512_345, UTC)


def make(tmp_path: Path, budget: int = 1 << 20, max_line: int = 100, **secrets: str) -> LogBook:
    return LogBook(str(tmp_path / "log.ndjson"), KnownSecrets(secrets), budget, max_line).open()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    book = make(tmp_path)
    book.add("out", [b"one", b"", b"\xff\0\x1b[31m", "ü 漢 \U0001f600".encode()], NOW)
    book.add("file", [b"{}"], NOW, "a.ndjson")
    book.close()
    lines, end = read_lines(book.path, 0)
    assert [line.t for line in lines] == ["one", "", "\ufffd\0\x1b[31m", "ü 漢 \U0001f600", "{}"]
    assert lines[0].at == "2026-09-01T02:14:07.512Z"
    assert (lines[4].s, lines[4].f) == ("file", "a.ndjson")
    assert read_lines(book.path, end) == ([], end)
    assert os.stat(book.path).st_mode & 0o777 == 0o600


def test_an_unfinished_line_is_read_later(tmp_path: Path) -> None:
    book = make(tmp_path)
    book.add("out", [b"one"], NOW)
    _, end = read_lines(book.path, 0)
    with open(book.path, "ab") as file:
        file.write(b'{"at":"2026')
    assert read_lines(book.path, end) == ([], end)
    book.close()


@pytest.mark.parametrize("line", [b"y", b"\0" * 50, b"\xff" * 50, b"x" * 99, b""])
def test_the_budget_is_what_lies_on_the_disk(tmp_path: Path, line: bytes) -> None:
    book = make(tmp_path, budget=10_000)
    for _ in range(2000):
        book.add("out", [line] * 3, NOW)
    book.close()
    assert os.path.getsize(book.path) <= 10_000 + 1000
    lines, _ = read_lines(book.path, 0)
    assert book.totals.lines == len(lines)
    assert book.totals.lines + book.totals.dropped_lines == 6000
    assert book.totals.dropped_bytes == book.totals.dropped_lines * (len(line) + 1)


def test_a_long_line_is_cut_and_says_so(tmp_path: Path) -> None:
    book = make(tmp_path, max_line=10)
    (kept,) = book.add("err", [b"x" * 25], NOW)
    assert (kept.t, kept.cut) == ("x" * 10, 15)
    book.close()


@pytest.mark.parametrize("length", [0, 9, 10, 11, 20, 33, 34, 35, 500])
@pytest.mark.parametrize("budget", [1 << 20, 100])
def test_every_byte_is_kept_or_counted_wherever_a_line_is_cut(
    tmp_path: Path, length: int, budget: int
) -> None:
    """A line is cut by the splitter, by the book, or by both: what is kept and what is dropped add up."""
    book = make(tmp_path, budget, max_line=10, TOKEN="a-secret-of-24-characters")
    splitter = LineSplitter(book.max_line_bytes + book.redactor.longest)
    fed = b"x" * length + b"\n" + b"y" * length + b"\n" + b"after\n"
    kept = book.add("out", splitter.feed(fed), NOW)
    book.close()
    assert book.totals.bytes == sum(len(line.t) + 1 for line in kept)
    assert book.totals.bytes + book.totals.dropped_bytes == len(fed)


def test_a_cut_in_the_middle_of_a_character(tmp_path: Path) -> None:
    book = make(tmp_path, max_line=4)
    (kept,) = book.add("out", ["aäöü".encode()], NOW)
    assert kept.t == "aä\ufffd"
    book.close()


def test_secrets_are_counted(tmp_path: Path) -> None:
    book = make(tmp_path, TOKEN="hunter2hunter2")
    book.add("out", [b"hunter2hunter2 and hunter2hunter2"], NOW)
    book.close()
    assert book.totals.redacted == 2
    assert b"hunter2" not in Path(book.path).read_bytes()


def test_a_symlink_in_the_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "log.ndjson").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        make(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_drops_and_counts(tmp_path: Path) -> None:
    book = make(tmp_path)
    os.close(book._fd)
    book._fd = os.open("/dev/full", os.O_WRONLY)
    book.add("out", [b"one"], NOW)
    book.close()
    assert book.totals.dropped_bytes > 0


def test_a_log_that_is_not_there_is_an_empty_one(tmp_path: Path) -> None:
    assert read_lines(str(tmp_path / "none"), 7) == ([], 7)


def test_pages(tmp_path: Path) -> None:
    """Reading on from each offset gives every line once, also when one is larger than a page."""
    book = make(tmp_path, max_line=10_000)
    book.add("out", [b"a" * 50, b"b" * 5000, b"c"], NOW)
    book.close()
    offset, seen = 0, ""
    while True:
        lines, following = read_lines(book.path, offset, limit_bytes=100)
        if following == offset:
            break
        offset, seen = following, seen + "".join(line.t[0] for line in lines)
    assert seen == "abc"
