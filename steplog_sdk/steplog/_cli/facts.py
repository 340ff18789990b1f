"""What the commands say of a run and its steps, as plain JSON values.

The text and the JSON of a command are two forms of these, so they cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from steplog._cli.waits import Heard, waiting_facts
from steplog._kernel.fold import DENIED, DONE, FAILED, FINISHED, INDETERMINATE, PENDING, RUNNING, RunState, StepState

IN_DOUBT: Final = "in doubt"
INTERRUPTED: Final = "interrupted"
GIVEN_UP: Final = "given up"
LOST: Final = "not returnable"
WAITING: Final = "waiting"
CANCELLED: Final = "cancelled"
TO_REPEAT: Final = "to repeat"
TO_TAKE_UP: Final = "to take up"

REFUSED_OR_FAILED: Final = frozenset({FAILED, DENIED})

REFUSED: Final = 400
"""The first status of HTTP that is an error."""


def run_facts(state: RunState, holder: dict[str, Any] | None, inbox: Heard | None = None) -> dict[str, Any]:
    """The facts of a run.

    Args:
        state: the folded log.
        holder: who holds the run now, or None where nobody does.
        inbox: what others have said to it; None where that is not asked.
    """
    live = holder is not None
    status = INTERRUPTED if state.status == RUNNING and not live else state.status
    ended = state.ended or {}
    return {
        "run": state.run_id,
        "status": status,
        "reason": state.reason,
        "fork": _fork(state),
        "goal": state.created.get("goal"),
        "workflow": state.created.get("workflow"),
        "version": state.created.get("version"),
        "version_now": (state.claim or {}).get("version"),
        "call": _call(state),
        "trigger": state.created.get("trigger"),
        "durability": (state.claim or {}).get("durability") or state.created.get("durability"),
        "entry": state.created.get("entry"),
        "python": state.created.get("python"),
        "packages": state.created.get("packages"),
        "epochs": state.epoch,
        "events": state.seq + 1,
        "started": state.first_ts,
        "last": state.last_ts,
        "seconds": None if (seconds := _seconds(state, live=live)) is None else seconds.active,
        "stopped_seconds": None if seconds is None else seconds.stopped,
        "steps": step_counts(state, live=live),
        "tokens": _tokens(state.steps.values()),
        "budget": _budget(state),
        "error": ended.get("error"),
        "message": ended.get("message"),
        "holder": holder,
        **waiting_facts(state, inbox or Heard()),
    }


def _call(state: RunState) -> dict[str, Any] | None:
    """The call of a workflow that a run is, or None: module, name and encoded arguments."""
    call = state.created.get("call")
    return {name: call.get(name) for name in ("module", "name", "args")} if isinstance(call, dict) else None


def _budget(state: RunState) -> dict[str, Any] | None:
    """The limits of a run and what is used of them, or None where it has no budget."""
    known = None if state.controls is None else state.controls.budget
    if known is None:
        return None
    return {
        "limits": known.budget.limits(),
        "set_by_operator": sorted(known.operator),
        "used": known.usage.facts(),
        "stalls": known.stalls,
        "prices": known.prices or None,
    }


USED: Final = {
    "max_steps": "steps",
    "max_model_calls": "model_calls",
    "max_tool_calls": "tool_calls",
    "max_tokens": "tokens",
    "max_cost": "usd",
    "deadline": "active_seconds",
}
"""By limit, what counts against it."""


def budget_words(budget: dict[str, Any] | None) -> str:
    """What is used of each limit, as `3 of 20 steps, $0.02 of $1`; "" where there is no budget."""
    if not budget:
        return ""
    said = []
    for limit, allowed in budget["limits"].items():
        name = limit.removeprefix("max_").replace("_", " ")
        used = budget["stalls"] if limit == "max_stalls" else budget["used"].get(USED.get(limit, ""))
        if limit == "max_cost":
            said.append(f"${used} of ${allowed}")
        elif limit == "deadline":
            said.append(f"{span(used * 1000)} of {span(allowed * 1000)} at work")
        else:
            said.append(f"at most {allowed} equal calls" if used is None else f"{used:,} of {allowed:,} {name}")
    by = f" (set by hand: {', '.join(budget['set_by_operator'])})" if budget["set_by_operator"] else ""
    return ", ".join(said) + by


def _fork(state: RunState) -> dict[str, Any] | None:
    """Of which run it is a fork, and from where on, or None."""
    fork = state.created.get("fork")
    if not isinstance(fork, dict):
        return None
    names = ("run", "at", "number", "within", "steps", "live_tools", "set")
    return {name: fork[name] for name in names if name in fork}


def fork_words(fork: dict[str, Any] | None) -> str:
    """Of which run a run is a fork, in a few words; "" where it is none."""
    if not fork:
        return ""
    if not fork.get("run"):
        return f"inside the fork {fork.get('within')}"
    return f"fork of {fork['run']} at " + (f"#{fork['number']}" if fork.get("number") else "its end")


class _Seconds(NamedTuple):
    """How long a run was at work, and how long it stood still in between."""

    active: float
    stopped: float


def _seconds(state: RunState, *, live: bool) -> _Seconds | None:
    start, end = parse_time(state.first_ts), datetime.now(UTC) if live else parse_time(state.last_ts)
    if state.closed_ts:
        # What came behind it were replays.
        end = parse_time(state.closed_ts)
    if start is None or end is None:
        return None
    stopped = sum((_between(*pause) for pause in state.pauses), 0.0)
    # The wall clock may have been set back in between.
    return _Seconds(max(0.0, round((end - start).total_seconds() - stopped, 3)), round(stopped, 3))


def _between(before: str, after: str) -> float:
    start, end = parse_time(before), parse_time(after)
    return 0.0 if start is None or end is None else max(0.0, (end - start).total_seconds())


def parse_time(text: str) -> datetime | None:
    """The time that a log line states, or None where it states none; times only inform, so a bad one is no fault."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def step_counts(state: RunState, *, live: bool) -> dict[str, int]:
    """How many steps there are, and how many of each status."""
    counts = Counter(status_in(state, step, live=live) for step in state.steps.values())
    return {"total": len(state.steps), "done": counts.pop(DONE, 0), **dict(sorted(counts.items()))}


