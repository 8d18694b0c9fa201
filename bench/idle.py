"""Owns the measure "idle": what a daemon with 20 sleeping runs costs.
May touch a daemon of its own, and reads /proc of it, its launcher and its boxes.
Never counts what the agents themselves use.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench import daemon, place, report
from bench.report import Row

_RUNS = 20
_SETTLE_S = 3.0


def measure(quick: bool) -> list[Row]:
    seconds = 5.0 if quick else 20.0
    with place.scratch() as folder, daemon.serving(folder) as served:
        tree = place.make_worktree(folder / "tree")
        for number in range(_RUNS):
            report.progress(f"idle: starting run {number}")
            served.run(f"IDLE-{number}", tree, ["/usr/bin/sleep", "600"])
        inits = [served.group(f"IDLE-{number}")[1] for number in range(_RUNS)]
        ours = [served.pid, served.launcher()]
        time.sleep(_SETTLE_S)
        report.progress(f"idle: {seconds:.0f} s of nothing")
        begun = time.monotonic()
        before = {pid: cpu_s(pid) for pid in [*ours, *inits]}
        time.sleep(seconds)
        spent = {pid: cpu_s(pid) - before[pid] for pid in before}
        passed = time.monotonic() - begun
        share = {pid: 100 * used / passed for pid, used in spent.items()}
        memory = {pid: memory_mb(pid) for pid in before}
    note = f"daemon {share[ours[0]]:.2f}, launcher {share[ours[1]]:.2f}, {passed:.0f} s"
    of_inits = f"the {_RUNS} inits in the boxes"
    return [
        report.bounded(
            f"{_RUNS} idle runs: % of a core", sum(share[p] for p in ours), 2, f"{note}, {report.load()}"
        ),
        report.bounded(
            f"{_RUNS} idle runs: memory, MB PSS",
            sum(memory[p]["Pss"] for p in ours),
            150,
            f"daemon {memory[ours[0]]['Pss']:.0f}, launcher {memory[ours[1]]['Pss']:.0f}",
        ),
        report.bounded(
            f"{_RUNS} idle runs: memory, MB RSS",
            sum(memory[p]["Rss"] for p in ours),
            150,
            f"daemon {memory[ours[0]]['Rss']:.0f}, launcher {memory[ours[1]]['Rss']:.0f}",
        ),
        Row(f"… {of_inits}: % of a core", round(sum(share[p] for p in inits), 3)),
        Row(
            f"… {of_inits}: MB PSS",
            round(sum(memory[p]["Pss"] for p in inits), 3),
            note=f"RSS {sum(memory[p]['Rss'] for p in inits):.0f}, most of it shared with the launcher",
        ),
    ]


def cpu_s(pid: int) -> float:
    """Time on a core of all threads, in the scheduler's own nanoseconds; ticks where it keeps none."""
    tasks = f"/proc/{pid}/task"
    try:
        return sum(int(Path(tasks, t, "schedstat").read_text().split()[0]) for t in os.listdir(tasks)) / 1e9
    except FileNotFoundError:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> dict[str, float]:
    """Pss shares out what several processes have in common (proc(5), smaps_rollup)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) / 1000 for name, _, rest in (line.partition(":") for line in lines)}
