"""Owns that nothing an agent prints, logs or does harms the supervisor, its record or its other runs.
May touch the stands' runs and read their state folders.
Never believes the record alone: the files on the disk are searched too.
"""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest
from stand import Stand

from supervisor.runs.reasons import StopReason

pytest_plugins = ["stand_fixtures"]

SECRET = "s3cr3t/Value+with=chars&<tags>-0123456789"
LOGS = '[log]\nfiles = ["/run/agent/*.ndjson"]\n'


def test_control_lines_arrive_as_they_were(daemon: Stand) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('no newline', end='')"
    run = daemon.run_to_end(code)
    assert run.reason is StopReason.DONE
    assert sorted(daemon.lines(run.ticket)) == ["err", "no newline", "out"]


def test_a_flood_ends_in_time_and_nobody_else_notices(daemon: Stand) -> None:
    code = "import os\nprint('UP', flush=True)\nblock = b'y\\n' * 32768\nwhile True: os.write(1, block)"
    profile = daemon.profile(wall_clock="3s", more='output = "2MiB"')
    ticket = daemon.start(code, profile=profile)
    answered = 0
    while (row := daemon.row(ticket)) and row.ended_at is None:
        assert daemon.ctl("status", ticket, "--json").code == 0
        assert daemon.ask("ping")["kind"] == "daemon"
        answered += 1
    run = daemon.ended(ticket)
    assert answered >= 1
    assert run.reason is StopReason.MAX_SECONDS and daemon.survivors() == []
    assert run.totals["dropped_bytes"] > 1 << 20
    assert os.path.getsize(daemon.paths.logs(run.run_id)) < 3 << 20
    (dropped,) = [event for event in daemon.events(ticket) if event["kind"] == "output_dropped"]
    assert dropped["detail"]["bytes"] == run.totals["dropped_bytes"]


def test_a_line_without_an_end(daemon: Stand) -> None:
    code = "import os\nfor _ in range(50): os.write(1, b'x' * (1 << 20))\nos.write(1, b'\\nafter\\n')"
    run = daemon.run_to_end(code)
    assert run.reason is StopReason.DONE
    long, after = daemon.lines(run.ticket)
    assert (len(long), after) == (1 << 20, "after")
    assert run.totals["dropped_bytes"] == 49 << 20


def test_bytes_that_are_no_text(daemon: Stand) -> None:
    code = (
        "import os\nos.write(1, b'nul \\0 bad \\xff\\xfe esc \\x1b[31m\\r\\n' + bytes(range(256)) + b'\\n')"
    )
    run = daemon.run_to_end(code)
    assert run.reason is StopReason.DONE
    assert daemon.lines(run.ticket)[0] == "nul \0 bad \ufffd\ufffd esc \x1b[31m\r"
    assert daemon.ctl("logs", run.ticket, "--json").code == 0
    assert daemon.ctl("logs", run.ticket).code == 0


def test_a_pipe_held_open_by_what_was_left_behind(daemon: Stand) -> None:
    code = "import os, time\nprint('left', flush=True)\nif os.fork() == 0:\n os.setsid()\n time.sleep(600)"
    run = daemon.run_to_end(code)
    assert run.reason is StopReason.DONE and daemon.survivors() == []
    assert daemon.lines(run.ticket) == ["left"]


@pytest.mark.parametrize("number", [9, 11, 15, 32, 35, 63, 64])
def test_an_agent_that_ends_itself_by_a_signal(daemon: Stand, number: int) -> None:
    """Signals without a name of their own once raised in the verdict and ended the daemon."""
    run = daemon.run_to_end(f"import os\nos.kill(os.getpid(), {number})")
    assert run.reason is StopReason.FAILED
    assert run.exit_status is not None and run.exit_status & 127 == number
    assert daemon.answers()


AWFUL = r"""
import os, sys
os.chdir("/run/agent")
open(b"\xff\xfe.ndjson", "w").write('{"kind": "iteration", "iteration": 1}\n')
deep = open("deep.ndjson", "w")
deep.write('{"a":' + "[" * 100000 + "]" * 100000 + "}\n")
deep.write("[" * 500 + "]" * 500 + "\n" + '{"a":' + "[" * 500 + "]" * 500 + "}\n")
deep.write('{"duration_ms": ' + "9" * 400 + ', "kind": "iteration", "iteration": ' + "9" * 400 + "}\n")
deep.write('{"kind": "run_ended", "v": 9, "at": "x", "run_id": "other", "ticket": "T-9", "file": "x"}\n')
deep.write('{"kind": {"a": 1}}\n{"a": "\\ud800"}\n{"a": 1e999}\n\0\n{"": ""}\n')
deep.write('{"kind": "iteration", "args": [1], "duration_ms": 1e308}\nnull\n"text"\n12\n')
deep.close()
os.symlink("/etc/passwd", "link.ndjson")
os.mkfifo("fifo.ndjson")
open("plain", "w").write("x\n")
os.link("plain", "hard.ndjson")
print("UP", flush=True)
"""


