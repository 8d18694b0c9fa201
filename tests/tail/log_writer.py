"""Owns a program that writes logs in every bad way there is, and knows which of its lines must be found.
May touch a folder that stands for the box's.
Never counts a line as found that it did not write.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from supervisor.logs.tail.files import FileTail, Found

PATTERN = "/run/agent/*.ndjson"
LONG = 300
"""Lines are this long now and then: the head of a file is then enough to know its copy."""


class LogWriter:
    """Writes numbered lines to a.ndjson. at_risk: lines that were truncated away before any look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[bytes] = []
        self.at_risk: set[bytes] = set()
        self._since_look: list[bytes] = []
        self._half = b""
        self._rotated = 0
        self._seen = False
        self._fd = self._open()

    def _open(self) -> int:
        self._seen = False
        return os.open(self.folder / "a.ndjson", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def close(self) -> None:
        os.close(self._fd)

    def looked(self) -> None:
        """All that is complete now has been read, and the file that is written to is open."""
        self._since_look.clear()
        self._seen = True

    def _next(self, long: bool = False) -> bytes:
        text = b"%06d" % len(self.written)
        return text + b"." * LONG if long else text

    # ------------------------------------------------------------ what it may do

    def line(self) -> None:
        """One line, after what is there of a half one."""
        text = self._half + self._next() if self._half else self._next(len(self.written) % 7 == 0)
        os.write(self._fd, text[len(self._half) :] + b"\n")
        self._half = b""
        self.written.append(text)
        self._since_look.append(text)

    def half(self) -> None:
        if not self._half:
            self._half = b"half-"
            os.write(self._fd, self._half)

    def rename(self) -> None:
        """Rotation as logrotate does it: another name that nobody looks for, and a new file."""
        self._rotate(".1", in_sight=self._seen)

    def rename_within(self) -> None:
        """Rotation to a name that matches too."""
        self._rotated += 1
        self._rotate(f".{self._rotated}.ndjson", in_sight=True)

    def _rotate(self, ending: str, *, in_sight: bool) -> None:
        self._finish_half()
        os.rename(self.folder / "a.ndjson", self.folder / f"a{ending}")
        self._go_on_in_the_old(in_sight=in_sight)

    def _go_on_in_the_old(self, *, in_sight: bool) -> None:
        """A writer has it open for a while. What no look ever saw under its name nobody can find."""
        self.line()
        if not in_sight:
            self.at_risk.update(self._since_look)
        os.close(self._fd)
        self._fd = self._open()

    def remake(self) -> None:
        self._finish_half()
        os.unlink(self.folder / "a.ndjson")
        self._go_on_in_the_old(in_sight=self._seen)
        os.close(self._fd)
        self._fd = self._open()

    def truncate(self) -> None:
        """What was written since the last look is gone before anybody could read it."""
        self._finish_half()
        self.at_risk.update(self._since_look)
        os.ftruncate(self._fd, 0)

    def rewrite(self) -> None:
        """Truncated, and as long as before at once, with other lines."""
        size = os.fstat(self._fd).st_size
        self.truncate()
        while os.fstat(self._fd).st_size < size:
            self.line()

    def copy_and_truncate(self) -> None:
        """As logrotate's copytruncate, with a copy that matches: nothing of it may be told twice."""
        self._finish_half()
        self._rotated += 1
        original = (self.folder / "a.ndjson").read_bytes()
        (self.folder / f"a.{self._rotated}.ndjson").write_bytes(original)
        os.ftruncate(self._fd, 0)

    def leave_a_hole(self) -> None:
        """A writer that does not append goes on where it was, after a truncation."""
        size = os.fstat(self._fd).st_size
        self.truncate()
        os.ftruncate(self._fd, size + 1_000_000)
        self.line()

    def _finish_half(self) -> None:
        if self._half:
            self.line()


ACTIONS: dict[str, Callable[[LogWriter], None]] = {
    "line": LogWriter.line,
    "half": LogWriter.half,
    "rename": LogWriter.rename,
    "rename_within": LogWriter.rename_within,
    "remake": LogWriter.remake,
    "truncate": LogWriter.truncate,
    "rewrite": LogWriter.rewrite,
    "leave_a_hole": LogWriter.leave_a_hole,
    "copy_and_truncate": LogWriter.copy_and_truncate,
}


class Reader:
    """A tail that can be stopped at any point and gone on with, as after a restart."""

    def __init__(self, folder: Path, limit_bytes: int = 1 << 16) -> None:
        self.folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self.limit_bytes = limit_bytes
        self.tail = FileTail(self.folder, [PATTERN], limit_bytes)
        self.told: list[bytes] = []
        self.gaps = 0

    def look(self) -> None:
        self._take(self.tail.poll())

    def _take(self, found: Iterable[Found]) -> None:
        for one in found:
            # Pieces of lines whose newline never came are shown, but are no lines.
            self.told += [bytes(line) for line in one.lines if not getattr(line, "partial", False)]
            self.gaps += one.gap is not None

    def restart(self) -> None:
        """Everything that was told has been stored together with the places."""
        places = self.tail.saved()
        self.tail.close()
        self.tail = FileTail(self.folder, [PATTERN], self.limit_bytes, places)
        self.look()

    def crash(self) -> None:
        """Dies after its lines were stored and before the places were."""
        places = self.tail.saved()
        found = self.tail.poll()
        self._take(found)
        told: Counter[str] = Counter()
        for one in found:
            told[one.name] += len(one.lines)
        self.tail.close()
        self.tail = FileTail(self.folder, [PATTERN], self.limit_bytes, places, dict(told))
        self.look()

    def finish(self) -> None:
        self._take(self.tail.finish())
        os.close(self.folder)


def check(writer: LogWriter, reader: Reader) -> None:
    """No line lost but those that nobody could have read, none twice, none that was not written."""
    told = Counter(reader.told)
    assert [line for line, count in told.items() if count > 1] == []
    assert told.keys() - set(writer.written) == set()
    assert set(writer.written) - told.keys() - writer.at_risk == set()
