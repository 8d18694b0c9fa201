"""Owns turning a profile's name or file into a checked Profile, `extends` resolved.
May touch profile files, read-only.
Never lets an unknown key, a wrong type or an impossible value pass: each is an error with its place.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from sandbox.spec import CONTROL_GROUPS, Control
from supervisor.agents import KINDS, nearest
from supervisor.errors import ProfileError
from supervisor.profile.positions import KeyPath, Position, positions_of
from supervisor.profile.schema import ADDING, UNITS, Profile

Origins = Mapping[KeyPath, tuple[Position, ...]]

_MAX_DEPTH = 8
_MAX_BYTES = 1 << 16
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = ("PATH", "HOME", "TMPDIR", "LD_PRELOAD", "LD_LIBRARY_PATH")
_FORBIDDEN_READS = ("/", "/proc", "/sys", "/dev", "/run", "/etc", "/root", "/home", "/var", "/tmp")
_PRIVATE = ("/tmp", "/var/tmp", "/dev", "/proc", "/home/agent", "/run/agent")
"""Where a box has folders of its own, which would cover what is read from below them."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A profile, the files it came from (its own first), and a digest of what it says.

    origins: where each key is written, in the order of sources; a list that adds up has several.
    """

    profile: Profile
    sources: tuple[str, ...]
    digest: str
    origins: Mapping[KeyPath, tuple[Position, ...]]

    def where(self, *path: str) -> Position:
        """Where that key, or the nearest table above it, is written; else the profile's own first line."""
        for length in range(len(path), 0, -1):
            found = self.origins.get(path[:length])
            if found:
                return found[0]
        return Position(self.sources[0], 1)


def shipped() -> dict[str, Path]:
    """Name to file of the profiles that come with the package."""
    folder = Path(str(resources.files("supervisor").joinpath("_profiles")))
    if not folder.is_dir():
        folder = Path(__file__).resolve().parents[2] / "profiles"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(reference: str, limits: Mapping[str, str] | None = None) -> Loaded:
    """Load a shipped profile by name, or a file by path. Raises ProfileError with file and line.

    limits: keys of [limits] with their values as they are written in TOML, for one run.
    """
    sources: list[str] = []
    merged = _read_with_parents(_locate(reference, None), sources, 0)
    texts = {path: Path(path).read_text(encoding="utf-8") for path in sources}
    if not limits:
        return _loaded(merged, texts)
    _loaded(copy.deepcopy(merged), texts)  # what is wrong without them is not theirs
    merged["limits"] = {**merged.get("limits", {}), **{k: _value(k, v) for k, v in limits.items()}}
    try:
        return _loaded(merged, texts)
    except ProfileError as error:
        given = " ".join(f"--limit {key}={value}" for key, value in limits.items())
        raise ProfileError(f"{given}: {error.what}", hint=error.hint) from None


def load_text(name: str, text: str, beside: Path) -> Loaded:
    """A profile that is no file here, like one of a git revision; what it extends is looked for beside it.

    Raises ProfileError with name and line.
    """
    sources: list[str] = []
    own = _parse(text.encode(), name)
    parent = own.pop("extends", None)
    if parent is not None:
        own = _merge(_read_with_parents(_locate(str(parent), beside), sources, 1), own)
    texts = {path: Path(path).read_text(encoding="utf-8") for path in sources}
    return _loaded(own, {name: text, **texts})


def _loaded(merged: dict[str, Any], texts: dict[str, str]) -> Loaded:
    origins: dict[KeyPath, tuple[Position, ...]] = {}
    for file, text in texts.items():
        for path, position in positions_of(file, text).items():
            origins[path] = (*origins.get(path, ()), position)
    sources = list(texts)
    profile = _convert(merged, sources, origins)
    _check(profile, sources, origins)
    digest = hashlib.sha256(msgspec.json.encode(profile, order="sorted")).hexdigest()
    return Loaded(profile, tuple(sources), digest, origins)


def _value(key: str, text: str) -> object:
    """As the file would have it: a number where the key takes one, else a string without its quotes."""
    if ("limits", key) not in UNITS:
        if thousands := re.fullmatch(r"(\d+)([kM])", text):
            return int(thousands[1]) * {"k": 1000, "M": 1_000_000}[thousands[2]]
        for kind in (int, float):
            try:
                return kind(text.replace("_", ""))
            except ValueError:
                continue
    return text.strip("\"'")


