"""Owns that an agent's log files land in the run's log once, also over a restart, and gaps are told.
May touch a temporary folder for the box's log folder and one for the run's.
Never starts a box: the folder's descriptor is all that is taken from one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from sandbox.client import Box
from supervisor.clock import SystemClock
from supervisor.events import EventKind
from supervisor.logs.agent_events import AgentEvents
from supervisor.logs.agent_files import AgentFiles
from supervisor.logs.book import LogBook, LogLine, read_lines
from supervisor.logs.redact.known import KnownSecrets
from supervisor.profile.load import load
from supervisor.profile.schema import Log

Events = list[tuple[EventKind, dict[str, Any]]]
SECRET = "hunter2hunter2"


class Place:
    """The two folders of a run, and what was told of it."""

    def __init__(self, folder: Path) -> None:
        self.logs, self.run = folder / "logs", folder / "run"
        self.logs.mkdir()
        self.run.mkdir()
        self.events: Events = []
        self.shown: list[LogLine] = []
        self.fd = os.open(self.logs, os.O_RDONLY | os.O_DIRECTORY)

    def start(self) -> AgentFiles:
        """As a supervisor does it for a new run, or once more for a run it had before."""
        self.book = LogBook(str(self.run / "log.ndjson"), KnownSecrets({"T": SECRET}), 1 << 24, 1000).open()
        box = cast(Box, SimpleNamespace(log_folder=self.fd))
        log = Log(files=["/run/agent/*.ndjson"])
        profile = msgspec.structs.replace(load("offline").profile, log=log)
        events = AgentEvents(self.book.redactor, lambda kind, detail: self.events.append((kind, detail)))
        emit: Callable[[EventKind, dict[str, Any]], None] = lambda kind, detail: self.events.append(  # noqa: E731
            (kind, detail)
        )
        return AgentFiles(
            box, profile, self.book, SystemClock(), emit, lambda lines: self._show(events, lines)
        )

    def _show(self, events: AgentEvents, lines: list[LogLine]) -> None:
        self.shown += events.take(lines)

    def write(self, text: str, name: str = "a.ndjson") -> None:
        with open(self.logs / name, "a", encoding="utf-8") as file:
            file.write(text)

    def kept(self) -> list[str]:
        return [line.t for line in read_lines(self.book.path, 0)[0]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.book.close()
    os.close(made.fd)


def test_lines_are_kept_redacted_and_known_ones_are_events(place: Place) -> None:
    files = place.start()
    place.write(f'{{"kind":"iteration","iteration":1,"note":"{SECRET}"}}\nplain {SECRET}\n{{"x":1}}\n')
    files.poll()
    files.finish()
    files.close()
    assert place.events == [
        (EventKind.ITERATION, {"iteration": 1, "note": "[redacted:T]", "file": "a.ndjson"}),
        (EventKind.AGENT_EVENT, {"x": 1, "file": "a.ndjson"}),
    ]
    assert [line.t for line in place.shown] == ["plain [redacted:T]"]
    assert len(place.kept()) == 3 and SECRET not in str(place.kept())


def test_a_file_that_is_truncated_is_told_as_a_gap(place: Place) -> None:
    files = place.start()
    place.write("one\ntwo\n")
    files.poll()
    os.truncate(place.logs / "a.ndjson", 0)
    place.write("three\n")
    files.poll()
    (place.logs / "link.ndjson").symlink_to("a.ndjson")
    files.poll()
    files.close()
    assert place.events == [
        (EventKind.LOG_GAP, {"file": "a.ndjson", "why": "truncated"}),
        (EventKind.LOG_REFUSED, {"file": "link.ndjson"}),
    ]
    assert place.kept() == ["one", "two", "three"]


def test_a_line_that_never_ended_is_kept_and_says_so(place: Place) -> None:
    files = place.start()
    place.write("whole\nhalf")
    files.finish()
    files.close()
    whole, half = read_lines(place.book.path, 0)[0]
    assert (whole.partial, half.partial, half.t) == (False, True, "half")


def test_a_line_past_the_limit_says_how_much_is_missing(place: Place) -> None:
    files = place.start()
    place.write("x" * 5000 + "\n")
    files.finish()
    files.close()
    (line,) = read_lines(place.book.path, 0)[0]
    assert len(line.t) + line.cut == 5000 and len(line.t) <= 1000


@pytest.mark.parametrize("looks", [1, 9, 10, 11, 25])
def test_after_a_restart_no_line_is_kept_twice(place: Place, looks: int) -> None:
    """Wherever the places were kept last: what came after them is found in the log."""
    files = place.start()
    for number in range(looks):
        place.write(f"{number}\n")
        place.write(f"b{number}\n", "b.ndjson")
        files.poll()
    place.write("half")
    files.poll()
    files.close()
    place.book.close()
    assert (place.run / "tail.json").exists() is (looks + 1 >= 10)
    files = place.start()
    place.write(" a line\nlast\n")
    files.poll()
    files.finish()
    files.close()
    wanted = [*map(str, range(looks)), *(f"b{number}" for number in range(looks)), "half a line", "last"]
    assert sorted(place.kept()) == sorted(wanted)
