"""Owns one test for every way out of the box, or way to break it, that was found once.
May touch boxes, trees and launchers of its own, and a mount namespace it makes for one of them.
Never forgets: a mistake that was made becomes a test of its kind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from boxlab import PYTHON, Lab, as_planned, edited_profile, give, without_landlock
from test_worktree import INSIDE, attempt, layout
from witnesses import came, listen

from sandbox.client import BoxError, LauncherClient, Streams
from supervisor.errors import UsageError
from supervisor.workspace.tree import inspect

ROOT = Path(__file__).resolve().parents[2]


def forged(scratch: Path, names: str) -> Path:
    """A tree whose .git file leads to a repository inside the tree that names any folder as common."""
    tree = scratch / "tree"
    (tree / "fake").mkdir(parents=True)
    (tree / ".git").write_text("gitdir: fake\n")
    (tree / "fake" / "gitdir").write_text(str(tree / ".git"))
    (tree / "fake" / "commondir").write_text(names)
    return tree


def test_a_forged_linked_worktree_shows_no_folder_of_its_owner(lab: Lab, scratch: Path) -> None:
    private = scratch / "private"
    private.mkdir(0o700)
    (private / "key").write_text("HOST SECRET\n")
    give(private)
    tree = forged(scratch, str(private))
    give(tree)
    answers, _ = attempt(lab, tree, [("read", str(private / "key"))], weaken=without_landlock)
    assert answers == ["ENOENT"]


def test_a_forged_linked_worktree_of_root_shows_no_shadow(lab: Lab, scratch: Path) -> None:
    answers, outcome = attempt(lab, forged(scratch, "/etc"), [("read", "/etc/shadow")])
    assert outcome.wrong == []
    assert answers == ["ENOENT"]


@pytest.mark.parametrize("weaken", [as_planned, without_landlock], ids=["all layers", "no Landlock"])
def test_git_works_in_a_linked_worktree(lab: Lab, scratch: Path, weaken: Any) -> None:
    outcome = lab.run(layout("file", scratch), ["git", "log", "--oneline"], weaken=weaken)
    assert "first" in outcome.out, outcome.err


def test_a_socket_of_the_host_in_a_direct_worktree_is_cut_off(lab: Lab, worktree: Path) -> None:
    path = worktree / "src" / "host.sock"
    with listen(socket.AF_UNIX, socket.SOCK_STREAM, str(path)) as witness:
        path.chmod(0o777)
        give(worktree)
        code = "import socket; socket.socket(socket.AF_UNIX).connect('src/host.sock')"
        outcome = lab.run(worktree, [PYTHON, "-c", code], profile=edited_profile(mode="direct"))
        assert outcome.code != 0
        assert not came(witness)


@pytest.mark.parametrize("pattern", ["**/.npmrc", "*/.npmrc", "src/**/x.key"])
def test_a_pattern_a_direct_worktree_cannot_hold_is_refused(lab: Lab, worktree: Path, pattern: str) -> None:
    command = [PYTHON, "-c", INSIDE, json.dumps([("create", "src/.npmrc")])]
    with pytest.raises(UsageError, match="direct worktree"):
        lab.run(worktree, command, profile=edited_profile(mode="direct", protect=[pattern]))


def test_a_cancelled_request_leaves_its_answer_to_nobody(lab: Lab) -> None:
    async def ask() -> dict[str, Any]:
        async with lab.fresh_client() as client:
            task = asyncio.create_task(client.request("hello", namespace_key=client.namespace_key))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            reply, _ = await client.request("sweep", namespace_key=client.namespace_key, keep=["lab"])
            return reply

    assert "ended" in lab.wait(ask())


def test_a_cancelled_start_leaves_no_box(lab: Lab, worktree: Path) -> None:
    async def start() -> list[str]:
        async with lab.fresh_client() as client:
            spec = lab.plan(worktree, edited_profile(), client).spec
            null = os.open("/dev/null", os.O_RDWR)
            streams = Streams(null, null, null)
            task = asyncio.create_task(client.start(spec, streams, ["sleep", "100"], {"PATH": "/usr/bin"}))
            await asyncio.sleep(0.002)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            os.close(null)
            folder = client.capabilities.cgroup_v2
            assert folder is not None
            for _ in range(200):
                groups = [name for name in os.listdir(folder) if name.startswith("lab.")]
                if len(groups) <= 1:  # the blank
                    break
                await asyncio.sleep(0.02)
            return groups

    assert len(lab.wait(start())) <= 1


BROKEN = {
    "entering v1 groups": (
        "from sandbox import cgroups\n"
        "def bad(self): raise OSError(1, 'broken')\n"
        "cgroups.RunGroup.enter_v1 = bad",
        {"memory_limit", "pids_limit", "cpu_limit"},
    ),
    "the root's tmpfs": (
        "from sandbox import syscalls\n"
        "new = syscalls.new_mount\n"
        "def bad(kind, options, flags):\n"
        "  if options.get('size') == '1m': raise OSError(1, 'broken', 'tmpfs')\n"
        "  return new(kind, options, flags)\n"
        "syscalls.new_mount = bad",
        {"root"},
    ),
    "init giving up its uid": (
        "import os\n"
        "from sandbox import identity\n"
        "become = identity.become_agent\n"
        "def bad(privileged):\n"
        "  if os.getpid() == 1: raise OSError(1, 'broken')\n"
        "  return become(privileged)\n"
        "identity.become_agent = bad",
        {"identity"},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_early_has_a_name_too(lab: Lab, worktree: Path, name: str) -> None:
    patch, controls = BROKEN[name]
    error = lab.refused(worktree, ["true"], profile=edited_profile(), weaken=as_planned, patch=patch)
    assert error is not None
    assert error.control in controls


def test_reading_back_a_process_in_vfork_does_not_stop_the_launcher(lab: Lab, worktree: Path) -> None:
    code = """
