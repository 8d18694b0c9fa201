"""Owns that two profiles are compared by what they allow, and that what one says is found where it says it.
May touch profiles in temporary folders, and a git repository there.
Never compares texts.
"""

from __future__ import annotations

import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.cli.profile_audit import judge
from supervisor.cli.profile_page import page
from supervisor.profile.claims import BOX, claims_of
from supervisor.profile.compare import Direction, compare, is_wider
from supervisor.profile.load import Loaded, load, load_text, shipped
from supervisor.profile.positions import positions_of

HEAD = 'schema = 1\nname = "x"\nextends = "base"\n'
GATEWAY = '[network]\nmode = "gateway"\n[gateway]\nupstreams = ["a"]\nmodels = ["claude-*"]\n'


def loaded(text: str) -> Loaded:
    return load_text("x.toml", HEAD + text, Path("/"))


@pytest.mark.parametrize(
    ("first", "second", "key", "direction"),
    [
        ("", '[limits]\nwall_clock = "16m"\n', "limits.wall_clock", Direction.WIDER),
        ("", '[limits]\nwall_clock = "14m"\n', "limits.wall_clock", Direction.NARROWER),
        ('[limits]\nusd = "1"\n', "", "limits.usd", Direction.WIDER),
        ('[limits]\nusd = "0"\n', '[limits]\nusd = "1"\n', "limits.usd", Direction.WIDER),
        ("", "[limits]\ntokens = 5\n", "limits.tokens", Direction.NARROWER),
        ("", '[daily]\nglobal_usd = "5"\n', "daily.global_usd", Direction.NARROWER),
        ("", '[files]\nread = ["/opt/x"]\n', "files.read", Direction.WIDER),
        ("", '[files]\nworktree = "direct"\n', "files.worktree", Direction.WIDER),
        ("", "[files]\nexecutable = true\n", "files.executable", Direction.WIDER),
        ("", '[files]\nprotect = ["a"]\n', "files.protect", Direction.NARROWER),
        ('[files]\nhide = ["a"]\n', "", "files.hide", Direction.WIDER),
        ("", 'require = ["memfd_noexec"]\n', "require", Direction.NARROWER),
        ("", GATEWAY, "network.mode", Direction.WIDER),
        (GATEWAY, GATEWAY.replace("claude-*", "claude-haiku-*"), "gateway.models", Direction.NARROWER),
        (GATEWAY, GATEWAY.replace("claude-*", "*"), "gateway.models", Direction.WIDER),
        (GATEWAY, GATEWAY + "image_tokens = 5\n", "gateway.image_tokens", Direction.WIDER),
        (
            GATEWAY,
            GATEWAY + "tool_uses = { web_search = 1 }\n",
            "gateway.tool_uses.web_search",
            Direction.WIDER,
        ),
        ("", '[env]\npass = ["A"]\n', "env.pass", Direction.WIDER),
        ("", '[env]\nset = { A = "1" }\n', "env.set.A", Direction.OTHER),
        ('[env]\nset = { A = "1" }\n', "", "env.set.A", Direction.NARROWER),
        ("", '[env]\nsecret = { A = "file:/x" }\n', "env.secret.A", Direction.OTHER),
        (GATEWAY, GATEWAY + '[agent]\nkind = "codex"\n', "agent.kind", Direction.NEUTRAL),
        ("", '[limits]\noutput = "1MiB"\n', "limits.output", Direction.NEUTRAL),
    ],
)
def test_a_difference_has_its_direction(first: str, second: str, key: str, direction: Direction) -> None:
    changes = compare(loaded(first), loaded(second))
    assert (key, direction) in {(change.key, change.direction) for change in changes}
    assert is_wider(changes) == any(c.direction in (Direction.WIDER, Direction.OTHER) for c in changes)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("", ""),
        ('[limits]\nwall_clock = "60s"\n', '[limits]\nwall_clock = "1m"\n'),
        ('[files]\nhide = ["a/"]\n', '[files]\nhide = ["A"]\n'),
        ('[files]\nprotect = ["a", "b"]\n', '[files]\nprotect = ["b", "a"]\n'),
        ("", 'description = "other words"\n'),
        ("", '[files]\nprotect = [".git/hooks/pre-commit"]\n'),
    ],
)
def test_what_allows_the_same_is_equal(first: str, second: str) -> None:
    assert compare(loaded(first), loaded(second)) == []


def test_no_value_of_the_environment_is_repeated() -> None:
    changes = compare(loaded(""), loaded('[env]\nset = { A = "hunter2hunter2" }\n'))
    assert "hunter2" not in repr(changes)


TEXTS = [
    "",
    GATEWAY,
    '[limits]\nmemory = "3GiB"\n',
    '[files]\nread = ["/opt/x"]\n',
    "[files]\nexecutable = true\n",
]


