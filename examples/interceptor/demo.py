"""An agent that plans an evening with the acme SDK is killed, loses the network, and carries on.

python examples/interceptor/demo.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

import acme
from steplog_acme import interceptor

import steplog
from steplog.testing import LocalProvider, Reply
from steplog.testing.provider import Hit


def service(hit: Hit) -> Reply:
    city = hit.json["city"]
    if hit.path == "/report":
        return Reply.lines(f"{city}: a mild evening", "wind from the west", "no rain", "END")
    return Reply.json({"city": city, "degrees": 21.5} if hit.path == "/forecast" else {"reference": f"{city}-1"})


def agent(url: str, *, killed: bool) -> None:
    steplog.install()
    interceptor.install()  # where steplog-acme is installed with pip, the line above has found it
    with steplog.run("evening") as run:
        client = acme.Client(url, key="a key that stays off the disk")
        print(client.forecast("Lisbon"))
        print(*client.report("Lisbon"), sep="; ")
        print(client.book("Lisbon"))
        if killed:
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"{run.executed} calls made, {run.replayed} returned from the log")


def main() -> None:
    with tempfile.TemporaryDirectory() as home, LocalProvider(handler=service) as provider:
        command = [sys.executable, __file__, provider.url]
        variables = {**os.environ, "STEPLOG_HOME": home}
        print("-- the agent is killed")
        subprocess.run([*command, "killed"], env=variables, check=False)
        requests = len(provider.hits)
        provider.close()
        print("-- the network is gone; the agent is started again", flush=True)
        subprocess.run(command, env=variables, check=True)
        print(f"-- {requests} requests in all")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        agent(sys.argv[1], killed="killed" in sys.argv)
    else:
        main()
