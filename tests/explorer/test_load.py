"""Fifty users at once for a minute, hostile ones among them: no error for the others."""

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

USERS, HOSTILE = 40, 10
SECONDS = 60


def resident_megabytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Person:
    """Moves sliders, opens runs and now and then trains a network."""

    def __init__(self, seed, client, address, end):
        self.rng, self.client, self.end = np.random.default_rng(seed), client, end
        self.address, _, self.token = address.partition("/?token=")
        self.problems, self.times, self.done = [], [], 0
        cookies = urllib.request.HTTPCookieProcessor()  # a browser of his own
        self.browser = urllib.request.build_opener(cookies)

    def enter(self):
        with self.browser.open(f"{self.address}/?token={self.token}", timeout=60) as answer:
            answer.read()

    def ask(self, output, changed, values):
        body = json.dumps(self.client.body(output, changed, values)).encode()
        request = urllib.request.Request(
            f"{self.address}/_dash-update-component", body, {"Content-Type": "application/json"}
        )
        started = time.monotonic()
        with self.browser.open(request, timeout=60) as answer:
            content = json.load(answer)
        self.times.append(time.monotonic() - started)
        return content["response"]

    def live(self):
        self.enter()
        while time.monotonic() < self.end:
            try:
                self.move()
                if self.rng.random() < 0.05:
                    self.train()
                if self.rng.random() < 0.2:
                    shown = self.ask(
                        "runs-shown.children", "runs-run.value", {"runs-run.value": "good"}
                    )
                    if "A title" not in json.dumps(shown):
                        self.problems.append("the run is not shown")
            except Exception as error:
                self.problems.append(repr(error))
            time.sleep(0.2)

    def visitor(self):
        with self.browser.open(f"{self.address}/_dash-layout", timeout=60) as answer:
            return self.client.visitor_in(json.load(answer))

    def move(self):
        rng = self.rng
        values = {
            "n": 50,
            "c": round(rng.uniform(0.05, 1.4), 2),
            "T": rng.uniform(0, 5),
            "ratio": round(rng.uniform(-0.5, 1.2), 1),
            "alpha": 1.0,
            "b": 0,
            "decay": 0.0,
        }
        given = {f"ribbons-{name}.value": value for name, value in values.items()}
        shown = self.ask("ribbons-spectrum.figure", "ribbons-c.value", given)
        if not shown["ribbons-spectrum"]["figure"]["data"]:
            self.problems.append("no figure")

    def train(self):
        given = {"visitor.data": self.visitor(), "linear-depth.value": 1, "linear-d_in.value": 6}
        output = "linear-tick.disabled"
        self.ask(output, "linear-start.n_clicks", given)
        while time.monotonic() < self.end:
            status = self.ask(output, "linear-tick.n_intervals", given)["linear-status"]["children"]
            if status == "Done.":
                self.done += 1
                return
            if "%" not in status and not status.startswith(("Waiting", "Running")):
                self.problems.append(status)
                return
            time.sleep(0.3)


class Intruder(Person):
    """Asks for what no page asks for; whether it is refused does not matter to him."""

    def live(self):
        if self.rng.random() < 0.5:
            self.enter()  # one who has the token
        tricks = [self.garbage, self.huge_job, self.wrong_name, self.idle, self.large]
        while time.monotonic() < self.end:
            try:
                tricks[self.rng.integers(len(tricks))]()
            except (OSError, ValueError, KeyError):
                self.done += 1
            time.sleep(0.1)

    def send(self, body, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(
            f"{self.address}/_dash-update-component",
            body,
            {"Content-Type": "application/json", **named},
        )
        try:
            self.browser.open(request, timeout=30).read()
        except urllib.error.HTTPError as error:
            if error.code >= 500:
                self.problems.append(f"{error.code} for {body[:60]!r}")
            raise

    def garbage(self):
        self.send([b"", b"[" * 4000, b"{}", b'{"output": 1}', b"\xff"][self.rng.integers(5)])

    def huge_job(self):
        name = self.visitor() if self.rng.random() < 0.5 else f"{self.rng.integers(1 << 60):032x}"
        values = {
            "visitor.data": name,
            "linear-d_in.value": 1e12,
            "linear-depth.value": 1e9,
            "linear-width.value": [1],
        }
        self.ask("linear-tick.disabled", "linear-start.n_clicks", values)

    def wrong_name(self):
        self.send(b"{}", Host="evil.example", Origin="http://evil.example")

    def idle(self):
        host, port = self.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(b"POST /_dash-update-component HTTP/1.1\r\nContent-Length: 9\r\n")
            time.sleep(1)

    def large(self):
        values = {
            "ribbons-upload.contents": "data:;base64," + "A" * 2_000_000,
            "ribbons-upload.filename": "a.npy",
        }
        self.ask("ribbons-upload-message", "ribbons-upload.contents", values)


@pytest.mark.slow
def test_fifty_people_at_once_with_hostile_ones_among_them(tmp_path, client_of):
    good = '{"id": "a/b", "preset": "smoke", "title": "A title"}'
    for name, run in (("good", good), ("bad", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(run)
        (tmp_path / name / "claims.json").write_text("[]")
    command = [
        sys.executable,
        "-m",
        "hyperribbon",
        "explore",
        str(tmp_path),
        "--port",
        "0",
        "--no-browser",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split("at ")[1].split()[0]
    end, client = time.monotonic() + SECONDS, client_of(tmp_path)
    people = [Person(seed, client, address, end) for seed in range(USERS)]
    intruders = [Intruder(seed, client, address, end) for seed in range(100, 100 + HOSTILE)]
    threads = [threading.Thread(target=who.live) for who in (*people, *intruders)]
    memory = []
    try:
        for thread in threads:
            thread.start()
        while time.monotonic() < end:
            memory.append(resident_megabytes(server.pid))
            time.sleep(1)
        for thread in threads:
            thread.join()
    finally:
        server.terminate()
        server.wait(20)
        server.stdout.close()
    assert [problem for who in people for problem in who.problems] == []
    assert [problem for who in intruders for problem in who.problems] == []
    assert all(who.times for who in people)  # how often is a matter of the machine
    assert sum(who.done for who in people) > 0
    assert sum(who.done for who in intruders) > 20
    middle, last = np.median(memory[15:30]), np.median(memory[-15:])
    assert last < middle + 60, f"memory grew from {middle:.0f} to {last:.0f} MB"
