"""Owns that a profile which is wrong is refused when it is read, or found by lint: two hundred ways and more.
May touch profiles in a temporary folder.
Never counts a mutation as caught because of something that the good profile has too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from supervisor.config import Config, DailySettings
from supervisor.errors import ProfileError
from supervisor.gateway.upstreams import Upstream
from supervisor.limits.money import NANOS_PER_USD
from supervisor.profile.lint.run import lint
from supervisor.profile.load import load

GOOD = """\
schema = 1
name = "x"
description = "a good profile, to be made worse"
require = ["cgroup", "seccomp", "landlock", "memfd_noexec", "private_uid"]

[limits]
wall_clock = "15m"
stop_grace = "5s"
memory = "2GiB"
pids = 256
cpu = 2.0
tmp = "512MiB"
output = "64MiB"
open_files = 4096
file_size = "4GiB"
iterations = 20
tokens = 400_000
usd = "0.50"
ticket_usd = "2.00"
output_tokens_per_call = 4096

[daily]
project_usd = "20"
global_usd = "100"

[files]
worktree = "overlay"
executable = true
read = ["/opt/tools"]
protect = [
    ".git/hooks",
    ".git/config",
    ".git/config.worktree",
    ".git/commondir",
    ".git/modules",
    ".git/worktrees",
    ".env*",
    ".claude",
    ".codex",
    ".gemini",
    ".cursor",
    ".agents",
    ".mcp.json",
    ".vscode",
    ".idea",
    ".devcontainer",
    ".envrc",
    ".husky",
]
hide = ["**/*.pem", "**/id_rsa", "**/id_ed25519"]

[network]
mode = "gateway"

[gateway]
upstreams = ["anthropic"]
models = ["claude-sonnet-*"]
least_output_tokens = 256
tool_uses = { code_execution = 2 }

[agent]
kind = "claude-code"

[env]
pass = ["LANG"]
set = { CI = "1" }

[log]
files = ["/run/agent/*.ndjson"]
max_line = "1MiB"
folder_size = "64MiB"
"""
CONFIG = Config(
    upstreams={"anthropic": Upstream(key="file:/etc/key")},
    daily=DailySettings(global_nanos=100 * NANOS_PER_USD),
)
KEYS = re.findall(r"^([a-z_]+) = ", GOOD, re.MULTILINE)
TABLES = re.findall(r"^\[([a-z]+)\]", GOOD, re.MULTILINE)
FREE_TEXT = {"name", "description"}


def misspelt() -> Iterator[tuple[str, str]]:
    """A key or a table with a letter less, two exchanged, one more: it would say nothing at all."""
    for key in KEYS:
        for other in (key[:-1], key[1] + key[0] + key[2:], f"{key}s"):
            if other != key:
                yield f"{key} as {other}", re.sub(rf"^{key} = ", f"{other} = ", GOOD, flags=re.MULTILINE)
    for table in TABLES:
        yield f"[{table}] as [{table}x]", GOOD.replace(f"[{table}]\n", f"[{table}x]\n")


def wrong_kinds() -> Iterator[tuple[str, str]]:
    """A value of a kind that the key does not take."""
    for key in KEYS:
        match = re.search(rf"^{key} = (\[\n(?:.*\n)*?\]|.*)$", GOOD, re.MULTILINE)
        assert match is not None
        kinds = ("[[1]]", "{ a = 1 }", "1979-05-27") if key in FREE_TEXT else ("[[1]]", "1979-05-27", '"§"')
        for value in kinds:
            yield f"{key} = {value}", GOOD.replace(match[0], f"{key} = {value}")


def out_of_bounds() -> Iterator[tuple[str, str]]:
    for key, values in {
        "wall_clock": ("0s", "26h", "5h", "-1m", "1e9h"),
        "stop_grace": ("0s", "20m", "2m"),
        "memory": ("1MiB", "999GiB", "0B"),
        "tmp": ("0B", "3GiB"),
        "output": ("1B", "5GiB"),
        "file_size": ("100GiB",),
        "usd": ("100", "0", "-1", "1e3", "0.0000000001", ".5"),
        "ticket_usd": ("0.10", "0"),
        "project_usd": ("0.10", "0"),
        "global_usd": ("0.10", "0"),
    }.items():
        for value in values:
            yield (
                f"{key} = {value}",
                re.sub(rf'^{key} = ".*"', f'{key} = "{value}"', GOOD, flags=re.MULTILINE),
            )
    for key, numbers in {
        "pids": (0, 1, 5000, 20_000, -5),
        "cpu": (0, -1),
        "open_files": (1_000_000,),
        "iterations": (0, -1),
        "tokens": (0, -5),
        "output_tokens_per_call": (-1, 100_000),
        "least_output_tokens": (-1, 0),
    }.items():
        for number in numbers:
            yield f"{key} = {number}", re.sub(rf"^{key} = .*", f"{key} = {number}", GOOD, flags=re.MULTILINE)


def taken_away() -> Iterator[tuple[str, str]]:
    """Something that protects is no longer there."""
    for entry in re.findall(r'^    "(.*)",$', GOOD, re.MULTILINE):
        if entry != ".envrc":  # covered by .env*
            yield f"without {entry}", GOOD.replace(f'    "{entry}",\n', "")
    for control in ("cgroup", "seccomp", "landlock", "private_uid"):
        yield f"without {control}", GOOD.replace(f'"{control}", ', "").replace(f', "{control}"', "")
    yield (
        "without memfd_noexec, nothing executable",
        GOOD.replace('"memfd_noexec", ', "").replace("executable = true", "executable = false"),
    )
    for pattern in ("**/*.pem", "**/id_rsa", "**/id_ed25519"):
        yield f"without {pattern}", GOOD.replace(f'"{pattern}", ', "").replace(f', "{pattern}"', "")
    for key in (
        "usd",
        "iterations",
        "tokens",
        "upstreams",
        "models",
        "wall_clock",
        "memory",
        "pids",
        "cpu",
        "tmp",
    ):
        yield f"without {key}", re.sub(rf"^{key} = .*\n", "", GOOD, flags=re.MULTILINE)


FOLDERS = """
    / /proc /sys /dev /run /etc /root /home /var /tmp relative /opt/../etc /home/alice /root/.ssh
    /var/run /run/docker.sock /run/systemd/private /etc/shadow /etc/ssh /etc/ssl/private /opt/.aws
    /opt/x/.kube /opt/.config/gcloud /var/lib/docker /var/lib/sidecar-supervisor /etc/sidecar-supervisor
    /var/log /srv/x /usr/local /run/user/0 /var/lib/kubelet /opt/.gnupg /opt/.netrc
