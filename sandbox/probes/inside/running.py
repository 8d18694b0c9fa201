"""Owns running the attempts, each in a child of its own, and saying what came of them.
May touch processes that it started.
Never lets one attempt hang the others.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys

from sandbox.probes.inside.base import ARGUMENTS, AT_START, ATTEMPTS, TIMEOUT_S


def run_one(name: str) -> str:
    """In a child of its own, so that a signal or a hang is an answer too."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            answer = ATTEMPTS[name]() or "ok"
        except OSError as error:
            answer = errno.errorcode.get(error.errno or 0, str(error))
        except BaseException as error:
            answer = repr(error)
        os.write(write_end, answer.encode()[:4000])
        os._exit(0)
    os.close(write_end)
    ready, _, _ = select.select([read_end], [], [], TIMEOUT_S)
    answer = os.read(read_end, 4096).decode() if ready else "timeout"
    os.close(read_end)
    for target in (-pid, pid):
        try:
            os.kill(target, signal.SIGKILL)
        except OSError:
            continue
    _, status = os.waitpid(pid, 0)
    if not answer and os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return answer


def run_together(names: list[str], workers: int) -> dict[str, str]:
    """Every worker takes each so-manieth name; most of the time of an attempt is waiting."""
    pipes = []
    for number in range(workers):
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            answers = {name: run_one(name) for name in names[number::workers]}
            with os.fdopen(write_end, "w") as file:
                json.dump(answers, file)
            os._exit(0)
        os.close(write_end)
        pipes.append(read_end)
    found: dict[str, str] = {}
    for read_end in pipes:
        with os.fdopen(read_end) as file:
            found |= json.load(file)
    return found


def main() -> None:
    """Arguments: JSON of the witnesses, the names of the attempts, how many at a time. Prints JSON."""
    AT_START.extend(fd for fd in range(64) if _is_open(fd))
    ARGUMENTS.update(json.loads(sys.argv[1]))
    names = json.loads(sys.argv[2])
    workers = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    print(json.dumps(run_together(names, workers) if workers > 1 else {n: run_one(n) for n in names}))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
