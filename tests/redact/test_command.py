"""Owns `supervisorctl redact`: the filter, files, the check, and what becomes of a file that is replaced.
May touch a temporary folder.
Never lets a secret be printed, whatever the command is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.logs.redact.samples import sample

PAT = sample("ghp_{b62:36}", 1)


def call(*arguments: str, given: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("supervisorctl")), "redact", *arguments],
        input=given,
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_filter_changes_nothing_but_secrets(end: bytes) -> None:
    done = call(given=b"one\n\n\xff\0\n" + f"x {PAT} y".encode() + end)
    assert done.returncode == 0 and done.stderr == b""
    head, _, tail = done.stdout.partition(b"[redacted:github-pat#")
    assert head == b"one\n\n\xff\0\nx " and tail[4:] == b"] y" + end


def test_the_summary_goes_to_standard_error() -> None:
    done = call("--json", given=f"{PAT}\npassword='hunter2Xy'\n".encode())
    assert json.loads(done.stderr) == {
        "redacted": 2,
        "rules": {"github-pat": 1, "password-assignment": 1},
        "engine": "hyperscan",
    }


def test_the_check_tells_where_and_not_what(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"fine\n{PAT}\n")
    done = call("--check", str(path))
    assert done.returncode == 1
    assert done.stdout.decode() == f"{path}:2: github-pat\n"
    path.write_text("fine\n")
    assert (call("--check", str(path)).returncode, call("--check", given=b"fine").returncode) == (0, 0)
    assert call("--check", given=PAT.encode()).stdout == b"-:1: github-pat\n"


def test_files_are_printed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"{PAT}\n")
    (tmp_path / "b").write_text("b")
    done = call(str(tmp_path / "a"), str(tmp_path / "b"))
    assert PAT.encode() not in done.stdout and done.stdout.endswith(b"]\nb")
    assert call(str(tmp_path / "none")).returncode == 2


def test_a_variable_is_a_known_value() -> None:
    done = call("--env", "MINE", given=b"see my-own-value-1 here", MINE="my-own-value-1")
    assert done.stdout == b"see [redacted:MINE] here"
    assert call("--env", "NOT_SET_ANYWHERE").returncode == 2


def test_a_file_is_replaced_whole_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"x {PAT}\ny\n")
    path.chmod(0o640)
    before = path.stat().st_ino
    assert call("--in-place", str(path)).returncode == 0
    assert path.read_text().endswith("]\ny\n") and PAT not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640 and path.stat().st_ino != before
    assert os.listdir(tmp_path) == ["a.log"]
    before = path.stat().st_ino
    assert call("--in-place", str(path)).returncode == 0
    assert path.stat().st_ino == before, "nothing to take out, nothing replaced"


def test_what_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(PAT)
    os.link(path, tmp_path / "second")
    (tmp_path / "link").symlink_to(path)
    assert call("--in-place", str(path)).returncode == 1
    assert call("--in-place", str(tmp_path / "link")).returncode == 2
    assert path.read_text() == PAT
    assert call("--in-place").returncode == 2
    assert call("--in-place", "--check", str(path)).returncode == 2


def test_the_rules_can_be_listed() -> None:
    rules = json.loads(call("--rules", "--json").stdout)
    assert len(rules) >= 110 and {"id", "kind", "title", "source"} == set(rules[0])
    assert b"github-pat" in call("--rules").stdout
