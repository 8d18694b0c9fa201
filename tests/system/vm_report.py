"""Owns the lines that the guest writes for the host: what they look like, and the table made of them.
May touch nothing but the text it is given.
Never calls a run good that did not say itself that it was complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field

START = "SYSTEM-TEST-START"
END = "SYSTEM-TEST-END"


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    passed: bool
    seconds: float
    detail: str


@dataclass(slots=True)
class Report:
    """Filled line by line while the guest runs: facts of the machine, outcomes, the output of failures."""

    facts: dict[str, str] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    started: bool = False
    announced: int | None = None

    def feed(self, line: str) -> Outcome | None:
        """Take one line; an outcome is returned for the progress display. Other text is passed over."""
        words = line.strip().split(" ", 4)
        match words:
            case [tag, *_] if tag == START:
                self.started = True
            case [tag, count] if tag == END and count.isdigit():
                self.announced = int(count)
            case ["FACT", key, *rest]:
                self.facts[key] = " ".join(rest)
            case ["SCENARIO", name, ("ok" | "FAILED") as verdict, seconds, *rest]:
                outcome = Outcome(name, verdict == "ok", float(seconds), " ".join(rest))
                self.outcomes.append(outcome)
                return outcome
        return None

    @property
    def complete(self) -> bool:
        return self.announced is not None and self.announced == len(self.outcomes) > 0

    def summary(self) -> str:
        """The closing line. A guest that did not finish counts as one failure more."""
        failed = sum(not outcome.passed for outcome in self.outcomes) + (not self.complete)
        return f"{sum(outcome.passed for outcome in self.outcomes)} passed, {failed} failed"

    @property
    def good(self) -> bool:
        return self.complete and all(outcome.passed for outcome in self.outcomes)

    def table(self) -> str:
        width = max((len(outcome.name) for outcome in self.outcomes), default=0)
        rows = []
        for outcome in self.outcomes:
            verdict = "ok" if outcome.passed else "FAILED"
            rows.append(
                f"  {verdict:<6}  {outcome.name:<{width}}  {outcome.seconds:6.1f} s  {outcome.detail}"
            )
        return "\n".join(rows)
