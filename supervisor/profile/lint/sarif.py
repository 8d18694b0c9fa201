"""Owns the form in which code scanning takes findings: SARIF 2.1.0.
May touch nothing.
Never says more or less than the outcome it is made from.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from supervisor.profile.lint.model import REGISTRY, SECURITY_SEVERITY, Finding, Outcome, Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def to_sarif(outcomes: Sequence[Outcome], version: str) -> dict[str, Any]:
    """One run for all profiles (SARIF 2.1.0, OASIS): rules, findings, and waivers as suppressions."""
    rules = list(REGISTRY)
    index = {rule.rule_id: number for number, rule in enumerate(rules)}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "supervisorctl profile lint",
                        "version": version,
                        "rules": [_rule(rule) for rule in rules],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [
                    _result(finding, index[finding.rule.rule_id])
                    for outcome in outcomes
                    for finding in outcome.findings
                ],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.rule_id,
        "name": "".join(word.capitalize() for word in rule.check.__name__.split("_")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": f"{rule.title}: {rule.why}"},
        "help": {"text": f"{rule.why}. {rule.fix}."},
        "defaultConfiguration": {"level": rule.severity.level},
        "properties": {
            "security-severity": SECURITY_SEVERITY[rule.severity],
            "tags": ["security", str(rule.domain)],
        },
    }


def _result(finding: Finding, rule_index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule.rule_id,
        "ruleIndex": rule_index,
        "kind": "fail",
        "level": finding.rule.severity.level,
        "message": {"text": f"{finding.message}. {finding.rule.fix}."},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.position.file)},
                    "region": {"startLine": finding.position.line},
                },
                "logicalLocations": [{"fullyQualifiedName": finding.key or "profile", "kind": "key"}],
            }
        ],
        "partialFingerprints": {"ruleKeyValue/v1": finding.fingerprint},
    }
    if finding.waived:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.waived}]
    return result


def _uri(path: str) -> str:
    """Relative to where the command runs, as code scanning wants it, when it lies below."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative.replace(os.sep, "/")
