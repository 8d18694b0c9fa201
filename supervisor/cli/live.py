"""Owns what `run` shows while an agent works: head, lines, a status line on a terminal, the end.
May touch standard output.
Never prints anything when quiet: then standard output belongs to one JSON object.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from supervisor.cli import money_text, output
from supervisor.cli.printer import Printer
from supervisor.events import EventKind
from supervisor.paths import Paths
from supervisor.profile.units import show_duration, show_size
from supervisor.runs.reasons import MEANING, StopReason
from supervisor.store.records import Run

_LABEL = 10


class LiveView:
    """begin, lines and events as they come, tick for the status line, end. All safe to call when quiet."""

    def __init__(self, paths: Paths, ticket: str, *, quiet: bool) -> None:
        self.paths = paths
        self.ticket = ticket
        self.quiet = quiet
        self._printer = Printer()
        self._status = not quiet and sys.stdout.isatty()
        self._drawn = False
        self._began_s = time.monotonic()
        self._limit_s = 0.0
        self._limits: dict[str, Any] = {}
        self._money: dict[str, Any] = {}
        self._left: dict[str, Any] = {}
        self._stopping = ""
        self._overlay = True
        self._waiting: list[Callable[[], None]] | None = []
        self._refused: list[str] = []

    def lost(self, runs: list[Run]) -> None:
        for run in runs:
            self._print(output.dim(f"{run.ticket}: closed as {run.reason}, its supervisor had died"))

    def begin(self, made: dict[str, Any]) -> None:
        """The head: what the box is, what its limits are, how to stop it."""
        self._limits = limits = made["limits"]
        self._limit_s = limits["wall_clock_s"]
        self._began_s = time.monotonic()
        self._overlay = made["mode"] == "overlay"
        mode = "overlay of" if self._overlay else "direct in"
        armed = f"{made['armed']} controls armed ({show_duration(made['armed_ms'] / 1000)})"
        self._money = made["money"]
        reach = "no network, models through the gateway" if made["gateway"] else "no network"
        self._label("box", f"{made['profile']} · {reach} · {mode} {_home(made['worktree'])} · {armed}")
        for name, why in made["missing"].items():
            self._label("weaker", f"{name} is not armed: {why}")
        today = money_text.today(self._money)
        self._label("limits", output.limits_text(limits) + (f" · {today}" if today else ""))
        self._label("stop it", f"supervisorctl kill {self.ticket}")
        self._label("", output.dim(f"(or: touch {self.paths.stop_folder}/{self.ticket})"))
        self._print("")
        self._flush()

    def _flush(self) -> None:
        """What the agent said before the head was shown comes behind it."""
        waiting, self._waiting = self._waiting or [], None
        for show in waiting:
            show()

    def lines(self, lines: list[dict[str, Any]]) -> None:
        """The agent's own lines; ! marks standard error, a file's lines are shown as its events."""
        if self.quiet:
            return
        if self._waiting is not None:
            self._waiting.append(lambda: self.lines(lines))
            return
        for line in lines:
            if line["s"] != "file":
                mark = output.bad("!") if line["s"] == "err" else " "
                self._print(
                    f"{output.dim(output.time_of_day(line['at']))} {mark} {output.visible(line['t'])}"
                )

    def event(self, event: dict[str, Any]) -> None:
        """Only what a person wants to see between the agent's lines."""
        if self._waiting is not None:
            self._waiting.append(lambda: self.event(event))
            return
        kind, detail = event["kind"], event["detail"]
        if kind == EventKind.ITERATION:
            self._left = detail.get("budget_left", {})
            text = output.visible(money_text.iteration(detail), always=True)
            self._print(f"{output.dim(output.time_of_day(event['at']))}  {text}")
        elif kind == EventKind.AGENT_EVENT:
            said = money_text.agent_said(detail)
            if said:
                text = output.visible(output.shorten(said, output.width() - 10), always=True)
                self._print(f"{output.dim(output.time_of_day(event['at']))}  {text}")
        elif kind == EventKind.CALL_REFUSED:
            text = output.visible(money_text.refused(detail), always=True)
            self._refused.append(str(detail["message"]))
            self._print(f"{output.dim(output.time_of_day(event['at']))} {output.bad(text)}")
        elif kind == EventKind.CAP_WARNING:
            warning = output.bad(money_text.warning(detail))
            self._print(f"{output.dim(output.time_of_day(event['at']))}  {warning}")
        elif kind == EventKind.STOP_REQUESTED:
            said = detail.get("note") or detail.get("who") or ""
            self._stopping = f"stopping ({detail['by']}{': ' + said if said else ''})"
        elif kind == EventKind.LOG_GAP:
            self._print(output.bad(f"log file {detail['file']}: {detail['why']}, lines may be missing"))
        elif kind == EventKind.LOG_REFUSED:
            self._print(output.bad(f"log file {detail['file']} is not a plain file and is not read"))

    def tick(self) -> None:
        """Redraw the status line: time used, and what is going on."""
        if not self._status or not self._limit_s:
            return
        used_s = time.monotonic() - self._began_s
        text = f"{output.bar(used_s / self._limit_s)} {_clock(used_s)} of {_clock(self._limit_s)}"
        text = " · ".join([text, *money_text.budget(self._left, self._limits)])
        if self._stopping:
            text += f" · {self._stopping}"
        self._printer.put_if_idle(f"\r\x1b[K{output.shorten(text, output.width() - 1)}")
        self._drawn = True

    def end(self, ended: dict[str, Any]) -> None:
        """One line for how it ended, the reason if it was not the agent's own end, and what to do next."""
        self._flush()
        reason = StopReason(ended["reason"])
        if self.quiet or reason is StopReason.NOT_STARTED:
            self._clear()
            return
        totals, kill = ended["totals"], ended["kill"]
        parts = [*money_text.used(totals), show_duration(float(totals.get("seconds", 0)))]
        if ended["exit_status"] is not None:
            parts.append(f"exit {ended['exit_status']}")
        parts.append(f"{int(totals.get('redacted', 0))} secrets redacted")
        parts.append(f"box empty ({show_duration(kill['elapsed_ms'] / 1000)})")
        if kill["stage"] == "kill" and kill["processes"]:
            parts.insert(0, f"{kill['processes']} processes gone")
        if totals.get("dropped_bytes"):
            parts.append(f"{show_size(int(totals['dropped_bytes']))} of output dropped")
        self._print("")
        name = f"{reason:<{_LABEL - 1}}" if len(reason) < _LABEL else f"{reason} "
        self._print(
            (output.accent(name) if reason is StopReason.DONE else output.bad(name)) + f" {' · '.join(parts)}"
        )
        if reason is not StopReason.DONE:
            asked = " · ".join(str(p) for p in (ended["by"], ended["who"], ended["note"]) if p)
            said = money_text.why(reason, ended["figures"])
            said = said or (_agents_own(ended, self._refused) if reason is StopReason.FAILED else "")
            self._label("why", said or f"{MEANING[reason]} ({output.visible(asked, always=True)})")
        change = _CHANGE.get(reason)
        if change:
            self._label("change", change)
        ticket = self.ticket
        words = ["diff", "logs", "status"] if self._overlay else ["logs", "status"]
        self._label("next", " · ".join(f"supervisorctl {word} {ticket}" for word in words))

    def _label(self, name: str, text: str) -> None:
        self._print(output.dim(name.ljust(_LABEL)) + text)

    def _print(self, text: str) -> None:
        if self.quiet:
            return
        self._printer.put(f"\r\x1b[K{text}" if self._drawn else text)
        self._drawn = False

    def _clear(self) -> None:
        if self._drawn:
            self._printer.put("\r\x1b[K", newline=False)
            self._drawn = False

    def close(self) -> None:
        """Wait until everything was taken; after the run, when nothing has to be watched any more."""
        self._printer.close()


_CHANGE = {
    StopReason.MAX_SECONDS: "limits.wall_clock in the profile gives it more time",
    StopReason.OUT_OF_MEMORY: "limits.memory in the profile gives it more memory",
    **money_text.CHANGE,
}


def _agents_own(ended: dict[str, Any], refused: list[str]) -> str:
    """Why an agent ended that nobody stopped; a call that was refused is the likely cause."""
    status = ended["exit_status"]
    said = "the agent ended by itself"
    if isinstance(status, int):
        said = f"the agent ended with exit code {status}"
        with contextlib.suppress(ValueError):
            said += f" (128 + {signal.Signals(status - 128).name})"
    if refused:
        calls = "1 model call was" if len(refused) == 1 else f"{len(refused)} model calls were"
        said += f"; {calls} refused: {output.visible(refused[-1], always=True)}"
    return said


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}"


def _home(path: str) -> str:
    import os

    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if home != "/" and path.startswith(home + "/") else path
