"""Owns turning a profile, a worktree and a host into the specification of a box.
May touch the host read-only: the worktree, system folders, the files that secrets come from.
Never arms anything, and never lets a secret into the specification.
"""

from __future__ import annotations

import base64
import glob
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from sandbox import layout, seccomp
from sandbox.client import Capabilities
from sandbox.spec import (
    ALWAYS_REQUIRED,
    CONTROL_GROUPS,
    Base,
    BoxSpec,
    CgroupLimits,
    Control,
    HomeFile,
    HomeFiles,
    ResourceLimit,
    Worktree,
)
from supervisor.agents import GATEWAY_PORT, settings_for
from supervisor.errors import NotStarted, UsageError
from supervisor.profile.load import Loaded
from supervisor.profile.schema import Limits, Profile
from supervisor.workspace.tree import Tree, protect_and_hide

_SECRET_BYTES = 1 << 16
_SECRET_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class BoxPlan:
    """A specification and the hash that the filter in force must have (empty without one)."""

    spec: BoxSpec
    seccomp_sha256: str


def required_controls(profile: Profile) -> frozenset[Control]:
    """What must be armed before the agent is executed: the floor and what the profile asks for."""
    asked: set[Control] = set(ALWAYS_REQUIRED)
    for name in profile.require:
        asked |= set(CONTROL_GROUPS[name]) if name in CONTROL_GROUPS else {Control(name)}
    return frozenset(asked)


def with_own_files_protected(loaded: Loaded, tree: Tree) -> Profile:
    """The profile, and the files it came from among what is protected where they lie in the worktree.

    Else an agent could write the rules of the next run.
    """
    profile, root = loaded.profile, tree.root.rstrip("/") + "/"
    own = [os.path.realpath(source) for source in loaded.sources]
    inside = [glob.escape(path.removeprefix(root)) for path in own if path.startswith(root)]
    if not inside:
        return profile
    files = msgspec.structs.replace(profile.files, protect=[*profile.files.protect, *inside])
    return msgspec.structs.replace(profile, files=files)


def plan(
    profile: Profile,
    tree: Tree,
    host: Capabilities,
    *,
    run_id: str,
    namespace_key: str,
    worker_id: str,
    overlay_folder: str | None,
) -> BoxPlan:
    """The whole box as data. Raises NotStarted when a required control cannot be had on this host."""
    required = required_controls(profile)
    overlay = profile.files.worktree == "overlay"
    worktree = Worktree(
        source=tree.root,
        target=tree.root,
        upper=f"{overlay_folder}/upper" if overlay else None,
        work=f"{overlay_folder}/work" if overlay else None,
        executable=profile.files.executable,
    )
    rooms = layout.Rooms(
        read=tuple(profile.files.read),
        tmp_bytes=profile.limits.tmp_bytes,
        log_bytes=profile.log.folder_bytes,
    )
    inside = protect_and_hide(tree, overlay=overlay, protect=profile.files.protect, hide=profile.files.hide)
    program, sha256 = _seccomp(Control.SECCOMP in required)
    landlock = layout.landlock_rules(host.landlock_abi, rooms)
    git = (tree.git_common,) if tree.git_common else ()
    _refuse_early(required, host, landlock is not None)
    limits = profile.limits
    spec = BoxSpec(
        run_id=run_id,
        base=Base(
            namespace_key=namespace_key,
            group_prefix=worker_id,
            hostname=layout.HOSTNAME,
            steps=layout.base_steps(rooms),
            resource_limits=_resource_limits(limits),
            seccomp=program,
            landlock=landlock,
            required=tuple(sorted(required)),
        ),
        owner_uid=tree.owner_uid,
        owner_gid=tree.owner_gid,
        workdir=tree.root,
        steps=(worktree, *inside, *_home_files(profile)),
        cgroup=CgroupLimits(memory_bytes=limits.memory_bytes, pids=limits.pids, cpu_cores=limits.cpu_cores),
        landlock_paths=layout.landlock_paths(host.landlock_abi, worktree, git),
        gateway_port=GATEWAY_PORT if profile.network.mode == "gateway" else 0,
    )
    return BoxPlan(spec, sha256)


