"""Owns that what is written of agent programs is what was run: versions, profiles, lines to type.
May touch docs/agents.md and scripts/agents, read-only.
Never checks prose.
"""

from __future__ import annotations

import subprocess

from agent_stand import AgentStand
from stand import ROOT

from supervisor.agents import KINDS

pytest_plugins = ["agent_fixtures"]


def test_the_document_shows_what_was_run(agents: AgentStand) -> None:
    document = (ROOT / "docs/agents.md").read_text()
    listed = subprocess.run([ROOT / "scripts/agents", "--list"], capture_output=True, text=True, check=True)
    versions = dict(line.split(" ") for line in listed.stdout.splitlines())
    assert versions.keys() == KINDS.keys()
    shown = agents.place.ctl("agents", "--json").json
    assert [one["kind"] for one in shown] == list(KINDS)
    for one in shown:
        kind = one["kind"]
        assert f"```toml\n{one['profile']}```" in document, kind
        assert f"supervisorctl run --profile {kind}.toml -- {one['start']}\n" in document, kind
        assert f"| `{kind}` | {versions[kind].replace('+', ', ')} |" in document, kind
        assert agents.place.ctl("agents", kind).code == 0
