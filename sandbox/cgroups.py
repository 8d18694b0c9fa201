"""Owns a run's control groups: made, limited, filled, killed, read and removed.
May touch the folders it makes below the launcher's own group, on v2 and on hybrid hosts.
Never freezes a v1 group (a frozen one swallows SIGKILL) and never changes a limit it did not make.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, field

from sandbox.spec import CgroupLimits

_CONTROLLERS = ("memory", "pids", "cpu")
_CPU_PERIOD_US = 100_000
_TOP = "sidecar-supervisor"
_OWN_LEAF = "supervisor"
_MOVES = 5


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where runs' groups go: a v2 folder for kill and watch, and one folder per limit.

    v2 is None where no v2 hierarchy can be written. limits maps a controller to the folder that
    holds its groups; where that is the v2 folder the host is pure v2.
    """

    v2: str | None
    limits: dict[str, str] = field(default_factory=dict)
    why_not: str = ""


def read_text(path: str) -> str:
    """Without a file object: these are read while somebody waits, and io.open asks four things more."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = b""
        while part := os.read(descriptor, 1 << 16):
            raw += part
    finally:
        os.close(descriptor)
    return raw.decode("utf-8", "replace")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _mounted() -> tuple[str | None, dict[str, str]]:
    """The v2 mount point and the mount point of each v1 controller (proc(5), mountinfo)."""
    v2: str | None = None
    v1: dict[str, str] = {}
    for line in read_text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        mount_point = before.split(" ")[4]
        if kind == "cgroup2":
            v2 = v2 or mount_point
        elif kind == "cgroup":
            for option in options.rpartition(" ")[2].split(","):
                if option in _CONTROLLERS:
                    v1.setdefault(option, mount_point)
    return v2, v1


def _own_paths() -> dict[str, str]:
    """This process's group in each hierarchy; "" is v2 (cgroups(7), /proc/pid/cgroup)."""
    own: dict[str, str] = {}
    for line in read_text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            own[name] = path
    return own


def discover(key: str) -> Hierarchies:
    """Find or make the folders for the runs of one supervisor state; key tells two of them apart.

    Nothing raises here: what cannot be had is left out, with the reason in why_not.
    """
    mount_v2, mounts_v1 = _mounted()
    own = _own_paths()
    v2: str | None = None
    limits: dict[str, str] = {}
    reasons: list[str] = []
    if mount_v2 is None:
        reasons.append("no cgroup v2 hierarchy is mounted")
    else:
        try:
            v2, controllers = _prepare_v2(mount_v2, own.get("", "/"), key)
            limits |= dict.fromkeys(controllers, v2)
        except OSError as error:
            reasons.append(f"cgroup v2 at {mount_v2}: {error.strerror}")
    for controller in _CONTROLLERS:
        if controller in limits or controller not in mounts_v1:
            continue
        base = mounts_v1[controller] + own.get(controller, "/").rstrip("/") + f"/{_TOP}/{key}"
        try:
            os.makedirs(base, exist_ok=True)
            limits[controller] = base
        except OSError as error:
            reasons.append(f"cgroup v1 {controller}: {error.strerror}")
    missing = [name for name in _CONTROLLERS if name not in limits]
    if missing and not reasons:
        reasons.append(f"controllers not offered: {' '.join(missing)}")
    return Hierarchies(v2, limits, "; ".join(reasons))


def _prepare_v2(mount: str, own_path: str, key: str) -> tuple[str, list[str]]:
    """The v2 folder for runs, and which controllers it passes down to them.

    A group may pass controllers down only while it holds no process itself (cgroup-v2.rst, "No
    Internal Process Constraint"), so below a delegated group the launcher moves to a leaf first.
    """
    own = mount + own_path.rstrip("/")
    top = f"{own}/{_TOP}"
    if os.path.basename(own) == _OWN_LEAF:
        top = f"{os.path.dirname(own)}/{_TOP}"
    base = f"{top}/{key}"
    os.makedirs(base, exist_ok=True)
    available = read_text(f"{os.path.dirname(top)}/cgroup.controllers").split()
    wanted = [name for name in _CONTROLLERS if name in available]
    if not wanted:
        return base, []
    request = " ".join(f"+{name}" for name in wanted)
    for last in (False,) * _MOVES + (True,):
        try:
            _pass_down(os.path.dirname(top), request)
            break
        except OSError as error:
            if error.errno != errno.EBUSY or last:
                raise
        _move_to_leaf(os.path.dirname(top))  # again, when something there has forked meanwhile
    _pass_down(top, request)
    _pass_down(base, request)
    return base, wanted


