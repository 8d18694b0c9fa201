"""Owns what the model wants from each agent program: the same small task by the program's own tools.
May touch nothing.
Never uses a tool that the program did not offer: that is what a run is checked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scripted_turns import Playbook, Turn

from supervisor.agents import KINDS

TASK = "Correct the spelling in greet.py."
WRONG, RIGHT = "def greet():\n    return 'helo'\n", "def greet():\n    return 'hello'\n"
LAST = Turn("It says hello now.")
_SILENCE = frozenset(
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC DISABLE_AUTOUPDATER DISABLE_TELEMETRY "
    "DISABLE_ERROR_REPORTING".split()
)
_TRY = 'python3 -c "import greet; print(greet.greet())"'
_PATCH = """\
*** Begin Patch
*** Update File: greet.py
@@
-    return 'helo'
+    return 'hello'
*** End Patch
"""
_BLOCKS = """\
greet.py
```python
<<<<<<< SEARCH
    return 'helo'
=======
    return 'hello'
>>>>>>> REPLACE
```
"""


@dataclass(frozen=True, slots=True)
class Play:
    """One program with one model. asides: calls it makes beside the turns. looks_up: what is known of it.

    gateway: another [gateway] than the one that the program's profile begins with. undo: words and
    variables that undo what silences it, and loud: what it looks up then.
    """

    kind: str
    model: str
    turns: tuple[Turn, ...]
    asides: int = 0
    in_order: bool = False
    looks_up: frozenset[str] = frozenset()
    gateway: str = ""
    undo: tuple[tuple[str, ...], dict[str, str]] = ((), {})
    loud: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.kind} {self.model}"

    def book(self) -> Playbook:
        return Playbook(self.turns, in_order=self.in_order)

    def tools(self) -> set[str]:
        return {turn.tool for turn in self.turns if turn.tool}


CLAUDE_CODE = Play(
    "claude-code",
    "claude-opus-5-5",
    (
        Turn("I read it.", "Read", {"file_path": "greet.py"}),
        Turn(
            "A letter is missing.",
            "Edit",
            {"file_path": "greet.py", "old_string": "helo", "new_string": "hello"},
        ),
        Turn("Does it run?", "Bash", {"command": _TRY, "description": "Run it"}),
        LAST,
    ),
    undo=((), dict.fromkeys(KINDS["claude-code"].environment.keys() & _SILENCE, "")),
    loud=frozenset({"api.anthropic.com"}),
)
"""The model is the one that it asks for by itself."""

CODEX = Play(
    "codex",
    "gpt-5.5",
    (
        Turn("A letter is missing.", "apply_patch", raw=_PATCH),
        Turn("Does it run?", "exec_command", {"cmd": _TRY}),
        LAST,
    ),
    undo=(
        (
            *("-c", "analytics.enabled=true", "-c", "check_for_update_on_startup=true"),
            *("-c", "features.plugins=true", "-c", "features.apps=true"),
        ),
        {},
    ),
    loud=frozenset({"chatgpt.com", "ab.chatgpt.com"}),
)

CODEX_IN_CODE = Play(
    "codex",
    "gpt-6-sol",
    (
        Turn(
            "A letter is missing.",
            "exec",
            raw=f"await tools.apply_patch(`{_PATCH}`);\n"
            f"text(await tools.exec_command({{cmd: 'cat greet.py'}}));",
        ),
        LAST,
    ),
)
"""Newer models get one tool that takes a program, and all others as functions of that."""

GEMINI_CLI = Play(
    "gemini-cli",
    "gemini-2.5-pro",
    (
        Turn("I read it.", "read_file", {"file_path": "greet.py"}),
        Turn(
            "A letter is missing.",
            "replace",
            {
                "file_path": "greet.py",
                "instruction": "Add the missing letter.",
                "old_string": "helo",
                "new_string": "hello",
            },
        ),
        Turn("Does it run?", "run_shell_command", {"command": _TRY}),
        LAST,
    ),
)

OPENCODE = Play(
    "opencode",
    "gpt-5-mini",
    (
        Turn("I read it.", "read", {"filePath": "greet.py"}),
        Turn("A letter is missing.", "apply_patch", {"patchText": _PATCH}),
        Turn("Does it run?", "bash", {"command": _TRY, "description": "Run it"}),
        LAST,
    ),
    asides=1,
    # Where the host has no ripgrep in /usr.
    looks_up=frozenset({"github.com"}),
    undo=((), {"OPENCODE_DISABLE_MODELS_FETCH": ""}),
    loud=frozenset({"models.opencode.ai"}),
)

MINI_SWE_AGENT = Play(
    "mini-swe-agent",
    "gpt-5-mini",
    (
        Turn("A letter is missing.", "bash", {"command": f"sed -i s/helo/hello/ greet.py && {_TRY}"}),
        Turn("Done.", "bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
    ),
    undo=((), {"LITELLM_LOCAL_MODEL_COST_MAP": ""}),
    loud=frozenset({"raw.githubusercontent.com"}),
)

AIDER = Play(
    "aider",
    "gpt-5-mini",
    (Turn(_BLOCKS), Turn("Correct the spelling")),
    asides=1,
    in_order=True,
    undo=((), {"AIDER_ANALYTICS_DISABLE": "false", "LITELLM_LOCAL_MODEL_COST_MAP": ""}),
    loud=frozenset({"raw.githubusercontent.com"}),
)
"""It has no tools: it reads blocks in a text, and asks a smaller model for the messages of its commits."""

_ANTHROPIC = '[gateway]\nupstreams = ["anthropic"]\nmodels = ["claude-*"]\n'
MINI_SWE_AGENT_ON_ANTHROPIC = replace(
    MINI_SWE_AGENT, model="anthropic/claude-sonnet-4-5", gateway=_ANTHROPIC, loud=frozenset()
)
AIDER_ON_ANTHROPIC = replace(AIDER, model="anthropic/claude-sonnet-4-5", gateway=_ANTHROPIC, loud=frozenset())
