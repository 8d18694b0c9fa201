"""Owns what known agent programs need so that they talk to the gateway and to nobody else.
May touch nothing: a kind and the gateway's address in, variables and files out.
Never holds a key of a provider: programs that insist on one get a placeholder.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

GATEWAY_PORT = 8787
GATEWAY_URL = f"http://127.0.0.1:{GATEWAY_PORT}"
PLACEHOLDER_KEY = "the-supervisor-has-the-key"
DEFAULT_KIND = "sdk"


@dataclass(frozen=True, slots=True)
class AgentKind:
    """One program. environment and files are fixed; with_models makes the files that list the models.

    speaks: the upstream API it needs. start: how it is run without a person, MODEL and … to be filled
    in. upstreams, models: for a profile to begin with. note: what else its user must know.
    """

    name: str
    title: str
    speaks: str
    start: str
    environment: dict[str, str]
    files: dict[str, str]
    upstreams: tuple[str, ...] = ("openai",)
    models: tuple[str, ...] = ("gpt-*",)
    with_models: Callable[[Sequence[str]], dict[str, str]] = lambda _: {}
    note: str = ""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What is put into the box: variables, and files by their path below the agent's home."""

    environment: dict[str, str]
    files: dict[str, str]


_DIRECT = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
_ANTHROPIC = {"ANTHROPIC_BASE_URL": GATEWAY_URL, "ANTHROPIC_API_KEY": PLACEHOLDER_KEY}
_OPENAI = {
    "OPENAI_BASE_URL": f"{GATEWAY_URL}/v1",
    "OPENAI_API_BASE": f"{GATEWAY_URL}/v1",
    "OPENAI_API_KEY": PLACEHOLDER_KEY,
}
_GEMINI = {"GOOGLE_GEMINI_BASE_URL": GATEWAY_URL, "GEMINI_API_KEY": PLACEHOLDER_KEY}
_LITELLM = {"ANTHROPIC_API_BASE": GATEWAY_URL, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

_CODEX = f"""\
model_provider = "supervisor"
check_for_update_on_startup = false
# A tool that runs at the provider: the gateway forwards those only where a profile bounds their uses.
web_search = "disabled"
# The box is the sandbox; a second one inside cannot be made.
sandbox_mode = "danger-full-access"
approval_policy = "never"

[model_providers.supervisor]
name = "supervisor"
base_url = "{GATEWAY_URL}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"

[analytics]
enabled = false

[feedback]
enabled = false

[features]
plugins = false
apps = false
"""

_GEMINI_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
    "telemetry": {"enabled": False},
}

# aider commits, and without an identity it writes one into .git/config, which profiles protect.
_GIT_IDENTITY = """\
[user]
name = agent
email = agent@localhost
"""

# A list of prices that it fetches unless it has one; it then takes those of its own installation.
_AIDER_PRICES = ".aider/caches/model_prices_and_context_window.json"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"


def _opencode(models: Sequence[str]) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "supervisor",
        "options": {"baseURL": f"{GATEWAY_URL}/v1", "apiKey": PLACEHOLDER_KEY},
        "models": {model: {} for model in models},
    }
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"supervisor": provider},
    }
    # It installs its plugin package beside its settings, unless a lock says that it has been.
    lock = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
    return {
        ".config/opencode/opencode.json": _json(settings),
        ".config/opencode/package-lock.json": _json(lock),
        ".config/opencode/node_modules/.supervisor": "\n",
    }