@pytest.mark.parametrize("wait", ["", "import time; time.sleep(1)"], ids=["at the end", "meanwhile"])
def test_awful_log_files(anywhere: Stand, wait: str) -> None:
    """Each of these once raised somewhere; at the end nobody caught it and all other runs died too."""
    run = anywhere.run_to_end(AWFUL + wait, profile=anywhere.profile(more=LOGS))
    assert (run.reason, run.reason_note) == (StopReason.DONE, "")
    events = anywhere.events(run.ticket)
    refused = {e["detail"]["file"] for e in events if e["kind"] == "log_refused"}
    assert refused == {"link.ndjson", "fifo.ndjson", "hard.ndjson"}
    kinds = [event["kind"] for event in events]
    assert kinds.count("run_ended") == 1, "an agent cannot tell its own end"
    assert kinds.count("iteration") >= 2 and kinds.count("agent_event") >= 2
    assert {event["run_id"] for event in events} == {run.run_id}
    assert not any("root:" in line for line in anywhere.lines(run.ticket))
    for words in (("events", run.ticket), ("events", run.ticket, "--json"), ("logs", run.ticket)):
        assert anywhere.ctl(*words).code == 0


def test_lines_of_log_files_become_events_once(daemon: Stand) -> None:
    code = """
import json, os
os.chdir("/run/agent")
for number in range(1, 3001):
    with open("a.ndjson", "a") as file:
        file.write(json.dumps({"kind": "iteration", "iteration": number, "tool": "x" * 300}) + "\\n")
    if number % 1000 == 0:
        os.rename("a.ndjson", f"a.{number}.ndjson")
"""
    run = daemon.run_to_end(code, profile=daemon.profile(more=LOGS))
    assert run.reason is StopReason.DONE
    with daemon.store() as store:
        events = store.events(run.run_id, limit=10_000)
    told = [event.detail["iteration"] for _, event in events if event.kind == "iteration"]
    assert sorted(told) == list(range(1, 3001))


def test_a_log_file_that_is_replaced_and_truncated(daemon: Stand) -> None:
    code = """
import os, time
os.chdir("/run/agent")
def put(path, text):
    with open(path, "w") as file: file.write(text)
put("a.ndjson", '{"n": 1}\\n'); time.sleep(0.8)
put("new", '{"n": 2}\\n'); os.rename("new", "a.ndjson"); time.sleep(0.8)
put("a.ndjson", '{"n":3}\\n'); time.sleep(0.8)
os.unlink("a.ndjson"); put("a.ndjson", '{"n": 4}')
"""
    run = daemon.run_to_end(code, profile=daemon.profile(more=LOGS))
    told = [e["detail"]["n"] for e in daemon.events(run.ticket) if e["kind"] == "agent_event"]
    assert told == [1, 2, 3, 4]


LEAK = r"""
import base64, json, os, sys, urllib.parse, time
s = os.environ["TOKEN"]
print("length", len(s))
print(s)
print("in the middle:" + s + ":of a line", file=sys.stderr)
for offset in range(3): print(base64.b64encode(b"x" * offset + s.encode() + b"yz").decode())
print(base64.urlsafe_b64encode(s.encode()).decode())
print(s.encode().hex(), s.encode().hex().upper())
print(urllib.parse.quote(s), urllib.parse.quote(s, safe=""), urllib.parse.quote_plus(s))
print(json.dumps({"token": s}), json.dumps(s).replace("/", "\\/"), repr(s))
sys.stdout.flush()
for byte in s.encode():
    os.write(1, bytes([byte]))
    time.sleep(0.001)
os.write(1, b"\n")
with open("/run/agent/a.ndjson", "w") as file:
    def put(number, text): file.write('{"kind": "iteration", "iteration": %d, "t": %s}\n' % (number, text))
    put(1, json.dumps({"t": s, s: 1, "list": [[s]]}))
    put(2, '"' + "".join("\\u%04x" % ord(c) for c in s) + '"')
    put(3, '"' + s.replace("&", "\\u0026").replace("<", "\\u003c") + '"')
os.write(1, b"x" * (1 << 20) + s.encode() + b"\n")
os.write(2, s.encode())
"""