"""
NAMES = """
    PATH HOME LD_PRELOAD LD_LIBRARY_PATH TMPDIR AWS_SECRET_ACCESS_KEY GITHUB_TOKEN DB_PASSWORD
    ANTHROPIC_API_KEY OPENAI_API_KEY GEMINI_API_KEY NODE_OPTIONS PYTHONPATH BASH_ENV GIT_SSH_COMMAND
    LD_AUDIT PERL5OPT RUBYOPT JAVA_TOOL_OPTIONS https_proxy HTTP_PROXY SSH_AUTH_SOCK
    DBUS_SESSION_BUS_ADDRESS DOCKER_HOST KUBECONFIG XDG_RUNTIME_DIR ANTHROPIC_BASE_URL SESSION_COOKIE
    API_KEY
"""


def widened() -> Iterator[tuple[str, str]]:
    for path in FOLDERS.split():
        yield f"read {path}", GOOD.replace('read = ["/opt/tools"]', f'read = ["{path}"]')
    for name in NAMES.split():
        yield f"pass {name}", GOOD.replace('pass = ["LANG"]', f'pass = ["{name}"]')
        yield f"set {name}", GOOD.replace('CI = "1"', f'{name} = "x"')
    for value in (
        "ghp_0123456789",
        "AKIAIOSFODNN7EXAMPLE",
        "sk-ant-api03-xyz",
        "eyJhbGciOiJIUzI1NiJ9.x",
        "q8Zt3vK9LmX2pR7wYb4Nc6Hd",
    ):
        yield f"a value like {value}", GOOD.replace('CI = "1"', f'CI = "{value}"')
    for source in ("plain-secret", "https://x/y", "command:/bin/pass x"):
        yield (
            f"secret from {source}",
            GOOD.replace('pass = ["LANG"]', f'pass = []\nsecret = {{ T = "{source}" }}'),
        )
    for old, new in (
        ('"overlay"', '"direct"'),
        ('"claude-sonnet-*"', '"*"'),
        ('"claude-sonnet-*"', '"c*"'),
        ('"claude-sonnet-*"', '""'),
        ('upstreams = ["anthropic"]', 'upstreams = ["elsewhere"]'),
        ('kind = "claude-code"', 'kind = "claude"'),
        ('kind = "claude-code"', 'kind = "codex"'),
        ("code_execution = 2", "web_search = 2"),
        ("code_execution = 2", "code_execution = 200"),
        ("least_output_tokens = 256", "image_tokens = 0"),
        ("least_output_tokens = 256", "document_tokens = 9_000_000"),
        ('mode = "gateway"', 'mode = "host"'),
        ('mode = "gateway"', 'mode = "none"'),
        ('"/run/agent/*.ndjson"', '"/var/log/*"'),
        ('"/run/agent/*.ndjson"', '"/run/agent/../x"'),
        ('".git/hooks"', '"/etc"'),
        ('".git/hooks"', '"../x"'),
        ('".git/hooks"', '"**"'),
    ):
        yield f"{old} as {new}", GOOD.replace(old, new)


MUTATIONS = [*misspelt(), *wrong_kinds(), *out_of_bounds(), *taken_away(), *widened()]


def findings(path: Path) -> set[tuple[str, str]]:
    outcome = lint(load(str(path)), date(2026, 12, 1), config=CONFIG)
    return {(finding.rule.rule_id, finding.value) for finding in outcome.findings}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """What lint says of the good profile itself."""
    path = tmp_path_factory.mktemp("good") / "x.toml"
    path.write_text(GOOD)
    return findings(path)


def test_there_are_enough_and_each_changes_something() -> None:
    assert len(MUTATIONS) >= 200
    assert len({name for name, _ in MUTATIONS}) == len(MUTATIONS)
    assert [name for name, text in MUTATIONS if text == GOOD] == []


def test_control_the_good_profile_has_no_error(usual: set[tuple[str, str]]) -> None:
    assert {rule for rule, _ in usual} <= {"A-03", "F-12", "K-08", "K-09"}


@pytest.mark.parametrize(("name", "text"), MUTATIONS, ids=[name for name, _ in MUTATIONS])
def test_a_wrong_profile_is_refused_or_found(
    name: str, text: str, usual: set[tuple[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    try:
        found = findings(path)
    except ProfileError as error:
        assert error.message
        return
    assert found - usual, "nobody noticed"
