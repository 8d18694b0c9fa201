"""Owns writing the audit trail: the one place that adds records, whichever process has them.
May touch the files below <state>/audit/, under a lock that all processes of this state share.
Never changes what is written, and never goes on behind a torn record without saying so.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from supervisor.audit import sealing
from supervisor.audit.records import Draft, GapWhy, RecordKind, SealWhy, decode, encode
from supervisor.audit.state import TrailState, read_state, write_state
from supervisor.clock import rfc3339
from supervisor.errors import StateError
from supervisor.ownership import make_folder, open_file

SEGMENT_BYTES = 8 << 20
SEAL_EVERY = 64
"""Records; a seal is also set when this much was not enough for HEARTBEAT_S, and at every close."""

HEARTBEAT_S = 60.0
INITIAL_KEY = "initial.key"
_LOCK_PATIENCE_S = 5.0
_LOCK_EVERY_S = 0.002
_LARGEST_TAIL = 64 << 20


def segment_name(number: int) -> str:
    return f"{number:06}.ndjson"


class TrailWriter:
    """Adds records; every call is durable when it returns. One per process, used from one thread."""

    def __init__(self, folder: str) -> None:
        """Makes the trail where there is none. Raises StateError with what to do."""
        self.folder = folder
        self._segment = -1
        self._segment_number = 0
        try:
            made = make_folder(folder, 0o700)
            self._lock = self._open("lock", os.O_RDWR)
            self._key = self._open("key", os.O_RDWR)
            if made:
                _sync_folder(os.path.dirname(folder))
        except OSError as error:
            raise _unusable(folder, error) from error
        with self._locked():
            self._begin()

    def _open(self, name: str, flags: int, *, exclusive: bool = False) -> int:
        return open_file(f"{self.folder}/{name}", flags, exclusive=exclusive)

    def close(self) -> None:
        for fd in (self._lock, self._key, self._segment):
            if fd >= 0:
                os.close(fd)
        self._lock = self._key = self._segment = -1

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time. The kernel lets go when one dies. OSErrors become StateErrors."""
        try:
            self._wait_for_lock()
            try:
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
        except OSError as error:
            raise _unusable(self.folder, error) from error

    def _wait_for_lock(self) -> None:
        """A process that is stopped while it writes would hold up everybody else for ever."""
        until_s = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise
            time.sleep(_LOCK_EVERY_S)

    def _begin(self) -> None:
        if read_state(self._key) is not None:
            return
        if os.fstat(self._key).st_size or os.path.exists(f"{self.folder}/{segment_name(1)}"):
            raise StateError(
                f"the audit trail in {self.folder} cannot be continued: its key is gone or damaged",
                hint="keep that folder as evidence: move it away, and a new trail begins",
            )
        key, origin = os.urandom(sealing.KEY_BYTES), os.urandom(8).hex()
        fd = self._open(INITIAL_KEY, os.O_WRONLY, exclusive=True)
        try:
            os.write(fd, f"{origin} {key.hex()}\n".encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        state = TrailState(origin=origin, key=key.hex(), chain=sealing.GENESIS.hex(), sealed_s=time.time())
        write_state(self._key, state)
        _sync_folder(self.folder)

    # ------------------------------------------------------------ adding records

    def append(self, drafts: Sequence[Draft], seal: SealWhy | None = None) -> int:
        """Add records, and a seal when one is due or asked for. How many records there are then.

        Raises StateError when nothing of it is certain to be on the disk.
        """
        with self._locked():
            state = read_state(self._key)
            if state is None:
                raise StateError(f"{self.folder}/key is damaged", hint="keep that folder as evidence")
            batch = _Batch(self, state)
            batch.recover()
            for draft in drafts:
                batch.add(draft)
            now_s = time.time()
            overdue = now_s - state.sealed_s >= HEARTBEAT_S
            if seal is not None or state.unsealed >= SEAL_EVERY or (overdue and state.unsealed):
                batch.seal(seal or SealWhy.BATCH)
            elif overdue:
                batch.seal(SealWhy.HEARTBEAT)
            batch.flush()
            return state.records

    def state(self) -> TrailState:
        """As it is now. Raises StateError."""
        with self._locked():
            state = read_state(self._key)
        if state is None:
            raise StateError(f"{self.folder}/key is damaged", hint="keep that folder as evidence")
        return state

    def segment(self, number: int) -> int:
        """A descriptor of that segment, made if need be, of the file that has its name now."""
        path = f"{self.folder}/{segment_name(number)}"
        if number == self._segment_number and self._is_there(path):
            return self._segment
        if self._segment >= 0:
            os.close(self._segment)
            self._segment = -1
        self._segment = self._open(segment_name(number), os.O_RDWR | os.O_APPEND)
        self._segment_number = number
        _sync_folder(self.folder)
        return self._segment

    def _is_there(self, path: str) -> bool:
        """Or did somebody put another file in its place?"""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._segment))
        except FileNotFoundError:
            return False


