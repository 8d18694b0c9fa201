"""Owns the description of a box: plain frozen data.
May touch the standard library only, as the privileged launcher imports it.
Never reads the host and never decides: what is written here is what the launcher carries out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

AGENT_UID = 1000
"""The agent's uid and gid as it sees them; outside it is one fresh uid per run."""


class Control(StrEnum):
    """Everything that can be armed. A profile asks for these by name or by group (CONTROL_GROUPS)."""

    USER_NAMESPACE = "user_namespace"
    MOUNT_NAMESPACE = "mount_namespace"
    PID_NAMESPACE = "pid_namespace"
    NETWORK_NAMESPACE = "network_namespace"
    IPC_NAMESPACE = "ipc_namespace"
    UTS_NAMESPACE = "uts_namespace"
    CGROUP_NAMESPACE = "cgroup_namespace"
    TIME_NAMESPACE = "time_namespace"
    ROOT = "root"
    WORKTREE = "worktree"
    PROTECTED_PATHS = "protected_paths"
    IDENTITY = "identity"
    PRIVATE_UID = "private_uid"
    CAPABILITIES = "capabilities"
    NO_NEW_PRIVS = "no_new_privs"
    SECCOMP = "seccomp"
    LANDLOCK = "landlock"
    MEMFD_NOEXEC = "memfd_noexec"
    RESOURCE_LIMITS = "resource_limits"
    MEMORY_LIMIT = "memory_limit"
    PIDS_LIMIT = "pids_limit"
    CPU_LIMIT = "cpu_limit"
    CGROUP_KILL = "cgroup_kill"
    DESCRIPTORS = "descriptors"
    ENVIRONMENT = "environment"


CONTROL_GROUPS: dict[str, tuple[Control, ...]] = {
    "cgroup": (Control.MEMORY_LIMIT, Control.PIDS_LIMIT, Control.CPU_LIMIT, Control.CGROUP_KILL),
}
"""Names a profile may use for several controls at once."""

