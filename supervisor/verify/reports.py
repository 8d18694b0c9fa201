"""Owns the reports of verifications: signing them, keeping the latest of each profile, reading them back.
May touch the state folder's key and reports, and the file it is told to write.
Never takes a report for genuine that the key did not sign.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
from pathlib import Path
from typing import Any

import msgspec

from supervisor.errors import StateError, UsageError
from supervisor.ownership import make_folder, open_file
from supervisor.paths import Paths
from supervisor.state_keys import state_key


def sign(paths: Paths, verification: dict[str, Any]) -> dict[str, Any]:
    """The report: what was found, the version that found it, and an HMAC-SHA256 over both (RFC 2104)."""
    report = {"v": 1, "verification": verification}
    return {**report, "hmac_sha256": _mac(state_key(paths, "verify"), report)}


def is_genuine(paths: Paths, report: dict[str, Any]) -> bool:
    signed = {name: value for name, value in report.items() if name != "hmac_sha256"}
    return hmac.compare_digest(str(report.get("hmac_sha256", "")), _mac(state_key(paths, "verify"), signed))


def _mac(key: bytes, value: dict[str, Any]) -> str:
    return hmac.new(key, msgspec.json.encode(value, order="sorted"), hashlib.sha256).hexdigest()


def _place(paths: Paths, digest: str) -> Path:
    return Path(paths.state) / "verified" / f"{digest}.json"


def keep(paths: Paths, report: dict[str, Any]) -> None:
    """The latest of this very profile."""
    place = _place(paths, report["verification"]["digest"])
    try:
        make_folder(str(place.parent), 0o700)
        partial = place.with_suffix(".partial")
        with os.fdopen(open_file(str(partial), os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(msgspec.json.encode(report))
        partial.replace(place)
    except OSError as error:
        raise StateError(f"the report cannot be kept in {place.parent}: {error.strerror}") from error


def latest(paths: Paths, digest: str) -> dict[str, Any] | None:
    """What was found last for this profile on this host's kernel; None without a genuine report."""
    try:
        report = read(str(_place(paths, digest)))
    except UsageError:
        return None
    found: dict[str, Any] = report.get("verification", {})
    same_host = found.get("kernel") == platform.release()
    return found if same_host and is_genuine(paths, report) else None


def write(path: str, report: dict[str, Any]) -> None:
    try:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def read(path: str) -> dict[str, Any]:
    """Raises UsageError for what is no report."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} is no report: {error}") from None
    if not isinstance(found.get("verification"), dict):
        raise UsageError(f"{path} is no report")
    return found
