"""Owns a run of an agent program in a box: the program, the model behind the gateway, what is left of both.
May touch the cache that scripts/agents fills, and what stand touches.
Never lets a program ask anybody but our model, and never gives it the key.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onlooker import WAIT, Onlooker
from scripted_turns import Playbook
from scripted_upstream import Script, ScriptedUpstream, running
from stand import OWNER, PYTHON, ROOT, Stand, end_process, stand, until

from supervisor.agents import KINDS
from supervisor.store.records import Run

KEY = "sk-live-0d5f21c8-This+is/the=real&key-9a7b"
INPUT_NANOS, OUTPUT_NANOS = 3_000, 15_000
"""Of one token, by the prices below."""
PATIENCE_S = 240.0

_CONFIG = """
[upstreams.anthropic]
url = "unix:{socket}"
key = "file:{key}"

[upstreams.openai]
url = "unix:{socket}"
key = "file:{key}"

[upstreams.gemini]
url = "unix:{socket}"
key = "file:{key}"

[prices]
"anthropic/*" = {{ input = "3.00", output = "15.00" }}
"openai/*" = {{ input = "3.00", output = "15.00" }}
"google/*" = {{ input = "3.00", output = "15.00" }}
"""

_PROGRAMS = {
    "sdk": "bin/python",
    "claude-code": "node_modules/@anthropic-ai/claude-code-linux-*/claude",
    "codex": "node_modules/@openai/codex/vendor/*/bin/codex",
    "gemini-cli": "node_modules/.bin/gemini",
    "aider": "bin/aider",
    "opencode": "node_modules/opencode-linux-*/bin/opencode",
    "mini-swe-agent": "bin/mini",
}


@functools.cache
def installed(kind: str) -> tuple[Path, Path]:
    """Folder and program of a kind; it is installed now if it is not there."""
    done = subprocess.run([ROOT / "scripts/agents", kind], stdout=subprocess.PIPE, text=True, check=True)
    folder = Path(done.stdout.strip())
    (program,) = folder.glob(_PROGRAMS[kind])
    return folder, program


@dataclass
class Ended:
    """What is left of a run."""

    run: Run
    lines: list[str]
    events: list[dict[str, Any]]
    names: set[str]
    unreachable: int

    def calls(self) -> list[dict[str, Any]]:
        return [event["detail"] for event in self.events if event["kind"] == "iteration"]

    def all(self) -> str:
        """For the message of an assertion."""
        return "\n".join([f"{self.run.reason} {self.run.reason_note} {self.run.totals}", *self.lines[-60:]])


@dataclass
class AgentStand:
    """A stand whose configuration knows one upstream, under the names of the three vendors."""

    place: Stand
    upstream: ScriptedUpstream

    def play(self, script: Script) -> None:
        self.upstream.script = script
        self.upstream.asked.clear()

    def profile(self, kind: str, *, more: str = "") -> str:
        """The file of the profile that `supervisorctl agents` prints, with the program made visible.

        more: further tables, or keys of [files].
        """
        (shown,) = self.place.ctl("agents", kind, "--json").json
        self.place.count += 1
        base = self.place.folder / f"shown{self.place.count}.toml"
        base.write_text(shown["profile"])
        path = self.place.folder / f"profile{self.place.count}.toml"
        folder, _ = installed(kind)
        path.write_text(
            f'schema = 1\nname = "agents"\nextends = "{base}"\n[files]\nread = ["{folder}"]\n{more}'
        )
        return str(path)

    def run(self, argv: Sequence[str], profile: str, *, apply: bool = False) -> Ended:
        """Run a command in the worktree to its end, and look on."""
        onlooker = Onlooker(self.place.folder)
        with self._started(onlooker, argv, profile, *(["--apply"] if apply else [])) as (process, ticket):
            process.communicate(timeout=PATIENCE_S)
        run, place = self.place.ended(ticket), self.place
        return Ended(run, place.lines(ticket), place.events(ticket), onlooker.names, onlooker.unreachable)

    @contextmanager
    def held(self, argv: Sequence[str], profile: str) -> Iterator[tuple[str, int]]:
        """Run a command until it prints UP, and kill it after a look at it: its ticket and its uid."""
        with self._started(Onlooker(self.place.folder), argv, profile) as (process, ticket):
            self.place.wait_for_line(ticket, "UP")
            yield ticket, self._uid(ticket)
            assert self.place.ctl("kill", ticket).code == 0
            process.communicate(timeout=PATIENCE_S)

    @contextmanager
    def _started(
        self, onlooker: Onlooker, argv: Sequence[str], profile: str, *options: str
    ) -> Iterator[tuple[subprocess.Popen[str], str]]:
        ticket = self.place.ticket()
        onlooker.start()
        words = ("run", "--here", "--ticket", ticket, "--profile", profile, *options)
        process = self.place.spawn(*words, "--", PYTHON, "-c", WAIT, *argv)
        try:
            until(lambda: self._uid(ticket) or process.poll() is not None, "no run began")
            assert self._uid(ticket), process.communicate()
            onlooker.look_at(self._uid(ticket))
            yield process, ticket
        finally:
            end_process(process)
            onlooker.end()

    def _uid(self, ticket: str) -> int:
        run = self.place.row(ticket)
        return int(run.attestation["uid"]) if run is not None and run.attestation else 0

    def put(self, name: str, text: str) -> Path:
        """A file of the worktree."""
        path = self.place.tree / name
        path.write_text(text)
        os.chown(path, OWNER, OWNER)
        return path


def command(kind: str, model: str, task: str) -> list[str]:
    """The line that `supervisorctl agents` shows, with a model and a task in it.

    model: with its provider before it where that is not the one of the line.
    """
    _, program = installed(kind)
    start = KINDS[kind].start.replace("openai/MODEL" if "/" in model else "MODEL", model)
    words = [word.replace("…", task) for word in shlex.split(start)]
    return [str(program), *words[1:]]


@contextmanager
def _upstream(path: Path) -> Iterator[ScriptedUpstream]:
    """Answers in a thread, since the tests wait for processes."""
    ready, over = threading.Event(), asyncio.Event()
    made: list[tuple[ScriptedUpstream, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        async with running(Playbook([]), str(path)) as upstream:
            made.append((upstream, asyncio.get_running_loop()))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield made[0][0]
    finally:
        made[0][1].call_soon_threadsafe(over.set)
        thread.join()


@contextmanager
def agent_stand() -> Iterator[AgentStand]:
    with stand() as place:
        key, socket = place.folder / "key", place.folder / "model.sock"
        key.write_text(KEY + "\n")
        key.chmod(0o600)
        config = place.folder / "config.toml"
        config.write_text(_CONFIG.format(socket=socket, key=key))
        place.environment["SUPERVISOR_CONFIG"] = str(config)
        with _upstream(socket) as upstream:
            yield AgentStand(place, upstream)
