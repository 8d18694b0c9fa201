"""Owns that a run's model calls are metered, that each limit ends it, and that nothing stays held.
May touch stands, and an upstream of our own beside each.
Never calls a provider.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from models import CALL_NANOS, CALLER, UNTIL_REFUSED, configure, gateway_profile, with_model
from stand import Stand, until

from supervisor.limits.budget import Scope
from supervisor.limits.charges import Charge, ChargeState
from supervisor.limits.usage import UsageSource
from supervisor.runs.reasons import EXIT_CODES, StopReason
from supervisor.store.records import Run

pytest_plugins = ["stand_fixtures"]


def charges(place: Stand, run: Run) -> list[Charge]:
    with place.store() as store:
        return store.ledger.charges(run.run_id)


def held_nanos(place: Stand) -> int:
    with place.store() as store:
        return sum(row.held_nanos for row in store.ledger.spend(store.ledger.latest_day()))


def iterations(place: Stand, ticket: str) -> list[dict[str, Any]]:
    return [event["detail"] for event in place.events(ticket) if event["kind"] == "iteration"]


@pytest.mark.parametrize(
    ("limits", "daily", "reason", "calls"),
    [
        ("iterations = 3", "", StopReason.MAX_ITERATIONS, 3),
        ("tokens = 2000", "", StopReason.MAX_TOKENS, None),
        ('usd = "0.0115"', "", StopReason.MAX_COST, None),
        ('ticket_usd = "0.0115"', "", StopReason.MAX_COST, None),
        ("", 'project_usd = "0.0115"', StopReason.DAILY_CAP, None),
        ("", 'global_usd = "0.0115"', StopReason.DAILY_CAP, None),
    ],
)
def test_each_limit_ends_the_run_with_its_reason(
    place: Stand, limits: str, daily: str, reason: StopReason, calls: int | None
) -> None:
    with_model(place, daily=daily)
    run = place.run_to_end(UNTIL_REFUSED, profile=gateway_profile(place, limits))
    assert (run.reason, run.reason_by, run.reason_who) == (reason, "limit", str(reason))
    made = charges(place, run)
    assert all(charge.state is ChargeState.SETTLED for charge in made)
    assert sum(charge.spent_nanos for charge in made) == len(made) * CALL_NANOS == run.totals["spent_nanos"]
    assert len(made) == run.totals["calls"] == (calls or len(made)) > 0
    assert held_nanos(place) == 0
    lines = place.lines(run.ticket)
    assert lines[-2:-1] == ["402"] and "supervisor" in lines[-1].lower()
    assert {"cap", "needed", "left", "scope"} <= run.figures.keys()


def test_the_agents_exit_code_is_the_limits(place: Stand) -> None:
    with_model(place)
    done = place.foreground(
        UNTIL_REFUSED, ticket="T-code", profile=gateway_profile(place, "iterations = 1"), options=("--json",)
    )
    out, _ = done.communicate(timeout=60)
    assert done.returncode == EXIT_CODES[StopReason.MAX_ITERATIONS]
    ended = json.loads(out)
    assert (ended["reason"], ended["totals"]["calls"]) == ("max_iterations", 1)
    assert ended["totals"]["cost_usd"] == "0.0003"


@pytest.mark.parametrize("limits", ["iterations = 0", "tokens = 0", 'usd = "0"', 'ticket_usd = "0"'])
def test_a_limit_of_zero_lets_no_call_through(place: Stand, limits: str) -> None:
    with_model(place)
    run = place.run_to_end(UNTIL_REFUSED, profile=gateway_profile(place, limits))
    assert charges(place, run) == []
    assert place.lines(run.ticket)[0] == "402"


def test_a_limit_can_be_changed_for_one_run(place: Stand) -> None:
    with_model(place)
    profile = gateway_profile(place, "iterations = 1")
    process = place.foreground(
        UNTIL_REFUSED, ticket="T-more", profile=profile, options=("--limit", "iterations=2")
    )
    process.communicate(timeout=60)
    assert place.ended("T-more").totals["calls"] == 2
    refused = place.ctl("run", "--profile", profile, "--limit", "iteratoins=2", "--", "true")
    assert refused.code == 2 and "did you mean iterations" in refused.err
    refused = place.ctl("run", "--profile", profile, "--limit", "usd=1,5", "--", "true")
    assert refused.code == 2 and "limits.usd" in refused.err


def test_a_daily_cap_may_refuse_calls_without_ending_runs(place: Stand) -> None:
    with_model(place, daily='global_usd = "0"\non_reached = "refuse"')
    run = place.run_to_end(f"{CALLER}\nprint(call()[0])\nsys.exit(0)", profile=gateway_profile(place))
    assert run.reason is StopReason.DONE
    assert place.lines(run.ticket) == ["402"]
    told = [event["detail"] for event in place.events(run.ticket) if event["kind"] == "call_refused"]
    assert [(detail["code"], detail["scope"], detail["ends_run"]) for detail in told] == [
        ("daily_cap", "global_day", False)
    ]


def test_every_call_is_an_event_with_what_is_left(place: Stand) -> None:
    with_model(place)
    run = place.run_to_end(
        f"{CALLER}\nfor _ in range(2): call()",
        profile=gateway_profile(place, 'iterations = 5\ntokens = 10000\nusd = "1"'),
    )
    assert run.reason is StopReason.DONE
    first, second = iterations(place, run.ticket)
    assert (first["iteration"], second["iteration"]) == (1, 2)
    assert first["budget_left"].keys() == {"iterations", "tokens", "seconds", "usd"}
    assert {
        "model": first["model"],
        "tokens_in": first["tokens_in"],
        "tokens_out": first["tokens_out"],
        "cost_usd": first["cost_usd"],
        "outcome": first["outcome"],
        "usage_source": first["usage_source"],
        "left": (second["budget_left"]["iterations"], second["budget_left"]["usd"]),
    } == {
        "model": "m-1",
        "tokens_in": 100,
        "tokens_out": 20,
        "cost_usd": "0.0003",
        "outcome": "ok",
        "usage_source": "provider",
        "left": (3, "0.9994"),
    }
    assert second["budget_left"]["tokens"] == 10_000 - 240


def test_four_fifths_of_a_cap_are_told_once(place: Stand) -> None:
    with_model(place, daily='global_usd = "0.02"')
    run = place.run_to_end(f"{CALLER}\nfor _ in range(30): call()", profile=gateway_profile(place))
    told = [e["detail"] for e in place.events(run.ticket) if e["kind"] == "cap_warning"]
    assert [(detail["scope"], detail["cap_usd"]) for detail in told] in ([], [("global_day", "0.02")])
    day = place.run_to_end(
        f"{CALLER}\nfor _ in range(30): call(max_tokens=300)", profile=gateway_profile(place)
    )
    told += [e["detail"] for e in place.events(day.ticket) if e["kind"] == "cap_warning"]
    assert [detail["scope"] for detail in told] == ["global_day"]
    assert told[0]["percent"] >= 80


def test_a_model_that_is_not_allowed_is_an_answer_and_no_end(place: Stand) -> None:
    with_model(place)
    run = place.run_to_end(
        f"{CALLER}\nprint(call(model='other')[0], call()[0])", profile=gateway_profile(place)
    )
    assert (run.reason, place.lines(run.ticket)) == (StopReason.DONE, ["403 200"])


def test_a_kill_in_the_middle_of_an_answer_is_charged_and_nothing_stays_held(served: Stand) -> None:
    """The daemon of this fixture was started without a configuration; it is started again with one."""
    assert served.daemon is not None
    served.daemon.send_signal(signal.SIGTERM)
    served.daemon.wait()
    with_model(served, interval_s=0.05, words=2000)
    served.serve()
    streaming = f"{CALLER}\nprint('UP', flush=True)\ncall(stream=True, max_tokens=4000)"
    ticket = served.start(streaming, profile=gateway_profile(served, 'usd = "1"'))
    until(lambda: held_nanos(served) > 0, "nothing was held")
    assert served.ctl("kill", ticket).code == 0
    run = served.ended(ticket)
    (charge,) = charges(served, run)
    assert charge.state is ChargeState.SETTLED and charge.usage_source is UsageSource.ESTIMATE
    assert 0 < charge.spent_nanos < charge.held_nanos
    assert (run.reason, held_nanos(served)) == (StopReason.KILLED, 0)


def test_what_a_dead_supervisor_held_is_charged_at_the_hold(place: Stand) -> None:
    with_model(place, interval_s=0.05, words=2000)
    streaming = f"{CALLER}\nprint('UP', flush=True)\ncall(stream=True, max_tokens=4000)"
    ticket = place.start(streaming, profile=gateway_profile(place, 'usd = "1"'))
    until(lambda: held_nanos(place) > 0, "nothing was held")
    place.processes[-1].kill()
    place.serve()
    run = place.ended(ticket)
    (charge,) = charges(place, run)
    assert run.reason is StopReason.SUPERVISOR_LOST
    assert charge.usage_source is UsageSource.HOLD and charge.spent_nanos == charge.held_nanos
    assert held_nanos(place) == 0


SELF_REPORTING = """
import json, os, time
with open(os.environ["SUPERVISOR_LOG_DIR"] + "/own.ndjson", "a", buffering=1) as log:
    for number in range(1, 200):
        said = {"kind": "iteration", "tokens_in": 90, "tokens_out": 10, "cost_usd": "0.01"}
        log.write(json.dumps(said) + "\\n")
        time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ('usd = "0.05"', StopReason.MAX_COST),
        ("tokens = 500", StopReason.MAX_TOKENS),
        ("iterations = 5", StopReason.MAX_ITERATIONS),
    ],
)
def test_without_the_gateway_the_agents_own_log_is_the_meter(
    place: Stand, limits: str, reason: StopReason
) -> None:
    profile = place.profile(more=f'{limits}\n[log]\nfiles = ["/run/agent/*.ndjson"]')
    run = place.run_to_end(SELF_REPORTING, profile=profile)
    assert run.reason is reason
    assert {charge.usage_source for charge in charges(place, run)} == {UsageSource.SELF_REPORTED}
    told = iterations(place, run.ticket)
    assert told[0]["usage_source"] == "self_reported" and told[0]["budget_left"]
    assert 5 < run.totals["calls"] < 100


