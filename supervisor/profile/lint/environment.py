"""Owns the rules about the agent's environment: names, values, and where secrets come from.
May touch the host's file system, read-only, for the rules that say so.
Never repeats a value, and never opens a file that holds a secret.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from supervisor.agents import settings_for
from supervisor.profile.credentials import looks_like_one
from supervisor.profile.lint.model import Domain, Found, Severity, Subject, rule

_SEC = Domain.SECRETS
_SET = ("env", "set")
_PASS = ("env", "pass")
_SECRET = ("env", "secret")

_SECRET_NAME = re.compile(
    r"(?i)(^|_)(key|token|secret|passw(or)?d|passphrase|credential|auth|cookie|dsn|pat)s?($|_)"
)
_PUBLIC_NAME = re.compile(r"(?i)(public|key_?id|keyboard|tokens?_?(limit|max)|max_?tokens|author|authority)")
_LOADERS = re.compile(
    r"^(LD_.*|PYTHON(PATH|STARTUP|HOME|INSPECT)|NODE_OPTIONS|NODE_PATH|BASH_ENV|ENV|PROMPT_COMMAND|PERL5(LIB|OPT)"
    r"|RUBY(OPT|LIB)|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS|GIT_.*|GCONV_PATH|IFS|SHELLOPTS)$"
)
_HARMLESS_GIT = re.compile(r"^GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)$|^GIT_TERMINAL_PROMPT$|^GIT_PAGER$")
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY"})
_SESSION = frozenset(
    "SSH_AUTH_SOCK SSH_AGENT_PID GPG_AGENT_INFO DBUS_SESSION_BUS_ADDRESS XDG_RUNTIME_DIR DISPLAY "
    "WAYLAND_DISPLAY XAUTHORITY DOCKER_HOST KUBECONFIG".split()
)
_PROVIDER_KEYS = frozenset(
    "ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN OPENAI_API_KEY GEMINI_API_KEY GOOGLE_API_KEY "
    "AZURE_OPENAI_API_KEY MISTRAL_API_KEY GROQ_API_KEY OPENROUTER_API_KEY DEEPSEEK_API_KEY "
    "XAI_API_KEY".split()
)


def _named(subject: Subject) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every variable that is passed or set, with where that is said."""
    env = subject.profile.env
    yield from ((_PASS, name) for name in env.passed)
    yield from (((*_SET, name), name) for name in env.set)


@rule(
    "X-01",
    Severity.HIGH,
    _SEC,
    "a variable whose name says that it is a secret is set or passed",
    why="the value stands in this profile or in the caller's shell, and is unknown to the redactor",
    fix="write it under env.secret, with where its value comes from",
)
def secret_names(subject: Subject) -> Iterator[Found]:
    for path, name in _named(subject):
        if _SECRET_NAME.search(name) and not _PUBLIC_NAME.search(name) and name not in _PROVIDER_KEYS:
            yield Found(f"{name} is not under env.secret", path, name)


@rule(
    "X-02",
    Severity.CRITICAL,
    _SEC,
    "a value that looks like a credential stands in the profile",
    why="profiles are kept in repositories and shown to reviewers",
    fix="take it out, replace the credential, and name its source under env.secret",
)
def secret_values(subject: Subject) -> Iterator[Found]:
    for name, value in subject.profile.env.set.items():
        if looks_like_one(value):
            yield Found(f"the value of {name} looks like a credential", (*_SET, name), name)


@rule(
    "X-03",
    Severity.CRITICAL,
    _SEC,
    "a provider's key reaches the box",
    why="a key in the box can be used without the gateway, and can be sent out in a prompt",
    fix="take it out: the key belongs to [upstreams] in the configuration",
)
def provider_keys(subject: Subject) -> Iterator[Found]:
    env = subject.profile.env
    places = [*_named(subject), *(((*_SECRET, name), name) for name in env.secret)]
    for path, name in places:
        if name in _PROVIDER_KEYS and subject.profile.network.mode == "gateway":
            yield Found(f"{name} is given to the agent", path, name)


@rule(
    "X-04",
    Severity.HIGH,
    Domain.PRIVILEGE,
    "a variable that makes programs load code is passed from the caller",
    why="who sets it in the caller's shell decides what runs in the box",
    fix="take it out of env.pass; set a fixed value if it is needed",
)
def passed_loaders(subject: Subject) -> Iterator[Found]:
    for name in subject.profile.env.passed:
        if _LOADERS.match(name) and not _HARMLESS_GIT.match(name):
            yield Found(f"{name} is passed", _PASS, name)


