"""Which kind of failure the measures of a run show: a closed list, each kind with its signature and what stops it.

The kinds are those by which long-running agents are usually told apart: an unknown outcome, a repeated call, a loop
without progress, a context that grows, an end too early, an end half way, facts that were stale when they were used.
Several can be true of one run. They stand in the order in which a person has to deal with them: what may have happened
twice first.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from steplog._kernel.plans import still_open
from steplog._kernel.why import Analysis, Measures, Repeated, View

UNKNOWN_OUTCOME: Final = "unknown outcome"
STALE_FACTS: Final = "stale facts"
REPEATED_CALL: Final = "repeated call"
NO_PROGRESS: Final = "no progress"
CONTEXT_GROWTH: Final = "context growth"
PREMATURE_COMPLETION: Final = "premature completion"
PARTIAL_COMPLETION: Final = "partial completion"

CONTROLS: Final = {
    UNKNOWN_OUTCOME: "find out what happened and settle the step; let the tool take an idempotency key (mode keyed)",
    STALE_FACTS: "read again right before an effect when a run was resumed after a pause",
    REPEATED_CALL: "limit how often one call may be made; give the model the fact or error that it keeps asking for",
    NO_PROGRESS: "stop after a few calls that change nothing, and hand the task to a person",
    CONTEXT_GROWTH: "keep large results out of the prompt (a handle, an excerpt), and limit tokens",
    PREMATURE_COMPLETION: "accept a final answer only when no item of the plan is open",
    PARTIAL_COMPLETION: "raise the limit or hand over: what is done is done, a resumed run goes on from there",
}

# As often as this one call is a loop; in a run that did not end well, once less.
_OFTEN: Final = 3
_GROWN: Final = 8
_TOKENS: Final = 1_000
_STALE_SECONDS: Final = 600
_LIMIT: Final = re.compile(
    r"max[_ ]?(?:steps|turns|iterations|tokens|tool)|limit|budget|exceeded|too many|deadline|timed? ?out|timeout|"
    r"after \d+ (?:turns|steps|iterations|calls)|context[_ ]length|recursion",
    re.IGNORECASE,
)


class Ended(NamedTuple):
    """How a run ended.

    Attributes:
        status: as `steplog ls` shows it.
        reason: reason code, or None.
        error: class and message of what ended it, or "".
    """

    status: str
    reason: str | None
    error: str

    @property
    def well(self) -> bool:
        """Whether the program came to its own end."""
        return self.status == "completed"


class Finding(NamedTuple):
    """One kind of failure that a run shows.

    Attributes:
        row: which kind.
        text: what shows it, with numbers.
        steps: numbers of the steps that show it.
        control: what stops it.
    """

    row: str
    text: str
    steps: list[int]
    control: str


def findings(ended: Ended, analysis: Analysis) -> list[Finding]:
    """The kinds of failure that a run shows, the most urgent first; empty where it shows none."""
    measures = analysis.measures
    judged = (
        (UNKNOWN_OUTCOME, _unknown(measures)),
        (STALE_FACTS, _stale(measures)),
        (REPEATED_CALL, _repeated(ended, analysis.repeated())),
        (NO_PROGRESS, _stuck(ended, measures)),
        (CONTEXT_GROWTH, _growth(ended, measures)),
        (PREMATURE_COMPLETION, _premature(ended, measures)),
        (PARTIAL_COMPLETION, _partial(ended, measures)),
    )
    return [Finding(row, *found, CONTROLS[row]) for row, found in judged if found is not None]


_Shown = tuple[str, list[int]] | None


def _unknown(measures: Measures) -> _Shown:
    steps = [*measures.doubtful, *measures.maybe]
    if not steps:
        return None
    parts = [f"{_name(step)} began and no outcome is recorded" for step in measures.doubtful]
    parts += [f"{_name(step)} failed ({(step.error or ('', ''))[0]}) and may have happened" for step in measures.maybe]
    return _few(parts), [step.number for step in steps]


def _stale(measures: Measures) -> _Shown:
    if measures.stale is None:
        return None
    read, effect = measures.stale
    age = None if read.ended is None or effect.began is None else effect.began - read.ended
    if age is None or age < _STALE_SECONDS:
        return None
    text = (
        f"{_name(effect)} acted on what {_name(read)} had read {_span(age)} earlier: the run was resumed in between, "
        f"and the reading was returned from the log"
    )
    return text, [read.number, effect.number]


def _repeated(ended: Ended, calls: list[Repeated]) -> _Shown:
    least = _OFTEN if ended.well else _OFTEN - 1
    looping = [call for call in calls if call.same and call.wanted >= least]
    if not looping:
        return None
    call = looping[0]
    made = f"was made {call.made} times" if call.made else "was never made"
    asked = f" and asked for {call.proposed} times" if call.proposed > call.made else ""
    same = ", each time with the same result" if call.made > 1 else ""
    return f"{call.target}({_short(call.args)}) {made}{asked}{same}", call.numbers


def _stuck(ended: Ended, measures: Measures) -> _Shown:
    flat = measures.flat
    if len(flat) < _OFTEN or (ended.well and not all(step.error for step in flat)):
        # A search that finds nothing three times and goes on is a search.
        return None
    result = flat[-1].error[0] if flat[-1].error else _short(flat[-1].result)
    return f"{len(flat)} calls of {flat[0].target} with different arguments all gave {result}", [s.number for s in flat]


def _growth(ended: Ended, measures: Measures) -> _Shown:
    sizes = [size.tokens for size in measures.prompts]
    if len(sizes) < 3:
        return None
    limited = bool(_LIMIT.search(ended.error)) and re.search("token|context", ended.error, re.IGNORECASE) is not None
    largest = max(measures.prompts, key=lambda size: size.tokens)
    grown = largest.tokens / max(1, sizes[0])
    if not (grown >= _GROWN and largest.tokens >= _TOKENS) and not (limited and grown >= 2):
        return None
    role, characters, message = largest.largest
    text = (
        f"prompts grew from {sizes[0]:,} to {largest.tokens:,} tokens ({grown:.0f} times) over {len(sizes)} calls; the "
        f"largest message of #{largest.number} is message {message} ({role}, {characters:,} characters)"
    )
    return text, [largest.number]


def _premature(ended: Ended, measures: Measures) -> _Shown:
    last = measures.last_model
    if not ended.well or last is None or last.proposed or not measures.plan:
        return None
    left = still_open(measures.plan, measures.done_since)
    if not left:
        return None
    names = ", ".join(item.title for item in left[:5])
    said = f'the model ended with "{_short(last.said)}"'
    text = f"{said} while {len(left)} of {len(measures.plan)} items of its plan were open: {names}"
    return text, [last.number]


def _partial(ended: Ended, measures: Measures) -> _Shown:
    if ended.well or ended.status == "running" or not measures.effects or measures.doubtful:
        return None
    if not _LIMIT.search(ended.error) and not measures.cut_answers:
        return None
    done = ", ".join(_name(step) for step in measures.effects[:5])
    text = f"the run stopped at a limit ({_short(ended.error) or 'length of an answer'}) after {done}"
    left = still_open(measures.plan, measures.done_since) if measures.plan else []
    if left:
        text += f"; still open: {', '.join(item.title for item in left[:5])}"
    return text, [step.number for step in measures.effects]


def _name(step: View) -> str:
    return f"#{step.number} {step.target}"


def _few(parts: list[str]) -> str:
    return "; ".join(parts[:3]) + (f"; and {len(parts) - 3} more" if len(parts) > 3 else "")


def _short(text: str, limit: int = 80) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
