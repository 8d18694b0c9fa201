"""Owns that files of a state are made as new ones for the owner of their folder, and read as plain files.
May touch temporary folders, and as root the owners of what is in them.
Never waits for a FIFO.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from supervisor.errors import StateError
from supervisor.ownership import SERVICE_ACCOUNT, is_trusted, make_folder, open_file, read_file
from supervisor.paths import Paths
from supervisor.state_keys import KEY_BYTES, state_key
from supervisor.workspace.apply import Vetted, keep_refused

UID = 64_322


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = pwd.struct_passwd((SERVICE_ACCOUNT, "x", UID, UID, "", "/", "/bin/false"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: ours)


def owner(path: Path) -> int:
    return path.lstat().st_uid


def test_what_is_made_belongs_to_the_owner_of_its_folder(tmp_path: Path, account: None) -> None:
    os.chown(tmp_path, UID, UID)
    os.close(open_file(str(tmp_path / "file"), os.O_WRONLY))
    assert make_folder(str(tmp_path / "a/b"), 0o700)
    assert {owner(tmp_path / name) for name in ("file", "a", "a/b")} == {UID}
    assert not make_folder(str(tmp_path / "a/b"), 0o700)


def test_what_was_there_before_is_not_given_away(tmp_path: Path, account: None) -> None:
    there = tmp_path / "there"
    there.write_text("text")
    os.chown(tmp_path, UID, UID)
    os.close(open_file(str(there), os.O_RDWR))
    make_folder(str(tmp_path), 0o700)
    assert (owner(there), there.read_text()) == (0, "text")
    with pytest.raises(FileExistsError):
        open_file(str(there), os.O_RDWR, exclusive=True)


def test_a_third_users_folder_gets_nothing(tmp_path: Path, account: None) -> None:
    os.chown(tmp_path, UID + 1, UID + 1)
    os.close(open_file(str(tmp_path / "file"), os.O_WRONLY))
    assert owner(tmp_path / "file") == 0
    assert [is_trusted(uid) for uid in (0, UID, UID + 1)] == [True, True, False]


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_a_link_or_a_fifo_in_a_files_place_is_neither_followed_nor_waited_for(
    tmp_path: Path, flags: int
) -> None:
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to(target)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(OSError):
            open_file(str(tmp_path / name), flags)
        with pytest.raises(OSError):
            read_file(str(tmp_path / name), 100)
    assert not target.exists()


def test_a_key_that_is_a_fifo_is_an_error(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path), str(tmp_path))
    assert len(state_key(paths, "one")) == KEY_BYTES
    os.mkfifo(tmp_path / "two.key")
    with pytest.raises(StateError, match=r"two\.key cannot be used"):
        state_key(paths, "two")


def test_what_an_apply_refused_is_kept_without_following_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("text")
    for name in ("refused.json", "refused.json.new"):
        (tmp_path / name).symlink_to(target)
    keep_refused(str(tmp_path), Vetted())
    assert target.read_text() == "text"
    assert (tmp_path / "refused.json").read_text() == "[]"
