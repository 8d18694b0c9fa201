"""Owns looking for a text in all that a box holds: files, variables, command lines, readable memory.
May touch processes and files of the run it is told of, read-only, from outside.
Never brings the text into the box, where the search would find itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_CHUNK = 1 << 22
_SYSTEM = ("/usr", "/proc", "/sys", "/dev")


def processes_of(uid: int) -> list[int]:
    """Every process of a run that is alive."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and f"\nUid:\t{uid}\t" in Path(f"/proc/{name}/status").read_text():
                found.append(int(name))
        except OSError:
            continue
    return found


def places(uid: int, needles: tuple[bytes, ...]) -> set[str]:
    """Where in the box of that run one of the needles is: "memory", "environ", "cmdline", paths of files."""
    found = set()
    alive = processes_of(uid)
    assert alive, "there is nothing to search"
    for pid in alive:
        for name in ("environ", "cmdline"):
            if _has(Path(f"/proc/{pid}/{name}").read_bytes(), needles):
                found.add(name)
        if any(_has(chunk, needles) for chunk in _memory(pid)):
            found.add("memory")
    found |= set(_files(f"/proc/{alive[-1]}/root", needles))
    return found


def _has(text: bytes, needles: tuple[bytes, ...]) -> bool:
    return any(needle in text for needle in needles)


def _memory(pid: int) -> Iterator[bytes]:
    """All memory that the process can read itself, in pieces that overlap."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            if rights[0] != "r" or line.endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                continue
            start, end = (int(address, 16) for address in span.split("-"))
            for at in range(start, end, _CHUNK):
                try:
                    yield os.pread(memory.fileno(), min(_CHUNK + 256, end - at), at)
                except OSError:
                    continue


def _files(root: str, needles: tuple[bytes, ...]) -> Iterator[str]:
    """Below the box's root, without the host's system, which no run can write."""
    for folder, folders, names in os.walk(root):
        inside = folder.removeprefix(root)
        folders[:] = [name for name in folders if f"{inside}/{name}" not in _SYSTEM]
        for name in names:
            path = f"{folder}/{name}"
            try:
                if stat.S_ISREG(os.lstat(path).st_mode) and _has(Path(path).read_bytes(), needles):
                    yield f"{inside}/{name}"
            except OSError:
                continue
