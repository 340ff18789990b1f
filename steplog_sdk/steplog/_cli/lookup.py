"""From the words on a command line to the run and step they name."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steplog._cli.options import chosen_home
from steplog._cli.output import command
from steplog._kernel.fold import RunState, StepState
from steplog._runtime.settings import cipher
from steplog.errors import InvalidArgument, UnknownRun, UnknownStep
from steplog.stores.base import folded

if TYPE_CHECKING:
    from steplog.stores.base import LogView
    from steplog.stores.files import FileStore

LAST = "last"
LOG = "events.jsonl"

# How many candidates an ambiguous name lists; a reader needs to see that there are several, not all of them.
_SHOWN = 5


class Found(NamedTuple):
    """A run on disk.

    Attributes:
        store: the store that it lives in.
        home: that store's directory.
        run_id: its full id.
    """

    store: FileStore
    home: Path
    run_id: str


class Opened(NamedTuple):
    """A run that has been read.

    Attributes:
        view: its verified log.
        state: the fold of it.
    """

    view: LogView
    state: RunState


def store_at(home: Path) -> FileStore:
    """The store of a home directory; nothing is created."""
    from steplog.stores.files import FileStore

    return FileStore(home, cipher=cipher())


def find_run(name: str, home: Path) -> Found:
    """The run that `name` names: `last`, an id, a unique prefix of one, or the path of its directory or log.

    Raises:
        UnknownRun: nothing or more than one run has that name.
        InvalidArgument: a path that is not a run's.
    """
    if "/" in name or name.endswith(".jsonl"):
        return _by_path(Path(name))
    store = store_at(home)
    runs = store.runs()
    if name == LAST:
        return Found(store, home, _newest(runs, home))
    if name in runs:
        return Found(store, home, name)
    return Found(store, home, _only(name, [run for run in runs if run.startswith(name)], home))


def _by_path(path: Path) -> Found:
    log = path if path.name == LOG else path / LOG
    if not log.is_file():
        message = f"{path} is not a run: there is no {log}.\nName the run's directory or its {LOG}."
        raise UnknownRun(message, path=str(path))
    directory = log.resolve().parent
    if directory.parent.name != "runs":
        message = (
            f"{log} lies outside a home, so its run id and bodies are not known.\n"
            f"A run is read as HOME/runs/RUN/{LOG}; move the run's directory back, or into the runs of another home."
        )
        raise InvalidArgument(message, path=str(path))
    home = directory.parent.parent
    return Found(store_at(home), home, directory.name)


def _newest(runs: list[str], home: Path) -> str:
    if not runs:
        raise UnknownRun(f"there are no runs in {home} yet.\nRecord one: steplog run SCRIPT")
    return runs[0]


def _only(name: str, matches: list[str], home: Path) -> str:
    if len(matches) == 1:
        return matches[0]
    if not matches:
        listing = command("ls", home=chosen_home(home))
        raise UnknownRun(f"no run in {home} is called {name!r}.\nList them: {listing}", run_id=name)
    message = f"{name!r} is the beginning of {len(matches)} runs: {_several(matches)}.\nType more of the id."
    raise UnknownRun(message, run_id=name, candidates=sorted(matches))


def _several(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _SHOWN
    return ", ".join(ordered[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def holder_of(found: Found) -> dict[str, Any] | None:
    """Facts of the process that holds the run at this moment, or None where nobody does."""
    who = found.store.holder(found.run_id)
    return None if who is None else who._asdict()


def open_run(found: Found) -> Opened:
    """Read and fold a run. Raises what `Store.read` raises."""
    view = found.store.read(found.run_id)
    return Opened(view, folded(view))


def find_step(state: RunState, name: str, home: Path | None = None) -> StepState:
    """The step that `name` names: its number, its id or a unique prefix of that, with or without `s_`.

    Args:
        state: the run.
        name: what was typed; digits alone, also behind `#`, are the number in recorded order, from 1.
        home: the run's home where a command about it must name it.

    Raises:
        UnknownStep: nothing or more than one step has that name.
    """
    number = name.removeprefix("#")
    if number.isdecimal():
        return _numbered(state, int(number), name, home)
    prefix = f"s_{name.removeprefix('s_')}"
    matches = [step for step_id, step in state.steps.items() if step_id.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        listing = command("show", state.run_id, home=home)
        message = f"run {state.run_id} has no step {name!r}.\nList its steps: {listing}"
    else:
        several = _several(step.id for step in matches)
        message = (
            f"{name!r} is the beginning of {len(matches)} steps of run {state.run_id}: {several}.\nType more of the id."
        )
    raise UnknownStep(message, run_id=state.run_id, step=name, candidates=sorted(step.id for step in matches))


def _numbered(state: RunState, number: int, name: str, home: Path | None) -> StepState:
    if 1 <= number <= len(state.steps):
        return next(islice(state.steps.values(), number - 1, None))
    listing = command("show", state.run_id, home=home)
    message = (
        f"run {state.run_id} has no step number {number}: it has {len(state.steps)}.\nList its steps: {listing}\n"
        f"A prefix of an id that is digits alone is written with its s_."
    )
    raise UnknownStep(message, run_id=state.run_id, step=name)


def numbers(state: RunState) -> dict[str, int]:
    """The number of each step, in the order in which they first began."""
    return {step: number for number, step in enumerate(state.steps, 1)}
