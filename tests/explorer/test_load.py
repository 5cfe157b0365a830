"""Thirty people move sliders at once for a minute: no error, memory flat."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from hyperribbon.explorer.app import create_app

USERS = 30
SECONDS = 60


def resident_megabytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def request_body(app, positions):
    (key,) = [k for k in app.callback_map if k.startswith("..ribbons-spectrum.figure")]
    inputs = [dict(i) for i in app.callback_map[key]["inputs"]]
    for entry in inputs:
        name = entry["id"].removeprefix("ribbons-")
        entry["value"] = positions.get(name)
    outputs = [
        {"id": part.split(".")[0], "property": part.split(".")[1]}
        for part in key.strip(".").split("...")
    ]
    changed = ["ribbons-c.value"]
    return json.dumps(
        {"output": key, "outputs": outputs, "inputs": inputs, "changedPropIds": changed}
    ).encode()


@pytest.mark.slow
def test_thirty_people_at_once(tmp_path):
    app = create_app(tmp_path)
    command = [sys.executable, "-m", "hyperribbon", "explore", str(tmp_path), "--port", "0",
               "--no-browser"]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split("at ")[1].split()[0]
    problems, times, memory = [], [], []
    end = time.monotonic() + SECONDS

    def person(seed):
        rng = np.random.default_rng(seed)
        while time.monotonic() < end:
            positions = {"n": 50, "c": round(rng.uniform(0.05, 1.4), 2), "T": rng.uniform(0, 5),
                         "ratio": round(rng.uniform(-0.5, 1.2), 1), "alpha": 1.0, "b": 0,
                         "decay": 0.0}  # fmt: skip
            request = urllib.request.Request(
                f"{address}/_dash-update-component",
                request_body(app, positions),
                {"Content-Type": "application/json"},
            )
            started = time.monotonic()
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    content = json.load(answer)
                    if "ribbons-spectrum" not in content["response"]:
                        problems.append("no figure")
            except Exception as error:
                problems.append(str(error))
            times.append(time.monotonic() - started)
            time.sleep(0.2)

    people = [threading.Thread(target=person, args=(i,)) for i in range(USERS)]
    for thread in people:
        thread.start()
    while time.monotonic() < end:
        memory.append(resident_megabytes(server.pid))
        time.sleep(1)
    for thread in people:
        thread.join()
    server.terminate()
    server.wait(20)
    server.stdout.close()
    assert problems == []
    assert len(times) > 200
    middle, last = np.median(memory[15:30]), np.median(memory[-15:])
    assert last < middle + 40, f"memory grew from {middle:.0f} to {last:.0f} MB"