def is_delegated() -> bool:
    """Has systemd handed this process's v2 group over? It marks those, since systemd 251 for all to read."""
    mount, _ = _mounted()
    if mount is None:
        return False
    own = mount + _own_paths().get("", "/").rstrip("/")
    if os.path.basename(own) == _OWN_LEAF:
        own = os.path.dirname(own)
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(own, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _pass_down(group: str, request: str) -> None:
    _write(f"{group}/cgroup.subtree_control", request)


def _move_to_leaf(group: str) -> None:
    leaf = f"{group}/{_OWN_LEAF}"
    os.makedirs(leaf, exist_ok=True)
    for pid in read_text(f"{group}/cgroup.procs").split():
        try:
            _write(f"{leaf}/cgroup.procs", pid)
        except ProcessLookupError:
            continue  # it has ended since the list was read


def is_group(folder: str) -> bool:
    """Is that a control group of a run, and no other folder? What a database says may be anybody's word."""
    real = os.path.realpath(folder)
    try:
        types = {line.split()[1]: line.split()[2] for line in read_text("/proc/self/mounts").splitlines()}
    except (OSError, IndexError):
        return False
    mounted = [at for at, kind in types.items() if kind in ("cgroup", "cgroup2")]
    inside = any(real.startswith(f"{at}/") for at in mounted)
    return inside and f"/{_TOP}/" in real and os.path.isdir(real)


@dataclass(slots=True)
class RunGroup:
    """The groups of one run. folders lists every one that was made, v2 first where there is one."""

    name: str
    v2: str | None
    limits: dict[str, str]

    @property
    def folders(self) -> list[str]:
        return list(dict.fromkeys(([self.v2] if self.v2 else []) + list(self.limits.values())))

    def limit(self, limits: CgroupLimits) -> None:
        """Before anything of the agent runs in it. Raises OSError."""
        for controller, folder in self.limits.items():
            _limit(controller, folder, folder == self.v2, limits)

    def enter_v1(self) -> None:
        """Move the calling process into the v1 groups (v2 was entered by clone3)."""
        for folder in self.folders:
            if folder != self.v2:
                _write(f"{folder}/cgroup.procs", "0")

    def kill(self) -> None:
        """SIGKILL every member, forks in flight included (cgroup-v2.rst, cgroup.kill, since 5.14)."""
        if self.v2 is None:
            return
        try:
            _write(f"{self.v2}/cgroup.kill", "1")
        except FileNotFoundError:
            self._kill_one_by_one()
        except OSError as error:
            if error.errno != errno.ENODEV:  # removed while it was open: nothing was in it
                raise

    def try_kill(self) -> bool:
        """kill(), for who may not own the groups: False when only another user can write to them."""
        try:
            self.kill()
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return False
        return True

    def open_kill(self) -> int:
        """A descriptor that kills the group when "1" is written to it; -1 where there is none."""
        try:
            return os.open(f"{self.v2}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC) if self.v2 else -1
        except FileNotFoundError:
            return -1

    def _kill_one_by_one(self) -> None:
        """Before 5.14: freeze, signal, thaw; a frozen v2 group dies of SIGKILL and cannot fork."""
        assert self.v2 is not None
        if not os.path.isdir(self.v2):
            return
        _write(f"{self.v2}/cgroup.freeze", "1")
        try:
            for pid in self.members():
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
        finally:
            _write(f"{self.v2}/cgroup.freeze", "0")

    def members(self) -> list[int]:
        """Host pids of the processes in the group."""
        folder = self.v2 or next(iter(self.limits.values()), None)
        if folder is None:
            return []
        try:
            return [int(pid) for pid in read_text(f"{folder}/cgroup.procs").split()]
        except (FileNotFoundError, OSError):
            return []

    def populated(self) -> bool:
        """Does anything live in the run's groups or below them?"""
        if self.v2 is None:
            return bool(self.members())
        try:
            events = read_text(f"{self.v2}/cgroup.events")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):  # removed, perhaps while it was open
                return False
            raise
        return "populated 1" in events

    def counters(self) -> dict[str, int]:
        """What the run used: memory_peak_bytes, oom_kills, pids_peak, cpu_us, pids_refused."""
        found: dict[str, int] = {}
        for name, controller, file, key in _COUNTERS:
            folder = self.limits.get(controller)
            if folder is None or name in found:
                continue
            value = _read_counter(f"{folder}/{file}", key)
            if value is not None:
                found[name] = value // 1000 if file == "cpuacct.usage" else value
        return found

    def oom_kills(self) -> int:
        """How many of its processes the kernel ended for memory; asked every second of a run's life."""
        folder = self.limits.get("memory", "")
        for file in ("memory.events", "memory.oom_control"):
            value = _read_counter(f"{folder}/{file}", "oom_kill")
            if value is not None:
                return value
        return 0

    def remove(self, patience_s: float = 1.0) -> list[str]:
        """Remove the folders; those that stay busy past the patience are returned."""
        left = []
        for folder in self.folders:
            if not _remove_folder(folder, patience_s):
                left.append(folder)
        return left


_COUNTERS = (
    ("memory_peak_bytes", "memory", "memory.peak", ""),
    ("memory_peak_bytes", "memory", "memory.max_usage_in_bytes", ""),
    ("oom_kills", "memory", "memory.events", "oom_kill"),
    ("oom_kills", "memory", "memory.oom_control", "oom_kill"),
    ("pids_peak", "pids", "pids.peak", ""),
    ("pids_refused", "pids", "pids.events", "max"),
    ("cpu_us", "cpu", "cpu.stat", "usage_usec"),
    ("cpu_us", "cpu", "cpuacct.usage", ""),
)


def _read_counter(path: str, key: str) -> int | None:
    try:
        text = read_text(path)
    except OSError:
        return None
    if not key:
        return int(text.strip() or 0)
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return None


def _remove_folder(folder: str, patience_s: float) -> bool:
    """rmdir answers EBUSY for a moment after the last process died; children go first."""
    deadline = time.monotonic() + patience_s
    pause = 0.0005
    while True:
        try:
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    _remove_folder(entry.path, 0.0)
            os.rmdir(folder)
            return True
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 2, 0.05)


