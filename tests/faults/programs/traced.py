"""A small agent without a model, which starts fast: it is run hundreds of times, and killed in each of its calls.

    python -m tests.faults.programs.traced FOLDER

Its log is below FOLDER/home. What its tools have done to the world stands in FOLDER/ledger, and what the agent has seen
of them in FOLDER/seen.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import steplog

RUN = "traced"
UNSAFE = ("pay rent", "mail north", "mail south")
folder = Path(*sys.argv[1:2])


def result_of(label: str) -> str:
    """What a tool returns; an operator who finds it in the ledger knows it too. The long one is kept as a body."""
    return f"{label}: ok" + "." * (9000 if label == "pay rent" else 0)


def note(file: str, line: str) -> None:
    """One unbuffered write: what a killed process has done is there, whole."""
    fd = os.open(folder / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def act(label: str, key: str = "") -> str:
    """Act on the world."""
    note("ledger", f"{label}\t{key}")
    return result_of(label)


def saw(label: str, result: str) -> str:
    """The agent has the result of a step in its hands."""
    note("seen", label)
    return result


@steplog.step
def pay(what: str) -> str:
    return act(f"pay {what}")


@steplog.step(mode="keyed")
def refund(what: str, *, idempotency_key: str) -> str:
    return act(f"refund {what}", idempotency_key)


@steplog.step
async def mail(where: str) -> str:
    return act(f"mail {where}")


async def both() -> list[str]:
    return list(await asyncio.gather(told("north"), told("south")))


async def told(where: str) -> str:
    return saw(f"mail {where}", await mail(where))


def agent() -> list[str]:
    """Everything once; returns all that was learnt."""
    drawn = saw("drawn", steplog.step("drawn", lambda: act("drawn") + os.urandom(4000).hex()))
    paid = saw("pay rent", pay("rent"))
    refunded = saw("refund rent", refund("rent"))
    return [drawn[:5], paid, refunded, *asyncio.run(both())]


def main() -> None:
    """Start or resume the run, and leave what it ended with in FOLDER/outcome."""
    steplog.install(home=folder / "home", interceptors=(), strict=True)
    try:
        with steplog.run(RUN):
            outcome = {"answer": agent()}
    except steplog.RunStopped as stopped:
        outcome = {"stopped": stopped.reason, "step": stopped.step, "message": str(stopped)}
    (folder / "outcome").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