import ctypes, mmap
fork_and_pause = bytes.fromhex('b83a0000000f0585c07401c3b8220000000f05ebf7')  # vfork; the child pauses
page = mmap.mmap(-1, 4096, prot=7)
page.write(fork_and_pause)
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""

    async def attest() -> bool:
        client = lab.fresh_client()
        await client.__aenter__()
        spec = lab.plan(worktree, edited_profile(), client).spec
        null = os.open("/dev/null", os.O_RDWR)
        streams = Streams(null, null, null)
        box = await client.start(spec, streams, [PYTHON, "-c", code], {"PATH": "/usr/bin"})
        await box.release()
        await asyncio.sleep(0.7)
        answered = True
        try:
            async with asyncio.timeout(10):
                await box.attest()
        except BoxError:
            answered = True
        except TimeoutError:
            answered = False
            os.kill(client.pid, signal.SIGKILL)
        await client.__aexit__()
        box.close()
        os.close(null)
        return answered

    assert lab.wait(attest())


def test_the_agent_cannot_take_descriptors_from_init(lab: Lab, worktree: Path) -> None:
    code = (
        "import resource, os, time\n"
        "try: resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1))\n"
        "except OSError as error: print(error.errno)\n"
        "os.system('true'); time.sleep(0.2)"
    )
    outcome = lab.run(worktree, [PYTHON, "-c", code])
    assert outcome.out.strip() == "1"
    assert outcome.code == 0


def test_output_can_be_opened_by_its_name(lab: Lab, worktree: Path) -> None:
    outcome = lab.run(worktree, ["sh", "-c", "echo hi > /dev/stderr && echo ho > /dev/stdout"])
    assert (outcome.code, outcome.err.strip(), outcome.out.strip()) == (0, "hi", "ho")


def test_no_core_reaches_a_piped_pattern(lab: Lab, worktree: Path) -> None:
    code = (
        "import resource as r\n"
        "print(r.getrlimit(r.RLIMIT_CORE))\n"
        "try: r.setrlimit(r.RLIMIT_CORE, (0, 0))\n"
        "except (OSError, ValueError) as error: print('refused')"
    )
    assert lab.run(worktree, [PYTHON, "-c", code]).out.split("\n")[:2] == ["(1, 1)", "refused"]


def test_one_launcher_tidying_up_does_not_break_another(lab: Lab, worktree: Path) -> None:
    async def both() -> int | None:
        async with lab.fresh_client() as first:
            async with LauncherClient(first.namespace_key):
                pass
            spec = lab.plan(worktree, edited_profile(), first).spec
            async with lab.started(first, spec, ["true"]) as box:
                await box.release()
                return await box.wait_exited()

    assert lab.wait(both()) == 0


