"""What went wrong in a run, read off its steps: the measures of a post-mortem, and which kind of failure they show.

One pass over the steps in recorded order. What is measured here is arithmetic; `why_rows.py` says what it amounts to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from steplog._kernel.plans import Item, plan_in
from steplog._kernel.prompts import CUT, LEFT_OUT, Said, changes, plain
from steplog._kernel.state import FAILED, FINISHED

# Texts that are kept of a message, an error or a result.
_SHOWN: Final = 120
# A prompt that shares less than this with the one before it belongs to another conversation.
_SHARED: Final = 0.5
# Prompts whose messages are compared: beyond, the comparison would read a long run's square.
_COMPARED: Final = 500


class View(NamedTuple):
    """A step as a post-mortem looks at it.

    Attributes:
        number: its number in recorded order, from 1.
        id: step id.
        kind: llm_call, tool_call or local.
        target: model, tool or name.
        scope: the enclosing step, or "".
        mode: idempotency mode.
        status: as the log says it.
        in_doubt: it may or may not have happened.
        attempts: how often it was begun, retries of the SDK included.
        began: seconds since the epoch at which its newest attempt began, or None.
        ended: the same of its end.
        epochs: in which it was first begun and was finished: how often the run had been opened by then.
        ms: what it took.
        waited: of this, waiting for a provider.
        usage: tokens by name.
        error: class and message, or None.
        final: a failure that may have had its effect all the same.
        finish: why the model stopped.
        asked: the messages of a model's prompt; empty where they are gone.
        said: the model's words.
        proposed: the tools that the model asked for, each as name and arguments in JSON.
        args: the arguments of a tool, as JSON.
        result: its result or error, as text.
    """

    number: int
    id: str
    kind: str
    target: str
    scope: str
    mode: str
    status: str
    in_doubt: bool
    attempts: int
    began: float | None
    ended: float | None
    epochs: tuple[int, int]
    ms: float
    waited: float
    usage: dict[str, int]
    error: tuple[str, str] | None
    final: bool
    finish: str | None
    asked: list[Said]
    said: str
    proposed: list[tuple[str, str]]
    args: str
    result: str


class Repeated(NamedTuple):
    """A call that was made, or asked for by the model, more than once.

    Attributes:
        target: the tool.
        args: its arguments, as JSON.
        made: how often it was made.
        proposed: how often a model asked for it.
        numbers: the steps that made it.
        same: all of them gave the same.
    """

    target: str
    args: str
    made: int
    proposed: int
    numbers: list[int]
    same: bool

    @property
    def wanted(self) -> int:
        """How often it was wanted."""
        return max(self.made, self.proposed)


class Size(NamedTuple):
    """The prompt of one model call.

    Attributes:
        number: the step.
        tokens: as the provider counted them; a quarter of the characters where it did not.
        counted: the provider counted them.
        largest: role and characters of the longest message, and which one it is, from 1.
    """

    number: int
    tokens: int
    counted: bool
    largest: tuple[str, int, int]


class Loss(NamedTuple):
    """Something that a model was shown before, and later not or only in part.

    Attributes:
        number: the step whose prompt lacks it.
        label: `left out` or `cut short`.
        role: of the message.
        before: its characters before.
        after: its characters now.
    """

    number: int
    label: str
    role: str
    before: int
    after: int


@dataclass
class Measures:
    """Everything that is counted of a run.

    Attributes:
        steps: how many there are.
        first_error: the first step that failed.
        last: the last step.
        last_model: the last model call that ended.
        effects: side effects that happened: tools of a mode other than `safe`, done.
        doubtful: steps of which nobody knows whether they happened.
        maybe: failed steps whose effect may have happened all the same.
        retried: steps that were begun more than once.
        prompts: the size of every prompt at the top of the run, in order.
        losses: what prompts have lost.
        cut_answers: model calls that stopped at their length limit.
        model_ms: waiting for models.
        tool_ms: in tools, without what is recorded inside them.
        own_ms: around model calls: SDK, parsing, recording.
        tokens: in and out, by step.
        flat: the longest stretch of calls of one tool that differ in their arguments and gave the same.
        stale: a side effect, and the reading before it that is older than the last opening of the run.
        plan: the last plan that was shown.
        done_since: tools that succeeded after that.
        proposals: what models asked for, and how often.
    """

    steps: int = 0
    first_error: View | None = None
    last: View | None = None
    last_model: View | None = None
    effects: list[View] = field(default_factory=list)
    doubtful: list[View] = field(default_factory=list)
    maybe: list[View] = field(default_factory=list)
    retried: list[View] = field(default_factory=list)
    prompts: list[Size] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    cut_answers: list[int] = field(default_factory=list)
    model_ms: float = 0.0
    tool_ms: float = 0.0
    own_ms: float = 0.0
    tokens: list[tuple[int, int, int]] = field(default_factory=list)
    flat: list[View] = field(default_factory=list)
    stale: tuple[View, View] | None = None
    plan: list[Item] | None = None
    done_since: set[str] = field(default_factory=set)
    proposals: Counter[tuple[str, str]] = field(default_factory=Counter)


class Analysis:
    """Measures a run, step by step in recorded order."""

    def __init__(self) -> None:
        self.measures = Measures()
        self._calls: dict[tuple[str, str], list[View]] = {}
        self._before: dict[str, list[Said]] = {}
        self._compared = 0
        self._seen: set[int] = set()
        self._stretch: list[View] = []
        self._gives: tuple[str, str] | None = None
        self._tried: set[str] = set()
        self._read: View | None = None

    def add(self, view: View) -> None:
        """Take the next step in."""
        found = self.measures
        found.steps += 1
        found.last = view
        if view.error is not None and found.first_error is None:
            found.first_error = view
        if view.attempts > 1:
            found.retried.append(_light(view))
        if view.in_doubt:
            found.doubtful.append(_light(view))
        elif view.status == FAILED and view.mode != "safe" and (view.final or _is_timeout(view.error)):
            found.maybe.append(_light(view))
        if view.kind == "llm_call":
            self._add_model(view)
        elif view.kind == "tool_call":
            self._add_tool(view)

    def repeated(self) -> list[Repeated]:
        """Calls that were made or asked for more than once, the most wanted first."""
        names = {**dict.fromkeys(self._calls), **dict.fromkeys(self.measures.proposals)}
        found = []
        for key in names:
            made = self._calls.get(key, [])
            results = {view.result for view in made}
            call = Repeated(
                *key, len(made), self.measures.proposals[key], [view.number for view in made], len(results) < 2
            )
            if call.wanted > 1:
                found.append(call)
        return sorted(found, key=lambda call: -call.wanted)

    def _add_model(self, view: View) -> None:
        found = self.measures
        found.model_ms += view.waited or view.ms
        found.own_ms += max(0.0, view.ms - view.waited) if view.waited else 0.0
        used = view.usage
        if used:
            found.tokens.append((view.number, used.get("input", 0), used.get("output", 0)))
        if view.status in FINISHED:
            found.last_model = _light(view)._replace(proposed=view.proposed, said=view.said[:_SHOWN])
        if view.finish in ("length", "max_tokens", "max_output_tokens"):
            found.cut_answers.append(view.number)
        found.proposals.update(view.proposed)
        if view.asked:
            self._add_prompt(view)
        self._seen.add(hash(view.said))
        for text in (view.said, *(args for _, args in view.proposed)):
            self._note_plan(plan_in(text))

    def _add_prompt(self, view: View) -> None:
        found = self.measures
        sizes = [len(message.text) for message in view.asked]
        longest = max(range(len(sizes)), key=sizes.__getitem__)
        counted = view.usage.get("input")
        tokens = counted if counted is not None else (sum(sizes) + 3) // 4
        largest = (view.asked[longest].role, sizes[longest], longest + 1)
        found.prompts.append(Size(view.number, tokens, counted is not None, largest))
        before = self._before.get(view.scope)
        if before is not None and self._compared < _COMPARED:
            self._compared += 1
            found.losses += _losses(view.number, before, view.asked)
        self._before[view.scope] = view.asked
        for message in view.asked:
            # A conversation is sent again and again; what was read once says nothing new.
            key = hash(message.text)
            if key not in self._seen:
                self._seen.add(key)
                self._note_plan(plan_in(message.text))

    def _add_tool(self, view: View) -> None:
        found = self.measures
        found.tool_ms += view.ms
        self._calls.setdefault((view.target, view.args), []).append(_light(view))
        if view.status in FINISHED and view.error is None:
            found.done_since.add(view.target.rpartition(".")[2])
            if view.mode != "safe":
                self._note_effect(view)
            else:
                self._read = _light(view)
        self._note_stretch(view)
        for text in (view.args, view.result):
            self._note_plan(plan_in(text))

    def _note_effect(self, view: View) -> None:
        read = self._read
        self.measures.effects.append(_light(view))
        if self.measures.stale is None and read is not None and read.epochs[1] < view.epochs[0]:
            self.measures.stale = (read, _light(view))

    def _note_stretch(self, view: View) -> None:
        if view.status not in FINISHED:
            return
        same = view.target, _without_args(view)
        if same != self._gives:
            self._stretch, self._gives, self._tried = [], same, set()
        if view.args not in self._tried:
            self._tried.add(view.args)
            self._stretch.append(_light(view))
        if len(self._stretch) > len(self.measures.flat):
            self.measures.flat = self._stretch

    def _note_plan(self, plan: list[Item] | None) -> None:
        if plan and plan != self.measures.plan:
            self.measures.plan, self.measures.done_since = plan, set()


def inner_time(views: dict[str, float], scopes: dict[str, str]) -> dict[str, float]:
    """By step, the milliseconds of the steps directly inside it.

    Args:
        views: milliseconds by step.
        scopes: the enclosing step by step.
    """
    found: dict[str, float] = {}
    for step, ms in views.items():
        if scopes[step]:
            found[scopes[step]] = found.get(scopes[step], 0.0) + ms
    return found


def _light(view: View) -> View:
    """The same without its conversation, of which a long run would keep its square."""
    return view._replace(asked=[], said="", proposed=[], result=view.result[:2_000])


def _without_args(view: View) -> str:
    """A result with the values of its own arguments taken out: `no order ord_7` says as little as `no order ord_8`."""
    text = plain(view.result)
    for value in sorted(_strings(view.args), key=len, reverse=True):
        text = text.replace(value, "{argument}")
    return text


def _strings(args: str) -> set[str]:
    import json

    try:
        tree: Any = json.loads(args)
    except ValueError:
        return set()
    values = tree.values() if isinstance(tree, dict) else ()
    return {str(value) for value in values if isinstance(value, str | int) and len(str(value)) > 1}


def _is_timeout(error: tuple[str, str] | None) -> bool:
    if error is None:
        return False
    text = " ".join(error).lower()
    return any(word in text for word in ("timeout", "timed out", "time out", "deadline", "outcomeunknown"))


def _losses(number: int, before: list[Said], now: list[Said]) -> list[Loss]:
    if len(before) < 2:
        return []
    found = changes(before, now)
    missing = sum(change.a is not None for change in found)
    if missing > _SHARED * len(before):
        return []
    return [
        Loss(number, change.label, change.role, len(change.old), len(change.new))
        for change in found
        if change.label in (CUT, LEFT_OUT)
    ]
