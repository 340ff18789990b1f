"""What golden logs of control are made of: a policy with a budget, a wait that is cancelled, a run that is undone.

`python -m tests.golden.record control-NAME` records it. As with `program.py`, the copy beside the log is what
replays it from then on, and is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

import steplog

executed: list[str] = []
"""Every execution of a tool; a replay has none."""
LONG = "All work and no play makes a dull agent. " * 300
RULES = [
    steplog.Rule(id="no-drops", action="deny", target="drop", reason="Nothing is dropped."),
    steplog.Rule(id="ask", action="require_approval", target="refund", reason="A person looks at refunds."),
    steplog.Rule(id="slowly", action="rate_limit", target="send", rate="100/1s"),
]


# tools ----------------------------------------------------------------------------------------------------------------


@steplog.step(mode="safe", name="read")
def read(what: str) -> str:
    executed.append(f"read {what}")
    return what


@steplog.step(name="send")
def send(what: str) -> str:
    executed.append(f"send {what}")
    return what


@steplog.step(name="drop")
def drop(what: str) -> str:
    executed.append(f"drop {what}")
    return what


@steplog.step(mode="keyed", name="refund")
def refund(cents: int, *, idempotency_key: str) -> list[Any]:
    executed.append(f"refund {cents}")
    return [cents, idempotency_key]


@steplog.step(mode="safe", name="cancel_order")
def cancel_order(result: str, order: str) -> None:
    executed.append(f"cancel {order} {result}")


@steplog.step(name="place_order", undo=cancel_order)
def place_order(order: str) -> str:
    executed.append(f"place {order}")
    return f"o_{order}"


# runs -----------------------------------------------------------------------------------------------------------------


def ask(url: str) -> str | None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as gpt:
        asked: list[Any] = [{"role": "user", "content": "refund?"}]
        answer = gpt.chat.completions.create(model="gpt-x", messages=asked, max_completion_tokens=100)
    return answer.choices[0].message.content


def judged(url: str) -> list[Any]:
    budget = steplog.Budget(max_steps=20, max_tool_calls=9, max_tokens=50_000, max_repeat=2, max_stalls=5, deadline=600)
    with steplog.run("judged", goal="refund two orders", policy=RULES, budget=budget) as run:
        found: list[Any] = [len(read(LONG)), send("hello"), ask(url)]
        run.progress("read")
        for call in (lambda: drop("table"), lambda: refund(100), lambda: refund(90_000)):
            try:
                found.append(call())
            except steplog.StepDenied as error:
                found.append([type(error).__name__, str(error)])
        return found


def cancelled(_: str) -> list[Any]:
    with steplog.run("cancelled", goal="wait for a word", on_wait="suspend") as run:
        word = run.wait("go")
        found = [send(f"go with {word}")]
        try:
            found.append(run.wait("never"))
        finally:
            send("cleanup")
        return found


def undone(_: str) -> list[Any]:
    with steplog.run("undone", goal="place two orders"):
        return [place_order("tea"), send("thanks"), place_order("cup")]


def undoing(_: str) -> list[Any]:
    """The undoing is a run of its own; the second time there is nothing left to undo."""
    done = steplog.undo("undone", by="ada")
    return [len(done.undone), len(done.left)]


RUNS: dict[str, Callable[[str], list[Any]]] = {
    "judged": judged,
    "cancelled": cancelled,
    "undone": undone,
    "undone.undo": undoing,
}


def say(name: str, url: str) -> Any:
    """Play a run; give what it has learnt, or why it stopped."""
    executed.clear()
    try:
        return RUNS[name](url)
    except steplog.RunStopped as stopped:
        return {"stopped": stopped.reason, "step": stopped.step}


# recording ------------------------------------------------------------------------------------------------------------


def record(home: Path, url: str, _: Callable[[Callable[[], Any]], None]) -> dict[str, Any]:
    """Record every run, with the decisions, signals and cancellation that they need on the way."""
    steplog.install(home=home)
    steplog.approve("judged", say("judged", url)["step"], by="ada", note="looked at")
    steplog.reject("judged", say("judged", url)["step"], by="ada", note="too much")
    say("cancelled", url)
    steplog.signal("cancelled", "go", {"amount": 40}, by="ada", note="seen")
    say("cancelled", url)
    steplog.cancel("cancelled", by="ada", note="withdrawn")
    for name in RUNS:
        say(name, url)
    return {name: say(name, url) for name in RUNS}