KINDS: dict[str, AgentKind] = {
    kind.name: kind
    for kind in (
        AgentKind(
            name="sdk",
            title="programs that use the vendors' SDKs (anthropic, openai, google-genai)",
            speaks="any",
            start="python3 agent.py",
            environment=_ANTHROPIC | _OPENAI | _GEMINI,
            files={},
            upstreams=("anthropic", "openai", "gemini"),
            models=("claude-*", "gpt-*", "gemini-*"),
            note="what a profile with the gateway gets when it names no kind",
        ),
        AgentKind(
            name="claude-code",
            title="Claude Code",
            speaks="anthropic-messages",
            start='claude -p "…" --output-format stream-json --verbose --dangerously-skip-permissions',
            environment={
                "ANTHROPIC_BASE_URL": GATEWAY_URL,
                "ANTHROPIC_AUTH_TOKEN": PLACEHOLDER_KEY,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
                "DISABLE_TELEMETRY": "1",
                "DISABLE_ERROR_REPORTING": "1",
            },
            files={},
            upstreams=("anthropic",),
            models=("claude-*",),
            note="its own permission prompts cannot be answered; the box and the caps bound it instead",
        ),
        AgentKind(
            name="codex",
            title="Codex CLI",
            speaks="openai-responses",
            start='codex exec --json --skip-git-repo-check -m MODEL "…"',
            environment={"OPENAI_API_KEY": PLACEHOLDER_KEY},
            files={".codex/config.toml": _CODEX},
            note="it ignores OPENAI_BASE_URL; the provider is set in its configuration file",
        ),
        AgentKind(
            name="gemini-cli",
            title="Gemini CLI",
            speaks="gemini",
            start='gemini --yolo -m MODEL -p "…"',
            environment=_GEMINI | {"GEMINI_CLI_NO_RELAUNCH": "true"},
            files={".gemini/settings.json": _json(_GEMINI_SETTINGS)},
            upstreams=("gemini",),
            models=("gemini-*",),
            note="without -m it asks a router model first, which gateway.models must then allow too",
        ),
        AgentKind(
            name="aider",
            title="aider",
            speaks="openai-chat or anthropic-messages",
            start='aider --model openai/MODEL --yes-always --no-check-update --message "…"',
            environment=_OPENAI
            | _ANTHROPIC
            | _LITELLM
            | {
                "AIDER_CHECK_UPDATE": "false",
                "AIDER_ANALYTICS_DISABLE": "true",
                "AIDER_SHOW_RELEASE_NOTES": "false",
                "AIDER_GITIGNORE": "false",
            },
            files={".gitconfig": _GIT_IDENTITY, _AIDER_PRICES: _json({"none": {}})},
            note="anthropic/MODEL instead asks the upstream anthropic; commit messages are written by a "
            "smaller model, which gateway.models must allow too",
        ),
        AgentKind(
            name="opencode",
            title="opencode",
            speaks="openai-chat",
            start='opencode run -m supervisor/MODEL "…"',
            environment={
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                "OPENCODE_DISABLE_SHARE": "1",
            },
            files={},
            models=("gpt-5-mini",),
            with_models=_opencode,
            note="models are offered by their names in gateway.models, patterns with * are not; with ripgrep "
            "in /usr it does not try to fetch it",
        ),
        AgentKind(
            name="mini-swe-agent",
            title="mini-swe-agent",
            speaks="openai-chat",
            start='mini --yolo --exit-immediately -m openai/MODEL -t "…"',
            environment=_OPENAI
            | _ANTHROPIC
            | _LITELLM
            | {"MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_CONFIGURED": "true"},
            files={},
            note="anthropic/MODEL instead asks the upstream anthropic",
        ),
    )
}


def settings_for(kind: str, models: Sequence[str]) -> AgentSettings:
    """What the box of such an agent gets. kind "" is the SDKs' variables; models as in gateway.models."""
    known = KINDS[kind or DEFAULT_KIND]
    named = [model for model in models if not set(model) & set("*?[")]
    return AgentSettings(
        environment={"SUPERVISOR_GATEWAY": GATEWAY_URL, **_DIRECT, **known.environment},
        files={**known.files, **known.with_models(named)},
    )


def nearest(kind: str) -> str:
    """For a message about a name that is not known."""
    near = difflib.get_close_matches(kind, KINDS, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(KINDS)}"
