"""Owns precision and recall of the redactor on the generated corpus, per context and kind of clean text.
May touch stdout.
Never counts a secret as found because a marker stands there: what matters is that it is gone.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import re
import sys
import urllib.parse
from collections import Counter

from bench.clean_text import clean_lines
from bench.credentials import FORMATS, planted
from supervisor.logs.redact.engines import Engines
from supervisor.logs.redact.redactor import Redactor
from supervisor.logs.redact.table import shipped

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+")
_PIECE = 10
_LEAST = 8


def survives(secret: list[str], clean: bytes) -> bool:
    """Does a piece of what was made up stand in what was let through, as it is or decoded?"""
    said = clean.decode("utf-8", "replace")
    texts = [said, urllib.parse.unquote(said)]
    with contextlib.suppress(ValueError, KeyError, TypeError):
        texts.append(json.loads(said)["text"])
    for run in _BASE64.findall(said.replace("\\n", "")):
        texts += (_decoded(run[at:]) for at in range(4) if len(run) > 12)
    for part in secret:
        size = min(_PIECE, len(part))
        pieces = {part[at : at + size] for at in range(len(part) - size + 1)}
        if size >= _LEAST and any(piece in text for piece in pieces for text in texts):
            return True
    return False


def _decoded(text: str) -> str:
    whole = text[: len(text) // 4 * 4].replace("-", "+").replace("_", "/")
    return base64.b64decode(whole).decode("latin-1")


def main() -> None:
    """Print the report; exit with 1 when anything was missed or wrongly hit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", type=int, default=12, help="made-up secrets per format")
    parser.add_argument("--clean", type=int, default=1500, help="texts per kind of clean text")
    parser.add_argument("--plain", action="store_true", help="use the engine of the standard library")
    asked = parser.parse_args()
    rules = shipped()
    engines = Engines(rules, fast=not asked.plain)
    redactor = Redactor(key=b"report", engines=engines, bounded=False)
    engine = engines.ready().name

    total: Counter[str] = Counter()
    found: Counter[str] = Counter()
    per_format: Counter[str] = Counter()
    missed: Counter[tuple[str, str]] = Counter()
    broken = named = 0
    for case in planted(asked.variants):
        clean, count = redactor.redact(case.line)
        total[case.where] += 1
        gone = count > 0 and not survives(case.secret, clean)
        found[case.where] += gone
        per_format[case.format] += gone
        named += f"[redacted:{case.format}#".encode() in clean
        if not gone:
            missed[case.format, case.where] += 1
        if case.line.startswith(b"{"):
            try:
                json.loads(clean)
            except ValueError:
                broken += 1
    lines: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for kind, line in clean_lines(asked.clean):
        lines[kind] += 1
        wrong[kind] += redactor.redact(line)[0] != line

    hits, planted_count, false = found.total(), total.total(), wrong.total()
    print(f"engine {engine}, {len(rules)} rules, {len(FORMATS)} formats, {asked.variants} variants of each\n")
    print(f"{'secrets, by where they stand':34} {'planted':>8} {'gone':>8}  recall")
    for where, count in total.items():
        print(f"{where:34} {count:8} {found[where]:8}  {found[where] / count:.4f}")
    print(f"\n{'clean text':34} {'lines':>8} {'hit':>8}")
    for kind, count in lines.items():
        print(f"{kind:34} {count:8} {wrong[kind]:8}")
    print(
        f"\nrecall     {hits / planted_count:.5f} ({hits} of {planted_count}; {named} named by the very rule)"
    )
    print(f"precision  {hits / (hits + false):.5f} ({false} of {lines.total()} clean lines hit)")
    print(f"JSON lines that are no longer JSON: {broken}")
    for (name, where), count in missed.most_common(30):
        print(f"missed: {name}, {where}: {count}")
    sys.exit(bool(missed or false or broken))


if __name__ == "__main__":
    main()