LIAR = """
import json, os, time
with open(os.environ["SUPERVISOR_LOG_DIR"] + "/own.ndjson", "a", buffering=1) as log:
    for number in range(50):
        log.write(json.dumps({"kind": "iteration", "cost_usd": "500"}) + "\\n")
time.sleep(600)
"""


def test_an_agent_that_lies_about_its_costs_ends_itself_alone(served: Stand) -> None:
    own_log = '[log]\nfiles = ["/run/agent/*.ndjson"]\n[daily]\nglobal_usd = "3"'
    honest = served.start(
        "import time; print('UP', flush=True); time.sleep(600)", profile=served.profile(more=own_log)
    )
    liar = served.run_to_end(LIAR, profile=served.profile(more=f'usd = "2"\n{own_log}'))
    assert liar.reason is StopReason.MAX_COST
    with served.store() as store:
        (everything, *_) = store.ledger.spend(store.ledger.latest_day())
    assert 2_000_000_000 < everything.spent_nanos <= 2_000_000_050
    other = served.row(honest)
    assert other is not None and other.ended_at is None
    assert served.ctl("kill", honest).code == 0


FLOOD = """
import json, os, time
with open(os.environ["SUPERVISOR_LOG_DIR"] + "/own.ndjson", "a", buffering=1) as log:
    for number in range(5200): log.write('{"kind": "note"}\\n')
    for number in range(50): log.write('{"kind": "iteration"}\\n')
time.sleep(600)
"""


