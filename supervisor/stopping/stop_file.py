"""Owns the stop-files: <state>/stop/<ticket> for one run, <state>/STOP for everything.
May touch those names, read-only; whoever can write there may stop runs.
Never trusts a notification: inotify misses renamed and mounted-over folders, so looking decides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from supervisor.paths import Paths

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

_NOTE_BYTES = 400


def look(paths: Paths, tickets: Iterable[str]) -> dict[str, str]:
    """Which of the tickets have to stop, with the first line of the file that says so.

    Anything under the name counts: an empty file, a symlink to nowhere, a folder.
    """
    everything = _note(paths.stop_everything)
    if everything is not None:
        return dict.fromkeys(tickets, everything)
    found: dict[str, str] = {}
    for ticket in tickets:
        note = _note(f"{paths.stop_folder}/{ticket}")
        if note is not None:
            found[ticket] = note
    return found


def _note(path: str) -> str | None:
    if not os.path.lexists(path):
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        first = os.read(fd, _NOTE_BYTES).split(b"\n", 1)[0]
    except OSError:
        return ""
    finally:
        os.close(fd)
    return "".join(c for c in first.decode("utf-8", errors="replace").strip() if c.isprintable())


class StopFolderWatch:
    """Calls wake as soon as a name comes into the state or the stop folder, or goes. A hint, no more.

    Names only: the database lies there too, and each of its writes would wake us, also amid a kill.
    """

    def __init__(self, paths: Paths, wake: Callable[[], None]) -> None:
        self._folders = (paths.state, paths.stop_folder)
        self._wake = wake
        self._observer: BaseObserver | None = None
        self._identities: list[tuple[int, int] | None] = []

    def refresh(self) -> None:
        """Watch again when a folder is another one than the one watched. Called at every look."""
        now = [_identity(folder) for folder in self._folders]
        if self._observer is not None and now == self._identities:
            return
        self.close()
        self._identities = now
        from watchdog import events
        from watchdog.observers import Observer

        wake = self._wake

        class Waker(events.FileSystemEventHandler):
            def on_any_event(self, event: events.FileSystemEvent) -> None:
                wake()

        names = [events.FileCreatedEvent, events.FileMovedEvent, events.FileDeletedEvent]
        names += [events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent]
        observer = Observer()
        try:
            for folder, identity in zip(self._folders, now, strict=True):
                if identity is not None:
                    observer.schedule(Waker(), folder, event_filter=names)
            observer.start()
        except OSError:
            return  # no inotify instance left: looking every second goes on
        self._observer = observer

    def close(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
            self._observer = None


def _identity(folder: str) -> tuple[int, int] | None:
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino
