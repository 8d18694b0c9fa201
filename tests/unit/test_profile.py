"""Owns that a profile is taken only when all of it is understood, and that errors say where.
May touch profile files in a temporary folder.
Never lets a profile ask for less than its parent by adding to a list.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from supervisor.errors import ProfileError
from supervisor.profile.load import load, shipped
from supervisor.profile.schema import UNITS, Profile
from supervisor.runs.boxing import environment, required_controls

LIMITS = '[limits]\nwall_clock = "1m"\nmemory = "64MiB"\npids = 16\ncpu = 1.0\ntmp = "1MiB"\n'
HEAD = 'schema = 1\nname = "x"\n'


def write(folder: Path, text: str, name: str = "x.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("", "schema is missing", 0),
        ('schema = 2\nname = "x"\n' + LIMITS, "schema", 1),
        ("schema = 1\n" + LIMITS, "name is missing", 0),
        (HEAD, "limits is missing", 0),
        (HEAD + LIMITS.replace("pids = 16\n", ""), "limits.pids is missing", 0),
        (HEAD + LIMITS + "[limitz]\n", "unknown key limitz", 9),
        (HEAD + LIMITS + 'memroy = "1GiB"\n', "unknown key limits.memroy", 9),
        (HEAD + LIMITS.replace('"64MiB"', "64"), "is not a size", 5),
        (HEAD + LIMITS.replace('"64MiB"', '"64MB"'), "is not a size", 5),
        (HEAD + LIMITS.replace('"64MiB"', '"1MiB"'), "too small", 5),
        (HEAD + LIMITS.replace('"1m"', "60"), "is not a duration", 4),
        (HEAD + LIMITS.replace('"1m"', '"0s"'), "more than 0", 4),
        (HEAD + LIMITS.replace("pids = 16", "pids = 1"), "too small", 6),
        (HEAD + LIMITS.replace("pids = 16", "pids = true"), "limits.pids", 6),
        (HEAD + LIMITS.replace("pids = 16", 'pids = "16"'), "limits.pids", 6),
        (HEAD + LIMITS.replace("cpu = 1.0", "cpu = -1.0"), "more than 0", 7),
        (HEAD + LIMITS.replace("cpu = 1.0", "cpu = nan"), "more than 0", 7),
        (HEAD + LIMITS.replace("cpu = 1.0", "cpu = inf"), "more than 0", 7),
        (HEAD + LIMITS + 'stop_grace = "2m"\n', "shorter than", 9),
        (HEAD + LIMITS + '[network]\nmode = "host"\n', "network.mode", 10),
        (HEAD + LIMITS + '[files]\nworktree = "copy"\n', "files.worktree", 10),
        (HEAD + LIMITS + '[files]\nprotect = ["../x"]\n', "not a path below", 10),
        (HEAD + LIMITS + '[files]\nprotect = ["/etc"]\n', "not a path below", 10),
        (HEAD + LIMITS + '[files]\nread = ["/"]\n', "too wide", 10),
        (HEAD + LIMITS + '[files]\nread = ["/etc/"]\n', "too wide", 10),
        (HEAD + LIMITS + '[files]\nread = ["usr"]\n', "too wide", 10),
        (HEAD + LIMITS + '[files]\nread = ["/var/tmp/x"]\n', "private folder", 10),
        (HEAD + LIMITS + '[files]\nread = ["/tmp/x/y"]\n', "private folder", 10),
        (HEAD + LIMITS + '[files]\nread = ["/home/agent/x"]\n', "private folder", 10),
        (HEAD + LIMITS + '[files]\nread = ["/opt/../etc"]\n', "too wide", 10),
        (HEAD + LIMITS + '[log]\nfiles = ["/var/log/x"]\n', "not in /run/agent", 10),
        (HEAD + LIMITS + '[log]\nfiles = ["/run/agent/../x"]\n', "not in /run/agent", 10),
        (HEAD + LIMITS + '[env]\nset = { PATH = "/x" }\n', "box's own", 0),
        (HEAD + LIMITS + '[env]\nset = { LD_PRELOAD = "/x" }\n', "box's own", 0),
        (HEAD + LIMITS + '[env]\npass = ["A=B"]\n', "cannot be the name", 0),
        (HEAD + LIMITS + '[env]\nsecret = { TOKEN = "hunter2hunter2" }\n', "must name a source", 0),
        ('require = ["secomp"]\n' + HEAD + LIMITS, "no control is called", 1),
        ("not toml at all", "is not TOML", 0),
        ('extends = "x.toml"\n' + HEAD + LIMITS, "circle", 0),
        ('extends = "none.toml"\n' + HEAD, "no profile file", 0),
        ('extends = "offlin"\n' + HEAD, "no profile called", 0),
        ("extends = 7\n" + HEAD, "extends must be", 0),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, text: str, said: str, line: int) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ProfileError) as caught:
        load(path)
    assert said in caught.value.message
    assert "hunter2" not in caught.value.message + caught.value.hint
    if line:
        assert caught.value.where == f"{path}:{line}", caught.value.where
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("wrong", "near"), [("memroy", "memory"), ("wallclock", "wall_clock"), ("pid", "pids"), ("tpm", "tmp")]
)
def test_the_nearest_name_is_offered(tmp_path: Path, wrong: str, near: str) -> None:
    with pytest.raises(ProfileError) as caught:
        load(write(tmp_path, HEAD + LIMITS + f"{wrong} = 1\n"))
    assert caught.value.hint == f"did you mean {near}?"


def test_bytes_that_are_no_text_and_files_that_are_too_large(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe\0")
    (tmp_path / "b.toml").write_text("#" * (1 << 20) + "\n")
    for name in ("a.toml", "b.toml"):
        with pytest.raises(ProfileError):
            load(str(tmp_path / name))


def test_control_the_smallest_profile(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, HEAD + LIMITS))
    assert loaded.profile.limits.wall_clock_s == 60.0
    assert loaded.profile.limits.memory_bytes == 64 << 20
    assert loaded.profile.files.worktree == "overlay" and loaded.profile.network.mode == "none"


def test_extends_adds_to_lists_and_replaces_the_rest(tmp_path: Path) -> None:
    write(tmp_path, HEAD + LIMITS + '[files]\nprotect = ["a"]\nhide = ["h"]\n', "parent.toml")
    child = 'extends = "parent.toml"\nschema = 1\nname = "y"\nrequire = ["seccomp"]\n'
    child += '[limits]\npids = 32\n[files]\nprotect = ["b", "a"]\nexecutable = true\n'
    loaded = load(write(tmp_path, child))
    assert loaded.profile.files.protect == ["a", "b"] and loaded.profile.files.hide == ["h"]
    assert (loaded.profile.name, loaded.profile.limits.pids, loaded.profile.limits.cpu_cores) == (
        "y",
        32,
        1.0,
    )
    assert [Path(source).name for source in loaded.sources] == ["x.toml", "parent.toml"]


def test_the_digest_is_of_what_it_says_and_not_how(tmp_path: Path) -> None:
    one = load(write(tmp_path, HEAD + LIMITS, "1.toml")).digest
    other = load(write(tmp_path, "# comment\n" + HEAD + LIMITS.replace('"1m"', '"60s"'), "2.toml")).digest
    third = load(write(tmp_path, HEAD + LIMITS.replace("16", "17"), "3.toml")).digest
    assert one == other != third


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_profiles(name: str) -> None:
    loaded = load(name)
    assert loaded.profile.name == name and loaded.profile.description
    assert {"cgroup_kill", "seccomp", "landlock", "memory_limit"} <= {
        str(control) for control in required_controls(loaded.profile)
    }
    assert set(load("base").profile.files.protect) <= set(loaded.profile.files.protect)


def test_every_key_with_a_unit_is_a_key() -> None:
    tables = {field.encode_name: field.type for field in msgspec.structs.fields(Profile)}
    for table, key in UNITS:
        assert key in {field.encode_name for field in msgspec.structs.fields(tables[table])}


def test_the_environment_is_built_from_nothing(tmp_path: Path) -> None:
    text = HEAD + LIMITS + '[env]\npass = ["LANG", "NOT_THERE"]\nset = { CI = "1" }\n'
    profile = load(write(tmp_path, text)).profile
    caller = {"LANG": "de_DE", "PATH": "/evil", "AWS_SECRET": "x", "LD_PRELOAD": "/evil.so"}
    made = environment(profile, caller, {"TOKEN": "t"})
    assert (made["LANG"], made["CI"], made["TOKEN"]) == ("de_DE", "1", "t")
    assert "evil" not in "".join(made.values()) and "AWS_SECRET" not in made and "NOT_THERE" not in made
    assert re.fullmatch(r"(/[a-z]+)+(:(/[a-z]+)+)*", made["PATH"])