def _locate(reference: str, beside: Path | None) -> Path:
    if "/" in reference or reference.endswith(".toml"):
        path = Path(reference)
        if beside is not None and not path.is_absolute():
            path = beside / path
        if path.is_file():
            return path.resolve()
        raise ProfileError(f"there is no profile file {reference}", hint="give an existing .toml file")
    known = shipped()
    if reference in known:
        return known[reference]
    near = difflib.get_close_matches(reference, known, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise ProfileError(
        f"there is no profile called {reference!a}",
        hint=f"{guess}shipped: {', '.join(known)}; or give a path to a .toml file",
    )


def _read_with_parents(path: Path, sources: list[str], depth: int) -> dict[str, Any]:
    if depth > _MAX_DEPTH or str(path) in sources:
        raise ProfileError("extends runs in a circle or too deep", where=str(path))
    sources.append(str(path))
    own = _read(path)
    parent = own.pop("extends", None)
    if parent is None:
        return own
    if not isinstance(parent, str):
        raise ProfileError("extends must be the name or file of one profile", where=str(path))
    return _merge(_read_with_parents(_locate(parent, path.parent), sources, depth + 1), own)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ProfileError(f"cannot be read: {error.strerror}", where=str(path)) from None
    return _parse(raw, str(path))


def _parse(raw: bytes, name: str) -> dict[str, Any]:
    if len(raw) > _MAX_BYTES:
        raise ProfileError("is larger than 64 KiB; that is no profile", where=name)
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: Python refuses to read a number of thousands of digits.
        raise ProfileError(f"is not TOML: {error}", where=name) from None


def _merge(parent: dict[str, Any], own: dict[str, Any], table: str = "") -> dict[str, Any]:
    merged = dict(parent)
    for key, value in own.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merge(before, value, key)
        elif (table, key) == ("", "waive") and isinstance(before, list) and isinstance(value, list):
            merged[key] = [*value, *before]
        elif (table, key) in ADDING and isinstance(before, list) and isinstance(value, list):
            merged[key] = list(dict.fromkeys([*before, *value]))
        else:
            merged[key] = value
    return merged


def _convert(merged: dict[str, Any], sources: list[str], origins: Origins) -> Profile:
    for (table, key), parse in UNITS.items():
        values = merged.get(table)
        if isinstance(values, dict) and key in values:
            try:
                values[key] = parse(values[key])
            except ValueError as error:
                raise ProfileError(f"{table}.{key}: {error}", where=_where(key, sources, origins)) from None
    try:
        return msgspec.convert(merged, Profile)
    except msgspec.ValidationError as error:
        raise _explain(str(error), sources, origins) from None


def _explain(message: str, sources: list[str], origins: Origins) -> ProfileError:
    """msgspec says `Object contains unknown field `x` - at `$.limits``: add the place and a guess."""
    place = re.search(r"at `\$\.?(.*)`", message)
    table = place[1] if place else ""
    unknown = re.search(r"unknown field `(.+?)`", message)
    if unknown:
        known = _known_keys(table)
        near = difflib.get_close_matches(unknown[1], known, n=1)
        name = f"{table}.{unknown[1]}" if table else unknown[1]
        return ProfileError(
            f"unknown key {name}",
            where=_where(unknown[1], sources, origins),
            hint=f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}",
        )
    missing = re.search(r"missing required field `(.+?)`", message)
    if missing:
        name = f"{table}.{missing[1]}" if table else missing[1]
        return ProfileError(f"{name} is missing", where=sources[0], hint='say it, or write extends = "base"')
    return ProfileError(
        f"{table or 'profile'}: {message.split(' - at')[0]}",
        where=_where(table.split(".")[-1], sources, origins),
    )


def _known_keys(table: str) -> list[str]:
    kind: Any = Profile
    for part in [part for part in table.split(".") if part]:
        kind = next((f.type for f in msgspec.structs.fields(kind) if f.encode_name == part), None)
    try:
        return [field.encode_name for field in msgspec.structs.fields(kind)]
    except TypeError:
        return []


def _where(key: str, sources: list[str], origins: Origins) -> str:
    """file:line of the first place that writes the key; the profile's own file wins."""
    order = {source: number for number, source in enumerate(sources)}
    places = [position for path, found in origins.items() if key in path[-2:] for position in found]
    best = min(places, key=lambda place: (order[place.file], place.line), default=None)
    return str(best) if best is not None else sources[0]


