"""Owns the form a box's description has on the launcher's socket: plain JSON, strictly read.
May touch the standard library only, as the privileged launcher imports it.
Never fills in what is missing without a default, and never passes over what it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from sandbox.spec import Base, BoxSpec, CgroupLimits, MountStep, Worktree

T = TypeVar("T")


class SpecError(ValueError):
    """A message on the launcher's socket does not have the shape it must have."""


_STEP_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(MountStep)}


def encode(value: Any) -> Any:
    """Dataclasses to plain JSON values; a mount step carries its class name under "step"."""
    names = _FIELDS.get(type(value))
    if names is not None:
        plain = {name: encode(getattr(value, name)) for name in names}
        if type(value).__name__ in _STEP_KINDS:
            plain["step"] = type(value).__name__
        return plain
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        _FIELDS[type(value)] = tuple(field.name for field in fields(value))
        return encode(value)
    return value


_FIELDS: dict[type, tuple[str, ...]] = {}
"""Of every dataclass that was encoded once: looking at it again takes longer than encoding it."""


def encode_run(box: BoxSpec) -> dict[str, Any]:
    """A run's part of the message; its base is sent beside it, as text."""
    names = [field.name for field in fields(box) if field.name != "base"]
    return {name: encode(getattr(box, name)) for name in names} | {"base": None}


def to_json(value: Any) -> bytes:
    return json.dumps(encode(value), separators=(",", ":")).encode()


def decode(kind: type[T], value: Any, where: str = "box") -> T:
    """Strict: unknown keys, missing keys and wrong types raise SpecError with the place."""
    decoded: T = _decoder(kind)(value, where)
    return decoded


Decoder = Callable[[Any, str], Any]
_DECODERS: dict[Any, Decoder] = {}


def _decoder(kind: Any) -> Decoder:
    """One function per type, made once: a fork server has no time to look at annotations."""
    known = _DECODERS.get(kind)
    if known is None:
        known = _DECODERS[kind] = _make_decoder(kind)
    return known


def _make_decoder(kind: Any) -> Decoder:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _union_decoder(get_args(kind))
    if origin is tuple:
        return _tuple_decoder(_decoder(get_args(kind)[0]))
    if is_dataclass(kind):
        return _struct_decoder(kind)
    return _plain_decoder(kind)


def _plain_decoder(kind: Any) -> Decoder:
    def plain(value: Any, where: str) -> Any:
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise SpecError(f"{where} is not of type {kind.__name__}")
        return value

    return plain


def _tuple_decoder(inner: Decoder) -> Decoder:
    def items(value: Any, where: str) -> Any:
        if type(value) is not list:
            raise SpecError(f"{where} is not a list")
        return tuple([inner(item, where) for item in value])

    return items


def _union_decoder(options: tuple[Any, ...]) -> Decoder:
    rest = [option for option in options if option is not NoneType]
    if len(rest) == 1:
        inner = _decoder(rest[0])

        def maybe(value: Any, where: str) -> Any:
            return None if value is None else inner(value, where)

        return maybe
    steps = {option.__name__: _struct_decoder(option, tagged=True) for option in rest}

    def step(value: Any, where: str) -> Any:
        name = value.get("step") if type(value) is dict else None
        if name not in steps:
            raise SpecError(f"{where} has no step called {name!r}")
        return steps[name](value, f"{where}.{name}")

    return step


def _struct_decoder(kind: Any, *, tagged: bool = False, without: str = "") -> Decoder:
    hints = get_type_hints(kind)
    hints.pop(without, None)
    inner = {name: _decoder(hint) for name, hint in hints.items()}
    required = {f.name for f in fields(kind) if f.default is MISSING and f.name != without}

    def struct(value: Any, where: str) -> Any:
        if type(value) is not dict:
            raise SpecError(f"{where} is not an object")
        decoded = {}
        for name, item in value.items():
            if tagged and name == "step":
                continue
            if name not in inner:
                raise SpecError(f"{where} has an unknown key {name!r}")
            decoded[name] = inner[name](item, f"{where}.{name}")
        missing = required - decoded.keys()
        if missing:
            raise SpecError(f"{where} has no {sorted(missing)[0]}")
        return kind(**decoded) if not without else decoded

    return struct


def decode_box(value: Any, base: Base) -> BoxSpec:
    """A run's part of the message, put on a base that is known already. Raises SpecError."""
    if type(value) is not dict or value.get("base", base) is not None:
        raise SpecError("box.base is sent beside the box, not in it")
    rest = {name: item for name, item in value.items() if name != "base"}
    return BoxSpec(base=base, **_box_decoder()(rest, "box"))


def prepare() -> None:
    """Make every decoder now: what a fork server has ready, its children need not make."""
    _decoder(Base)
    _box_decoder()
    for kind in (CgroupLimits, Worktree, str, int):
        _decoder(kind)


def _box_decoder() -> Decoder:
    if "box" not in _DECODERS:
        _DECODERS["box"] = _struct_decoder(BoxSpec, without="base")
    return _DECODERS["box"]
