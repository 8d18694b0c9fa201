"""Owns that what cannot be used is said clearly: an error, a hint, an exit code, no traceback, no loss.
May touch the stands, and a small file system in memory mounted on a folder of a stand.
Never leaves a mount behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from boxlab import host_mounts
from stand import Done, Stand

from supervisor.runs.reasons import StopReason

pytest_plugins = ["stand_fixtures"]


def check(done: Done, code: int, *words: str) -> None:
    assert done.code == code, done
    assert done.clear_error(), done
    assert "hint:" in done.err, done
    for word in words:
        assert word in done.err, (word, done.err)


TRUE = ("--", "/bin/true")


def test_commands_that_cannot_be_used(place: Stand) -> None:
    for words, said in {
        ("run",): "no command",
        ("run", "--profile", "offlin", *TRUE): "did you mean offline?",
        ("run", "--profile", "./none.toml", *TRUE): "none.toml",
        ("run", "--ticket", "../x", *TRUE): "ticket key",
        ("run", "--ticket", "\x1b[31m", *TRUE): "ticket key",
        ("run", "--ticket", "x" * 121, *TRUE): "ticket key",
        ("run", "--worktree", "/", *TRUE): "cannot be a worktree",
        ("run", "--worktree", "/etc", *TRUE): "cannot be a worktree",
        ("run", "--worktree", "/nonexistent/x", *TRUE): "/nonexistent/x",
        ("run", "--no-such-option", *TRUE): "--no-such-option",
        ("rnu",): "did you mean run?",
        ("report", "--since", "yesterday"): "no span of time",
        ("resume", "a/b"): "ticket key",
    }.items():
        done = place.ctl(*words)
        assert done.code == 2 and done.clear_error() and said in done.err, (words, done)
        assert "hint:" in done.err or "/nonexistent/x" in words, done
    for words in (("status", "T-9"), ("logs", "T-9"), ("events", "T-9"), ("kill", "T-9")):
        done = place.ctl(*words)
        check(done, 3, "T-9")


def test_a_program_that_is_not_there(anywhere: Stand) -> None:
    for argv in (["no-such-program"], ["/no/such/program"], ["./README"]):
        done = anywhere.ctl("run", "--profile", anywhere.profile(), "--", *argv)
        check(done, 64, argv[0].removeprefix("./"))
    assert anywhere.ctl("ps").out.startswith("nothing is running")


def test_detach_without_a_daemon(place: Stand) -> None:
    check(place.ctl("run", "--detach", *TRUE), 5, "needs the daemon")


def test_a_secret_that_is_not_there_is_named_and_not_shown(place: Stand) -> None:
    (place.folder / "short").write_text("abc\n")
    (place.folder / "empty").write_text("\n")
    (place.folder / "binary").write_bytes(b"\xff\xfe\xff\xfe\xff\xfe\xff")
    for source in ("none", "short", "empty", "binary"):
        more = f'[env]\nsecret = {{ TOKEN = "file:{place.folder}/{source}" }}\n'
        done = place.ctl("run", "--profile", place.profile(more=more), *TRUE)
        assert done.code == 2 and done.clear_error() and "TOKEN" in done.err
        assert "abc" not in done.err


@pytest.mark.parametrize("what", ["file in its place", "below a file", "relative symlink to nowhere"])
def test_a_state_folder_that_cannot_be(place: Stand, what: str) -> None:
    state = place.state
    if what == "file in its place":
        state.write_text("mine")
    elif what == "below a file":
        (place.folder / "file").write_text("mine")
        place.environment["SUPERVISOR_STATE_DIR"] = f"{place.folder}/file/state"
    else:
        state.symlink_to("nowhere/at/all")
    for words in (("run", *TRUE), ("serve",)):
        check(place.ctl(*words), 6, "SUPERVISOR_STATE_DIR")
    assert what != "file in its place" or state.read_text() == "mine"


def test_a_state_folder_that_others_could_change(place: Stand) -> None:
    place.state.mkdir()
    place.state.chmod(0o777)
    check(place.ctl("run", *TRUE), 6, "other users")
    place.state.chmod(0o700)
    os.chown(place.state, 65534, 65534)
    check(place.ctl("run", *TRUE), 6, "other users")
    os.chown(place.state, 0, 0)
    assert place.ctl("run", *TRUE).code == 0, "control"


def test_a_run_folder_too_deep_for_a_socket(place: Stand) -> None:
    place.environment["SUPERVISOR_RUN_DIR"] = f"{place.folder}/{'d' * 120}"
    for words in (("serve",), ("run", *TRUE)):
        check(place.ctl(*words), 6, "shorter path")
    place.environment["SUPERVISOR_RUN_DIR"] = f"{place.folder}/run"
    assert place.ctl("run", *TRUE).code == 0


def test_a_damaged_database_is_kept(place: Stand) -> None:
    assert place.ctl("run", "--ticket", "T-1", *TRUE).code == 0
    database = Path(place.paths.database)
    good = database.read_bytes()
    database.write_bytes(b"this is no database\n" * 200)
    bad = database.read_bytes()
    for words in (("run", *TRUE), ("serve",), ("ps",), ("kill", "T-1"), ("status", "T-1")):
        check(place.ctl(*words), 6, "is damaged", f"mv {database}")
        assert database.read_bytes() == bad
    database.write_bytes(good)
    assert place.ctl("status", "T-1").code == 0
    database.rename(f"{database}.damaged")
    assert place.ctl("run", *TRUE).code == 0, "as the hint says"


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(folder: Path) -> Path:
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return path


def test_a_full_disk(place: Stand) -> None:
    place.state.mkdir(mode=0o700)
    with small_disk(place.state, "4m"):
        assert place.ctl("run", "--ticket", "T-1", *TRUE).code == 0, "control: it works with room"
        filler = fill_up(place.state)
        for words in (("run", *TRUE), ("serve",)):
            done = place.ctl(*words)
            assert done.code in (6, 64) and done.clear_error(), done
            assert "space" in done.err, done
        looked = place.ctl("status", "T-1")
        assert looked.code == 0 or (looked.code == 6 and "space" in looked.err), looked
        filler.unlink()
        assert place.ctl("run", *TRUE).code == 0, "nothing has to be repaired"
        assert place.ctl("status", "T-1").code == 0, "nothing was lost"
    assert [line for line in host_mounts() if str(place.folder) in line] == []


def test_a_disk_that_fills_up_meanwhile(place: Stand) -> None:
    """The run is still killed; its end is written as soon as there is room."""
    place.state.mkdir(mode=0o700)
    with small_disk(place.state, "6m"):
        place.serve()
        ticket = place.start()
        filler = fill_up(place.state)
        assert place.ctl("kill", ticket).code in (0, 4)
        assert place.survivors() == []
        filler.unlink()
        assert place.ended(ticket).reason is StopReason.KILLED
        assert [event["kind"] for event in place.events(ticket)].count("run_ended") == 1
        daemon = place.daemon
        assert daemon is not None
        daemon.terminate()
        daemon.wait(timeout=60)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[stop]\nqeury = 1\n", "qeury"),
        ("[stop]\nquery = 1\n", "query"),
        ("[nothing]\n", "nothing"),
        ("not toml", "cannot be read"),
    ],
)
def test_a_configuration_that_cannot_be_used(place: Stand, text: str, said: str) -> None:
    config = place.folder / "config.toml"
    config.write_text(text)
    place.environment["SUPERVISOR_CONFIG"] = str(config)
    for words in (("serve",), ("run", *TRUE)):
        done = place.ctl(*words)
        assert done.code == 2 and done.clear_error() and said in done.err


def test_a_configuration_that_is_not_there(place: Stand) -> None:
    place.environment["SUPERVISOR_CONFIG"] = f"{place.folder}/none.toml"
    done = place.ctl("serve")
    assert done.code == 2 and done.clear_error() and "none.toml" in done.err


def test_a_worktree_that_goes_away(daemon: Stand) -> None:
    tree = daemon.folder / "goes"
    tree.mkdir()
    order = {**daemon.order("T-goes", "print('UP')", daemon.profile()), "worktree": str(tree)}
    daemon.ask("run", **order)
    assert daemon.ended("T-goes").reason is StopReason.DONE
    shutil.rmtree(tree)
    done = daemon.ctl("apply", "T-goes")
    assert done.code != 0 and done.clear_error(), done
