"""Owns that what a supervisor and its operators do is in the trail, and that the commands say if it still is.
May touch stands.
Never needs a supervisor or the database to verify.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from stand import POLITE, Stand, until

from supervisor.audit.records import Decision, RecordKind

pytest_plugins = ["stand_fixtures"]


def shown(place: Stand, *words: str) -> list[dict[str, Any]]:
    done = place.ctl("audit", "show", "--json", *words)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def verdict(place: Stand, *words: str) -> dict[str, Any]:
    done = place.ctl("audit", "verify", "--json", *words)
    found: dict[str, Any] = done.json
    assert done.code == (0 if found["ok"] else 1)
    return found


def decisions(place: Stand) -> set[str]:
    return {record["what"] for record in shown(place, "--kind", "decision")}


def test_a_run_is_in_the_trail_as_it_is_in_the_database_and_its_log_too(served: Stand) -> None:
    run = served.run_to_end("print('one'); print('two')")
    events = until(lambda: [e for e in served.events(run.ticket) if e["kind"] == "run_ended"])
    assert events
    wanted = [event["kind"] for event in served.events(run.ticket)]

    def recorded() -> list[str]:
        return [r["what"] for r in shown(served, "--ticket", run.ticket) if r["kind"] == "event"]

    until(lambda: recorded() == wanted, "the trail has all events")
    (piece,) = [r for r in shown(served, "--ticket", run.ticket) if r["kind"] == RecordKind.LOG]
    assert piece["detail"]["to"] == os.path.getsize(served.paths.logs(run.run_id))
    (admitted,) = [r for r in shown(served) if r["what"] == Decision.RUN_ADMITTED]
    assert admitted["detail"]["profile_digest"] == run.profile_digest
    found = verdict(served)
    assert found["ok"] and found["keyed"] and found["key_beside_trail"] and found["logs"] == 1
    log = Path(served.paths.logs(run.run_id))
    log.write_bytes(log.read_bytes().replace(b"one", b"0ne"))
    found = verdict(served)
    assert (found["fault"], found["record"]) == ("log_altered", piece["n"])
    log.unlink()
    assert verdict(served)["logs_missing"] == 1


def test_what_operators_decide_is_in_the_trail(served: Stand) -> None:
    ticket = served.start(POLITE)
    assert served.ctl("kill", ticket, "--reason", "wrong branch").code == 0
    assert served.ctl("pause").code == 0
    with pytest.raises(Exception, match="paused"):
        served.ask("run", **served.order("T-no", "pass", served.profile()))
    assert served.ctl("resume").code == 0
    assert served.ctl("resume", ticket).code == 0
    assert served.ctl("discard", ticket).code == 0
    served.ask("pause", project="billing")
    changed = served.run_to_end("open('README', 'a').write('more')")
    assert served.ctl("apply", changed.ticket).code == 0
    wanted = {
        Decision.SUPERVISOR_STARTED,
        Decision.RUN_ADMITTED,
        Decision.RUN_REFUSED,
        Decision.STARTS_PAUSED,
        Decision.STARTS_RESUMED,
        Decision.FLAG_CLEARED,
        Decision.CHANGES_DISCARDED,
        Decision.CHANGES_APPLIED,
    }
    until(lambda: decisions(served) >= wanted, "every decision is recorded")
    stop = next(r for r in shown(served, "--ticket", ticket) if r["what"] == "stop_requested")
    assert stop["detail"]["note"] == "wrong branch" and stop["detail"]["by"] == "operator"
    paused = [r["detail"] for r in shown(served) if r["what"] == Decision.STARTS_PAUSED]
    assert [detail["project"] for detail in paused] == ["", "billing"] and paused[1]["who"]
    assert verdict(served)["ok"]


def test_a_supervisor_that_is_killed_leaves_a_trail_that_goes_on(served: Stand) -> None:
    ticket = served.start(POLITE)
    assert served.daemon is not None
    served.daemon.send_signal(signal.SIGSTOP)
    assert served.ctl("kill", "--force", ticket).code == 0
    served.daemon.send_signal(signal.SIGCONT)
    second = served.start(POLITE)
    served.daemon.kill()
    served.daemon.wait()
    served.serve()
    until(lambda: decisions(served) >= {Decision.FORCE_KILLED, Decision.RUN_LOST})
    lost = [record["ticket"] for record in shown(served) if record["what"] == Decision.RUN_LOST]
    assert lost == [second]
    served.daemon.terminate()
    served.daemon.wait()
    found = verdict(served)
    assert found["ok"] and found["closed"] and found["end_known"]
    assert shown(served)[-2]["what"] == Decision.SUPERVISOR_STOPPED


def test_verify_needs_neither_a_supervisor_nor_the_database(place: Stand) -> None:
    place.run_to_end("pass")
    for path in place.state.glob("supervisor.db*"):
        path.unlink()
    assert verdict(place)["ok"]
    assert not list(place.state.glob("supervisor.db*"))


def test_the_first_bad_record_is_named_for_people_and_programs(place: Stand) -> None:
    place.run_to_end("pass")
    done = place.ctl("audit", "verify")
    assert done.code == 0 and "as they were written" in done.out and "audit key" in done.out
    segment = place.state / "audit" / "000001.ndjson"
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:3], lines[3].replace(b'"at":"', b'"at":"1'), *lines[4:]]))
    done = place.ctl("audit", "verify")
    assert done.code == 1 and done.clear_error()
    assert "record 3 is bad (altered, 000001.ndjson" in done.err
    segment.write_bytes(b"".join(lines[:-4]))
    found = verdict(place)
    assert (found["fault"], found["record"]) == ("truncated", len(lines) - 4)


def test_the_key_is_given_once_and_a_checkpoint_can_be_kept_elsewhere(place: Stand) -> None:
    assert place.ctl("audit", "verify").code == 3, "no trail yet"
    assert place.ctl("audit", "export").code == 3
    place.run_to_end("pass")
    first = place.ctl("audit", "key")
    key_file, checkpoint = place.folder / "key", place.folder / "checkpoint"
    key_file.write_text(first.out)
    assert first.code == 0 and place.ctl("audit", "key").code == 3
    assert not (place.state / "audit" / "initial.key").exists()
    assert place.ctl("audit", "export", "-o", str(checkpoint)).code == 0
    assert decisions(place) >= {Decision.KEY_TAKEN, Decision.CHECKPOINT_MADE}
    assert place.ctl("audit", "export", "-o", str(checkpoint)).code == 2, "nothing is overwritten"
    place.run_to_end("pass")
    found = verdict(place, "--key-file", str(key_file), "--checkpoint", str(checkpoint))
    assert found["ok"] and found["keyed"] and found["checkpoint"] and not found["key_beside_trail"]
    assert not verdict(place)["keyed"]
    key_file.write_text("00" * 32)
    assert verdict(place, "--key-file", str(key_file))["fault"] == "wrong_key"
    key_file.write_text("no key")
    assert place.ctl("audit", "verify", "--key-file", str(key_file)).clear_error()


def test_nothing_is_started_without_a_trail(place: Stand) -> None:
    place.run_to_end("pass")
    (place.state / "audit" / "key").write_bytes(b"damaged")
    process = place.foreground("print('ran')", ticket="T-late", profile=place.profile())
    _, err = process.communicate(timeout=60)
    assert process.returncode == 6 and "audit trail" in err
    assert place.row("T-late") is None


CLAUDE_SPEAKS = r"""
import json, time
def say(**line): print(json.dumps(dict(line, session_id="s")), flush=True)
def answer(key, *blocks):
    usage = {"input_tokens": 10, "output_tokens": 5}
    say(type="assistant", message={"id": key, "model": "m", "content": list(blocks), "usage": usage})
