"""Owns the rules about files: what of the host can be read, what of the worktree can be written or seen.
May touch the host's file system, read-only, for the rules that say so.
Never opens a file's contents.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import PurePosixPath

from supervisor.profile.lint.model import Domain, Found, Severity, Subject, rule
from supervisor.workspace.patterns import covers

_FS = Domain.FILESYSTEM
_READ = ("files", "read")
_PROTECT = ("files", "protect")
_HIDE = ("files", "hide")

_CREDENTIALS = frozenset(
    ".ssh .gnupg .aws .azure .kube .docker .netrc .npmrc .pypirc .git-credentials .vault-token .terraform.d "
    ".password-store .mozilla .thunderbird gcloud gh op 1password keyrings".split()
)
_SOCKET_FOLDERS = ("/run", "/var/run", "/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet")
_OURS = ("/var/lib/sidecar-supervisor", "/etc/sidecar-supervisor", "/run/sidecar-supervisor")
_SECRET_ETC = (
    "shadow",
    "gshadow",
    "sudoers",
    "sudoers.d",
    "ssh",
    "ssl/private",
    "krb5.keytab",
    "letsencrypt",
)
_GIT = {
    "F-20": (".git/hooks/pre-commit", "a hook planted there runs on the host at the next git command"),
    "F-21": (".git/config", "git on the host runs the programs that its configuration names"),
    "F-22": (".git/commondir", "it redirects git to another configuration and other hooks"),
    "F-23": (".git/config.worktree", "git reads it beside the configuration where the extension is on"),
    "F-24": (".git/modules/x/config", "each submodule has a configuration and hooks of its own there"),
    "F-25": (".git/worktrees/x/commondir", "each linked worktree is redirected from there"),
}
_AGENTS = (".claude", ".codex", ".gemini", ".cursor", ".agents", ".mcp.json")
_EDITORS = (".vscode", ".idea", ".devcontainer", ".envrc", ".husky")
_KEYS = ("server.pem", "id_rsa", "id_ed25519")


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _reads(subject: Subject) -> Iterator[str]:
    yield from (path.rstrip("/") or "/" for path in subject.profile.files.read)


@rule(
    "F-01",
    Severity.CRITICAL,
    _FS,
    "a folder with sockets of a system service is shown to the agent",
    why="whoever can connect to a container engine or the system's manager is root on the host",
    fix="take it out of files.read",
)
def engine_sockets(subject: Subject) -> Iterator[Found]:
    for path in _reads(subject):
        known = any(_below(path, folder) or _below(folder, path) for folder in _SOCKET_FOLDERS)
        if known or path.endswith((".sock", ".socket")):
            yield Found(f"{path} is, or holds, a socket of a system service", _READ, path)


@rule(
    "F-02",
    Severity.CRITICAL,
    _FS,
    "a home folder is shown to the agent",
    why="keys, shells and the settings of other programs lie there",
    fix="name the single folder below it that is needed",
)
def home_folders(subject: Subject) -> Iterator[Found]:
    for path in _reads(subject):
        parts = PurePosixPath(path).parts
        if (parts[1:2] == ("home",) and len(parts) <= 3) or path == "/root":
            yield Found(f"{path} is a whole home", _READ, path)


@rule(
    "F-03",
    Severity.HIGH,
    Domain.SECRETS,
    "a folder that usually holds credentials can be read",
    why="what can be read can be sent out in a prompt",
    fix="take it out of files.read; give a run its own token with env.secret",
)
def credential_folders(subject: Subject) -> Iterator[Found]:
    for path in _reads(subject):
        if _CREDENTIALS & set(PurePosixPath(path).parts):
            yield Found(f"{path} usually holds credentials", _READ, path)


@rule(
    "F-04",
    Severity.HIGH,
    Domain.SECRETS,
    "secret parts of /etc can be read",
    why="hashes of passwords, private keys and who may become root are there",
    fix="name only the file that is needed",
)
def secret_etc(subject: Subject) -> Iterator[Found]:
    for path in _reads(subject):
        if any(_below(path, f"/etc/{name}") or _below(f"/etc/{name}", path) for name in _SECRET_ETC):
            yield Found(f"{path} holds secrets of the host", _READ, path)


@rule(
    "F-05",
    Severity.CRITICAL,
    _FS,
    "the supervisor's own folders can be read",
    why="its database and logs are about every run, and its configuration names the sources of keys",
    fix="take it out of files.read",
)
def own_folders(subject: Subject) -> Iterator[Found]:
    for path in _reads(subject):
        if any(_below(path, folder) or _below(folder, path) for folder in _OURS):
            yield Found(f"{path} is the supervisor's, or holds it", _READ, path)


@rule(
    "F-06",
    Severity.MEDIUM,
    _FS,
    "other changing parts of /var or /etc can be read",
    why="logs, mail, spools and service data are rarely meant for an agent",
    fix="copy what is needed into a folder of its own",
)
def var_and_etc(subject: Subject) -> Iterator[Found]:
    for path in _reads(subject):
        if _below(path, "/var") or _below(path, "/etc") or _below(path, "/srv"):
            yield Found(f"{path} belongs to the services of this host", _READ, path)


@rule(
    "F-07",
    Severity.HIGH,
    _FS,
    "a folder of files.read does not belong to root, or others can write it",
    why="programs in it are executed in every box, so whoever can change it steers every agent",
    fix="chown it to root and take the write bits away",
    looks_at="host",
)
def loose_folders(subject: Subject) -> Iterator[Found]:
    for path in _reads(subject):
        try:
            found = os.stat(path)
        except OSError:
            continue
        if found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield Found(f"{path} belongs to uid {found.st_uid}, mode {found.st_mode & 0o7777:o}", _READ, path)


@rule(
    "F-08",
    Severity.MEDIUM,
    _FS,
    "a folder of files.read does not exist on this host",
    why="the run does not start, or starts without what it needs",
    fix="make it, or take it out",
    looks_at="host",
)
def missing_folders(subject: Subject) -> Iterator[Found]:
    for path in _reads(subject):
        if not os.path.exists(path):
            yield Found(f"{path} does not exist", _READ, path)


@rule(
    "F-09",
    Severity.HIGH,
    _FS,
    "a folder of files.read is, or lies below, a symbolic link",
    why="what is shown changes with the link, without anybody reading this profile again",
    fix="write the path that it leads to",
    looks_at="host",
)
def linked_folders(subject: Subject) -> Iterator[Found]:
    for path in _reads(subject):
        real = os.path.realpath(path)
        if os.path.exists(path) and real != path:
            yield Found(f"{path} leads to {real}", _READ, path)


@rule(
    "F-10",
    Severity.LOW,
    _FS,
    "an entry of files.read is shown anyway",
    why="a list that says more than it does is read less carefully",
    fix="take it out",
)
def idle_reads(subject: Subject) -> Iterator[Found]:
    paths = list(_reads(subject))
    for number, path in enumerate(paths):
        others = [*paths[:number], *paths[number + 1 :], "/usr"]
        if any(_below(path, other) for other in others):
            yield Found(f"{path} is part of what is shown already", _READ, path)


@rule(
    "F-11",
    Severity.MEDIUM,
    _FS,
    "the worktree is written directly",
    why="nothing stands between the agent and the tree; what it wrote is there also when it was wrong",
    fix='write worktree = "overlay", look at `diff`, then `apply`',
)
def direct_worktree(subject: Subject) -> Iterator[Found]:
    if subject.profile.files.worktree == "direct":
        yield Found("files.worktree is direct", ("files", "worktree"))


@rule(
    "F-12",
    Severity.INFO,
    _FS,
    "files of the worktree can be executed",
    why="code in the repository runs with everything that the box allows; so do interpreters without this",
    fix="leave it out where nothing has to be built or tested",
)
def executable_worktree(subject: Subject) -> Iterator[Found]:
    if subject.profile.files.executable:
        yield Found("files.executable is true", ("files", "executable"))


def _git_rule(rule_id: str, path: str, why: str) -> None:
    @rule(
        rule_id,
        Severity.HIGH,
        _FS,
        f"{path.removesuffix('/pre-commit')} can be written",
        why=why,
        fix='extend "base", or add it to files.protect',
    )
    def check(subject: Subject) -> Iterator[Found]:
        if not covers(subject.profile.files.protect, path):
            yield Found(f"nothing in files.protect covers {path}", _PROTECT, path)


for _id, (_path, _why) in _GIT.items():
    _git_rule(_id, _path, _why)


@rule(
    "F-26",
    Severity.MEDIUM,
    _FS,
    "files with the environment of programs can be written",
    why="shells and tools on the host load them at the next start",
    fix='add ".env*" to files.protect',
)
def dotenv(subject: Subject) -> Iterator[Found]:
    for path in (".env", ".env.local"):
        if not covers(subject.profile.files.protect, path):
            yield Found(f"nothing in files.protect covers {path}", _PROTECT, path)


@rule(
    "F-27",
    Severity.MEDIUM,
    _FS,
    "settings of agent programs can be written",
    why="an agent on the host obeys them at its next start, outside of any box",
    fix='extend "coding", or add them to files.protect',
)
def agent_settings(subject: Subject) -> Iterator[Found]:
    for path in _AGENTS:
        if subject.profile.files.executable and not covers(subject.profile.files.protect, path):
            yield Found(f"nothing in files.protect covers {path}", _PROTECT, path)


@rule(
    "F-28",
    Severity.MEDIUM,
    _FS,
    "settings of editors and shells can be written",
    why="an editor or a shell on the host runs what they name when the folder is opened",
    fix='extend "coding", or add them to files.protect',
)
def editor_settings(subject: Subject) -> Iterator[Found]:
    for path in _EDITORS:
        if subject.profile.files.executable and not covers(subject.profile.files.protect, path):
            yield Found(f"nothing in files.protect covers {path}", _PROTECT, path)


@rule(
    "F-29",
    Severity.MEDIUM,
    Domain.SECRETS,
    "private keys in the worktree can be read",
    why="keys lie about in working copies, and what can be read can be sent out in a prompt",
    fix='extend "base", or add patterns like "**/*.pem" to files.hide',
)
def keys_in_tree(subject: Subject) -> Iterator[Found]:
    for path in _KEYS:
        if not covers(subject.profile.files.hide, path):
            yield Found(f"nothing in files.hide covers {path}", _HIDE, path)


@rule(
    "F-30",
    Severity.LOW,
    _FS,
    "a pattern is written twice",
    why="a list that says less than its length is read less carefully",
    fix="take one out",
)
def repeated_patterns(subject: Subject) -> Iterator[Found]:
    for path, patterns in ((_PROTECT, subject.profile.files.protect), (_HIDE, subject.profile.files.hide)):
        seen: set[str] = set()
        for pattern in patterns:
            if pattern.rstrip("/").casefold() in seen:
                yield Found(f"{pattern} is covered by another spelling of it", path, pattern)
            seen.add(pattern.rstrip("/").casefold())


@rule(
    "F-31",
    Severity.LOW,
    _FS,
    "a path is both hidden and protected",
    why="what cannot be seen cannot be written; two lists for one purpose drift apart",
    fix="keep it in files.hide",
)
def hidden_and_protected(subject: Subject) -> Iterator[Found]:
    for pattern in sorted(set(subject.profile.files.protect) & set(subject.profile.files.hide)):
        yield Found(f"{pattern} is in both lists", _PROTECT, pattern)


@rule(
    "F-32",
    Severity.MEDIUM,
    _FS,
    "everything in the worktree is hidden or protected",
    why="the agent can do nothing there, and what it is told to do fails in puzzling ways",
    fix="name the paths that matter",
)
def all_covered(subject: Subject) -> Iterator[Found]:
    for path, patterns in ((_PROTECT, subject.profile.files.protect), (_HIDE, subject.profile.files.hide)):
        for pattern in patterns:
            if pattern.strip("/") in ("*", "**", "**/*"):
                yield Found(f"{pattern} matches everything", path, pattern)


@rule(
    "F-33",
    Severity.HIGH,
    _FS,
    "a protected path of this worktree is a symbolic link",
    why="the link can be replaced where it stands while what it leads to stays protected",
    fix="replace the link by what it leads to",
    looks_at="worktree",
)
def linked_protected(subject: Subject) -> Iterator[Found]:
    for pattern, path in _plain_paths(subject):
        if os.path.islink(path):
            yield Found(f"{path} is a symbolic link to {os.readlink(path)}", _PROTECT, pattern)


@rule(
    "F-34",
    Severity.HIGH,
    _FS,
    "a protected file of this worktree has a second name",
    why="what is written through the other name changes the protected file",
    fix="break the hard link: copy the file and rename the copy over it",
    looks_at="worktree",
)
def aliased_protected(subject: Subject) -> Iterator[Found]:
    for pattern, path in _plain_paths(subject):
        try:
            found = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            yield Found(f"{path} has {found.st_nlink} names", _PROTECT, pattern)


@rule(
    "F-35",
    Severity.MEDIUM,
    _FS,
    "the worktree lies in a folder that others can write",
    why="another user could exchange it between two runs",
    fix="move it into a folder of its owner",
    looks_at="worktree",
)
def loose_parent(subject: Subject) -> Iterator[Found]:
    parent = os.path.dirname(os.path.realpath(subject.worktree or "/"))
    try:
        mode = os.stat(parent).st_mode
    except OSError:
        return
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield Found(f"{parent} has mode {mode & 0o7777:o}", ("files", "worktree"), parent)


def _plain_paths(subject: Subject) -> Iterator[tuple[str, str]]:
    """(pattern, path) for the protected names without a mark in them."""
    for pattern in subject.profile.files.protect:
        if not set(pattern) & set("*?[") and subject.worktree is not None:
            yield pattern, os.path.join(subject.worktree, pattern)