def _check(profile: Profile, sources: list[str], origins: Origins) -> None:
    def refuse(key: str, message: str, hint: str = "") -> None:
        raise ProfileError(message, where=_where(key, sources, origins), hint=hint)

    known = {str(control) for control in Control} | set(CONTROL_GROUPS)
    for name in profile.require:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            refuse("require", f"no control is called {name!a}", f"did you mean {near[0]}?" if near else "")
    limits = profile.limits
    for key, value in (("wall_clock", limits.wall_clock_s), ("cpu", limits.cpu_cores)):
        if not 0 < value < 1e7:
            refuse(key, f"limits.{key} must be more than 0")
    for key, count, least in (
        ("memory", limits.memory_bytes, 16 << 20),
        ("pids", limits.pids, 8),
        ("tmp", limits.tmp_bytes, 1 << 20),
    ):
        if count < least:
            refuse(key, f"limits.{key} is too small: at least {least}")
    for key, amount in (
        ("iterations", limits.iterations),
        ("tokens", limits.tokens),
        ("output_tokens_per_call", limits.output_tokens_per_call),
    ):
        if amount is not None and not 0 <= amount < 1 << 53:
            refuse(key, f"limits.{key} cannot be {amount}", "0 allows nothing; leave it out for no limit")
    if not 0 <= limits.stop_grace_s < limits.wall_clock_s:
        refuse("stop_grace", "limits.stop_grace must be shorter than limits.wall_clock")
    for pattern in [*profile.files.protect, *profile.files.hide]:
        if pattern.startswith("/") or ".." in pattern.split("/") or not pattern.strip("/"):
            refuse("protect", f"{pattern!a} is not a path below the worktree")
    for path in profile.files.read:
        if (
            not path.startswith("/")
            or ".." in path.split("/")
            or path.rstrip("/") in [p.rstrip("/") for p in _FORBIDDEN_READS]
        ):
            refuse(
                "read",
                f"files.read: {path!a} is too wide or not absolute",
                "name the folders that are needed, one by one",
            )
        if path.startswith(tuple(f"{folder}/" for folder in _PRIVATE)):
            refuse(
                "read",
                f"files.read: {path!a} is where the box has a private folder of its own",
                "keep it elsewhere, as below /opt or /srv",
            )
    for pattern in profile.log.files:
        if not pattern.startswith("/run/agent/") or ".." in pattern.split("/"):
            refuse(
                "files",
                f"log.files: {pattern!a} is not in /run/agent",
                "the agent's own logs go to /run/agent/",
            )
    _check_environment(profile, refuse)
    _check_gateway(profile, refuse)


def _check_gateway(profile: Profile, refuse: Any) -> None:
    gateway, kind = profile.gateway, profile.agent.kind
    if kind and kind not in KINDS:
        refuse("kind", f"agent.kind: {kind!a} is not known", nearest(kind))
    if profile.network.mode == "none":
        if gateway.upstreams or gateway.models:
            refuse(
                "gateway", "[gateway] says which models, but network.mode is none", 'write mode = "gateway"'
            )
        return
    for key, names in (("upstreams", gateway.upstreams), ("models", gateway.models)):
        if not names or not all(names):
            refuse("mode", f"network.mode is gateway, but gateway.{key} is empty", f"name the {key}")
    counts = [gateway.least_output_tokens, gateway.image_tokens or 0, gateway.document_tokens or 0]
    if min([*counts, *gateway.tool_uses.values()]) < 0:
        refuse("gateway", "[gateway]: a count cannot be negative")


def _check_environment(profile: Profile, refuse: Any) -> None:
    env = profile.env
    for name in [*env.passed, *env.set, *env.secret]:
        if not _VARIABLE.fullmatch(name):
            refuse(name, f"{name!a} cannot be the name of a variable")
        if name in _OURS:
            refuse(name, f"env: {name} is the box's own", "commands are resolved inside the box")
    for name, source in env.secret.items():
        if not source.startswith(("file:", "credential:", "command:")):
            refuse(
                name,
                f"env.secret.{name} must name a source, not hold the secret",
                'write "file:/path", "credential:NAME" or "command:program"',
            )
