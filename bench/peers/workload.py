"""What every system under comparison does: so many steps of 1 KB in, 1 KB out, recorded, killed, resumed.

A system is a module beside this one, run in a process of its own as `python NAME.py record|resume FOLDER STEPS`. The
recording process is killed behind its last step, before the workflow returns; the resuming one has to give all
results again without running a body. Each prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

PAYLOAD = {"text": "x" * 930, "number": 1, "flag": True, "items": ["a", "b"]}


class Order(NamedTuple):
    """What the command line asks for."""

    resume: bool
    folder: Path
    steps: int

    @classmethod
    def read(cls) -> Order:
        """Parse `record|resume FOLDER STEPS`."""
        verb, folder, steps = sys.argv[1:4]
        return cls(verb == "resume", Path(folder), int(steps))


class Bodies:
    """Counts how many step bodies ran in this process."""

    ran = 0


def body(number: int, payload: dict[str, Any]) -> dict[str, Any]:
    """The step's own work, the same for every system."""
    Bodies.ran += 1
    return {**payload, "number": number}


@contextmanager
def measured(order: Order) -> Iterator[None]:
    """Print the time per step of the block; when recording, die behind it without any clean-up."""
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    sys.stdout.write(json.dumps({"us": seconds / order.steps * 1e6, "ran": Bodies.ran}) + "\n")
    sys.stdout.flush()
    if not order.resume:
        os.kill(os.getpid(), signal.SIGKILL)


def each(order: Order, call: Callable[[int, dict[str, Any]], dict[str, Any]]) -> None:
    """Call a step so many times, measured, and check what it returns."""
    with measured(order):
        for number in range(order.steps):
            found = call(number, PAYLOAD)
            assert found["number"] == number, found
