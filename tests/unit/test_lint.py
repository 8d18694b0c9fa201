"""Owns that every lint rule can fail and can pass, and that positions, waivers and SARIF are right.
May touch profiles and files in temporary folders.
Never counts a rule that no profile here makes speak.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import Config, DailySettings
from supervisor.gateway.upstreams import Upstream
from supervisor.limits.money import NANOS_PER_USD
from supervisor.profile.lint.model import REGISTRY, HostFacts, Outcome, Severity
from supervisor.profile.lint.run import host_facts, lint
from supervisor.profile.lint.sarif import to_sarif
from supervisor.profile.load import load, shipped
from supervisor.profile.score import GATES, score

TODAY = date(2026, 12, 1)
GOOD_HOST = HostFacts(
    memory_bytes=1 << 40,
    cores=64,
    kernel=(6, 12),
    settings={
        "kernel/unprivileged_bpf_disabled": "2",
        "kernel/kptr_restrict": "1",
        "kernel/dmesg_restrict": "1",
        "kernel/perf_event_paranoid": "3",
        "dev/tty/legacy_tiocsti": "0",
        "fs/protected_symlinks": "1",
        "fs/protected_hardlinks": "1",
        "fs/protected_fifos": "1",
        "fs/protected_regular": "2",
        "kernel/core_pattern": "core",
    },
    missing={},
)
GOOD_CONFIG = Config(
    upstreams={"anthropic": Upstream(key="file:/etc/key")},
    daily=DailySettings(global_nanos=100 * NANOS_PER_USD),
)
HEAD = 'schema = 1\nname = "x"\ndescription = "what it is for"\n'
BASE = HEAD + 'extends = "base"\n'
GATEWAY = """
[network]
mode = "gateway"
[gateway]
upstreams = ["anthropic"]
models = ["claude-sonnet-*"]
[agent]
kind = "claude-code"
"""
CAPPED = BASE + '[limits]\niterations = 9\ntokens = 1000\nusd = "1"\n' + GATEWAY
BARE = HEAD + '[limits]\nwall_clock = "1m"\nmemory = "1GiB"\npids = 64\ncpu = 1.0\ntmp = "1MiB"\n'


@dataclass(frozen=True)
class Case:
    """A profile that makes a rule speak; prepare makes what it speaks about, and may rewrite the text."""

    text: str
    host: HostFacts = GOOD_HOST
    config: Config = GOOD_CONFIG
    prepare: Callable[[Path, str], str] = lambda _, text: text


def limits(text: str) -> Case:
    return Case(f"{BASE}[limits]\n{text}\n")


def gateway(limit: str = "", more: str = "", config: Config = GOOD_CONFIG) -> Case:
    text = CAPPED if not limit else f"{BASE}[limits]\n{limit}\n{GATEWAY}"
    return Case(text.replace("[agent]", f"{more}\n[agent]"), config=config)


def read(path: str) -> Case:
    return Case(f'{BASE}[files]\nread = ["{path}"]\n')


def env(text: str, more: str = "") -> Case:
    return Case(f"{BASE}[env]\n{text}\n{more}")


def setting(path: str, value: str) -> Case:
    settings = {**GOOD_HOST.settings, path: value}
    host = HostFacts(GOOD_HOST.memory_bytes, 64, (6, 12), settings, {})
    return Case(BASE, host=host)


def small_host(**changes: object) -> HostFacts:
    values = {
        "memory_bytes": 1 << 30,
        "cores": 1,
        "kernel": (6, 12),
        "settings": {},
        "missing": {},
        **changes,
    }
    return HostFacts(**values)  # type: ignore[arg-type]


def made(act: Callable[[Path], str]) -> Callable[[Path, str], str]:
    """Let act make something in the folder, and put its path where the text says PATH."""
    return lambda folder, text: text.replace("PATH", act(folder))


def loose_folder(folder: Path) -> str:
    path = folder / "tools"
    path.mkdir()
    path.chmod(0o777)
    return str(path)


def linked_folder(folder: Path) -> str:
    (folder / "real").mkdir(0o755)
    (folder / "link").symlink_to(folder / "real")
    return str(folder / "link")


def loose_file(folder: Path) -> str:
    path = folder / "secret"
    path.write_text("x")
    path.chmod(0o644)
    return str(path)


def in_tree(act: Callable[[Path], None]) -> Callable[[Path, str], str]:
    def prepare(folder: Path, text: str) -> str:
        (folder / "tree/.git").mkdir(parents=True)
        act(folder / "tree")
        return text

    return prepare


def alias(tree: Path) -> None:
    (tree / ".git/config").write_text("")
    os.link(tree / ".git/config", tree / "other")


def open_to_all(folder: Path, text: str) -> str:
    folder.chmod(0o777)
    return text


def tree_is_the_folder(folder: Path, text: str) -> str:
    (folder / "tree").symlink_to(folder)
    return text


def chain(folder: Path, text: str) -> str:
    for number in range(4):
        parent = "base" if number == 0 else f"p{number - 1}.toml"
        (folder / f"p{number}.toml").write_text(HEAD + f'extends = "{parent}"\n')
    return text.replace('"base"', '"p3.toml"')


def waiver(text: str) -> Case:
    return Case(f"{BASE}[[waive]]\n{text}\n")


NO_CAPS = Config(upstreams={"anthropic": Upstream(key="file:/etc/key")})
SPEAKING: dict[str, Case] = {
    "A-01": Case(BASE.replace('"x"', '"y"')),
    "A-02": Case('schema = 1\nname = "x"\nextends = "base"\n'),
    "A-03": Case(BARE),
    "A-04": Case(BASE, prepare=open_to_all),
    "A-05": Case(BASE, prepare=tree_is_the_folder),
    "A-06": Case(BASE, prepare=chain),
    "A-07": waiver('rule = "Z-99"\nreason = "a good long reason"\nuntil = "2027-01-01"'),
    "A-08": waiver('rule = "K-07"\nreason = "a good long reason"'),
    "A-09": waiver('rule = "K-07"\nreason = "because"\nuntil = "2027-01-01"'),
    "A-10": waiver('rule = "K-07"\nreason = "a good long reason"\nuntil = "2026-11-30"'),
    "F-01": read("/run/docker"),
    "F-02": read("/home/alice"),
    "F-03": read("/opt/x/.aws"),
    "F-04": read("/etc/ssh"),
    "F-05": read("/etc/sidecar-supervisor"),
    "F-06": read("/var/spool"),
    "F-07": Case(f'{BASE}[files]\nread = ["PATH"]\n', prepare=made(loose_folder)),
    "F-08": read("/opt/not-there"),
    "F-09": Case(f'{BASE}[files]\nread = ["PATH"]\n', prepare=made(linked_folder)),
    "F-10": read("/usr/share"),
    "F-11": Case(f'{BASE}[files]\nworktree = "direct"\n'),
    "F-12": Case(f"{BASE}[files]\nexecutable = true\n"),
    **{f"F-{number}": Case(BARE) for number in range(20, 27)},
    "F-27": Case(f"{BASE}[files]\nexecutable = true\n"),
    "F-28": Case(f"{BASE}[files]\nexecutable = true\n"),
    "F-29": Case(BARE),
    "F-30": Case(f'{BASE}[files]\nhide = ["x/", "X"]\n'),
    "F-31": Case(f'{BASE}[files]\nhide = [".git/hooks"]\n'),
    "F-32": Case(f'{BASE}[files]\nhide = ["**"]\n'),
    "F-33": Case(BASE, prepare=in_tree(lambda tree: (tree / ".git/hooks").symlink_to("/x"))),
    "F-34": Case(BASE, prepare=in_tree(alias)),
    "F-35": Case(BASE, prepare=in_tree(lambda tree: tree.parent.chmod(0o777))),
    "H-01": setting("kernel/unprivileged_bpf_disabled", "0"),
    "H-02": setting("kernel/kptr_restrict", "0"),
    "H-03": setting("kernel/dmesg_restrict", "0"),
    "H-04": setting("kernel/perf_event_paranoid", "1"),
    "H-05": setting("dev/tty/legacy_tiocsti", "1"),
    "H-06": setting("fs/protected_symlinks", "0"),
    "H-07": setting("fs/protected_hardlinks", "0"),
    "H-08": setting("fs/protected_fifos", "0"),
    "H-09": setting("fs/protected_regular", "0"),
    "H-10": setting("kernel/core_pattern", "|/usr/bin/apport %p"),
    "H-11": Case(BASE, host=small_host(kernel=(5, 10))),
    **{f"K-0{number}": Case(BARE) for number in range(1, 10)},
    "K-10": Case(BASE),
    "K-11": Case(BASE.replace('"base"\n', '"base"\nrequire = ["root"]\n')),
    "K-12": Case(BASE, host=small_host(missing={"seccomp": "no libseccomp"})),
    "N-01": Case(CAPPED.replace("claude-sonnet-*", "*")),
    "N-02": Case(CAPPED.replace("claude-sonnet-*", "cl*")),
    "N-03": gateway(more="tool_uses = { web_search = 2 }"),
    "N-04": gateway(more="tool_uses = { code_execution = 21 }"),
    "N-05": gateway(more="document_tokens = 2_000_000"),
    "N-06": gateway(more="image_tokens = 0"),
    "N-07": Case(CAPPED.replace('kind = "claude-code"', "")),
    "N-08": Case(f'{BASE}[agent]\nkind = "codex"\n'),
    "N-09": gateway(more="least_output_tokens = 1"),
    "N-10": gateway('usd = "1"\noutput_tokens_per_call = 100_000'),
    "N-11": gateway(config=Config()),
    "N-12": gateway(config=Config(upstreams={"anthropic": Upstream(url="http://models.lan")})),
    "N-13": Case(CAPPED.replace("claude-code", "codex")),
    "R-01": limits('wall_clock = "25h"'),
    "R-02": limits('wall_clock = "5h"'),
    "R-03": Case(BASE, host=small_host()),
    "R-04": limits('memory = "65GiB"'),
    "R-05": limits("pids = 20000"),
    "R-06": limits("pids = 5000"),
    "R-07": Case(BASE, host=small_host()),
    "R-08": limits('tmp = "3GiB"'),
    "R-09": limits('stop_grace = "0s"'),
    "R-10": limits('stop_grace = "61s"'),
    "R-11": gateway("iterations = 1"),
    "R-12": gateway('usd = "1"'),
    "R-13": gateway('usd = "1"'),
    "R-14": gateway(config=NO_CAPS),
    "R-15": gateway('usd = "51"'),
    "R-16": gateway('usd = "101"'),
    "R-17": gateway('usd = "2"\nticket_usd = "1"'),
    "R-18": gateway('usd = "0"'),
    "R-19": limits('output = "2GiB"'),
    "R-20": limits('output = "1KiB"'),
    "R-21": limits("open_files = 100_000"),
    "R-22": limits('file_size = "65GiB"'),
    "X-01": env('pass = ["DEPLOY_TOKEN"]'),
    "X-02": env('set = { X = "AKIAIOSFODNN7" }'),
    "X-03": Case(CAPPED + '[env]\nset = { OPENAI_API_KEY = "x" }\n'),
    "X-04": env('pass = ["NODE_OPTIONS"]'),
    "X-05": env('set = { BASH_ENV = "/x" }'),
    "X-06": env('pass = ["https_proxy"]'),
    "X-07": env('pass = ["SSH_AUTH_SOCK"]'),
    "X-08": Case(CAPPED + '[env]\nset = { ANTHROPIC_BASE_URL = "http://x" }\n'),
    "X-09": env('pass = ["CI"]\nset = { CI = "1" }'),
    "X-10": env('secret = { T = "command:/bin/pass show x" }'),
    "X-11": env('secret = { T = "file:/etc/t" }', "[files]\nexecutable = true\n"),
    "X-12": Case(f'{BASE}[env]\nsecret = {{ T = "file:PATH" }}\n', prepare=made(loose_file)),
    "X-13": env('secret = { T = "file:/not/there" }'),
}


def outcome(folder: Path, case: Case) -> Outcome:
    folder.chmod(0o755)
    text = case.prepare(folder, case.text)
    path = folder / "x.toml"
    path.write_text(text)
    tree = folder / "tree"
    tree.mkdir(exist_ok=True)
    return lint(load(str(path)), TODAY, config=case.config, host=case.host, worktree=str(tree))


def test_there_is_a_case_for_every_rule_and_there_are_enough() -> None:
    assert SPEAKING.keys() == REGISTRY.rules.keys()
    assert len(REGISTRY.rules) >= 60


@pytest.mark.parametrize("rule_id", SPEAKING)
def test_a_rule_speaks_where_it_should(rule_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.profile.load._PRIVATE", ())  # the folders of these tests lie there
    found = [f for f in outcome(tmp_path, SPEAKING[rule_id]).findings if f.rule.rule_id == rule_id]
    assert found, "it found nothing"
    for finding in found:
        assert finding.message and finding.rule.why and finding.rule.fix
        line = Path(finding.position.file).read_text().splitlines()[finding.position.line - 1]
        assert line.strip(), "it points to an empty line"
        if finding.path and finding.path in load(str(tmp_path / "x.toml")).origins:
            assert finding.path[-1] in line or finding.path[0] == "waive"


@pytest.mark.parametrize(
    "rule_id", [rule_id for rule_id in SPEAKING if not rule_id.startswith(("K-0", "K-10"))]
)
def test_control_a_rule_is_silent_about_a_good_profile(rule_id: str, tmp_path: Path) -> None:
    good = outcome(tmp_path, Case(CAPPED))
    assert rule_id not in {finding.rule.rule_id for finding in good.findings}
    assert rule_id in {rule.rule_id for rule in good.passed}


@pytest.mark.parametrize("name", shipped())
def test_shipped_profiles_have_no_error(name: str) -> None:
    found = lint(load(name), TODAY, config=Config())
    assert [f for f in found.open if f.rule.severity.level == "error"] == []


def test_a_waiver_shows_the_finding_with_its_reason_until_its_day(tmp_path: Path) -> None:
    text = (
        BASE
        + '[files]\nworktree = "direct"\n[[waive]]\nrule = "F-11"\nreason = "a scratch tree, no review"\n'
    )
    for until, waived in (("2026-12-01", True), ("2026-11-30", False)):
        found = outcome(tmp_path, Case(f'{text}until = "{until}"\n'))
        (finding,) = [f for f in found.findings if f.rule.rule_id == "F-11"]
        assert bool(finding.waived) is waived
        assert (finding in found.open) is not waived


def test_a_waiver_for_one_key_is_for_that_key(tmp_path: Path) -> None:
    text = BASE + '[env]\npass = ["A_TOKEN"]\nset = { B_TOKEN = "x" }\n'
    text += (
        '[[waive]]\nrule = "X-01"\nkey = "env.pass"\nreason = "a token of no worth"\nuntil = "2027-01-01"\n'
    )
    found = [f for f in outcome(tmp_path, Case(text)).findings if f.rule.rule_id == "X-01"]
    assert {f.value: bool(f.waived) for f in found} == {"A_TOKEN": True, "B_TOKEN": False}


def test_a_finding_keeps_its_fingerprint_when_its_line_moves(tmp_path: Path) -> None:
    text = BASE + '[files]\nworktree = "direct"\n'
    (first,) = [f for f in outcome(tmp_path, Case(text)).findings if f.rule.rule_id == "F-11"]
    moved = "# a comment\n\n" + text
    (second,) = [f for f in outcome(tmp_path, Case(moved)).findings if f.rule.rule_id == "F-11"]
    assert first.position.line + 2 == second.position.line
    assert first.fingerprint == second.fingerprint


def test_sarif_says_the_same_as_the_outcome(tmp_path: Path) -> None:
    found = outcome(tmp_path, SPEAKING["F-11"])
    document = json.loads(json.dumps(to_sarif([found], "1.0")))
    (run,) = document["runs"]
    assert document["version"] == "2.1.0"
    assert [r["ruleId"] for r in run["results"]] == [f.rule.rule_id for f in found.findings]
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    assert {rule["id"] for rule in rules} == REGISTRY.rules.keys()


FINDINGS = st.lists(st.sampled_from(sorted(SPEAKING)), max_size=8, unique=True)


@given(FINDINGS)
def test_no_finding_raises_a_score_and_no_good_setting_hides_a_hole(ids: list[str]) -> None:
    from supervisor.profile.lint.model import Finding
    from supervisor.profile.positions import Position

    loaded = load("base")
    rules = [REGISTRY.rules[rule_id] for rule_id in ids]
    findings = tuple(Finding(rule, "m", (), Position("f", 1)) for rule in rules)

    def posture(count: int) -> int:
        return score(Outcome(loaded, findings[:count], (), ())).posture

    values = [posture(count) for count in range(len(findings) + 1)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 100
    for severity, most in GATES:
        if any(rule.severity is severity for rule in rules):
            assert values[-1] <= most


def test_a_disproved_claim_is_a_grade_of_its_own() -> None:
    clean = Outcome(load("base"), (), (), ())
    assert score(clean).grade == "A?"
    assert score(clean, proved=99, provable=100).grade == "A"
    assert score(clean, proved=94, provable=100).grade == "A?"
    assert score(clean, proved=99, provable=100, disproved=1).grade == "X"


def test_this_host_can_be_looked_at() -> None:
    facts = host_facts()
    assert facts.memory_bytes > 0 and facts.cores > 0 and facts.kernel > (3, 0) and facts.settings


def test_levels_follow_severities() -> None:
    assert [severity.level for severity in Severity] == ["error", "error", "warning", "note", "note"]
