"""`steplog.fork()`: a new run out of what another one had done."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from steplog._kernel import events as ev
from steplog._kernel.codec import encode
from steplog._kernel.events import FORMAT
from steplog._kernel.fold import RunState, StepState
from steplog._kernel.fork import FORKED, Prefix, bodies_of, lineage, prefix, steps_named
from steplog._kernel.line import Chain
from steplog._kernel.paths import parse
from steplog._kernel.references import references
from steplog._runtime import redaction, settings
from steplog._runtime.commit import timestamp
from steplog._runtime.door import PROCESS
from steplog._runtime.evidence import recorded_request
from steplog._runtime.fingerprint import Fingerprints
from steplog._runtime.forked import changed
from steplog._runtime.pack import Sink, clean_event
from steplog.errors import BodyMissing, InvalidArgument, KeyMissing, UnknownStep
from steplog.stores.base import check_run_id, folded

if TYPE_CHECKING:
    from steplog._kernel.redact import Redactor
    from steplog.stores.base import Store

NOT_GIVEN: Final[Any] = object()
_LONGEST: Final = 128


class Draft(NamedTuple):
    """A fork that is planned and not yet made.

    Attributes:
        run_id: the run that it is made of.
        state: that run's folded log.
        prefix: what the fork begins with.
        changes: what it changes in the request of the step, as path, old value and new value.
        result: what the step is to return, or `NOT_GIVEN`.
        live_tools: whether side effects may happen in it.
        missing: names of bodies of the prefix that are gone; the steps that need them cannot be returned.
    """

    run_id: str
    state: RunState
    prefix: Prefix
    changes: list[tuple[str, Any, Any]]
    result: Any
    live_tools: bool
    missing: list[str]


def fork(
    run_id: str,
    *,
    at: str | int | None = None,
    set: Mapping[str, Any] | None = None,
    result: Any = NOT_GIVEN,
    model: str | None = None,
    live_tools: bool = False,
    new_id: str | None = None,
    store: Store | None = None,
) -> str:
    """Make a new run that begins with what another one had done when one of its steps began.

    Open it like any other: `with steplog.run(new_id): ...`. The program replays as far as that step and goes live from
    there. Nothing is copied but the lines of the log. Side effects of the shared part happened once, in the other run;
    in the new one none happens, unless `live_tools`: an effect that is not declared safe stops it with `Simulated`.

    Args:
        run_id: the run; it may be under way, have ended in any way, have been imported, or be a fork itself.
        at: the step: its number in recorded order, its id, or a prefix of that; None for the end of the log.
        set: what to change in the step's request: JSON values by path, such as `{"messages[0].content": "Be brief."}`,
            of a tool `{"cents": 100}`.
        result: what the step returns instead of being executed; of a model call, the body of the answer.
        model: the model to call instead; the same as setting `model`.
        live_tools: whether side effects may happen. Holds for as long as the run exists.
        new_id: id of the new run; by default that of the other one with `-fork-1`, or the next number.
        store: where the runs live; as installed by default.

    Returns:
        The id of the new run.

    Raises:
        UnknownRun, UnknownStep: there is no such run or step.
        InvalidArgument: a path does not exist in the request, the new run exists already, or arguments exclude each
            other.
        EncodeError: the result cannot be recorded.
        KeyMissing: the run began with a key that `STEPLOG_KEY` does not hold, so no fork of it could be opened.
        Unrecorded: a replay is under way, in which nothing is written.
        StoreError: the log cannot be read or written.
    """
    if PROCESS.replay is not None:
        raise PROCESS.replay.refuse(f"a fork of run {run_id}")
    chosen = store or settings.open_store(PROCESS.settings or settings.resolve())
    changes = {**(set or {}), **({"model": model} if model is not None else {})}
    drafted = draft(chosen, run_id, at=at, changes=changes, result=result, live_tools=live_tools)
    return make(chosen, drafted, new_id)


def draft(
    store: Store, run_id: str, *, at: str | int | None, changes: Mapping[str, Any], result: Any, live_tools: bool
) -> Draft:
    """Plan a fork; nothing is written. Raises what `fork` raises."""
    view = store.read(run_id)
    state = folded(view)
    Fingerprints(run_id, state.created, getattr(store.bodies, "cipher", None))
    step = None if at is None else _step(state, str(at))
    if step is None and (changes or result is not NOT_GIVEN):
        raise InvalidArgument("set, model and result belong to one step: name it with at.", run_id=run_id)
    if changes and result is not NOT_GIVEN:
        message = "a step that is given a result is not executed, so nothing of its request can be changed."
        raise InvalidArgument(message, run_id=run_id)
    told = [] if step is None else _told_changes(store, run_id, step, changes)
    cut = prefix(view.events, step)
    missing = [name for name in bodies_of(cut.events, references) if not store.bodies.has(name)]
    return Draft(run_id, state, cut, told, result, live_tools, missing)


def make(store: Store, drafted: Draft, new_id: str | None = None) -> str:
    """Write a planned fork. Returns its id. All or nothing: a process that dies in here leaves no run."""
    redactor = redaction.redactor((PROCESS.settings or settings.resolve()).redact)
    check_new_id(store, new_id)
    taken = {*store.runs()}
    for number in itertools.count(1):
        chosen = new_id or f"{drafted.run_id[: _LONGEST - 12]}-fork-{number}"
        if chosen in taken:
            continue
        sink = Sink(redactor, store.bodies.name)
        log = _sealed(drafted, chosen, sink, redactor)
        names = bodies_of(drafted.prefix.events, references)
        with store.bodies.held():
            # Inside, no prune takes what the new lines name.
            store.bodies.put(sink.bodies, sync=True)
            if hasattr(store.bodies, "touch"):
                store.bodies.touch(names)
            if _add(store, chosen, log):
                return chosen
        if new_id is not None:
            break
        taken.add(chosen)
    raise InvalidArgument(f"there is a run {new_id!r} already. Give the fork another id.", run_id=new_id)


def check_new_id(store: Store, new_id: str | None) -> None:
    """Raise InvalidArgument where a fork cannot have this id."""
    if new_id is not None and check_run_id(new_id) in {*store.runs()}:
        raise InvalidArgument(f"there is a run {new_id!r} already. Give the fork another id.", run_id=new_id)


def _add(store: Store, run_id: str, log: list[bytes]) -> bool:
    """Put a log in place whole; False where a run of that name has come up meanwhile."""
    if hasattr(store, "add"):
        return bool(store.add(run_id, b"".join(log)))
    writer = store.open(run_id)
    try:
        if len(writer.view.events):
            return False
        writer.append(log, 0, sync=True)
        return True
    finally:
        writer.close()


def _step(state: RunState, name: str) -> StepState:
    found = steps_named(state, name)
    if len(found) == 1:
        return found[0]
    several = f": {', '.join(step.id for step in found[:5])}" if found else ""
    message = (
        f"{len(found) or 'no'} steps of run {state.run_id} are called {name!r}{several}.\n"
        f"List its steps: steplog show {state.run_id}"
    )
    raise UnknownStep(message, run_id=state.run_id, step=name, candidates=[step.id for step in found])


def _told_changes(store: Store, run_id: str, step: StepState, changes: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The changes with the values that they replace. Raises InvalidArgument where they do not fit the request."""
    if not changes:
        return []
    facts = {"run_id": run_id, "step": step.id}
    if step.kind == "local":
        message = f"step {step.id} is a local value, which is asked for by its name alone. Give it a result instead."
        raise InvalidArgument(message, **facts)
    try:
        asked = recorded_request(step, store.bodies)
    except (BodyMissing, KeyMissing) as gone:
        raise InvalidArgument(f"the request of step {step.id} cannot be read: {gone}", **facts) from gone
    if "model" in changes and step.kind != "llm_call" and "model" not in asked:
        raise InvalidArgument(f"step {step.id} is {step.kind} {step.target}, which asks no model.", **facts)
    if step.kind == "tool_call" and "request" not in step.started:
        _check_arguments(asked, step, changes)
    if "model" in changes and step.kind == "llm_call" and "model" not in asked:
        message = f"the request of step {step.id} names its model in the path, not in its body; it cannot be changed."
        raise InvalidArgument(message, **facts)
    after = changed(asked, list(changes.items()))
    return [(path, _at(asked, path), _at(after, path)) for path in changes]


