"""A run that waits is killed; signals are neither lost nor given twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import steplog
from steplog._kernel.fold import fold
from steplog._kernel.inbox import parse
from steplog.stores.files import FileStore
from tests.support.processes import environment

PROGRAM = """
import json
import steplog
steplog.install(home="home", interceptors=[])

@steplog.step
def note(text):
    with open("effects", "a") as file:
        file.write(text + "\\n")

with steplog.run("r") as run:
    note("begun")
    print("ready", flush=True)
    got = [run.wait("go", timeout=30) for _ in range(6)]
    note("got " + json.dumps(got))
"""


def test_signals_that_are_sent_while_a_run_is_killed_again_and_again_come_once_and_in_order(tmp_path):
    (tmp_path / "agent.py").write_text(PROGRAM)
    store = FileStore(str(tmp_path / "home"))

    def start():
        process = subprocess.Popen(
            [sys.executable, "agent.py"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        return process

    sent = iter(range(6))
    for _ in range(3):
        process = start()
        for _ in range(2):
            steplog.signal("r", "go", next(sent), store=store)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    process = start()
    process.communicate(timeout=60)

    assert process.returncode == 0
    assert (tmp_path / "effects").read_text().splitlines() == ["begun", f"got {json.dumps(list(range(6)))}"]
    events = store.read("r").events
    taken = [event.data["message"] for event in events if event.type == "signal.received"]
    assert taken == [message.id for message in parse(store.inbox("r").read()).messages]
    assert fold(events).status == "completed"
