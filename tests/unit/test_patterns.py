"""Owns what a protect or hide pattern means, with examples and laws.
May touch nothing.
Never depends on a file system: patterns are about names.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.workspace.patterns import bare_name, covers, is_literal, matches, parts_of

MATCHES = [
    (".env", ".env", True),
    (".env", ".ENV", True),
    (".env", "sub/.env", False),
    (".env*", ".env", True),
    (".env*", ".env.local", True),
    (".env*", ".env/inner", False),
    (".git/hooks", ".Git/Hooks", True),
    (".git/hooks", ".git/hooks/pre-commit", False),
    ("./a//b/", "a/b", True),
    ("**/*.pem", "x.pem", True),
    ("**/*.pem", "a/b/c/x.PEM", True),
    ("**/*.pem", "a/x.pem/y", False),
    ("a/**/z", "a/z", True),
    ("a/**/z", "a/b/c/z", True),
    ("a/**/z", "b/z", False),
    ("a/**", "a", True),
    ("a/**", "a/b/c", True),
    ("**", "anything/at/all", True),
    ("*", "one", True),
    ("*", "one/two", False),
    ("?", "x", True),
    ("?", "xy", False),
    ("[ab]c", "bc", True),
    ("[!ab]c", "bc", False),
    ("a.b", "axb", False),
    ("*", "with\nnewline", True),
    ("a*", "a\n", True),
    ("STRASSE", "straße", True),
]


@pytest.mark.parametrize(("pattern", "path", "wanted"), MATCHES)
def test_matches(pattern: str, path: str, wanted: bool) -> None:
    assert matches(pattern, path) is wanted


@pytest.mark.parametrize(
    ("patterns", "path", "by"),
    [
        ([".git/hooks"], ".git/hooks/deep/er", ".git/hooks"),
        (["x", ".env*"], ".env.d/inner", ".env*"),
        (["**/*.pem"], "a/b.pem/c", "**/*.pem"),
        ([".git/hooks"], ".git", None),
        ([], "anything", None),
    ],
)
def test_covers(patterns: list[str], path: str, by: str | None) -> None:
    assert covers(patterns, path) == by


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (".env*", ".env"),
        ("a/.env*", "a/.env"),
        (".env", None),
        ("*", None),
        ("*.pem", None),
        ("a*b", None),
        ("**/.env*", None),
        (".env.?", None),
    ],
)
def test_bare_name(pattern: str, name: str | None) -> None:
    assert bare_name(pattern) == name


names = st.text(
    st.characters(blacklist_characters="/*?[]\0", blacklist_categories=["Cs"]), min_size=1
).filter(lambda name: name not in (".", "..", "**"))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)


@given(path=paths)
def test_a_name_without_wildcards_names_itself_and_covers_what_is_below(path: str) -> None:
    assert is_literal(path)
    assert matches(path, path)
    assert covers([path], f"{path}/below") == path


@given(path=paths)
def test_two_stars_name_every_path(path: str) -> None:
    assert matches("**", path)
    assert matches(f"**/{path.split('/')[-1]}", path)


@given(path=paths)
def test_spelling_does_not_decide(path: str) -> None:
    assert matches(path, path.casefold()) or matches(path.casefold(), path)


@given(pattern=st.text(max_size=10), path=paths)
def test_any_text_is_a_pattern(pattern: str, path: str) -> None:
    assert matches(pattern, path) in (True, False)
    assert all(part not in ("", ".") for part in parts_of(pattern))
