"""Owns the supervisor's own settings file.
May touch a file in a temporary folder and one variable.
Never lets an unknown key pass.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config import Config, load_config
from supervisor.errors import UsageError


def read(monkeypatch: pytest.MonkeyPatch, path: Path, text: str | None) -> Config:
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("SUPERVISOR_CONFIG", str(path))
    return load_config()


def test_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = '[stop]\ndatabase = "/q.db"\nquery = "SELECT 1"\n[control]\ngroup = "ops"\n'
    found = read(monkeypatch, tmp_path / "c.toml", text)
    assert (found.stop.database, found.stop.query, found.control.group) == ("/q.db", "SELECT 1", "ops")
    assert read(monkeypatch, tmp_path / "c.toml", "") == Config()


@pytest.mark.parametrize(
    "text", ["[stop]\nquary = ''\n", "[x]\n", "stop = 1\n", "[control]\ngroup = 1\n", "=", None]
)
def test_what_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        read(monkeypatch, tmp_path / "c.toml", text)
    assert "c.toml" in caught.value.message