ALWAYS_REQUIRED: frozenset[Control] = frozenset(
    {
        Control.USER_NAMESPACE,
        Control.MOUNT_NAMESPACE,
        Control.PID_NAMESPACE,
        Control.NETWORK_NAMESPACE,
        Control.IPC_NAMESPACE,
        Control.UTS_NAMESPACE,
        Control.ROOT,
        Control.WORKTREE,
        Control.PROTECTED_PATHS,
        Control.IDENTITY,
        Control.CAPABILITIES,
        Control.NO_NEW_PRIVS,
        Control.RESOURCE_LIMITS,
        Control.DESCRIPTORS,
        Control.ENVIRONMENT,
    }
)
"""Without these there is no box; no profile can do without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tmpfs:
    """A private tmpfs; inodes bounds the number of files in it (tmpfs(5), nr_inodes)."""

    target: str
    size_bytes: int
    inodes: int
    mode: int = 0o755
    owned_by_agent: bool = False
    executable: bool = False

    def describe(self) -> str:
        return f"tmpfs {self.target} {self.size_bytes} bytes{'' if self.executable else ' noexec'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    target: str
    mode: int = 0o755
    owned_by_agent: bool = False

    def describe(self) -> str:
        return f"folder {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symlink:
    target: str
    to: str

    def describe(self) -> str:
        return f"link {self.target} -> {self.to}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A host path shown read-only, nosuid and nodev, with what is mounted below it.

    mapped: files of the worktree's owner appear as the agent's (git insists on owning its folder).
    """

    source: str
    target: str
    executable: bool = True
    optional: bool = False
    mapped: bool = False

    def describe(self) -> str:
        return f"read-only {self.source} at {self.target}{'' if self.executable else ' noexec'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcFile:
    """One file of /etc: a text, or a file of the host shown under that name."""

    name: str
    text: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Etc:
    """A read-only /etc made from nothing."""

    target: str
    files: tuple[EtcFile, ...]

    def describe(self) -> str:
        return f"{self.target} from nothing: {' '.join(file.name for file in self.files)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """A minimal read-only /dev: the named nodes of the host, links, and room for pts and shm."""

    target: str
    nodes: tuple[str, ...]

    def describe(self) -> str:
        return f"devices {self.target}: {' '.join(self.nodes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminals:
    """A private devpts: terminals of the host do not exist here."""

    target: str

    def describe(self) -> str:
        return f"private terminals {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proc:
    """A fresh read-only procfs that shows only the agent's own processes, some files masked."""

    target: str
    masked: tuple[str, ...]

    def describe(self) -> str:
        return f"proc {self.target} (others' processes hidden, {len(self.masked)} masks)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worktree:
    """The agent's folder, mapped to the run's uid.

    With upper and work (host folders on one file system) it is an overlay and the host tree is not
    written; without them the agent writes to the host tree itself.
    """

    source: str
    target: str
    upper: str | None
    work: str | None
    executable: bool
    submounts: bool = False

    def describe(self) -> str:
        kind = "overlay of" if self.upper else "direct"
        return f"worktree {self.target}: {kind} {self.source}{'' if self.executable else ' noexec'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A folder bound onto itself: it can be written below but not renamed away or replaced."""

    target: str

    def describe(self) -> str:
        return f"pin {self.target} (cannot be renamed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protect:
    """A path that can be read but never written, replaced or renamed over.

    A missing one, or a symlink, needs a placeholder: "file" or "folder", made in the overlay and
    never on the host.
    """

    target: str
    placeholder: str | None = None
    text: str = ""

    def describe(self) -> str:
        return f"protect {self.target}{f' (placeholder {self.placeholder})' if self.placeholder else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlock:
    """An entry of a frozen folder that stays writable (direct worktrees only)."""

    target: str

    def describe(self) -> str:
        return f"writable {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hide:
    """A path that can be neither read nor written."""

    target: str
    folder: bool

    def describe(self) -> str:
        return f"hide {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFolder:
    """A private tmpfs for the agent's own log files, handed to the supervisor as a descriptor."""

    target: str
    size_bytes: int

    def describe(self) -> str:
        return f"agent log folder {self.target} ({self.size_bytes} bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeFile:
    """One file of the agent's own, by its path below the folder that it is put in."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeFiles:
    """Settings that an agent program looks for in its home; they are the agent's, who may change them."""

    target: str
    files: tuple[HomeFile, ...]

    def describe(self) -> str:
        return f"files in {self.target}: {' '.join(file.name for file in self.files)}"


MountStep = (
    Tmpfs
    | Directory
    | Symlink
    | Bind
    | Etc
    | Devices
    | Terminals
    | Proc
    | Worktree
    | Pin
    | Protect
    | Unlock
    | Hide
    | LogFolder
    | HomeFiles
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """cpu is in cores; memory covers swap too (no swap is given)."""

    memory_bytes: int
    pids: int
    cpu_cores: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimit:
    """name is a constant of the resource module without RLIMIT_; soft and hard are set alike."""

    name: str
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PathAccess:
    """Landlock: access is a bit mask of LANDLOCK_ACCESS_FS_*."""

    path: str
    access: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Landlock:
    abi: int
    handled_files: int
    scoped: int
    paths: tuple[PathAccess, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What many boxes have in common, so that one can be prepared before it is asked for.

    namespace_key: the folder its cgroups are made in. group_prefix: what their names begin with, the
    supervisor's id, so that a later supervisor can tell whose is whose. seccomp: base64 of struct
    sock_filter entries. landlock: without the run's own paths. required: names of Control.
    """

    namespace_key: str
    group_prefix: str
    hostname: str
    steps: tuple[MountStep, ...]
    resource_limits: tuple[ResourceLimit, ...]
    seccomp: str
    landlock: Landlock | None
    required: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSpec:
    """All the launcher needs to know of one run. Arguments, environment and secrets are not here.

    steps come after those of base, landlock_paths beside its own. owner_uid, owner_gid: who owns the
    worktree on disk. gateway_port: a listener on the box's loopback, 0 for none.
    """

    run_id: str
    base: Base
    owner_uid: int
    owner_gid: int
    workdir: str
    steps: tuple[MountStep, ...]
    landlock_paths: tuple[PathAccess, ...]
    cgroup: CgroupLimits
    gateway_port: int
