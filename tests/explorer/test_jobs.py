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


def test_only_so_many_run_at_once():
    jobs, gate = Jobs(at_once=1), threading.Event()
    job = jobs.start("me", lambda report: gate.wait(20))
    with pytest.raises(ArgumentError, match="as many as allowed"):
        jobs.start("you", endless)
    gate.set()
    wait(job)
    wait(jobs.start("you", lambda report: 1))


def test_an_error_becomes_a_message():
    def fail(report):
        raise ArgumentError("lr", 9, "it diverges", "Lower it.")

    assert "it diverges" in wait(Jobs().start("me", fail)).message