class _Batch:
    """Records on their way to the disk: sealed in memory, written at once."""

    def __init__(self, writer: TrailWriter, state: TrailState) -> None:
        self._writer = writer
        self._state = state
        self._tree = state.tree()
        self._key = bytes.fromhex(state.key)
        self._chain = bytes.fromhex(state.chain)
        self._lines: list[bytes] = []
        self._size = 0
        self._written = False

    def add(self, draft: Draft) -> None:
        state = self._state
        if not state.leaves and draft.kind is not RecordKind.HEAD:
            self._head()
        if state.offset + self._size >= SEGMENT_BYTES and draft.kind is not RecordKind.SEAL:
            self._next_segment()
        body = encode(draft, state.records)
        of_leaf = sealing.leaf(body)
        self._chain = sealing.link(self._chain, of_leaf)
        line = sealing.seal_line(body, self._chain, self._key)
        self._key = sealing.evolve(self._key)
        self._tree.add(of_leaf)
        self._lines.append(line)
        self._size += len(line)
        state.records += 1
        state.leaves += 1
        state.unsealed += 1

    def seal(self, why: SealWhy) -> None:
        """What stands before it in the segment, in one hash."""
        state = self._state
        if not state.leaves:
            self._head()
        detail = {
            "records": state.records,
            "segment": state.segment,
            "leaves": state.leaves,
            "root": self._tree.root().hex(),
        }
        self.add(Draft(kind=RecordKind.SEAL, what=why, at=_now(), detail=detail))
        state.unsealed, state.sealed_s = 0, time.time()
        state.last_seal = self._lines[-1][-67:-3].decode()

    def _head(self) -> None:
        """The first record of a segment: which trail, which segment, and how the one before it ended."""
        state = self._state
        detail = {"origin": state.origin, "segment": state.segment, "last_root": state.last_root}
        self.add(Draft(kind=RecordKind.HEAD, what="segment", at=_now(), detail=detail))

    def _next_segment(self) -> None:
        self.seal(SealWhy.SEGMENT)
        root = self._tree.root().hex()
        self.flush()
        state = self._state
        state.segment += 1
        state.offset = state.leaves = 0
        state.last_root = root
        self._tree = sealing.Tree()
        self._head()

    def flush(self) -> None:
        """Write, wait for the disk, then store the key that comes next and wipe the one before."""
        state = self._state
        if not self._lines and not self._written:
            return
        fd = self._writer.segment(state.segment)
        raw = b"".join(self._lines)
        while raw:
            raw = raw[os.write(fd, raw) :]
        os.fdatasync(fd)
        state.offset += self._size
        self._lines, self._size, self._written = [], 0, False
        state.chain, state.key = self._chain.hex(), self._key.hex()
        state.peaks = [peak.hex() for peak in self._tree.peaks]
        write_state(self._writer._key, state)

    # ------------------------------------------------------------ after a crash

    def recover(self) -> None:
        """Compare the segment's end with what the state says of it, and say in a record what is not so."""
        state = self._state
        fd = self._writer.segment(state.segment)
        size = os.fstat(fd).st_size
        if size == state.offset:
            return
        if size < state.offset:
            detail = {"segment": state.segment, "from": size, "to": state.offset}
            self._end_line(fd, size)
            state.offset = os.fstat(fd).st_size
            self.add(Draft(kind=RecordKind.GAP, what=GapWhy.MISSING, at=_now(), detail=detail))
            return
        rest = os.pread(fd, min(size - state.offset, _LARGEST_TAIL), state.offset)
        good = self._accept(rest)
        state.offset += good
        torn = rest[good:]
        if not torn and not rest.endswith(b"\n"):
            self._end_line(fd, size)
            state.offset += 1
        if torn:
            at = state.offset
            self._end_line(fd, size)
            state.offset = os.fstat(fd).st_size
            detail = {"segment": state.segment, "from": at, "to": at + len(torn)}
            detail |= {"sha256": hashlib.sha256(torn).hexdigest()}  # type: ignore[dict-item]
            self.add(Draft(kind=RecordKind.GAP, what=GapWhy.TORN, at=_now(), detail=detail))

    def _end_line(self, fd: int, size: int) -> None:
        if size and os.pread(fd, 1, size - 1) != b"\n":
            os.write(fd, b"\n")

    def _accept(self, rest: bytes) -> int:
        """Records that were written, but whose state was not: how many bytes of them are whole and ours."""
        good, state = 0, self._state
        for line in rest.splitlines(keepends=True):
            # A whole record that lacks its newline alone is one: it gets it in recover.
            sealed = sealing.take_apart(line.removesuffix(b"\n"))
            record = decode(sealed.body) if sealed is not None else None
            if sealed is None or record is None or record.n != state.records:
                break
            if not sealed.follows(self._chain) or not sealed.is_by(self._key):
                break
            self._chain, self._key = sealed.chain, sealing.evolve(self._key)
            self._tree.add(sealing.leaf(sealed.body))
            state.records, state.leaves, state.unsealed = (
                state.records + 1,
                state.leaves + 1,
                state.unsealed + 1,
            )
            good += len(line)
            self._written = True
        return good


def _now() -> str:
    return rfc3339(datetime.now(UTC))


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unusable(folder: str, error: OSError) -> StateError:
    return StateError(
        f"the audit trail in {folder} cannot be written: {error.strerror or error}",
        hint="free space there, or see to its permissions; nothing is started without it",
    )
