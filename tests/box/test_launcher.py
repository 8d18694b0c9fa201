"""Owns what the privileged process is: its modules, its messages, the uids it gives, what it keeps.
May touch launchers of its own, and reads their descriptors in /proc.
Never lets a new import or message in unseen: both lists are written down here.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from boxlab import Lab, edited_profile, processes_of

from sandbox.client import BoxError
from sandbox.launcher import Launcher
from sandbox.wire import encode

MODULES = frozenset(
    """
    __future__ abc array ast base64 binascii builtins codecs collections collections.abc
    contextlib copy copyreg ctypes ctypes._endian dataclasses dis encodings encodings.aliases
    encodings.ascii encodings.utf_8 enum errno fcntl functools gc genericpath importlib
    importlib._bootstrap importlib._bootstrap_external importlib.machinery inspect io itertools json
    json.decoder json.encoder json.scanner keyword linecache marshal math opcode operator os os.path
    posix posixpath re re._casefix re._compiler re._constants re._parser reprlib resource sandbox
    sandbox.agent sandbox.attest sandbox.cgroups sandbox.identity sandbox.init sandbox.landlock
    sandbox.launcher sandbox.mounts sandbox.network sandbox.reporting sandbox.spec sandbox.syscalls
    sandbox.template sandbox.wire select selectors signal socket stat struct sys time token tokenize
    types typing typing.io typing.re warnings weakref zipimport
    """.split()
)
"""Everything a launcher may import; names with an underscore before them are CPython's own halves."""


def loaded(key: str) -> set[str]:
    """The modules of a launcher that serves: asked for when its supervisor has gone."""
    boot = """
import sys; sys.path.insert(0, sys.argv[1])
from sandbox import launcher
end = launcher.Launcher.end_everything
launcher.Launcher.end_everything = lambda self: print(*sorted(sys.modules), end(self) or "")
launcher.main()
"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-IS", "-c", f"import os; os.dup2({theirs.fileno()}, 3); {boot.strip()}", "."],
            pass_fds=(theirs.fileno(),),
            cwd=Path(__file__).parent.parent.parent,
            stdout=subprocess.PIPE,
            text=True,
            env={"LC_ALL": "C.UTF-8"},
        )
        theirs.close()
        ours.send(json.dumps({"op": "hello", "namespace_key": key}).encode())
        ours.recv(4096)
        ours.close()
        assert process.stdout is not None
        with process.stdout:
            text = process.stdout.read()
        process.wait()
    return {name for name in text.split() if not name.startswith("_") or name == "__future__"}


def test_modules(lab: Lab) -> None:
    assert loaded(lab.key) - MODULES == set()


def test_messages(lab: Lab) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert sorted(Launcher(ours).handlers) == ["attest", "finish", "hello", "kill", "start", "sweep"]
    with pytest.raises(BoxError, match="bad request: KeyError"):
        lab.wait(lab.client().request("mount", path="/"))


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("spec", {"run_id": "../x"}, "is no run id"),
        ("spec", {"run_id": ""}, "is no run id"),
        ("spec", {"cgroup": 5}, "cgroup"),
        ("spec", {"owner_uid": "0"}, "not of type int"),
        ("base", {"group_prefix": "a/b"}, "cannot begin the name of a group"),
        ("base", {"group_prefix": ""}, "cannot begin the name of a group"),
        ("base", {"hostname": 5}, "hostname is not of type str"),
        ("base", {"unknown": 5}, "unknown key"),
    ],
)
def test_a_malformed_specification_is_refused(
    lab: Lab, worktree: Path, part: str, change: dict[str, object], message: str
) -> None:
    client = lab.client()
    spec = lab.plan(worktree, edited_profile(), client).spec
    parts = {"spec": encode(spec) | {"base": None}, "base": encode(spec.base)}
    parts[part] |= change
    with pytest.raises(BoxError, match=message):
        lab.wait(
            client.request("start", (0, 0, 0, 0, 0, 0), spec=parts["spec"], base=json.dumps(parts["base"]))
        )


def test_a_run_that_exists_is_not_started_again(lab: Lab, worktree: Path) -> None:
    async def twice() -> str:
        client = await lab.opened("")
        spec = lab.plan(worktree, edited_profile(), client).spec
        async with lab.started(client, spec, ["true"]) as box:
            with pytest.raises(BoxError) as caught:
                async with lab.started(client, spec, ["true"]):
                    pass
            assert len(processes_of(box.uid)) == 2
        return str(caught.value)

    assert "exists already" in lab.wait(twice())


def test_every_living_run_has_a_uid_of_its_own(lab: Lab, worktree: Path) -> None:
    async def many() -> list[int]:
        client = await lab.opened("")
        async with AsyncExitStack() as stack, lab.fresh_client() as other:
            uids = []
            for number in range(10):
                one = client if number % 2 else other
                spec = lab.plan(worktree, edited_profile(), one).spec
                box = await stack.enter_async_context(lab.started(one, spec, ["true"]))
                uids.append(box.uid)
            await stack.aclose()
            return uids

    uids = lab.wait(many())
    assert len(set(uids)) == 10
    assert all(0x7000_0000 <= uid < 0x7FFF_FFF0 for uid in uids)


def test_one_start_costs_milliseconds_not_an_interpreter(lab: Lab, worktree: Path) -> None:
    async def start() -> float:
        client = await lab.opened("")
        spec = lab.plan(worktree, edited_profile(), client).spec
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with lab.started(client, spec, ["true"]) as box:
            await box.release()
            await box.wait_exited()
            return loop.time() - begun

    assert min(lab.wait(start()) for _ in range(5)) < 0.5
