"""Owns the box without root: the same specification through a launcher that is an ordinary user.
May touch a copy of the sandbox package that this user can read, and folders it owns.
Never accepts a silent weakening: what is missing is named, and what is required is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from boxlab import PYTHON, edited_profile, fingerprint, give, make_repository

from sandbox.client import Capabilities
from sandbox.spec import Control
from sandbox.syscalls import landlock_abi
from sandbox.wire import encode
from supervisor.runs import boxing
from supervisor.workspace.tree import inspect

USER = 65533
_DRIVER = """
import asyncio, json, os, sys
sys.path.insert(0, sys.argv[1])
from sandbox.client import BoxError, LauncherClient, Streams
from sandbox.spec import BoxSpec
from sandbox.wire import decode
async def main():
    spec = decode(BoxSpec, json.loads(sys.argv[2]))
    null = os.open("/dev/null", os.O_RDWR)
    async with LauncherClient("rootless") as client:
        assert not client.capabilities.privileged
        read_end, write_end = os.pipe()
        try:
            box = await client.start(spec, Streams(null, write_end, null), json.loads(sys.argv[3]),
                {"PATH": "/usr/bin:/bin", "HOME": "/home/agent"})
        except BoxError as error:
            print(json.dumps({"control": error.control, "message": str(error)}))
            return
        os.close(write_end)
        await box.release()
        status = await box.wait_exited()
        await box.kill()
        finished = await box.wait_empty(5)
        out = open(read_end).read()
        print(json.dumps({"status": status, "out": out, "armed": box.armed, "missing": box.missing,
            "finished": finished is not None}))
asyncio.run(main())
"""


def as_user(scratch: Path, tree: Path, argv: list[str], require: list[str]) -> dict[str, Any]:
    give(tree, USER)
    overlay = scratch / "overlay"
    overlay.mkdir()
    give(overlay, USER)
    package = scratch / "package"
    shutil.copytree(Path(boxing.__file__).parents[2] / "sandbox", package / "sandbox")
    host = Capabilities(False, landlock_abi(), None, {}, "rootless", 0)
    plan = boxing.plan(
        edited_profile(require=["seccomp"]),
        inspect(str(tree)),
        host,
        run_id="ROOTLESS",
        namespace_key="rootless",
        worker_id="lab",
        overlay_folder=str(overlay),
    )
    required = tuple(sorted({*plan.spec.base.required, *require}))
    spec = replace(plan.spec, base=replace(plan.spec.base, required=required))
    done = subprocess.run(
        [PYTHON, "-c", _DRIVER, str(package), json.dumps(encode(spec)), json.dumps(argv)],
        user=USER,
        group=USER,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def may_make_namespaces() -> bool:
    """The control: does this host let an ordinary user make them at all?"""
    command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(command, user=USER, group=USER, extra_groups=[], cwd="/", check=False)
    return done.returncode == 0


def test_the_same_box_without_root(scratch: Path) -> None:
    """It works wherever an ordinary user can make namespaces; elsewhere the control is named."""
    tree = make_repository(scratch / "tree")
    script = "id -u; cat README; echo new > src/new; ls src; cat .env; echo x > .env; cat keys/server.pem"
    give(tree, USER)
    before = fingerprint(tree)
    answer = as_user(scratch, tree, ["sh", "-c", script], [])
    if not may_make_namespaces():
        assert answer["control"] in set(Control)
        assert answer["message"]
        return
    assert "control" not in answer, answer
    assert answer["finished"]
    assert answer["out"].split("\n")[:3] == ["1000", "hello", "link"]
    assert "TOKEN=in-the-tree" in answer["out"] and "PRIVATE" not in answer["out"]
    assert {n: e[:5] + e[8:] for n, e in fingerprint(tree).items()} == {
        n: e[:5] + e[8:] for n, e in before.items()
    }
    assert "private_uid" in answer["missing"]
    assert {"seccomp", "capabilities", "network_namespace"} <= set(answer["armed"])


@pytest.mark.parametrize("control", ["private_uid", "memory_limit", "pids_limit", "cpu_limit", "cgroup_kill"])
def test_what_an_ordinary_user_cannot_arm_is_refused_by_name(scratch: Path, control: str) -> None:
    answer = as_user(scratch, make_repository(scratch / "tree"), ["true"], [control])
    if may_make_namespaces():
        assert answer["control"] == control
    else:
        assert answer["control"] in ("root", "user_namespace")
    assert answer["message"]
