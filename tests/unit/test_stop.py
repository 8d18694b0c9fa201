"""Owns looking for stop-files, whatever stands under their names.
May touch a temporary folder.
Never follows a symlink and never blocks.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from supervisor.paths import Paths
from supervisor.stopping.stop_file import StopFolderWatch, look


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    (tmp_path / "stop").mkdir()
    return Paths(str(tmp_path), str(tmp_path / "run"))


def test_nothing(paths: Paths) -> None:
    assert look(paths, ["A", "B"]) == {}
    os.rmdir(paths.stop_folder)
    assert look(paths, ["A", "B"]) == {}


def test_only_those_that_are_named(paths: Paths) -> None:
    Path(paths.stop_folder, "A").write_text("  why \nmore")
    Path(paths.stop_folder, "C").write_text("other")
    Path(paths.stop_folder, "a").write_text("case matters")
    assert look(paths, ["A", "B"]) == {"A": "why"}


def test_everything(paths: Paths) -> None:
    Path(paths.stop_everything).write_text("all\n")
    Path(paths.stop_folder, "A").write_text("one")
    assert look(paths, ["A", "B"]) == {"A": "all", "B": "all"}
    assert look(paths, []) == {}


def test_whatever_it_is(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", f"{paths.stop_folder}/link")
    os.symlink("nowhere", f"{paths.stop_folder}/nowhere")
    os.symlink("loop", f"{paths.stop_folder}/loop")
    os.mkfifo(f"{paths.stop_folder}/fifo")
    os.mkdir(f"{paths.stop_folder}/folder")
    Path(paths.stop_folder, "empty").touch()
    Path(paths.stop_folder, "noise").write_bytes(b"\xff\x00\x1b[2J" + b"z" * 9999)
    names = ["link", "nowhere", "loop", "fifo", "folder", "empty", "noise", "missing"]
    found = look(paths, names)
    assert set(found) == set(names) - {"missing"}
    assert {found[name] for name in names[:6]} == {""}
    assert found["noise"].isprintable() and len(found["noise"]) <= 400


def test_the_watch_wakes_and_finds_its_folder_again(paths: Paths) -> None:
    woken = threading.Event()
    watch = StopFolderWatch(paths, woken.set)
    watch.refresh()
    try:
        database = Path(paths.state, "supervisor.db")
        database.touch()
        assert woken.wait(30)
        woken.clear()
        database.write_text("a page")
        assert not woken.wait(0.5), "what is written there is nothing to look for"
        Path(paths.stop_folder, "A").touch()
        assert woken.wait(30)
        os.rename(paths.stop_folder, f"{paths.state}/old")
        os.mkdir(paths.stop_folder)
        watch.refresh()
        woken.clear()
        Path(paths.stop_folder, "B").touch()
        assert woken.wait(30)
    finally:
        watch.close()


def test_a_watch_on_folders_that_are_not_there(tmp_path: Path) -> None:
    watch = StopFolderWatch(Paths(f"{tmp_path}/no", f"{tmp_path}/run"), lambda: None)
    watch.refresh()
    watch.refresh()
    watch.close()
