"""Owns checkpoints: what the trail was at one moment, small enough to be kept somewhere else.
May touch nothing: text in, text out.
Never holds a key.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from supervisor.audit.state import TrailState
from supervisor.errors import UsageError

_NAME = "sidecar-supervisor/audit"
_HINT = "it is what `supervisorctl audit export` prints"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """records: how many there were. root: of the segment's tree then, with so many leaves. All hex."""

    origin: str
    records: int
    root: str
    segment: int
    leaves: int
    chain: str
    seal: str


def checkpoint_of(state: TrailState) -> Checkpoint:
    return Checkpoint(
        origin=state.origin,
        records=state.records,
        root=state.tree().root().hex(),
        segment=state.segment,
        leaves=state.leaves,
        chain=state.chain,
        seal=state.last_seal,
    )


def as_text(checkpoint: Checkpoint) -> str:
    """Origin, size and root on three lines as C2SP's checkpoints have them; further lines are extensions."""
    return "\n".join(
        [
            f"{_NAME}/{checkpoint.origin}",
            str(checkpoint.records),
            base64.b64encode(bytes.fromhex(checkpoint.root)).decode(),
            f"segment {checkpoint.segment} {checkpoint.leaves}",
            f"chain {checkpoint.chain}",
            f"seal {checkpoint.seal}",
            "",
        ]
    )


def parse(text: str) -> Checkpoint:
    """Raises UsageError for what is no checkpoint of ours."""
    lines = text.splitlines()
    try:
        name, _, origin = lines[0].rpartition("/")
        (segment, number, leaves), (chain, of_chain) = lines[3].split(" "), lines[4].split(" ")
        seal, _, of_seal = lines[5].partition(" ")
        if (name, segment, chain, seal) != (_NAME, "segment", "chain", "seal"):
            raise ValueError(lines[0])
        return Checkpoint(
            origin=origin,
            records=int(lines[1]),
            root=base64.b64decode(lines[2], validate=True).hex(),
            segment=int(number),
            leaves=int(leaves),
            chain=of_chain,
            seal=of_seal,
        )
    except (IndexError, ValueError, binascii.Error):
        raise UsageError("this is no checkpoint of an audit trail", hint=_HINT) from None
