"""Owns what a profile comes to in sentences: what may be read, written, run, reached, spent, kept, and why.
May touch nothing.
Never says a thing that no code enforces, and says of each where it is written.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.limits.money import show_usd
from supervisor.profile.credentials import shown
from supervisor.profile.load import Loaded
from supervisor.profile.positions import KeyPath, Position
from supervisor.profile.schema import ADDING
from supervisor.profile.units import show_duration, show_size
from supervisor.runs.boxing import required_controls
from supervisor.workspace.patterns import is_literal

BOX = "the box itself"
DEFAULT = "its default"
"""Where a claim comes from that no key can change, and one whose key is not written."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence. group: its heading. claim_id: stable, so that probes can name what they prove.

    origins: where the keys behind it are written; otherwise says what it comes from when none is.
    """

    claim_id: str
    group: str
    text: str
    origins: tuple[Position, ...] = ()
    otherwise: str = BOX


def claims_of(loaded: Loaded) -> list[Claim]:
    """All of them, in the order in which a reviewer asks."""
    add = _Collector(loaded)
    _files(loaded, add)
    _programs(loaded, add)
    _reach(loaded, add)
    _money(loaded, add)
    _use(loaded, add)
    _environment(loaded, add)
    _keeps(loaded, add)
    _armed(loaded, add)
    return add.made


class _Collector:
    """Takes one claim after the other, and looks up where its keys are written."""

    def __init__(self, loaded: Loaded) -> None:
        self.made: list[Claim] = []
        self._loaded = loaded

    def __call__(self, claim_id: str, group: str, text: str, *keys: KeyPath) -> None:
        origins: list[Position] = []
        for key in keys:
            places = self._loaded.origins.get(key, ())
            # Of a list that adds up every part counts; anything else is what the nearest file says.
            kept = places if (key[0] if len(key) > 1 else "", key[-1]) in ADDING else places[:1]
            origins += [place for place in kept if place not in origins]
        self.made.append(Claim(claim_id, group, text, tuple(origins), DEFAULT if keys else BOX))


def _files(loaded: Loaded, add: _Collector) -> None:
    files, limits = loaded.profile.files, loaded.profile.limits
    further = [path for path in files.read if path.rstrip("/") != "/usr"]
    add("read-system", "may read", "/usr and a small /etc made from nothing, read-only")
    if further:
        add("read-more", "may read", f"{' '.join(further)}, read-only", ("files", "read"))
    if files.worktree == "overlay":
        text = "the worktree, as an overlay: the host's tree changes only by a vetted apply"
    else:
        text = "the worktree directly: what is written there is written on the host"
    add("write-tree", "may write", text, ("files", "worktree"))
    tmp = show_size(limits.tmp_bytes)
    add("write-tmp", "may write", f"/tmp, /var/tmp, /dev/shm and its home, {tmp} each", ("limits", "tmp"))
    names = [pattern for pattern in files.protect if is_literal(pattern)]
    patterns = [pattern for pattern in files.protect if not is_literal(pattern)]
    if names:
        text = f"write, create, rename over or move away {' '.join(names)} (however spelled)"
        add("protect", "never", text, ("files", "protect"))
    if patterns:
        # A name that nobody knows yet cannot be mounted over; the apply or a frozen folder stops it.
        text = f"change what exists as {' '.join(patterns)}, or bring a new one to the host"
        add("protect-new", "never", text, ("files", "protect"))
    if files.hide:
        add("hide", "never", f"read {' '.join(files.hide)}", ("files", "hide"))
    add("host-files", "never", "see any other file of the host: homes, /var, /root, sockets, devices")


def _programs(loaded: Loaded, add: _Collector) -> None:
    files = loaded.profile.files
    add("run-system", "may run", "every program in /usr, interpreters and shells among them")
    if files.read:
        add("run-more", "may run", f"programs in {' '.join(files.read)}", ("files", "read"))
    if files.executable:
        add("run-tree", "may run", "files in the worktree: code of the repository", ("files", "executable"))
    else:
        text = "execute a file of the worktree, /tmp or its home directly (an interpreter can still read it)"
        add("run-tree", "never", text, ("files", "executable"))
    add("privileges", "never", "gain a capability, a set-uid program's rights, or another namespace")
    add("processes", "never", "see, trace or signal a process outside of the box")


def _reach(loaded: Loaded, add: _Collector) -> None:
    gateway = loaded.profile.gateway
    add(
        "network",
        "never",
        "reach a network, a host's loopback, a socket of the host, or a virtual machine's host",
    )
    if loaded.profile.network.mode == "none":
        add("models", "may reach", "nothing: a loopback of its own", ("network", "mode"))
        return
    add(
        "models",
        "may reach",
        f"models {' '.join(gateway.models)} of {' '.join(gateway.upstreams)}, through the gateway",
        ("network", "mode"),
        ("gateway", "models"),
        ("gateway", "upstreams"),
    )
    for name, most in gateway.tool_uses.items():
        text = f"the provider's tool {name}, {most} times in each call"
        add(f"tool-{name}", "may reach", text, ("gateway", "tool_uses"))
    add("keys", "never", "see a provider's key")


def _money(loaded: Loaded, add: _Collector) -> None:
    limits, daily = loaded.profile.limits, loaded.profile.daily
    if loaded.profile.network.mode == "none":
        add(
            "spend",
            "may spend",
            "nothing through us; what its own log says is counted, marked as self-reported",
        )
    amounts = (
        ("usd", "in one run", limits.usd_nanos, ("limits", "usd")),
        ("ticket-usd", "in all runs of a ticket", limits.ticket_usd_nanos, ("limits", "ticket_usd")),
        ("project-day", "in a day, all runs of its project", daily.project_nanos, ("daily", "project_usd")),
        ("global-day", "in a day, all runs of everybody", daily.global_nanos, ("daily", "global_usd")),
    )
    for name, whose, nanos, key in amounts:
        if nanos is not None:
            add(name, "may spend", f"{show_usd(nanos)} {whose}", key)
    counts = (
        ("iterations", "model calls in one run", limits.iterations),
        ("tokens", "tokens in one run, input and output", limits.tokens),
    )
    for name, what, count in counts:
        if count is not None:
            add(name, "may spend", f"{count} {what}", ("limits", name))
    if loaded.profile.network.mode == "gateway" and limits.usd_nanos is None:
        add("no-usd", "may spend", "any amount in one run: limits.usd is not set")


def _use(loaded: Loaded, add: _Collector) -> None:
    limits = loaded.profile.limits
    add("wall-clock", "may use", f"{show_duration(limits.wall_clock_s)} of time", ("limits", "wall_clock"))
    add(
        "memory",
        "may use",
        f"{show_size(limits.memory_bytes)} of memory, swap included",
        ("limits", "memory"),
    )
    add("pids", "may use", f"{limits.pids} processes and threads", ("limits", "pids"))
    add(
        "cpu",
        "may use",
        "1 core" if limits.cpu_cores == 1 else f"{limits.cpu_cores:g} cores",
        ("limits", "cpu"),
    )
    add(
        "single",
        "may use",
        f"{limits.open_files} open files per process, {show_size(limits.file_bytes)} per file",
        ("limits", "open_files"),
        ("limits", "file_size"),
    )


def _environment(loaded: Loaded, add: _Collector) -> None:
    env = loaded.profile.env
    add("env", "is given", "an environment built from nothing")
    if env.passed:
        add("env-pass", "is given", f"{' '.join(env.passed)} as the caller has them", ("env", "pass"))
    if env.set:
        add("env-set", "is given", " ".join(shown(k, v) for k, v in env.set.items()), ("env", "set"))
    for name, source in env.secret.items():
        kind = source.partition(":")[0]
        add(f"secret-{name}", "is given", f"the secret {name} from a {kind}", ("env", "secret"))


def _keeps(loaded: Loaded, add: _Collector) -> None:
    limits, log = loaded.profile.limits, loaded.profile.log
    add("log", "leaves", f"{show_size(limits.output_bytes)} of output, redacted", ("limits", "output"))
    if log.files:
        add("log-files", "leaves", f"its own log files {' '.join(log.files)}, redacted", ("log", "files"))


def _armed(loaded: Loaded, add: _Collector) -> None:
    names = " ".join(sorted(map(str, required_controls(loaded.profile))))
    add("armed", "starts only with", names, ("require",))