say(type="system", subtype="init", model="m")
print("a plain line", flush=True)
answer("m1", {"type": "text", "text": "I look."})
answer("m1", {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "npm test"}})
say(type="user", message={"content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True,
    "content": "Exit code 1\nSECRET CONTENTS"}]})
answer("m2", {"type": "tool_use", "id": "t2", "name": "Write",
    "input": {"file_path": "a", "content": "WHOLE"}})
say(type="user", message={"content": [{"type": "tool_result", "tool_use_id": "t2", "content": "ok"}]})
say(type="result", subtype="success", is_error=False, num_turns=2, total_cost_usd=0.01, usage={})
"""


def test_what_a_known_agent_prints_becomes_iterations_with_their_tools(place: Stand) -> None:
    process = place.foreground(CLAUDE_SPEAKS, ticket="T-c", profile=place.profile())
    out, _ = process.communicate(timeout=60)
    events = place.events("T-c")
    told = [event["detail"] for event in events if event["kind"] == "iteration"]
    assert [(one["tool"], one["outcome"], one["tokens_in"]) for one in told] == [
        ("Bash", "exit 1", 10),
        ("Write", "ok", 10),
    ]
    assert told[1]["args"] == {"file_path": "a", "content": {"bytes": 5}}
    spoken = json.dumps([event for event in events if event["kind"] in ("iteration", "agent_event")])
    assert "SECRET CONTENTS" not in spoken and "WHOLE" not in spoken
    assert place.ended("T-c").totals["spent_nanos"] == 10_000_000
    assert "a plain line" in out and "npm test  exit 1" in out and "I look." in out
    assert "tool_use_id" not in out, "what is shown as an event is not shown as JSON too"
    assert len(place.lines("T-c")) == 8, "the log has every line"


def test_a_report_of_what_ran(place: Stand) -> None:
    place.run_to_end(CLAUDE_SPEAKS)
    done = place.ctl("report", "--since", "1h")
    assert done.code == 0 and "done" in done.out and "$0.01" in done.out and "by ticket" in done.out
    found = place.ctl("report", "--json").json
    assert (found["runs"], found["cost_usd"], found["tokens"]) == (1, "0.01", 30)
    assert place.ctl("report", "--csv").out.startswith("section,name,")
    assert place.ctl("report", "--csv", "--json").code == 2