def test_a_flood_of_events_is_not_kept_and_hides_no_iteration(place: Stand) -> None:
    profile = place.profile(more='iterations = 3\n[log]\nfiles = ["/run/agent/*.ndjson"]')
    run = place.run_to_end(FLOOD, profile=profile)
    assert run.reason is StopReason.MAX_ITERATIONS
    with place.store() as store:
        kept = store._db.rows("SELECT kind, COUNT(*) AS many FROM events GROUP BY kind")
    many = {row["kind"]: row["many"] for row in kept}
    assert (many["agent_event"], many.get("iteration"), many["meter_problem"]) == (5000, None, 1)


def test_what_an_agent_says_beside_the_gateway_is_no_iteration(place: Stand) -> None:
    with_model(place)
    profile = gateway_profile(place, more='[log]\nfiles = ["/run/agent/*.ndjson"]')
    code = f"{CALLER}\ncall()\nlog = os.environ['SUPERVISOR_LOG_DIR'] + '/own.ndjson'\n"
    code += "open(log, 'w').write(json.dumps({'kind': 'iteration', 'cost_usd': '9'}) + '\\n')"
    run = place.run_to_end(code, profile=profile)
    assert [detail["cost_usd"] for detail in iterations(place, run.ticket)] == ["0.0003"]
    said = [e["detail"] for e in place.events(run.ticket) if e["kind"] == "agent_event"]
    assert said == [{"file": "own.ndjson", "cost_usd": "9", "said": "iteration"}]
    assert run.totals["spent_nanos"] == CALL_NANOS