def _check_arguments(asked: dict[str, Any], step: StepState, changes: Mapping[str, Any]) -> None:
    """Refuse an argument that the tool does not have: what is recorded has every one, also by its default."""
    for path in changes:
        name = parse(path)[0]
        if name not in asked:
            has = ", ".join(map(str, asked)) or "none"
            message = f"{step.target} has no argument {name!r}, so {path!r} cannot be set. Its arguments: {has}."
            raise InvalidArgument(message, step=step.id)


def _at(tree: Any, path: str) -> Any:
    for step in parse(path):
        try:
            tree = tree[step]
        except (KeyError, IndexError, TypeError):
            return None  # it is put there anew
    return tree


# the log ------------------------------------------------------------------------------------------------------------


def _sealed(drafted: Draft, new_id: str, sink: Sink, redactor: Redactor) -> list[bytes]:
    """The lines of the new log."""
    closing = _closing(drafted, sink)
    created = _created(drafted, new_id, 1 + len(drafted.prefix.events) + len(closing))
    data, _ = clean_event(redactor, orjson.dumps(created))
    if redactor.redact(orjson.dumps(created["fork"]["set"]))[1]:
        message = "what is to be set holds what looks like a secret, which is not written down. Nothing was written."
        raise InvalidArgument(message, run_id=drafted.run_id)
    chain, now = Chain(new_id), timestamp()
    lines = [chain.seal(ev.RUN_CREATED, None, now, data)]
    for event in drafted.prefix.events:
        chain.epoch = event.epoch
        lines.append(chain.seal(event.type, event.step, event.ts, orjson.dumps(event.data)))
    lines.extend(chain.seal(kind, step, now, line) for kind, step, line in closing)
    return lines


