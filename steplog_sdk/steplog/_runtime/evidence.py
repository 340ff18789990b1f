"""What is known of a difference between what a program asks for and what is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from steplog._kernel.drift import Difference, count_differences, first_difference
from steplog._kernel.drift_chat import is_of_a_tool
from steplog._kernel.drift_source import Source, differing_words, probable_source
from steplog._kernel.paths import without
from steplog._runtime import origin
from steplog._runtime.looking import Body
from steplog._runtime.messages import describe
from steplog._runtime.pack import form_bytes, value_tree
from steplog._runtime.site import program_line
from steplog.errors import BodyMissing, KeyMissing, StoreError

if TYPE_CHECKING:
    from steplog._kernel.decide import Effect, Halt
    from steplog._kernel.fold import RunState, StepState
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Call
    from steplog.stores.base import BodyStore

# Recorded steps that a request is compared with, and those whose results are searched for a value.
_COMPARED: Final = 5
_SEARCHED: Final = 300
_SHORTEST: Final = 4


class Evidence(NamedTuple):
    """What is known of a difference.

    Attributes:
        nearest: the recorded step that is most like what is asked, or None.
        places: in how many places it differs, as far as they are counted.
        others: other recorded steps of this place, with the same count.
        difference: the first difference, or None where nothing can be compared.
        recorded: the recorded request, or None.
        found: the present one.
        source: what the difference probably comes from, or None.
        tool: it lies in what a tool has answered.
        upstream: the first step before it that went otherwise, in a sentence; "" where none is known.
        revisions: how the code has changed since the run began; "" where it has not.
        site: the line of the program that asks, as `agent.py:88 in plan`; "" where that is not known.
        again: how many equal calls are recorded, where all of them were asked for before; else 0.
    """

    nearest: StepState | None = None
    places: int = 0
    others: tuple[tuple[StepState, int], ...] = ()
    difference: Difference | None = None
    recorded: Any = None
    found: Any = None
    source: Source | None = None
    tool: bool = False
    upstream: str = ""
    revisions: str = ""
    site: str = ""
    again: int = 0


def gather(recorder: Recorder, halt: Halt, call: Call, effect: Effect) -> Evidence:
    """Find out about the difference between a submitted call and the steps that are recorded at its place."""
    state, bodies = recorder.journal.state, recorder.journal.store.bodies
    common = Evidence(halt.step, site=program_line(), revisions=_revisions(state))
    if halt.step is None:
        return common
    for name, recorded, found in (("kind", halt.step.kind, effect.kind), ("target", halt.step.target, effect.target)):
        if recorded != found:
            upstream = _upstream(recorder, halt.step, effect, None)
            return common._replace(difference=Difference(name, recorded, found), upstream=upstream)
    asked = _submitted_request(call, recorder)
    counted = sorted(_counted(state, halt, bodies, asked), key=lambda one: one[1])
    if not counted:
        return common
    nearest, count, request = counted[0]
    difference = first_difference(request, asked)
    if difference is None:
        return common._replace(nearest=nearest)
    return common._replace(
        nearest=nearest,
        places=count,
        others=tuple((step, places) for step, places, _ in counted[1:]),
        difference=difference,
        recorded=request,
        found=asked,
        source=probable_source(difference, request, asked),
        tool=is_of_a_tool(difference.path, asked),
        upstream=_upstream(recorder, nearest, effect, difference),
    )


def _counted(state: RunState, halt: Halt, bodies: BodyStore, asked: Any) -> Iterator[tuple[StepState, int, Any]]:
    """Recorded steps of the same kind and target, with the number of places in which they differ from what is asked."""
    assert halt.step is not None
    same = (halt.step.kind, halt.step.target)
    missed = (state.steps[step] for step in halt.missed or (halt.step.id,))
    for step in islice((step for step in missed if (step.kind, step.target) == same), _COMPARED):
        try:
            request = recorded_request(step, bodies)
        except (BodyMissing, KeyMissing):
            continue
        yield step, count_differences(request, asked), request


def _revisions(state: RunState) -> str:
    before = state.created.get("version")
    script = origin.main_script()
    now = origin.revision(Path(script)) if before and script is not None and script.is_file() else None
    return f"{before} -> {now}" if now and now != before and str(before).startswith(("git:", "sha256:")) else ""


def _upstream(recorder: Recorder, nearest: StepState, effect: Effect, difference: Difference | None) -> str:
    """The first step before a difference that went otherwise than it was recorded, in a sentence."""
    state = recorder.journal.state
    before, place = [], effect.after
    while place is not None and place in state.steps:
        before.append(state.steps[place])
        place = state.steps[place].after
    anew = [step for step in before if step.finished_seq is not None and step.finished_seq > state.claim_seq]
    if anew:
        return f"{_numbered(state, anew[-1])} ran anew in this process, so what it returned is new."
    if difference is not None and (found := _origin(state, nearest, difference)) is not None:
        return f"the recorded value is the result of {_numbered(state, found)}; now it comes from elsewhere."
    if recorder.dispatch.branched:
        return ""  # others may only be late
    for step in state.steps.values():
        if step.started_seq >= nearest.started_seq:
            return ""
        seen = step.id in recorder.dispatch.seen or step.id in state.superseded or step.end is None
        if step.scope == effect.scope and not seen:
            return f"{_numbered(state, step)}, recorded before it, was not asked for."
    return ""


def _origin(state: RunState, nearest: StepState, difference: Difference) -> StepState | None:
    """The recorded step whose result holds the recorded value and not the present one, or None."""
    old, new = differing_words(difference.recorded, difference.found)
    if len(old) < _SHORTEST:
        return None
    for step in islice(state.steps.values(), _SEARCHED):
        if step.kind == "llm_call" or step.finished_seq is None or step.finished_seq > nearest.started_seq:
            continue
        try:
            result = orjson.dumps((step.finished or {}).get("result")).decode()
        except (StoreError, TypeError):
            continue  # it cannot be read; that is told where it is asked for
        if old in result and (not new or new not in result):
            return step
    return None


def _numbered(state: RunState, step: StepState) -> str:
    return f"#{list(state.steps).index(step.id) + 1} {describe(step)}"


def recorded_request(step: StepState, bodies: BodyStore) -> Any:
    """The arguments of a recorded step, or the request of a recorded model call, with its body parsed where it is JSON.

    Raises:
        BodyMissing: the body was pruned or lost.
        KeyMissing: it is encrypted, with a key that is not at hand.
    """
    request = step.started.get("request")
    if request is None:
        return value_tree(step.started.get("args"), bodies)
    body = request.get("body")
    return _comparable(request, None if body is None else form_bytes(body, bodies))


def _submitted_request(call: Call, recorder: Recorder) -> Any:
    redactor = recorder.redactor
    # Redacted like the recorded side: a message about drift must not print what the log may not hold.
    if call.request is None:
        return orjson.loads(redactor.redact(orjson.dumps(call.args))[0])
    body = call.request.get("body")
    return _comparable(call.request, redactor.redact(body.data)[0] if isinstance(body, Body) else None)


def _comparable(request: dict[str, Any], body: bytes | None) -> dict[str, Any]:
    tree = {name: request[name] for name in ("method", "host", "path", "query", "headers") if request.get(name)}
    if body is not None:
        tree.update(without(_fields(body), request.get("ignored", ())))
    # Last: where nothing else differs, the difference is what was said not to count.
    return tree | {"ignored": request["ignored"]} if request.get("ignored") else tree


def _fields(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {"body": body.decode("utf-8", "backslashreplace")}
    return parsed if isinstance(parsed, dict) else {"body": parsed}
