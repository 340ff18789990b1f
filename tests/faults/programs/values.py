"""Ask for a step with each odd value, as its argument and as its result; with `die`, be killed when all are recorded.

python -m tests.faults.programs.values [die] [large]
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

import steplog
from steplog.errors import EncodeError
from tests.kernel.strategies import same
from tests.kernel.test_codec import ODD, REFUSED, nested


def note(word: str) -> None:
    """Have an effect."""
    with open("ledger", "a") as ledger:
        ledger.write(word + "\n")


@steplog.step
def echo(name: str, value: Any) -> Any:
    """Return the argument itself."""
    note(name)
    return value


def _list(inner: Any) -> list[Any]:
    return [inner]


def _cycle() -> list[Any]:
    found: list[Any] = [1]
    found.append({"back": found})
    return found


# A hundred levels, of which the arguments of a call are one.
ACCEPTED = {**ODD, "a depth of 98": nested(98, _list), "a depth of 99": nested(99, _list)}
TOO_MUCH: dict[str, Callable[[], Any]] = {
    "a depth of 100": lambda: nested(100, _list),
    "a depth of 101": lambda: nested(101, _list),
    "a depth of 100,000": lambda: nested(100_000, _list),
    "a cycle": _cycle,
}


def play(*, large: bool) -> None:
    """Ask for every value, in one run."""
    accepted = {**ACCEPTED, "100 MB": "x" * 100_000_000} if large else ACCEPTED
    with steplog.run("values") as run:
        for name, value in accepted.items():
            assert same(echo(name, value), value), name
        before = run.executed
        for name, (value, path, _) in REFUSED.items():
            refuse(name, value, path.replace("result", "echo(value)", 1))
        for name, make in TOO_MUCH.items():
            refuse(name, make(), "echo(value)")
        assert run.executed == before
        print(run.replayed, run.executed, flush=True)
        if "die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)


def refuse(name: str, value: Any, path: str) -> None:
    """See that a step with this argument is refused by one typed error, with the path to what is wrong."""
    with pytest.raises(EncodeError) as refused:
        echo(name, value)
    assert refused.value.path.startswith(path), (name, refused.value.path)


if __name__ == "__main__":
    steplog.install(interceptors=[])
    play(large="large" in sys.argv)