def _tokens(steps: Iterable[StepState]) -> dict[str, int] | None:
    totals: Counter[str] = Counter()
    for step in steps:
        for name, count in ((step.finished or {}).get("usage") or {}).items():
            if isinstance(count, int):
                totals[name] += count
    return dict(totals) or None


def step_status(step: StepState, *, live: bool) -> str:
    """The status of a step as a person reads it.

    A step that the log leaves running while nobody holds the run is an orphan already, although the next writer has
    not said so yet.
    """
    if step.given_up is not None:
        return GIVEN_UP
    if step.job is not None and (step.orphan or (step.status == RUNNING and not live)):
        return TO_TAKE_UP
    if step.status == INDETERMINATE or (step.status == RUNNING and not live and step.mode == "unsafe"):
        return IN_DOUBT
    if (step.status == RUNNING and not live) or (step.status == PENDING and step.orphan):
        return TO_REPEAT
    if step.status in FINISHED and step.lost and step.mode != "safe":
        return LOST
    return step.status


def status_in(state: RunState, step: StepState, *, live: bool) -> str:
    """The same where its run says more: it is a wait, or was cancelled."""
    controls = state.controls
    if controls is not None and step.status not in FINISHED and step.given_up is None:
        if controls.cancel is not None and step.id in controls.cancel["delivered"]:
            return CANCELLED
        if step.id in controls.waits and not state.completed_once:
            return WAITING
    return step_status(step, live=live)


def step_facts(step: StepState, *, live: bool) -> dict[str, Any]:
    """The facts of a step that fit on a line."""
    finished = step.finished or {}
    return {
        "step": step.id,
        "parent": step.scope or None,
        "after": step.after,
        "kind": step.kind,
        "target": step.target,
        "status": step_status(step, live=live),
        "mode": step.mode,
        "attempt": step.attempt,
        "job": step.job,
        "ms": finished.get("ms"),
        "usage": finished.get("usage"),
        "error": finished.get("error") or why_failed(step) if step.status in REFUSED_OR_FAILED else None,
        "settled": finished.get("how"),
        "rule": rule_of(step),
        "started": step.started_ts,
        "finished": step.finished_ts,
    }


def rule_of(step: StepState) -> str | None:
    """The rule that denied a step, holds it, or let it begin; None where nobody was asked."""
    said = step.finished if step.status == DENIED else step.started
    judged = step.started.get("judged") or {}
    return (said or {}).get("rule") or (judged.get("policy") or {}).get("rule") or None


def failures(finished: dict[str, Any]) -> list[dict[str, str]]:
    """The errors that an outcome holds, as class and message: its own, and those of its exchanges, newest first."""
    exchanges = finished.get("exchanges")
    own = [finished.get("error"), *(one.get("error") for one in reversed(exchanges or ()) if isinstance(one, dict))]
    return [
        {"type": str(one.get("type") or one.get("class") or "error"), "message": str(one.get("message") or "")}
        for one in own
        if isinstance(one, dict)
    ]


def why_failed(step: StepState) -> dict[str, str] | None:
    """Why a step failed, as class and message: the recorded error, else the status that the server answered with."""
    finished = step.finished or {}
    if step.status not in REFUSED_OR_FAILED:
        return None
    found = failures(finished)
    if found:
        return found[0]
    status = finished.get("status")
    if not isinstance(status, int) or status < REFUSED:
        return None
    exchanges = [one for one in finished.get("exchanges") or () if isinstance(one, dict)]
    reason = str(exchanges[-1].get("reason") or "") if exchanges else ""
    return {"type": f"status {status}", "message": reason}


def number(count: float | None) -> str:
    """A count with thousands separated, or nothing."""
    return "" if count is None else f"{count:,}"


def span(milliseconds: float | None) -> str:
    """A duration as a person says it."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 1 else f"{milliseconds:.1f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def tokens(usage: dict[str, Any] | None) -> str:
    """Input and output tokens as `1,204 in, 88 out`."""
    if not usage:
        return ""
    parts = [f"{number(usage[key])} {word}" for key, word in (("input", "in"), ("output", "out")) if key in usage]
    return ", ".join(parts)
