"""Owns one supervisor process of a fleet for tests: several workers that share one recorder.
May touch the database whose location it is given; it says on stdout, line by line, what it was granted.
Never ends by itself while it is told to go on for ever.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from typing import Any

from kit import AT, DAY, LATER, ask, booking, call, used

from supervisor.limits.budget import Caps, Grant
from supervisor.store.recorder import Recorder
from supervisor.store.tickets import Claim, Claimed

PROJECTS = ("P", "Q", "R")
_say = threading.Lock()


def say(**what: Any) -> None:
    with _say:
        print(json.dumps(what), flush=True)


def spend(recorder: Recorder, name: str, caps: Caps, rounds: int) -> None:
    """Make calls of any size on any project until there is no money left; some end in every way there is."""
    dice = random.Random(name)
    held: list[tuple[str, int]] = []
    for number in range(rounds):
        project = dice.choice(PROJECTS)
        who = booking(f"{name}-{number % 3}", f"T-{dice.randrange(4)}", project, name)
        new = call(who, charge=f"{name}-{number:06}")
        wanted = dice.randint(1, 40)
        answer = recorder.write(lambda store: store.ledger.reserve(new, caps, ask(wanted))).result()  # noqa: B023
        if isinstance(answer, Grant):
            say(charge=new.charge_id, granted=answer.nanos)
            held.append((new.charge_id, answer.nanos))
        if dice.random() < 0.5:
            for charge, nanos in held:
                finish(recorder, charge, nanos, dice)
            held.clear()


def finish(recorder: Recorder, charge: str, nanos: int, dice: random.Random) -> None:
    """Released or settled, and then once more, which must change nothing."""
    cost = dice.randint(0, nanos)
    if dice.random() < 0.2:
        cost = 0
        recorder.keep(lambda store: store.ledger.release(charge, "error 529", AT)).result()
    recorder.keep(lambda store: store.ledger.settle(charge, used(cost))).result()
    recorder.keep(lambda store: store.ledger.settle(charge, used(cost + 1))).result()
    say(charge=charge, settled=cost)


def claim(recorder: Recorder, name: str, caps: Caps, ceiling: int) -> None:
    """Claim until there is nothing more to claim."""
    number = 0
    while True:
        number += 1
        wanted = Claim(
            worker_id=name,
            run_id=f"{name}-{number}",
            now=AT,
            day=DAY,
            lease_until=LATER,
            ceiling_nanos=ceiling,
            caps_of=lambda _: caps,
        )
        found = recorder.write(lambda store: store.tickets.claim(wanted)).result()  # noqa: B023
        if not isinstance(found, Claimed):
            say(nothing=found.why)
            return
        say(claimed=found.ticket.key, fence=found.fence)


def main() -> None:
    location, name, what, workers = sys.argv[1:5]
    given = json.loads(sys.argv[5])
    caps = Caps(**given["caps"])
    recorder = Recorder(location)
    threads = []
    for number in range(int(workers)):
        own = f"{name}-{number}"
        act = spend if what == "spend" else claim
        last = given["rounds"] if what == "spend" else given["ceiling"]
        threads.append(threading.Thread(target=act, args=(recorder, own, caps, last)))
    say(ready=name)
    sys.stdin.readline()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()


if __name__ == "__main__":
    main()
