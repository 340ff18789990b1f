"""A run's state as one JSON tree, and back: what is kept beside a log so that the next opening need not fold it again.

Steps are written by column, names once, and event data not at all: the steps of a packed state refer to events by
number, as they do in the state of a log file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from hashlib import sha256
from itertools import repeat
from types import CodeType, FunctionType
from typing import Any, Final

from steplog._kernel import budget, controls, fold_budget, fold_control, fold_inbox, fold_steps
from steplog._kernel import fold as folding
from steplog._kernel.budget import BudgetState, Usage
from steplog._kernel.controls import Controls
from steplog._kernel.state import RunState, Source, StepState

_FLAGS: Final = ("streamed", "orphan", "allowed", "doubt", "incomplete", "lost", "settled")
_NAMED: Final = ("kind", "target", "scope", "mode", "status", "module", "branch")
_SPARSE: Final = ("notes", "job")
_APART: Final = {*_FLAGS, *_NAMED, *_SPARSE, "after", "source"}
_PLAIN: Final = tuple(attribute.name for attribute in fields(StepState) if attribute.name not in _APART)
# Numbers that mostly grow by the same, so that the differences take next to no space.
_GROWING: Final = ("start", "started_seq", "end", "finished_seq", "after")
_SETS: Final = ("retry", "live", "given_up", "superseded")
_REBUILT: Final = {*_SETS, "steps", "followers", "inner", "controls", "source", "names"}
# All whose functions change a state.
_FOLDING: Final = (folding, fold_steps, fold_control, fold_inbox, fold_budget, controls, budget)
_OF_RUN: Final = tuple(attribute.name for attribute in fields(RunState) if attribute.name not in _REBUILT)


def pack(state: RunState) -> dict[str, Any]:
    """A state whose event data is in its log, as a JSON tree."""
    steps = list(state.steps.values())
    places = {step_id: place for place, step_id in enumerate(state.steps)}
    names: dict[str | None, int] = {}
    columns: dict[str, Any] = {column: [getattr(step, column) for step in steps] for column in _PLAIN}
    for column in _NAMED:
        columns[column] = [names.setdefault(getattr(step, column), len(names)) for step in steps]
    for column in _SPARSE:
        columns[column] = [[place, found] for place, step in enumerate(steps) if (found := getattr(step, column))]
    columns["after"] = [places.get(step.after, step.after) if step.after else step.after for step in steps]
    for column in _GROWING:
        columns[column] = differences(columns[column])
    columns["flags"] = [sum(getattr(step, flag) << bit for bit, flag in enumerate(_FLAGS)) for step in steps]
    following = {step_id for ids in state.followers.values() for step_id in ids}
    return {
        "run": {name: getattr(state, name) for name in _OF_RUN},
        "controls": None if state.controls is None else asdict(state.controls),
        "sets": {name: sorted(getattr(state, name)) for name in _SETS},
        "names": list(names),
        "steps": columns,
        "passed_over": [step.id for step in steps if step.id not in following],
    }


def unpack(tree: dict[str, Any], source: Source) -> RunState:
    """The state that was packed; its event data is read from `source`.

    Raises:
        KeyError, IndexError, TypeError, ValueError: `tree` is not what `pack` gives.
    """
    names, columns = tree["names"], tree["steps"]
    state = RunState(**tree["run"], source=source)
    if tree["controls"] is not None:
        state.controls = Controls(**tree["controls"])
    for name in _SETS:
        setattr(state, name, set(tree["sets"][name]))
    state.names = {name: name for name in names if name is not None}
    columns = {**columns, **{column: list(added_up(columns[column])) for column in _GROWING}}
    ids = columns["id"]
    filled: dict[str, Iterable[Any]] = {column: columns[column] for column in _PLAIN}
    for column in _NAMED:
        filled[column] = [names[name] for name in columns[column]]
    filled["after"] = [ids[place] if type(place) is int else place for place in columns["after"]]
    filled["source"] = repeat(source, len(ids))
    filled["notes"] = [[] for _ in ids]
    filled["job"] = repeat(None, len(ids))
    for bit, flag in enumerate(_FLAGS):
        filled[flag] = [bool(flags >> bit & 1) for flags in columns["flags"]]
    rows = zip(*(filled[attribute.name] for attribute in fields(StepState)), strict=True)
    state.steps = {row[0]: StepState(*row) for row in rows}
    for column in _SPARSE:
        for place, found in columns[column]:
            setattr(state.steps[ids[place]], column, found)
    _place(state, frozenset(tree["passed_over"]))
    return state


def differences(values: Iterable[Any]) -> list[Any]:
    """Each int as its difference from the one before; what is no int stays."""
    last, found = 0, []
    for value in values:
        if type(value) is int:
            found.append(value - last)
            last = value
        else:
            found.append(value)
    return found


def added_up(found: Iterable[Any]) -> Iterator[Any]:
    """What `differences` was given."""
    last = 0
    for value in found:
        if type(value) is int:
            last += value
            yield last
        else:
            yield value


def _place(state: RunState, passed_over: frozenset[str]) -> None:
    for step in state.steps.values():
        if step.id not in passed_over:
            state.followers.setdefault((step.scope, step.after), []).append(step.id)
        if step.scope:
            state.inner.setdefault(step.scope, []).append(step.id)


def fold_digest() -> str:
    """SHA-256 over what folding does: its code, and the attributes that it fills.

    A state that another release has folded, or another Python has compiled, is not taken over: what an event changes
    may have changed.
    """
    digest = sha256()
    kinds = (RunState, StepState, Controls, BudgetState, Usage)
    digest.update(repr([attribute.name for kind in kinds for attribute in fields(kind)]).encode())
    for holder in (*_FOLDING, BudgetState, Usage):
        for name, value in sorted(vars(holder).items()):
            if isinstance(value, FunctionType):
                digest.update(name.encode())
                _add(digest, value.__code__)
            elif name.isupper() and isinstance(value, (str, frozenset)):
                digest.update(f"{name} {sorted(value)}".encode())
    digest.update(repr([(type_, function.__name__) for type_, function in folding._TRANSITIONS.items()]).encode())  # noqa: SLF001  # the table is part of what folding does
    return digest.hexdigest()


def _add(digest: Any, code: CodeType) -> None:
    digest.update(repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add(digest, constant)
        else:
            # The order of a set is another one in each process.
            digest.update(repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant).encode())