def test_more_than_was_held_is_charged_in_full_and_told(place: Stand) -> None:
    with_model(place, reported_input=50_000)
    run = place.run_to_end(f"{CALLER}\ncall()", profile=gateway_profile(place, 'usd = "1"'))
    (charge,) = charges(place, run)
    assert charge.spent_nanos == 50_000 * 1000 + 20 * 10_000 > charge.held_nanos
    told = [event["detail"] for event in place.events(run.ticket) if event["kind"] == "meter_problem"]
    assert [(detail["code"], detail["charge_id"]) for detail in told] == [("above_bound", charge.charge_id)]


def test_an_upstream_that_is_not_configured_is_named_before_anything_runs(place: Stand) -> None:
    configure(place, "")
    done = place.ctl("run", "--profile", gateway_profile(place), "--", "true")
    assert done.code == EXIT_CODES[StopReason.NOT_STARTED]
    assert "'local' is not configured" in done.err and "[upstreams.local]" in done.err


def test_a_key_that_cannot_be_fetched_is_named_and_never_shown(place: Stand) -> None:
    with_model(place, more="")
    path = place.folder / "config.toml"
    path.write_text(path.read_text().replace('url = "unix', 'key = "file:/nonexistent/key"\nurl = "unix'))
    done = place.ctl("run", "--profile", gateway_profile(place), "--", "true")
    assert done.code == EXIT_CODES[StopReason.NOT_STARTED]
    assert "upstreams.local.key" in done.err and done.clear_error()


def test_spend_shows_spent_held_left_and_when_the_day_ends(place: Stand) -> None:
    with_model(place, daily='zone = "Europe/Madrid"\nglobal_usd = "1"\nprojects = { blue = "0.5" }')
    profile = gateway_profile(place)
    place.foreground(
        f"{CALLER}\ncall()", ticket="T-1", profile=profile, options=("--project", "blue")
    ).communicate()
    found = place.ctl("spend", "--json").json
    everything, blue = found["scopes"]
    assert (everything["scope"], everything["spent_usd"], everything["cap_usd"]) == (
        Scope.GLOBAL_DAY,
        "0.0003",
        "1",
    )
    assert (blue["project"], blue["left_usd"], blue["held_nanos"]) == ("blue", "0.4997", 0)
    assert found["zone"] == "Europe/Madrid" and 0 < found["left_s"] <= 25 * 3600
    shown = place.ctl("spend").out
    assert "Europe/Madrid" in shown and "$0.0003" in shown and "blue" in shown
    assert place.ctl("spend", "--day", "2020-01-01", "--json").json["scopes"][0]["spent_nanos"] == 0
    wrong = place.ctl("spend", "--day", "yesterday")
    assert wrong.code == 2 and "2026-12-01" in wrong.err