def _closing(drafted: Draft, sink: Sink) -> Sequence[tuple[str, str | None, bytes]]:
    """What stands behind the prefix: a result that the step was given, and that nobody has started the run."""
    step = drafted.prefix.at
    last: list[tuple[str, str | None, bytes]] = []
    if drafted.result is not NOT_GIVEN and step is not None:
        resolved = {"how": "done", "by": "fork", "result": sink.value(encode(drafted.result, where="result"))}
        last.append((ev.STEP_STARTED, step.id, _first_start(step)))
        last.append((ev.STEP_RESOLVED, step.id, sink.line(resolved)))
        if sink.redacted:
            message = "the result holds what looks like a secret, which is not written down. Nothing was written."
            raise InvalidArgument(message, run_id=drafted.run_id, step=step.id)
    said = {"reason": FORKED, "message": f"forked from {drafted.run_id}, and not started yet"}
    return [*last, (ev.RUN_SUSPENDED, None, orjson.dumps(said))]


def _first_start(step: StepState) -> bytes:
    data = {name: value for name, value in step.started.items() if name not in ("attempt", "recovered", "job")}
    return orjson.dumps(data)


def _created(drafted: Draft, new_id: str, events: int) -> dict[str, Any]:
    before, step = drafted.state.created, drafted.prefix.at
    place = None if step is None else {"scope": step.scope, "after": step.after, "kind": step.kind}
    fork_facts = {
        "run": drafted.run_id,
        "at": None if step is None else step.id,
        "number": None if step is None else list(drafted.state.steps).index(step.id) + 1,
        "line": lineage(before, drafted.run_id),
        "steps": len(drafted.prefix.shared),
        "events": events,
        "live_tools": drafted.live_tools,
        "set": [[path, new] for path, _, new in drafted.changes],
        "place": place,
        "open": [each.id for each in drafted.prefix.dropped],
    }
    return {**before, "format": FORMAT, "run_id": new_id, "fork": fork_facts}
