"""Owns the file that holds the trail's current key and where the trail ends.
May touch <state>/audit/key, overwritten in place: a new file would leave the old key on the disk.
Never holds a key that a record was sealed with: only the one for the next.
"""

from __future__ import annotations

import hashlib
import os

import msgspec

from supervisor.audit.sealing import Tree

_SLOT = 4096
_DIGEST = 64


class TrailState(msgspec.Struct, kw_only=True):
    """What the next record needs. key is for record number `records`; offset is the segment's length.

    chain, key and peaks are hex; sealed_s is when the last seal was set, in seconds of UTC.
    """

    serial: int = 0
    origin: str
    segment: int = 1
    offset: int = 0
    records: int = 0
    leaves: int = 0
    unsealed: int = 0
    sealed_s: float = 0.0
    chain: str
    key: str
    peaks: list[str] = []
    last_root: str = ""
    last_seal: str = ""

    def tree(self) -> Tree:
        return Tree(self.leaves, [bytes.fromhex(peak) for peak in self.peaks])


def read_state(fd: int) -> TrailState | None:
    """The newer of the two slots that are whole; None where none is."""
    found = [state for state in (_slot(fd, 0), _slot(fd, 1)) if state is not None]
    return max(found, key=lambda state: state.serial, default=None)


def write_state(fd: int, state: TrailState) -> None:
    """Write the other slot, wait for the disk, then wipe the one before. Raises OSError."""
    state.serial += 1
    raw = msgspec.json.encode(state)
    slot = state.serial % 2
    padded = (hashlib.sha256(raw).hexdigest().encode() + raw).ljust(_SLOT)
    os.pwrite(fd, padded, slot * _SLOT)
    os.fdatasync(fd)
    os.pwrite(fd, bytes(_SLOT), (1 - slot) * _SLOT)


def _slot(fd: int, number: int) -> TrailState | None:
    raw = os.pread(fd, _SLOT, number * _SLOT).rstrip(b" ")
    digest, body = raw[:_DIGEST], raw[_DIGEST:]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    try:
        return msgspec.json.decode(body, type=TrailState)
    except msgspec.DecodeError:
        return None