@rule(
    "X-05",
    Severity.MEDIUM,
    Domain.PRIVILEGE,
    "a variable that makes programs load code is set",
    why="every program in the box obeys it, also those that check something",
    fix="give it to the one program that needs it",
)
def set_loaders(subject: Subject) -> Iterator[Found]:
    for name in subject.profile.env.set:
        if _LOADERS.match(name) and not _HARMLESS_GIT.match(name):
            yield Found(f"{name} is set", (*_SET, name), name)


@rule(
    "X-06",
    Severity.MEDIUM,
    Domain.NETWORK,
    "a proxy is passed or set",
    why="there is no network for it, and calls to the gateway go to it instead and fail",
    fix="take it out",
)
def proxies(subject: Subject) -> Iterator[Found]:
    for path, name in _named(subject):
        if name.upper() in _PROXIES:
            yield Found(f"{name} is in the environment", path, name)


@rule(
    "X-07",
    Severity.LOW,
    Domain.PRIVILEGE,
    "a variable points to a service of the caller's session",
    why="the socket is not in the box; programs that find the name wait for it or say confusing things",
    fix="take it out of env.pass",
)
def session(subject: Subject) -> Iterator[Found]:
    for path, name in _named(subject):
        if name in _SESSION:
            yield Found(f"{name} is in the environment", path, name)


@rule(
    "X-08",
    Severity.MEDIUM,
    Domain.NETWORK,
    "the profile overrides how the agent finds the gateway",
    why="the agent is then pointed at something that it cannot reach, or at nobody's upstream",
    fix="take it out of [env]; agent.kind sets it",
)
def gateway_variables(subject: Subject) -> Iterator[Found]:
    if subject.profile.network.mode != "gateway":
        return
    ours = settings_for(subject.profile.agent.kind, subject.profile.gateway.models).environment
    for path, name in _named(subject):
        if name in ours and name not in _PROVIDER_KEYS:
            yield Found(f"{name} is the gateway's", path, name)


@rule(
    "X-09",
    Severity.LOW,
    Domain.AUDIT,
    "a variable is both passed and set",
    why="the fixed value wins, and the profile says something else",
    fix="keep one of the two",
)
def twice(subject: Subject) -> Iterator[Found]:
    env = subject.profile.env
    for name in sorted(set(env.passed) & (set(env.set) | set(env.secret))):
        yield Found(f"{name} is passed and given a value", _PASS, name)


@rule(
    "X-10",
    Severity.MEDIUM,
    _SEC,
    "a secret comes from a command",
    why="the supervisor runs it with its own rights before each run",
    fix="use a file or a systemd credential, or make sure that nobody else can change the program",
)
def command_secrets(subject: Subject) -> Iterator[Found]:
    for name, source in subject.profile.env.secret.items():
        if source.startswith("command:"):
            yield Found(
                f"{name} is fetched by {source.removeprefix('command:').split(' ')[0]}", (*_SECRET, name)
            )


@rule(
    "X-11",
    Severity.MEDIUM,
    _SEC,
    "code of the repository can read a secret",
    why="every child of the agent has its environment; a test or a hook can print it or keep it",
    fix="give secrets only to profiles that do not execute what is in the worktree",
)
def shared_secrets(subject: Subject) -> Iterator[Found]:
    if subject.profile.files.executable:
        for name in subject.profile.env.secret:
            yield Found(f"{name} is in the environment of whatever the worktree runs", (*_SECRET, name), name)


@rule(
    "X-12",
    Severity.HIGH,
    _SEC,
    "a file that a secret comes from can be read or changed by others",
    why="the secret is known to more than the supervisor, or somebody else chooses it",
    fix="chown it to root, chmod 600",
    looks_at="host",
)
def loose_secret_files(subject: Subject) -> Iterator[Found]:
    for name, path in _secret_files(subject):
        try:
            found = os.stat(path)
        except OSError:
            continue
        if found.st_mode & (stat.S_IRWXO | stat.S_IWGRP) or found.st_uid not in (0, os.geteuid()):
            yield Found(
                f"{path} belongs to uid {found.st_uid}, mode {found.st_mode & 0o7777:o}",
                (*_SECRET, name),
                name,
            )


@rule(
    "X-13",
    Severity.HIGH,
    _SEC,
    "a file that a secret comes from does not exist",
    why="no run of this profile starts",
    fix="make it, or correct the path",
    looks_at="host",
)
def missing_secret_files(subject: Subject) -> Iterator[Found]:
    for name, path in _secret_files(subject):
        if not os.path.exists(path):
            yield Found(f"{path} does not exist", (*_SECRET, name), name)


def _secret_files(subject: Subject) -> Iterator[tuple[str, str]]:
    for name, source in subject.profile.env.secret.items():
        if source.startswith("file:"):
            yield name, source.removeprefix("file:")
