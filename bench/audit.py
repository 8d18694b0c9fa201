"""Owns `python -m bench.audit`: how long a verification and a lint take, and what systemd says of the unit.
May touch boxes of its own, profiles in a temporary folder, stdout and the results file.
Never fails because of a missed target, only because something could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from datetime import date
from pathlib import Path

from bench import report
from bench.report import Row
from supervisor.config import Config
from supervisor.profile.lint.run import host_facts, lint
from supervisor.profile.load import load
from supervisor.verify.verify import verify

_VERIFY_S = 1.5
_LINT_S = 1.0
_EXPOSURE = 4.0
_PROFILES = 100
_UNIT = Path(__file__).resolve().parents[1] / "systemd" / "sidecar-supervisor.service"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit", description="Measure the audit.")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    before = report.load()
    rows = [_verify(3 if arguments.quick else 11), _lint(3 if arguments.quick else 9), *_exposure()]
    written = report.write(rows, "audit")
    if arguments.json:
        print(json.dumps(report.plain(rows), indent=2))
        return
    print(report.table(rows))
    print(f"\nmedians · {before} at the start, {report.load()} at the end · {written.name}")


def _verify(times: int) -> Row:
    """The shipped profile that allows most, all probes, its box and its worktree made each time."""
    loaded, taken, tried = load("coding"), [], 0
    for number in range(times):
        report.progress(f"verify {number + 1} of {times}")
        begun = time.perf_counter()
        found = asyncio.run(verify(loaded))
        taken.append(time.perf_counter() - begun)
        tried = sum(result.tried for result in found.probes)
        assert found.escapes == 0
    note = f"{tried} probes; n={times}; {report.spread(taken)}"
    return report.bounded("profile verify coding, s", statistics.median(taken), _VERIFY_S, note)


def _lint(times: int) -> Row:
    """A hundred files that extend a shipped profile, read from disk, with the rules about the host."""
    folder = Path(tempfile.mkdtemp(prefix="bench-lint-"))
    try:
        for number in range(_PROFILES):
            text = f'schema = 1\nname = "p{number}"\nextends = "coding"\n[limits]\npids = {100 + number}\n'
            (folder / f"p{number}.toml").write_text(text)
        taken = []
        for number in range(times):
            report.progress(f"lint {number + 1} of {times}")
            begun = time.perf_counter()
            facts = host_facts()
            for path in sorted(folder.iterdir()):
                lint(load(str(path)), date.today(), config=Config(), host=facts)
            taken.append(time.perf_counter() - begun)
    finally:
        shutil.rmtree(folder)
    note = f"n={times}; {report.spread(taken)}"
    return report.bounded(f"profile lint of {_PROFILES} profiles, s", statistics.median(taken), _LINT_S, note)


def _exposure() -> list[Row]:
    """Where systemd-analyze is; it reads the unit's file and asks no manager."""
    if shutil.which("systemd-analyze") is None or not _UNIT.exists():
        report.say("systemd-analyze or the unit is not here: no row for its exposure")
        return []
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(_UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    match = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    if match is None:
        raise RuntimeError(f"systemd-analyze said: {done.stdout[-400:]}{done.stderr[-400:]}")
    return [report.bounded("exposure of the unit (systemd-analyze)", float(match[1]), _EXPOSURE)]


if __name__ == "__main__":
    main()
