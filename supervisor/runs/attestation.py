"""Owns what is written into a run's record about its box and the process that began it.
May touch /proc, reading only.
Never names a process by its pid alone.
"""

from __future__ import annotations

from typing import Any

from sandbox.client import Box


def attestation(box: Box, facts: dict[str, Any], armed_ms: float) -> dict[str, Any]:
    """What the box reported, and the facts that were read back from outside (sandbox/attest.py)."""
    return {
        "armed": box.armed,
        "missing": box.missing,
        "required": list(box.spec.base.required),
        "program": box.program,
        "uid": box.uid,
        "init_pid": box.pid,
        "init_start": process_start(box.pid),
        "armed_ms": armed_ms,
        "facts": facts,
    }


def process_start(pid: int) -> str:
    """Field 22 of /proc/pid/stat: with the pid it names one process of this boot (proc(5))."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return ""
