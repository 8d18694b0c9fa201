"""Owns the arithmetic of the audit trail: the chain, the evolving key, the MACs and the Merkle tree.
May touch nothing: bytes in, bytes out.
Never goes back: from a key the one before it cannot be computed.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import NamedTuple

KEY_BYTES = 32
GENESIS = bytes(32)
"""The chain value before the first record."""

_CHAIN, _MAC, _END = b',"chain":"', b',"mac":"', b'"}'
_MAC_PART = len(_MAC) + 64 + len(_END)
_CHAIN_PART = len(_CHAIN) + 64 + 1


def evolve(key: bytes) -> bytes:
    """The key of the next record. One way: SHA-256."""
    return hashlib.sha256(b"audit key\0" + key).digest()


def evolved(key: bytes, times: int) -> bytes:
    for _ in range(times):
        key = evolve(key)
    return key


def leaf(body: bytes) -> bytes:
    """RFC 6962, section 2.1: a record's hash as a leaf."""
    return hashlib.sha256(b"\0" + body).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def link(chain: bytes, of_leaf: bytes) -> bytes:
    """The chain value of a record: it stands for all before it too."""
    return hashlib.sha256(b"\2" + chain + of_leaf).digest()


def mac_of(key: bytes, front: bytes) -> bytes:
    return hmac.digest(key, front, "sha256")


@dataclass(slots=True)
class Tree:
    """A Merkle tree that grows; only the roots of its complete subtrees are kept, largest first."""

    count: int = 0
    peaks: list[bytes] = field(default_factory=list)

    def add(self, of_leaf: bytes) -> None:
        self.peaks.append(of_leaf)
        self.count += 1
        size = self.count
        while not size & 1:
            right = self.peaks.pop()
            self.peaks.append(_node(self.peaks.pop(), right))
            size >>= 1

    def root(self) -> bytes:
        """RFC 6962, section 2.1: the tree's hash; of an empty one that of nothing."""
        if not self.peaks:
            return hashlib.sha256(b"").digest()
        root = self.peaks[-1]
        for peak in reversed(self.peaks[:-1]):
            root = _node(peak, root)
        return root


def seal_line(body: bytes, chain: bytes, key: bytes) -> bytes:
    """The record as it stands in the file: the MAC covers every byte before it, the chain value too."""
    front = body[:-1] + _CHAIN + chain.hex().encode() + b'"'
    return front + _MAC + mac_of(key, front).hex().encode() + _END + b"\n"


class Sealed(NamedTuple):
    """A line taken apart. front is what the MAC is of."""

    body: bytes
    front: bytes
    chain: bytes
    mac: bytes

    def is_by(self, key: bytes) -> bool:
        return hmac.compare_digest(mac_of(key, self.front), self.mac)

    def follows(self, chain: bytes) -> bool:
        return link(chain, leaf(self.body)) == self.chain


def take_apart(line: bytes) -> Sealed | None:
    """A line without its newline; None for one that is not in the shape of a record."""
    front, end = line[:-_MAC_PART], line[-_MAC_PART:]
    body, chain = front[:-_CHAIN_PART], front[-_CHAIN_PART:]
    if not (end.startswith(_MAC) and end.endswith(_END) and chain.startswith(_CHAIN) and body):
        return None
    try:
        return Sealed(
            body=body + b"}",
            front=front,
            chain=bytes.fromhex(chain[len(_CHAIN) : -1].decode("ascii")),
            mac=bytes.fromhex(end[len(_MAC) : -len(_END)].decode("ascii")),
        )
    except ValueError:
        return None