@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS))
def test_what_is_wider_one_way_is_narrower_the_other(first: str, second: str) -> None:
    there, back = compare(loaded(first), loaded(second)), compare(loaded(second), loaded(first))
    turned = {Direction.WIDER: Direction.NARROWER, Direction.NARROWER: Direction.WIDER}
    assert {(c.key, c.before, c.after, c.direction) for c in there} == {
        (c.key, c.after, c.before, turned.get(c.direction, c.direction)) for c in back
    }


def test_every_key_of_a_profile_is_compared_or_named_here() -> None:
    """A new key that nobody compares would be a way to widen a profile unseen."""
    import msgspec

    from supervisor.profile.schema import Profile

    def keys(kind: type, above: tuple[str, ...] = ()) -> set[str]:
        found: set[str] = set()
        for field in msgspec.structs.fields(kind):
            path = (*above, field.encode_name)
            inner = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
            found |= keys(field.type, path) if inner else {".".join(path)}
        return found

    source = Path(__file__).resolve().parents[2].joinpath("supervisor/profile/compare.py").read_text()
    no_power = {"schema", "name", "description", "waive", "log.files", "log.max_line", "log.folder_size"}
    no_power |= {"gateway.least_output_tokens"}
    missing = {key for key in keys(Profile) - no_power if f'"{key.split(".")[-1]}"' not in source}
    assert missing == set()


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, "-C", str(folder), *words], check=True, capture_output=True)


def test_another_revision_of_a_file_is_read_from_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from supervisor.cli.profile_audit import _resolve

    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q", "-b", "main")
    path = tmp_path / "x.toml"
    path.write_text(HEAD)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    path.write_text(HEAD + "[files]\nexecutable = true\n")
    (change,) = compare(_resolve("main:x.toml"), _resolve("x.toml"))
    assert (change.key, change.direction, change.where.line) == ("files.executable", Direction.WIDER, 5)
    assert compare(_resolve("x.toml"), _resolve("main:x.toml"))[0].direction is Direction.NARROWER


@pytest.mark.parametrize("name", shipped())
def test_a_claim_points_to_a_line_that_says_it(name: str) -> None:
    found = load(name)
    for claim in claims_of(found):
        assert claim.text and (claim.origins or claim.otherwise)
        for place in claim.origins:
            line = Path(place.file).read_text().splitlines()[place.line - 1]
            assert "=" in line, claim


def test_claims_say_what_was_asked_for() -> None:
    said = {claim.claim_id: claim.text for claim in claims_of(loaded(GATEWAY + '[limits]\nusd = "0.5"\n'))}
    assert said["usd"] == "$0.50 in one run"
    assert "claude-*" in said["models"] and "keys" in said
    assert "no-usd" in {claim.claim_id for claim in claims_of(loaded(GATEWAY))}
    assert {claim.otherwise for claim in claims_of(loaded(""))} >= {BOX}


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.to: set[str] = set()
        self.ids: set[str] = set()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {str(given["id"])} if given.get("id") else set()
        self.to |= {str(given["href"])[1:]} if str(given.get("href", "")).startswith("#") else set()
        self.outside += [
            str(given[name]) for name in ("src", "href") if not str(given.get(name, "#")).startswith("#")
        ]
        assert tag not in ("script", "link", "iframe", "img")


def test_the_page_is_whole_escapes_what_profiles_say_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    from datetime import date

    path = tmp_path / "x.toml"
    path.write_text(HEAD + 'description = "<script>alert(1)</script>"\n[env]\nset = { A = "</pre><b>" }\n')
    found = load(str(path))
    text = page(found, claims_of(found), date(2026, 12, 1), judge(found))
    links = Links()
    links.feed(text)
    assert "<script" not in text and "</pre><b>" not in text
    assert links.outside == [] and links.to and links.to <= links.ids


def test_positions_are_those_of_the_text() -> None:
    text = (
        'a = 1\n[t]\n  b = """\n[x]\nc = 2"""\n"d.e" = { f = 1, "g" = "}" }\n'
        "h = [\n  1, # ]\n  2,\n]\ni.j = 2\n"
        "[[u]]\nk = 1\n[[u]]\nk = 2\n[t.'v w']\nl = '''\n]'''\n"
    )
    assert {path: place.line for path, place in positions_of("f", text).items()} == {
        ("a",): 1,
        ("t",): 2,
        ("t", "b"): 3,
        ("t", "d.e"): 6,
        ("t", "d.e", "f"): 6,
        ("t", "d.e", "g"): 6,
        ("t", "h"): 7,
        ("t", "i", "j"): 11,
        ("u", "0"): 12,
        ("u", "0", "k"): 13,
        ("u", "1"): 14,
        ("u", "1", "k"): 15,
        ("t", "v w"): 16,
        ("t", "v w", "l"): 17,
    }
