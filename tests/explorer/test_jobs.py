import threading
import time

import pytest

from hyperribbon.core import ArgumentError
from hyperribbon.explorer.jobs import Jobs


def wait(job):
    deadline = time.monotonic() + 20
    while not job.finished:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return job


def endless(report):
    count = 0
    while report(min(count / 1000, 0.9), {"count": count}):
        count += 1
        time.sleep(0.001)
    return {"count": count}


def test_a_job_reports_and_ends():
    job = wait(Jobs().start("me", lambda report: report(0.5, 1) and 7, {"x": 1}))
    assert (job.result, job.message, job.settings) == (7, "", {"x": 1})


def test_a_stopped_job_keeps_what_it_found():
    jobs = Jobs()
    job = jobs.start("me", endless)
    while job.result is None:
        time.sleep(0.001)
    jobs.stop("me")
    assert wait(job).message.startswith("Stopped")
    assert job.result["count"] >= 0


def test_starting_again_stops_the_earlier_one():
    jobs = Jobs()
    first = jobs.start("me", endless)
    second = jobs.start("me", endless)
    wait(first)
    assert not second.finished
    jobs.stop("me")
    wait(second)


def test_only_so_many_run_at_once_and_the_others_wait():
    jobs, gate = Jobs(at_once=1, waiting=1), threading.Event()
    job = jobs.start("me", lambda report: gate.wait(20))
    waiting = jobs.start("you", lambda report: 7)
    assert waiting.message.startswith("Waiting")
    with pytest.raises(ArgumentError, match="as many as allowed"):
        jobs.start("they", endless)
    gate.set()
    wait(job)
    assert wait(waiting).result == 7


def test_a_job_that_nobody_asks_about_makes_room():
    jobs, gate = Jobs(at_once=1, waiting=1), threading.Event()
    first = jobs.start("first", lambda report: gate.wait(20))
    forgotten = jobs.start("forgotten", lambda report: 1)
    forgotten.touched -= 60
    late = jobs.start("late", lambda report: 2)
    gate.set()
    wait(first)
    assert wait(late).result == 2
    assert forgotten.finished and forgotten.result is None


def test_users_take_turns():
    jobs, gate, order = Jobs(at_once=1), threading.Event(), []
    first = jobs.start("first", lambda report: gate.wait(20))
    greedy = [
        jobs.start(f"greedy{i}", lambda report, i=i: order.append(f"greedy{i}"), user="greedy")
        for i in range(4)
    ]
    modest = jobs.start("modest", lambda report: order.append("modest"), user="modest")
    gate.set()
    for job in (first, *greedy, modest):
        wait(job)
    assert order.index("modest") <= 1


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError(), ZeroDivisionError()])
def test_a_job_that_breaks_gives_its_room_back(error):
    def fail(report):
        raise error

    jobs = Jobs(at_once=1)
    assert "failed" in wait(jobs.start("bad", fail)).message
    assert wait(jobs.start("good", lambda report: 3)).result == 3


def test_a_job_that_does_not_listen_loses_its_room():
    jobs, gate = Jobs(at_once=1, seconds=0.05), threading.Event()
    deaf = jobs.start("deaf", lambda report: gate.wait(20))
    good = jobs.start("good", lambda report: 3)
    deadline = time.monotonic() + 20
    while not good.finished:
        assert time.monotonic() < deadline
        jobs.get("good")
        time.sleep(0.01)
    assert good.result == 3
    gate.set()
    wait(deaf)


def test_a_job_stopped_while_it_waits_never_begins():
    jobs, gate = Jobs(at_once=1), threading.Event()
    first = jobs.start("first", lambda report: gate.wait(20))
    second = jobs.start("second", lambda report: 1)
    jobs.stop("second")
    gate.set()
    wait(first)
    assert wait(second).result is None


def test_an_error_becomes_a_message():
    def fail(report):
        raise ArgumentError("lr", 9, "it diverges", "Lower it.")

    assert "it diverges" in wait(Jobs().start("me", fail)).message
