"""Owns where things lie: the state folder, the run folder, and what is in them.
May touch the environment, and makes those two folders.
Never uses a folder that another user could have prepared.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from supervisor.errors import StateError
from supervisor.ownership import is_trusted, make_folder

DEFAULT_CONFIG = "/etc/sidecar-supervisor/config.toml"
_SYSTEM_RUN = "/run/sidecar-supervisor"


@dataclass(frozen=True, slots=True)
class Paths:
    """state survives a reboot, run does not; both belong to this user alone."""

    state: str
    run: str

    @property
    def database(self) -> str:
        return f"{self.state}/supervisor.db"

    @property
    def stop_folder(self) -> str:
        return f"{self.state}/stop"

    @property
    def stop_everything(self) -> str:
        return f"{self.state}/STOP"

    @property
    def control_socket(self) -> str:
        return f"{self.run}/control.sock"

    @property
    def worker_sockets(self) -> str:
        return f"{self.run}/workers"

    @property
    def worker_locks(self) -> str:
        return f"{self.state}/workers"

    def worker_socket(self, worker_id: str) -> str:
        return f"{self.worker_sockets}/{worker_id}.sock"

    def logs(self, run_id: str) -> str:
        return f"{self.state}/runs/{run_id}/log.ndjson"

    def run_folder(self, run_id: str) -> str:
        return f"{self.state}/runs/{run_id}"

    @property
    def audit(self) -> str:
        return f"{self.state}/audit"

    @property
    def namespace_key(self) -> str:
        """Names this state's cgroups apart from those of another state on the same host."""
        import hashlib  # a command that only asks does not need it

        return hashlib.sha256(os.path.realpath(self.state).encode()).hexdigest()[:12]


def config_path() -> str | None:
    """The configuration that is read, None where there is none."""
    named = os.environ.get("SUPERVISOR_CONFIG")
    return named or (DEFAULT_CONFIG if os.path.exists(DEFAULT_CONFIG) else None)


def system_socket() -> str:
    """Where root's daemon listens by default; members of its control group look here too."""
    return f"{_SYSTEM_RUN}/control.sock"


def launcher_socket() -> str:
    """Where the daemon finds a launcher that systemd starts; "" is a child of its own (the unit says it)."""
    return os.environ.get("SUPERVISOR_LAUNCHER", "")


def locate() -> Paths:
    """From SUPERVISOR_STATE_DIR and SUPERVISOR_RUN_DIR, else the places for root or this user."""
    if os.geteuid() == 0:
        state, run = "/var/lib/sidecar-supervisor", _SYSTEM_RUN
    else:
        home = os.path.expanduser("~")
        base = os.environ.get("XDG_STATE_HOME") or f"{home}/.local/state"
        runtime = os.environ.get("XDG_RUNTIME_DIR") or f"{base}/run"
        state, run = f"{base}/sidecar-supervisor", f"{runtime}/sidecar-supervisor"
    state = os.environ.get("SUPERVISOR_STATE_DIR") or state
    run = os.environ.get("SUPERVISOR_RUN_DIR") or run
    return Paths(os.path.abspath(state), os.path.abspath(run))


def prepare(paths: Paths) -> Paths:
    """Make the folders. Raises StateError where they cannot be made, or somebody else owns them."""
    _make(paths.state, 0o700, "SUPERVISOR_STATE_DIR")
    # Where systemd has made the sockets the folder is root's, and the daemon makes nothing in it.
    _make(paths.run, 0o755, "SUPERVISOR_RUN_DIR", written=not launcher_socket())
    _make(paths.stop_folder, 0o700, "SUPERVISOR_STATE_DIR")
    _make(paths.worker_sockets, 0o700, "SUPERVISOR_RUN_DIR")
    _make(paths.worker_locks, 0o700, "SUPERVISOR_STATE_DIR")
    _make(f"{paths.state}/runs", 0o700, "SUPERVISOR_STATE_DIR")
    return paths


def _make(folder: str, mode: int, variable: str, *, written: bool = True) -> None:
    hint = f"make it writable for this user, or set {variable} to a folder that is"
    try:
        make_folder(folder, mode)
        found = os.stat(folder)
    except OSError as error:
        raise StateError(f"the folder {folder} cannot be made: {error.strerror}", hint=hint) from error
    if not stat.S_ISDIR(found.st_mode) or not os.access(folder, os.X_OK | (os.W_OK if written else 0)):
        raise StateError(f"the folder {folder} is not writable", hint=hint)
    if not is_trusted(found.st_uid) or (found.st_mode & 0o002 and not found.st_mode & stat.S_ISVTX):
        raise StateError(
            f"the folder {folder} could be changed by other users", hint=f"chown and chmod {mode:o} it"
        )
