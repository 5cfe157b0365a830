import threading
import time

import pytest

from hyperribbon.application.explorer.jobs import Jobs
from hyperribbon.core import ArgumentError


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
    jobs.get("me").stop.set()
    assert wait(job).message.startswith("Stopped")
    assert job.result["count"] >= 0


def test_starting_again_stops_the_earlier_one():
    jobs = Jobs()
    first = jobs.start("me", endless)
    second = jobs.start("me", endless)
    wait(first)
    assert not second.finished
    jobs.get("me").stop.set()
    wait(second)


def test_only_so_many_run_at_once_and_the_others_wait():
    jobs, gate = Jobs(at_once=1, waiting=2), threading.Event()
    job = jobs.start("me", lambda report: gate.wait(20))
    waiting = jobs.start("you", lambda report: 7)
    time.sleep(0.05)
    assert waiting.message.startswith("Waiting") and waiting.result is None
    with pytest.raises(ArgumentError, match="too many"):
        jobs.start("they", endless)
    gate.set()
    wait(job)
    assert wait(waiting).result == 7


def test_a_job_that_nobody_polls_is_stopped_and_forgotten():
    jobs = Jobs(waiting=1)
    forgotten = jobs.start("forgotten", endless)
    forgotten.polled -= 1000
    late = jobs.start("late", lambda report: 2)
    assert wait(late).result == 2
    assert wait(forgotten).message.startswith("Stopped")
    assert jobs.get("forgotten") is None


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError(), ZeroDivisionError()])
def test_a_job_that_breaks_gives_its_room_back(error):
    def fail(report):
        raise error

    jobs = Jobs(at_once=1)
    assert "failed" in wait(jobs.start("bad", fail)).message
    assert wait(jobs.start("good", lambda report: 3)).result == 3


def test_a_job_that_takes_too_long_is_stopped():
    jobs = Jobs(at_once=1, seconds=0.05)
    long = jobs.start("long", endless)
    assert wait(jobs.start("good", lambda report: 3)).result == 3
    assert long.message.startswith("Stopped") and long.result["count"] > 0


def test_a_job_stopped_while_it_waits_never_begins():
    jobs, gate = Jobs(at_once=1), threading.Event()
    first = jobs.start("first", lambda report: gate.wait(20))
    second = jobs.start("second", lambda report: 1)
    jobs.get("second").stop.set()
    gate.set()
    wait(first)
    assert wait(second).result is None


def test_an_error_becomes_a_message():
    def fail(report):
        raise ArgumentError("lr", 9, "it diverges", "Lower it.")

    assert "it diverges" in wait(Jobs().start("me", fail)).message