def _home_files(profile: Profile) -> tuple[HomeFiles, ...]:
    """What the agent program looks for in its home, if a kind was named that needs files."""
    if profile.network.mode != "gateway":
        return ()
    files = settings_for(profile.agent.kind, profile.gateway.models).files
    made = tuple(HomeFile(name=name, text=text) for name, text in files.items())
    return (HomeFiles(target=layout.HOME, files=made),) if made else ()


def _seccomp(required: bool) -> tuple[str, str]:
    try:
        compiled = seccomp.compile_filter()
    except seccomp.SeccompUnavailable as error:
        if required:
            raise NotStarted(
                f"seccomp cannot be armed: {error}", control="seccomp", hint="apt-get install libseccomp2"
            ) from error
        return "", ""
    return base64.b64encode(compiled.program).decode(), compiled.sha256


def _refuse_early(required: frozenset[Control], host: Capabilities, landlock: bool) -> None:
    """What the launcher said it cannot do is refused here, with more to say than init could."""
    if Control.LANDLOCK in required and not landlock:
        raise NotStarted(
            "landlock cannot be armed: the kernel does not offer it",
            control="landlock",
            hint="add landlock to the kernel's lsm= list, or use a profile that does not require it",
        )
    for name, control in (
        ("memory", Control.MEMORY_LIMIT),
        ("pids", Control.PIDS_LIMIT),
        ("cpu", Control.CPU_LIMIT),
    ):
        if control in required and name not in host.cgroup_limits:
            raise NotStarted(
                f"{control} cannot be armed: {host.cgroup_why_not or 'no writable cgroup'}",
                control=str(control),
                hint="run as root, or under systemd-run --user --scope -p Delegate=yes, "
                "or use a profile that does not require cgroup",
            )
    if Control.CGROUP_KILL in required and host.cgroup_v2 is None:
        raise NotStarted(
            f"cgroup_kill cannot be armed: {host.cgroup_why_not}",
            control="cgroup_kill",
            hint="mount a cgroup v2 hierarchy, or use a profile that does not require cgroup",
        )


def _resource_limits(limits: Limits) -> tuple[ResourceLimit, ...]:
    return (
        ResourceLimit(name="CORE", value=1),
        ResourceLimit(name="NOFILE", value=limits.open_files),
        ResourceLimit(name="FSIZE", value=limits.file_bytes),
        ResourceLimit(name="MEMLOCK", value=64 << 10),
        ResourceLimit(name="MSGQUEUE", value=256 << 10),
        ResourceLimit(name="SIGPENDING", value=4096),
    )


def environment(
    profile: Profile,
    caller: Mapping[str, str],
    secrets: Mapping[str, str],
    about: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The agent's whole environment, from nothing: the box's own, what about says of the run, then
    pass, set, secret.
    """
    made = {
        "PATH": layout.PATH,
        "HOME": layout.HOME,
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/sh",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",  # else what a Python agent prints comes only at its end
        "SUPERVISOR_LOG_DIR": layout.LOG_FOLDER,
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
    }
    made |= about or {}
    if profile.network.mode == "gateway":
        made |= settings_for(profile.agent.kind, profile.gateway.models).environment
    made |= {name: caller[name] for name in profile.env.passed if name in caller}
    made |= profile.env.set
    made |= secrets
    return made


def read_secrets(profile: Profile) -> dict[str, str]:
    """Fetch what [env] secret names: file:PATH, credential:NAME (systemd), command:PROGRAM ARGS.

    Raises UsageError naming the variable, never the value.
    """
    return {name: _read_secret(name, source) for name, source in profile.env.secret.items()}


def _read_secret(name: str, source: str) -> str:
    kind, _, rest = source.partition(":")
    try:
        if kind == "command":
            done = subprocess.run(
                rest.split(),
                check=True,
                capture_output=True,
                timeout=_SECRET_TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
            raw = done.stdout
        else:
            path = rest if kind == "file" else os.path.join(os.environ.get("CREDENTIALS_DIRECTORY", ""), rest)
            with open(path, "rb") as file:
                raw = file.read(_SECRET_BYTES + 1)
        value = raw.decode("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise UsageError(
            f"secret {name} cannot be read from its {kind}: {reason}",
            hint=f"check env.secret.{name} in the profile",
        ) from None
    if not value or len(raw) > _SECRET_BYTES or "\0" in value:
        raise UsageError(f"secret {name} is empty, too long, or holds a NUL byte")
    return value