def test_more_paths_than_a_message_holds_are_refused_by_name(lab: Lab, worktree: Path) -> None:
    (worktree / "certs").mkdir()
    for number in range(3000):
        (worktree / f"certs/a-long-name-of-a-test-certificate-{number}.pem").write_text("x")
    give(worktree)
    with pytest.raises(BoxError, match="too many protected or hidden paths"):
        lab.run(worktree, ["true"])


def test_a_malformed_specification_is_refused_with_a_reason(lab: Lab, worktree: Path) -> None:
    async def start() -> None:
        async with lab.fresh_client() as client:
            planned = lab.plan(worktree, edited_profile(), client).spec
            spec = dataclasses.replace(planned, workdir=None)  # type: ignore[arg-type]
            async with lab.started(client, spec, ["true"]):
                pass

    with pytest.raises(BoxError, match="workdir"):
        lab.wait(start())


def test_a_git_file_with_a_nul_is_only_a_file(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: \0")
    assert inspect(str(tmp_path)).git == "file"


def test_nothing_is_kept_of_a_run(lab: Lab, worktree: Path) -> None:
    """Descriptors of the launcher and of the supervisor are as many after thirty runs as after two."""

    async def runs(count: int) -> tuple[int, int]:
        client = await lab.opened("# descriptors")
        for _ in range(count):
            spec = lab.plan(worktree, edited_profile(), client).spec
            async with lab.started(client, spec, ["true"]) as box:
                await asyncio.sleep(0.1)  # so that a blank is made beside it, which takes another uid
                await box.release()
                await box.wait_exited()
            bad = dataclasses.replace(lab.plan(worktree, edited_profile(), client).spec, workdir="/nowhere")
            with pytest.raises(BoxError):
                async with lab.started(client, bad, ["true"]):
                    pass
        await asyncio.sleep(0.5)  # so that a blank is there each time
        return len(os.listdir(f"/proc/{client.pid}/fd")), len(os.listdir("/proc/self/fd"))

    before = lab.wait(runs(2))
    assert lab.wait(runs(15)) == before


MOUNTED_LATER = """
import subprocess, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests/box"]
from boxlab import Lab, give, remove_tree, scratch_folder
base, lab = scratch_folder(), Lab()
try:
    tree = base / "tree"
    tree.mkdir()
    give(tree)
    lab.run(tree, ["true"])
    subprocess.run(["mount", "-t", "tmpfs", "none", str(tree)], check=True)
    (tree / "fresh").write_text("x")
    give(tree)
    print(lab.run(tree, ["ls"]).out.split())
    subprocess.run(["umount", str(tree)], check=True)
    print(lab.run(tree, ["ls"]).out.split())
finally:
    lab.close()
    remove_tree(base)
"""


def test_what_the_host_mounts_later_is_seen_and_let_go() -> None:
    command = ["unshare", "-m", sys.executable, "-c", MOUNTED_LATER, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split("\n")[:2] == ["['fresh']", "[]"], done.stderr


def test_no_signal_is_ignored_when_the_agent_begins(lab: Lab, worktree: Path) -> None:
    """posix_spawn, and so make, leaves 32 and 33 ignored; nohup leaves HUP."""
    code = "print(next(line for line in open('/proc/self/status') if line.startswith('SigIgn')))"
    command = [sys.executable, "-c", _IGNORING, str(ROOT), str(worktree), code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    ours, theirs = done.stdout.split()
    assert int(ours, 16) & (1 << 31), "the control: 32 is ignored where the launcher is started"
    # What Python itself ignores when it starts: SIGPIPE and SIGXFSZ.
    assert int(theirs, 16) == (1 << 12) | (1 << 24), done.stderr


_IGNORING = """
import ctypes, os, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests/box"]
from pathlib import Path
from boxlab import Lab
action = ctypes.create_string_buffer((1).to_bytes(8, "little") + bytes(24), 32)  # SIG_IGN
for number in (1, 32, 33):
    call = 13 if os.uname().machine == "x86_64" else 134  # rt_sigaction
    assert ctypes.CDLL(None).syscall(call, number, action, None, ctypes.c_size_t(8)) == 0
print(next(line for line in open("/proc/self/status") if line.startswith("SigIgn")).split()[1])
lab = Lab()
try:
    print(lab.run(Path(sys.argv[2]), ["/usr/bin/python3", "-c", sys.argv[3]]).out.split()[1])
finally:
    lab.close()
"""
