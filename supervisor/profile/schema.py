"""Owns what a profile can say: one struct per table of the TOML file, with every default.
May touch nothing.
Never has a key that no code enforces, and never a default that is wider than its absence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from supervisor.limits.money import parse_usd
from supervisor.profile.units import parse_duration, parse_size


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[limits]: one run. Seconds, bytes, cores; output is what is kept of stdout, stderr and logs.

    iterations are model calls, tokens count input with cache and output, ticket_usd is for all runs
    of a ticket. None is no such limit, 0 allows nothing.
    """

    wall_clock_s: float = msgspec.field(name="wall_clock")
    stop_grace_s: float = msgspec.field(name="stop_grace", default=5.0)
    memory_bytes: int = msgspec.field(name="memory")
    pids: int
    cpu_cores: float = msgspec.field(name="cpu")
    tmp_bytes: int = msgspec.field(name="tmp")
    output_bytes: int = msgspec.field(name="output", default=64 << 20)
    open_files: int = 4096
    file_bytes: int = msgspec.field(name="file_size", default=4 << 30)
    iterations: int | None = None
    tokens: int | None = None
    usd_nanos: int | None = msgspec.field(name="usd", default=None)
    ticket_usd_nanos: int | None = msgspec.field(name="ticket_usd", default=None)
    output_tokens_per_call: int = 16_384


class Daily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[daily]: what all runs together may spend in a day; the configuration's caps hold as well.

    Nano-dollars; None is no cap from here, 0 allows nothing.
    """

    project_nanos: int | None = msgspec.field(name="project_usd", default=None)
    global_nanos: int | None = msgspec.field(name="global_usd", default=None)


class Files(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[files]: what of the host can be seen and written.

    protect and hide are patterns below the worktree: names and *, ? and [] within a folder, ** for
    any depth. executable: may files in the worktree be executed directly?
    """

    worktree: Literal["overlay", "direct"] = "overlay"
    executable: bool = False
    read: list[str] = []
    protect: list[str] = []
    hide: list[str] = []


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[network]: "none" is a loopback of the box's own; "gateway" adds the model gateway on it."""

    mode: Literal["none", "gateway"] = "none"


class Gateway(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[gateway]: which models can be called, and through which upstreams of the configuration.

    models are patterns ("claude-*"). least_output_tokens: a call that could answer less is refused.
    image_tokens, document_tokens: what to hold for each one in a request; None refuses them, since
    their tokens cannot be told from outside. tool_uses: the most uses, per call, of tools that run at
    the provider, by name; those not named are refused.
    """

    upstreams: list[str] = []
    models: list[str] = []
    least_output_tokens: int = 256
    image_tokens: int | None = None
    document_tokens: int | None = None
    tool_uses: dict[str, int] = {}


class Agent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[agent]: which program it is, so that it is pointed at the gateway and its other traffic silenced."""

    kind: str = ""


class Env(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[env]: built from nothing. pass names variables taken from the caller; secret names a source."""

    passed: list[str] = msgspec.field(name="pass", default_factory=list)
    set: dict[str, str] = {}
    secret: dict[str, str] = {}


class Log(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[log]: files the agent writes itself, in /run/agent, and the longest line that is kept."""

    files: list[str] = []
    max_line_bytes: int = msgspec.field(name="max_line", default=1 << 20)
    folder_bytes: int = msgspec.field(name="folder_size", default=64 << 20)


class Waiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[waive]]: a finding of `profile lint` that somebody accepts. until: a date, YYYY-MM-DD.

    key: only where the rule speaks of this key ("files.read"); every place when left out.
    """

    rule: str
    reason: str
    until: str = ""
    key: str = ""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole profile after `extends` was resolved. digest is the SHA-256 of its effective form."""

    schema: Literal[1]
    name: str
    description: str = ""
    require: list[str] = []
    limits: Limits
    daily: Daily = Daily()
    files: Files = Files()
    network: Network = Network()
    gateway: Gateway = msgspec.field(default_factory=Gateway)
    agent: Agent = Agent()
    env: Env = msgspec.field(default_factory=Env)
    log: Log = msgspec.field(default_factory=Log)
    waive: list[Waiver] = []


UNITS: dict[tuple[str, str], Callable[[object], Any]] = {
    ("limits", "wall_clock"): parse_duration,
    ("limits", "stop_grace"): parse_duration,
    ("limits", "memory"): parse_size,
    ("limits", "tmp"): parse_size,
    ("limits", "output"): parse_size,
    ("limits", "file_size"): parse_size,
    ("limits", "usd"): parse_usd,
    ("limits", "ticket_usd"): parse_usd,
    ("daily", "project_usd"): parse_usd,
    ("daily", "global_usd"): parse_usd,
    ("log", "max_line"): parse_size,
    ("log", "folder_size"): parse_size,
}
"""Keys that are written with a unit, and what reads them."""

ADDING = (("files", "protect"), ("files", "hide"), ("files", "read"), ("", "require"))
"""Lists that add up over `extends`: a profile can ask for more, never silently for less."""