def create(where: Hierarchies, name: str) -> RunGroup:
    """Make the groups of a box, without limits. Raises OSError; what was made is then removed."""
    group = RunGroup(
        name,
        f"{where.v2}/{name}" if where.v2 else None,
        {controller: f"{base}/{name}" for controller, base in where.limits.items()},
    )
    try:
        for folder in group.folders:
            os.mkdir(folder)
    except OSError:
        group.remove(0.0)
        raise
    return group


def _limit(controller: str, folder: str, is_v2: bool, limits: CgroupLimits) -> None:
    if controller == "pids":
        _write(f"{folder}/pids.max", str(limits.pids))
    elif controller == "cpu":
        quota = max(1000, int(limits.cpu_cores * _CPU_PERIOD_US))
        if is_v2:
            _write(f"{folder}/cpu.max", f"{quota} {_CPU_PERIOD_US}")
        else:
            _write(f"{folder}/cpu.cfs_period_us", str(_CPU_PERIOD_US))
            _write(f"{folder}/cpu.cfs_quota_us", str(quota))
    elif is_v2:
        _write(f"{folder}/memory.max", str(limits.memory_bytes))
        _write_optional(f"{folder}/memory.swap.max", "0")
        _write_optional(f"{folder}/memory.oom.group", "1")
    else:
        _write(f"{folder}/memory.limit_in_bytes", str(limits.memory_bytes))
        _write_optional(f"{folder}/memory.memsw.limit_in_bytes", str(limits.memory_bytes))


def _write_optional(path: str, text: str) -> None:
    """Files that exist only with swap accounting (or a newer kernel)."""
    try:
        _write(path, text)
    except FileNotFoundError:
        return


def tidy(where: Hierarchies) -> None:
    """Remove the folders that held runs, if nothing is in them any more; another supervisor's stay."""
    for base in dict.fromkeys(([where.v2] if where.v2 else []) + list(where.limits.values())):
        for folder in (base, os.path.dirname(base)):
            try:
                os.rmdir(folder)
            except OSError:
                break


def leftovers(where: Hierarchies) -> list[RunGroup]:
    """Groups of runs that are still on this host, by their folder names."""
    names: dict[str, None] = {}
    for base in dict.fromkeys(([where.v2] if where.v2 else []) + list(where.limits.values())):
        try:
            names |= dict.fromkeys(e.name for e in os.scandir(base) if e.is_dir(follow_symlinks=False))
        except OSError:
            continue
    return [existing(where, name) for name in names]


def existing(where: Hierarchies, name: str) -> RunGroup:
    """The groups of a run that another process made; folders that are gone are left out."""

    def there(folder: str) -> bool:
        return os.path.isdir(folder)

    v2 = f"{where.v2}/{name}" if where.v2 and there(f"{where.v2}/{name}") else None
    limits = {c: f"{base}/{name}" for c, base in where.limits.items() if there(f"{base}/{name}")}
    return RunGroup(name, v2, limits)
