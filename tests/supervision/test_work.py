"""Owns the queue: who gets which ticket, what is held for it, and what becomes of it when a worker dies.
May touch stands, upstreams beside them, and a PostgreSQL server of the tests' own.
Never lets a ticket be worked twice without somebody having said so.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import time

from models import CALLER, configure, gateway_profile, with_model
from pgserver import Server
from stand import CTL, PYTHON, Done, Stand, stand, until

from supervisor.limits.budget import Caps
from supervisor.runs.reasons import StopReason
from supervisor.store.records import Ticket, Worker
from supervisor.store.store import open_store
from supervisor.store.tickets import Claim

pytest_plugins = ["stand_fixtures"]

SLEEP = "import time; print('UP', flush=True); time.sleep(600)"


def work(place: Stand, *words: str, profile: str = "offline", argv: tuple[str, ...] = ("true",)) -> Done:
    return place.ctl("work", "--until-empty", "--profile", profile, *words, "--", *argv)


def ticket(place: Stand, key: str) -> Ticket:
    with place.store() as store:
        found = store.tickets.find(key)
    assert found is not None
    return found


def test_a_worker_runs_every_ticket_once_in_order(place: Stand) -> None:
    assert place.ctl("tickets", "add", "A", "B", "--goal", "do it; $(now)", "--project", "blue").code == 0
    assert place.ctl("tickets", "add", "C", "--priority", "5").code == 0
    listed = place.ctl("tickets", "list", "--json").json
    assert [(row["key"], row["state"]) for row in listed] == [("C", "open"), ("A", "open"), ("B", "open")]
    code = (
        "import os, sys; e = os.environ; print(sys.argv[1:], e['SUPERVISOR_TICKET'], e['SUPERVISOR_PROJECT'])"
    )
    done = work(place, "--json", argv=(PYTHON, "-c", code, "{ticket}", "{goal}"))
    assert done.code == 0, done.err
    ended = [place.ended(key) for key in "CAB"]
    assert [run.reason for run in ended] == [StopReason.DONE] * 3
    assert ended[0].created_at <= ended[1].created_at <= ended[2].created_at
    assert place.lines("A") == ["['A', 'do it; $(now)'] A blue"]
    assert [ticket(place, key).state for key in "ABC"] == ["ended"] * 3
    again = work(place)
    assert again.code == 0 and "the queue is empty" in again.out
    assert [ticket(place, key).attempts for key in "ABC"] == [1, 1, 1]


def test_a_ticket_runs_again_only_when_it_is_requeued(place: Stand) -> None:
    place.ctl("tickets", "add", "A")
    twice = place.ctl("tickets", "add", "A")
    assert twice.code == 2 and "tickets remove" in twice.err
    assert place.ctl("tickets", "requeue", "A").code == 0, "it waits already"
    waits = place.ctl("kill", "A")
    assert waits.code == 3 and "is open in the queue" in waits.err
    assert place.ctl("tickets", "requeue", "Z").code == 3
    work(place)
    assert place.ctl("tickets", "requeue", "A").code == 0
    assert ticket(place, "A").state == "open"
    work(place)
    assert ticket(place, "A").attempts == 2


def test_pausing_acts_on_the_claim(place: Stand) -> None:
    place.ctl("tickets", "add", "A", "--project", "blue", "--priority", "1")
    place.ctl("tickets", "add", "B", "--project", "red")
    place.ctl("pause", "--project", "blue")
    process = place.spawn("work", "--profile", "offline", "--until-empty", "--", "true")
    until(lambda: ticket(place, "B").state == "ended")
    assert ticket(place, "A").state == "open"
    place.ctl("resume", "--project", "blue")
    until(lambda: ticket(place, "A").state == "ended")
    process.wait(30)


def test_a_stopped_ticket_is_not_claimed(place: Stand) -> None:
    place.ctl("tickets", "add", "A", "B")
    with place.store() as store:
        store._db.change("UPDATE tickets SET stop_requested = 1 WHERE key = 'A'")
    work(place)
    assert [ticket(place, key).state for key in "AB"] == ["open", "ended"]


def test_work_without_caps_is_an_error_before_the_first_claim(place: Stand) -> None:
    with_model(place)
    place.ctl("tickets", "add", "A")
    for limits, said in (("", "limits.usd"), ('usd = "0.01"', "a day may cost")):
        refused = work(place, profile=gateway_profile(place, limits))
        assert refused.code == 2 and said in refused.err
    assert ticket(place, "A").state == "open"


def test_what_a_run_may_spend_is_held_when_it_is_claimed_and_freed_at_its_end(place: Stand) -> None:
    with_model(place, daily='global_usd = "1"')
    place.ctl("tickets", "add", "A")
    code = f"{CALLER}\ncall()\nprint('UP', flush=True)\nsys.stdin.read()\ntime.sleep(1.5)"
    process = place.spawn(
        "work", "--until-empty", "--profile", gateway_profile(place, 'usd = "0.4"'), "--", PYTHON, "-c", code
    )
    until(lambda: place.row("A") is not None)
    place.wait_for_line("A", "UP")
    (everything, *_) = place.ctl("spend", "--json").json["scopes"]
    assert (everything["spent_usd"], everything["held_usd"]) == ("0.0003", "0.3997")
    process.wait(30)
    (everything, *_) = place.ctl("spend", "--json").json["scopes"]
    assert (everything["spent_usd"], everything["held_nanos"]) == ("0.0003", 0)


def test_a_used_up_day_stops_the_claims_of_its_project_alone(place: Stand) -> None:
    with_model(place, daily='global_usd = "10"\nprojects = { blue = "0.1" }')
    place.ctl("tickets", "add", "A", "--project", "blue", "--priority", "9")
    place.ctl("tickets", "add", "B", "--project", "red")
    profile = gateway_profile(place, 'usd = "0.4"')
    process = place.spawn("work", "--profile", profile, "--", PYTHON, "-c", f"{CALLER}\ncall()")
    until(lambda: ticket(place, "B").state == "ended")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert ticket(place, "A").state == "open"
    assert "no claims: the day of project blue has $0.10 of $0.10 left, and a run may use $0.40" in out
    assert process.returncode == 0
    ends = place.ctl("work", "--until-empty", "--profile", profile, "--", PYTHON, "-c", "pass")
    assert ends.code == 0, "it does not wait for midnight"
    assert "no claims: the day of project blue" in ends.out
    assert ticket(place, "A").state == "open"


def test_a_host_on_which_nothing_starts_does_not_eat_the_queue(place: Stand) -> None:
    place.ctl("tickets", "add", *"ABCDEF")
    done = work(place, argv=("/nonexistent/agent",))
    assert done.code == 64 and "3 runs in a row" in done.err
    states = [ticket(place, key).state for key in "ABCDEF"]
    assert states == ["ended"] * 3 + ["open"] * 3


def test_a_ticket_that_cannot_be_started_does_not_hold_up_the_others(place: Stand) -> None:
    place.ctl("tickets", "add", "POISON", "--priority", "9")
    place.ctl("tickets", "add", "GOOD", "--goal", "true")
    done = work(place, argv=("{goal}",))
    assert done.code == 0 and "POISON  not started" in done.out, done
    assert ticket(place, "POISON").state == "needs_review"
    assert (ticket(place, "GOOD").state, ticket(place, "GOOD").stop_reason) == ("ended", "done")


def test_a_run_whose_ticket_was_taken_away_dies_and_leaves_the_ticket_alone(place: Stand) -> None:
    configure(place, '[queue]\nlease = "3s"\n')
    place.ctl("tickets", "add", "A")
    place.spawn("work", "--profile", "offline", "--", PYTHON, "-c", SLEEP, place.marker)
    until(lambda: place.row("A") is not None)
    place.wait_for_line("A", "UP")
    with place.store() as store:
        store._db.change("UPDATE tickets SET fence = fence + 1, state = 'claimed', worker_id = 'other'")
    run = place.ended("A")
    assert (run.reason, run.reason_who) == (StopReason.LEASE_LOST, "lease")
    assert place.survivors() == []
    left = ticket(place, "A")
    assert (left.state, left.worker_id) == ("claimed", "other")


def test_a_dead_workers_ticket_needs_a_review_and_is_never_silently_run_again(place: Stand) -> None:
    place.ctl("tickets", "add", "A")
    process = place.spawn("work", "--profile", "offline", "--", PYTHON, "-c", SLEEP, place.marker)
    until(lambda: place.row("A") is not None)
    place.wait_for_line("A", "UP")
    process.kill()
    process.wait()
    done = work(place)
    assert done.code == 0
    assert place.ended("A").reason is StopReason.SUPERVISOR_LOST
    assert (ticket(place, "A").state, ticket(place, "A").attempts) == ("needs_review", 1)
    assert place.ctl("tickets", "requeue", "A").code == 0
    work(place)
    assert ticket(place, "A").stop_reason == "done"


def test_an_expired_lease_is_found_by_any_other_supervisor(place: Stand) -> None:
    """The worker that claimed it here never was: nobody renews, nobody reconciles."""
    configure(place, '[queue]\nlease = "3s"\n')
    place.ctl("tickets", "add", "A")
    with place.store() as store:
        store.tickets.claim(
            Claim(
                worker_id="gone",
                run_id="R",
                now="2026-01-01T00:00:00.000Z",
                day="2026-01-01",
                lease_until="2026-01-01T00:01:00.000Z",
                ceiling_nanos=5,
                caps_of=lambda _: Caps(),
            )
        )
    assert ticket(place, "A").state == "claimed"
    place.serve()
    until(lambda: ticket(place, "A").state == "needs_review")
    with place.store() as store:
        assert all(row.held_nanos == 0 for row in store.ledger.spend("2026-01-01"))


def test_the_first_signal_ends_the_claiming_and_the_second_the_runs(place: Stand) -> None:
    place.ctl("tickets", "add", "A", "B")
    process = place.spawn("work", "--profile", "offline", "--", PYTHON, "-c", SLEEP, place.marker)
    until(lambda: place.row("A") is not None)
    place.wait_for_line("A", "UP")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None and ticket(place, "A").state == "running"
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert place.ended("A").reason is StopReason.KILLED
    assert ticket(place, "B").state == "open"


def test_several_supervisors_share_one_database(postgres: Server) -> None:
    """Each has its own state and runs; the queue, the money and the flags are common."""
    with postgres.database() as url, stand() as one, stand() as two, stand() as three:
        places = [one, two, three]
        for place in places:
            with_model(place, daily='global_usd = "1"', more=f'[store]\nurl = "{url}"')
        keys = [f"T-{number}" for number in range(9)]
        assert one.ctl("tickets", "add", *keys).code == 0
        code = f"{CALLER}\ncall()\ntime.sleep(0.3)\nprint(os.environ['SUPERVISOR_TICKET'])"
        workers = [
            place.spawn(
                "work",
                "--until-empty",
                "--concurrency",
                "2",
                "--profile",
                gateway_profile(place, 'usd = "0.05"'),
                "--",
                PYTHON,
                "-c",
                code,
            )
            for place in places
        ]
        for worker in workers:
            out, err = worker.communicate(timeout=90)
            assert worker.returncode == 0, (out, err)
        listed = two.ctl("tickets", "list", "--json").json
        assert [(row["state"], row["attempts"], row["stop_reason"]) for row in listed] == [
            ("ended", 1, "done")
        ] * 9
        (everything, *_) = three.ctl("spend", "--json").json["scopes"]
        assert (everything["spent_usd"], everything["held_nanos"], everything["calls"]) == ("0.0027", 0, 9)
        store = open_store(url)
        try:
            assert len({run.worker_id for run in store.ended_runs("")}) > 1
        finally:
            store.close()


def test_a_run_of_one_state_is_killed_from_another_that_shares_its_database(postgres: Server) -> None:
    with postgres.database() as url, stand() as one, stand() as two:
        for place in (one, two):
            configure(place, f'[store]\nurl = "{url}"\n')
        process = one.spawn(
            "run", "--ticket", "T-far", "--profile", "offline", "--", PYTHON, "-c", SLEEP, one.marker
        )
        until(lambda: [row for row in two.ctl("ps", "--json").json if row["state"] == "running"])
        done = two.ctl("kill", "T-far", "--json")
        assert done.code == 0 and done.json[0]["dead"], (done.out, done.err)
        process.wait(30)
        assert one.survivors() == []


def test_a_run_of_another_host_is_killed_through_the_database(postgres: Server) -> None:
    """The other host is a host name of its own (uts_namespaces(7)); its socket is not reached from here."""
    with postgres.database() as url, stand() as one, stand() as two:
        for place in (one, two):
            configure(place, f'[store]\nurl = "{url}"\n')
        words = [
            CTL,
            "run",
            "--ticket",
            "T-far",
            "--profile",
            "offline",
            "--",
            PYTHON,
            "-c",
            SLEEP,
            one.marker,
        ]
        there = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$0" "$@"', *words]
        process = one.spawn_program(there)
        until(lambda: [row for row in two.ctl("ps", "--json").json if row["state"] == "running"])
        refused = two.ctl("stop", "T-far")
        assert refused.code == 2 and "runs on elsewhere" in refused.err
        assert two.ctl("kill", "--force", "T-far").code == 2
        done = two.ctl("kill", "T-far", "--json")
        assert done.code == 0 and done.json[0]["dead"], (done.out, done.err)
        process.wait(30)
        assert one.survivors() == []
        assert two.ctl("status", "T-far", "--json").json["by"] == "database_flag"
        (listed,) = two.ctl("tickets", "list", "--json").json
        assert listed["stop_requested"] is False


def test_a_host_that_is_gone_is_closed_by_another_when_its_lease_is_over(postgres: Server) -> None:
    with postgres.database() as url, stand() as one, stand() as two:
        for place in (one, two):
            configure(place, f'[store]\nurl = "{url}"\n[queue]\nlease = "3s"\n')
        one.ctl("tickets", "add", "T-far")
        words = [CTL, "work", "--profile", "offline", "--", PYTHON, "-c", SLEEP, one.marker]
        there = ["unshare", "--uts", "sh", "-c", 'hostname elsewhere; exec "$0" "$@"', *words]
        process = one.spawn_program(there)
        until(lambda: [row for row in two.ctl("ps", "--json").json if row["state"] == "running"])
        process.kill()
        process.wait()
        two.serve()
        until(lambda: two.ctl("status", "T-far", "--json").json["reason"] == "supervisor_lost")
        until(lambda: two.ctl("tickets", "list", "--json").json[0]["state"] == "needs_review")


def test_the_commands_of_the_queue_say_what_is_wrong(place: Stand) -> None:
    assert place.ctl("tickets", "add", "../x").code == 2
    assert place.ctl("work", "--profile", "offline").code == 2
    assert place.ctl("work", "--profile", "nightly", "--", "true").code == 2
    assert place.ctl("tickets", "list", "--state", "closed").code == 2
    assert "work" in place.ctl("tickets", "add", "A").out
    assert CTL.endswith("supervisorctl")


def test_a_worker_ends_when_told_though_the_database_became_unusable(place: Stand) -> None:
    """What cannot be written is not waited for: run and worker end, and the next command says why."""
    place.ctl("tickets", "add", "A")
    process = place.spawn("work", "--profile", "offline", "--", PYTHON, "-c", SLEEP, place.marker)
    until(lambda: place.row("A") is not None)
    place.wait_for_line("A", "UP")
    with sqlite3.connect(place.paths.database) as database:
        database.execute("ALTER TABLE charges RENAME COLUMN tokens TO gone")
    database.close()
    killed = place.ctl("kill", "A")
    assert (killed.code, place.survivors()) == (0, [])
    process.terminate()
    assert process.wait(20) == 0
    after = place.ctl("tickets", "list")
    assert (after.code, "Traceback" in after.err) == (6, False)
    assert "is damaged: no such column: tokens" in after.err and "hint: move it away" in after.err


def test_a_workers_runs_end_when_told_while_another_program_holds_the_database(place: Stand) -> None:
    place.ctl("tickets", "add", "A")
    process = place.spawn("work", "--profile", "offline", "--", PYTHON, "-c", SLEEP, place.marker)
    until(lambda: place.row("A") is not None)
    place.wait_for_line("A", "UP")
    holder = sqlite3.connect(place.paths.database, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    process.terminate()
    assert process.stderr is not None
    assert "waiting for 1 run" in process.stderr.readline()
    process.terminate()
    until(lambda: place.survivors() == [])
    holder.execute("ROLLBACK")
    holder.close()
    process.wait(60)
    assert work(place).code == 0
    assert place.ended("A").reason in (StopReason.KILLED, StopReason.SUPERVISOR_LOST)


def test_a_worker_whose_reader_has_gone_runs_what_it_claims(place: Stand) -> None:
    for key in "AB":
        place.ctl("tickets", "add", key)
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = ("work", "--until-empty", "--profile", "offline", "--", "true")
    process = place.spawn(*words, stdout=write_end)
    os.close(write_end)
    process.wait(60)
    assert {key: ticket(place, key).stop_reason for key in "AB"} == {"A": "done", "B": "done"}


def test_what_a_worker_left_is_removed_by_its_name_and_not_by_what_a_row_says(place: Stand) -> None:
    place.ctl("run", "--profile", "offline", "--", "true")
    kept = [place.folder / name for name in ("kept.sock", "kept.lock")]
    for path in kept:
        path.write_text("text")
    with place.store() as store:
        store.add_worker(
            Worker(
                worker_id="forged",
                host=socket.gethostname(),
                boot_id="b",
                pid=1,
                kind="foreground",
                socket=str(kept[0]),
                lock_path=str(kept[1]),
                started_at="2026-01-01T00:00:00.000Z",
                lease_until="2026-01-01T00:00:00.000Z",
            )
        )
    assert place.ctl("run", "--profile", "offline", "--", "true").code == 0
    with place.store() as store:
        assert store.workers() == []
    assert [path.read_text() for path in kept] == ["text", "text"]


def test_a_worker_claims_no_more_after_so_many_failures_in_a_row(place: Stand) -> None:
    for key in "ABCDEF":
        place.ctl("tickets", "add", key)
    argv = ("sh", "-c", "case {ticket} in B) exit 0;; esac; echo {branch}; exit 3")
    done = work(place, "--stop-after-failures", "2", argv=argv)
    assert "claiming no more: 2 runs in a row were not done" in done.err
    assert "{branch} in the command stays as it is" in done.err
    assert {key: ticket(place, key).state for key in "ABCDEF"} == {
        **dict.fromkeys("ABCD", "ended"),
        **dict.fromkeys("EF", "open"),
    }