def encoded(secret: str) -> list[bytes]:
    raw = secret.encode()
    forms = [raw, raw.hex().encode(), raw.hex().upper().encode(), json.dumps(secret)[1:-1].encode()]
    forms += [base64.b64encode(b"x" * n + raw)[8:-8] for n in range(3)]
    return forms


def found_in(folder: Path, forms: list[bytes]) -> list[tuple[str, bytes]]:
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            raw = path.read_bytes()
            found += [(str(path), form) for form in forms if form in raw]
    return found


@pytest.mark.parametrize("source", ["file", "command"])
def test_no_byte_of_the_state_holds_a_secret(anywhere: Stand, source: str) -> None:
    place = anywhere.folder / "token"
    place.write_text(SECRET + "\n")
    where = f"file:{place}" if source == "file" else f"command:/bin/cat {place}"
    more = f"{LOGS}[env]\nsecret = {{ TOKEN = {json.dumps(where)} }}\n"
    profile = anywhere.profile(more=more)
    run = anywhere.run_to_end(LEAK, profile=profile)
    assert run.reason is StopReason.DONE, run
    lines = anywhere.lines(run.ticket)
    assert f"length {len(SECRET)}" in lines, "control: the agent had it"
    assert run.totals["redacted"] >= 15
    assert found_in(anywhere.state, encoded(SECRET)) == []
    assert SECRET not in json.dumps([event["detail"] for event in anywhere.events(run.ticket)])
    told = [e["detail"] for e in anywhere.events(run.ticket) if e["kind"] == "iteration"]
    assert [detail["iteration"] for detail in told] == [1, 2, 3]
    assert found_in(anywhere.folder, [SECRET.encode()]) != [], "control: the search finds it"
    for words in (("logs", run.ticket), ("status", run.ticket, "--json"), ("events", run.ticket, "--json")):
        assert SECRET not in anywhere.ctl(*words).out


def test_a_secret_in_the_command_itself(daemon: Stand) -> None:
    place = daemon.folder / "token"
    place.write_text(SECRET)
    profile = daemon.profile(more=f'[env]\nsecret = {{ TOKEN = "file:{place}" }}\n')
    for argv in (["/bin/echo", f"--token={SECRET}"], [f"/bin/{SECRET}"], [f"./{SECRET}/x"]):
        done = daemon.ctl("run", "--profile", profile, "--json", "--", *argv)
        assert "Traceback" not in done.err
        assert SECRET not in done.out + done.err
    assert "[redacted:TOKEN]" in daemon.ctl("ps", "-a").out
    assert found_in(daemon.state, encoded(SECRET)) == []


def test_out_of_memory(anywhere: Stand) -> None:
    code = "print('UP', flush=True)\nkept = []\nwhile True: kept.append(bytearray(1 << 20))"
    run = anywhere.run_to_end(code, profile=anywhere.profile(memory="64MiB"))
    assert (run.reason, run.reason_by, run.reason_who) == (StopReason.OUT_OF_MEMORY, "limit", "memory")
    assert run.totals["oom_kills"] >= 1 and anywhere.survivors() == []
    fits = anywhere.run_to_end("bytearray(1 << 25)", profile=anywhere.profile(memory="64MiB"))
    assert fits.reason is StopReason.DONE, "control"


def test_many_short_runs_at_once_leave_nothing(daemon: Stand) -> None:
    orders = [daemon.order(daemon.ticket(), "print('UP')", daemon.profile()) for _ in range(12)]
    for order in orders:
        daemon.ask("run", **order)
    for order in orders:
        run = daemon.ended(order["ticket"])
        assert run.reason is StopReason.DONE
        assert run.cgroups and not [folder for folder in run.cgroups if os.path.exists(folder)]
    assert daemon.survivors() == []


def test_preparing_a_run_does_not_hold_up_a_kill(daemon: Stand) -> None:
    """A secret's command that takes its time is no reason to wait with a kill."""
    slow = daemon.profile(more='[env]\nsecret = { TOKEN = "command:/bin/sleep 8" }\n')
    ticket = daemon.start("print('UP', flush=True); import time; time.sleep(600)")
    began = daemon.spawn("run", "--ticket", "T-slow", "--profile", slow, "--", "/bin/true")
    time.sleep(0.7)
    assert daemon.ctl("kill", ticket).code == 0
    assert began.poll() is None, "the slow one is still being prepared"
    assert daemon.survivors() == []
