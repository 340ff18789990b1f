"""`@workflow`: a function whose call is a run.

The log has the function's place (module and name) and its arguments, so a fresh process can go on with the run by
itself, and its result, so that whoever starts the same run again gets that without anything being executed.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, cast, overload

import orjson

from steplog._kernel.codec import Classes, decode, encode
from steplog._kernel.fold import CLOSED_OUTCOMES, RunState
from steplog._kernel.identity import args_hash
from steplog._kernel.plain import plain
from steplog._runtime import origin, settings
from steplog._runtime.door import PROCESS
from steplog._runtime.ending import NOTHING
from steplog._runtime.outcome import ANYWHERE
from steplog._runtime.pack import value_tree
from steplog._runtime.redaction import redactor
from steplog._runtime.run import Run, run
from steplog._runtime.step import Tool
from steplog.errors import BodyMissing, DecodeError, EncodeError, InvalidArgument, KeyMissing, UnknownRun
from steplog.stores.base import folded

if TYPE_CHECKING:
    from steplog.stores.base import Store

P = ParamSpec("P")
T = TypeVar("T")

_SECRETS: Final = (b"[redacted:", b'"$steplog":"secret"')
_SHOWN: Final = 80

# Of the line of a log, leaving room for what else stands in the first one.
_MOST: Final = 1_000_000


class Workflow(Generic[P, T]):
    """A function whose call is a run; see `workflow`.

    Attributes:
        fn: the function.
        name: under which its runs are recorded.
        version: its code revision, or None for that of its file.
        undo_on_cancel: whether its runs are undone when they are cancelled.
    """

    def __init__(
        self,
        fn: Callable[P, T],
        *,
        name: str | None = None,
        version: str | None = None,
        undo_on_cancel: bool = False,
    ) -> None:
        if (
            not inspect.isfunction(inspect.unwrap(fn))
            or inspect.isgeneratorfunction(fn)
            or inspect.isasyncgenfunction(fn)
        ):
            message = f"@steplog.workflow goes on a plain or async function, not on {fn!r}."
            raise InvalidArgument(message)
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = name or fn.__qualname__
        self.version = version
        self.undo_on_cancel = undo_on_cancel
        # Where the classes of its result are found, as of a tool's.
        self._tool = Tool(fn, kind="tool_call", name=self.name, mode="safe")
        self._signature = inspect.signature(fn)
        self._awaited = inspect.iscoroutinefunction(fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it under a new id: that of `STEPLOG_RUN_ID` for the first run of the process, else a ULID."""
        return self._start(None, args, kwargs)

    def run(self, run_id: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it under an id, or go on with that run, or return its result where it has ended.

        Raises:
            InvalidArgument: the run of this id is none of this workflow, or was started with other arguments.
            EncodeError: an argument cannot be recorded.
            RunBusy: another process is running it.
            RunStopped: the run stopped and needs a decision.
            Exception: whatever the function raises.
        """
        return self._start(run_id, args, kwargs)

    def resume(self, run_id: str) -> T:
        """Go on with a run, with the arguments that it was started with. Raises as `run`."""
        found = _read(self._open(run_id, {}))
        if found is None:
            raise InvalidArgument(f"there is no run {run_id} of workflow {self.name}.", run_id=run_id)
        self._check_mine(found)
        tree = found.created["call"]["args"]
        if any(mark in orjson.dumps(tree) for mark in _SECRETS):
            message = (
                f"run {run_id} of workflow {self.name} was started with a secret among its arguments, which is not in "
                f"the log.\nStart it with its arguments: {self._place()[1]}.run({run_id!r}, ...)"
            )
            raise InvalidArgument(message, run_id=run_id)
        hints = [parameter.annotation for parameter in self._signature.parameters.values()]
        named = decode(tree, Classes.of(*hints, namespace=self.fn.__globals__), "arguments")
        bound = inspect.BoundArguments(self._signature, cast("Any", named))
        return self._start(run_id, bound.args, bound.kwargs)

    # one run ---------------------------------------------------------------------------------------------------------

    def _start(self, run_id: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        call = self._described(dict(bound.arguments))
        opened = self._open(run_id, call)
        return cast("T", (self._run_async if self._awaited else self._run)(opened, call, args, kwargs))

    def _run(self, opened: Run, call: dict[str, Any], args: Any, kwargs: Any) -> Any:
        result = self._recorded(opened, call)
        if result is not NOTHING:
            return result
        with opened:
            self._check(opened.recorder.journal.state, call)
            result = self.fn(*args, **kwargs)
            opened.returned = self._encoded(opened, result)
        return result

    async def _run_async(self, opened: Run, call: dict[str, Any], args: Any, kwargs: Any) -> Any:
        import asyncio

        result = await asyncio.to_thread(self._recorded, opened, call)
        if result is not NOTHING:
            return result
        async with opened:
            self._check(opened.recorder.journal.state, call)
            result = await cast("Any", self.fn(*args, **kwargs))
            opened.returned = self._encoded(opened, result)
        return result

    def _open(self, run_id: str | None, call: dict[str, Any]) -> Run:
        file = Path(inspect.unwrap(self.fn).__code__.co_filename)
        version = self.version or os.environ.get("STEPLOG_VERSION") or origin.revision(file)
        opened = run(run_id, workflow=self.name, version=version, undo_on_cancel=self.undo_on_cancel)
        return opened.of_call(call)

    def _described(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the log says of a call."""
        module, name = self._place()
        trees = {parameter: self._argument(parameter, value) for parameter, value in arguments.items()}
        size = len(orjson.dumps(trees))
        if size > _MOST:
            message = (
                f"the arguments of workflow {self.name} are {size:,} bytes, and they stand in the first line of its "
                f"run's log, which has room for {_MOST:,}. Nothing was executed.\n"
                f"Hand over a reference to what is large, such as a path."
            )
            raise EncodeError(message)
        return {"module": module, "name": name, "args": trees, "hash": args_hash(trees), "path": _own_path()}

    def _argument(self, parameter: str, value: Any) -> Any:
        tree = encode(value, f"{self.name}({parameter})", ANYWHERE, above=2)
        plan = self._tool.secrets.get(parameter)
        return tree if plan is None else plan(tree, ANYWHERE.secret)

    def _place(self) -> tuple[str, str]:
        return self.fn.__module__, self.fn.__qualname__

    def _recorded(self, opened: Run, call: dict[str, Any]) -> Any:
        """The result of a run that has ended, if its log can give it back, else `NOTHING`."""
        # In a replay, and in a test with a cassette, the program is what is looked at.
        state = None if PROCESS.replay is not None else _read(opened)
        if state is None:
            return NOTHING
        self._check(state, call)
        ended = state.ended or {}
        if state.status not in CLOSED_OUTCOMES or "result" not in ended or "redacted" in ended:
            return NOTHING
        try:
            return decode(value_tree(ended["result"], opened.store.bodies), self._tool.classes)
        except (BodyMissing, KeyMissing, DecodeError):
            # Its steps may still be there: then running it again gives the result, and nothing happens twice.
            return NOTHING

    def _encoded(self, opened: Run, result: Any) -> Any:
        try:
            return encode(result, "result", self._tool.classes)
        except EncodeError as refused:
            what = "%s returned something that cannot be recorded, so run %s is run again to give it back: %s"
            PROCESS.warn_once(f"result of {self.name}", what % (self.name, opened.run_id, refused))
            return NOTHING

    def _check(self, state: RunState, call: dict[str, Any]) -> None:
        """Refuse to take a run for another one than it is."""
        self._check_mine(state)
        known = state.created["call"]
        if known.get("hash") == call["hash"]:
            return
        different = self._differences(known.get("args") or {}, call["args"])
        if not different:
            return
        message = (
            f"run {state.run_id} of workflow {self.name} was started with other arguments. Nothing was executed.\n"
            + "\n".join(f"  {line}" for line in different[:5])
            + f"\nGive the other call an id of its own, or go on with this one: steplog resume {state.run_id}"
        )
        raise InvalidArgument(message, run_id=state.run_id)

    def _check_mine(self, state: RunState) -> None:
        known = state.created.get("call")
        if not isinstance(known, dict) or state.created.get("workflow") != self.name:
            of = f"of workflow {state.created.get('workflow')}" if known else "was not started by a workflow"
            message = f"run {state.run_id} {of}, so {self.name} does not go on with it. Give this call another id."
            raise InvalidArgument(message, run_id=state.run_id)

    def _differences(self, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
        lines = []
        written = orjson.dumps(now)
        now = orjson.loads(written)
        # The message may end up in anybody's logs, so it shows of a secret what the run's own log would.
        redact = (PROCESS.settings or settings.resolve()).redact
        shown = orjson.loads(redactor(redact).redact(written)[0])
        for name in dict.fromkeys((*before, *now)):
            parameter = self._signature.parameters.get(name)
            default = NOTHING if parameter is None else parameter.default
            if name not in before and default is not inspect.Parameter.empty and _same(now[name], encode(default)):
                continue  # a parameter that came later, with a default
            if name not in before or name not in now or not _same(before[name], now[name]):
                recorded, found = _apart(before.get(name), shown.get(name))
                lines.append(f"{name}: recorded {recorded}, now {found}")
        return lines


def _same(before: Any, now: Any) -> bool:
    # As their digests do: for `==`, True is 1.
    return args_hash(before) == args_hash(now)


def _apart(*trees: Any) -> list[str]:
    """Two values as text, from shortly before the first difference on."""
    texts = [orjson.dumps(plain(tree)).decode() for tree in trees]
    if len(set(texts)) == 1:
        # They differ in their types.
        texts = [orjson.dumps(tree).decode() for tree in trees]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    start = max(0, same - _SHOWN // 4)
    return [_short(f"…{text[start:]}" if start else text) for text in texts]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _read(opened: Run) -> RunState | None:
    """The folded log of a run, read without taking it; None where there is none."""
    store: Store = opened.store
    try:
        view = store.read(opened.run_id)
    except UnknownRun:
        return None
    state = folded(view)
    return state if state.created else None


def _own_path() -> list[str]:
    """Where the program finds its own modules: what it has in `sys.path` beside the interpreter's own folders."""
    own = {os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)}
    found = dict.fromkeys(os.path.abspath(entry) for entry in sys.path)
    return [entry for entry in found if os.path.isdir(entry) and not any(_within(entry, folder) for folder in own)]


def _within(entry: str, folder: str) -> bool:
    return os.path.realpath(entry).startswith(folder + os.sep)


@overload
def workflow(fn: Callable[P, T], /) -> Workflow[P, T]: ...


@overload
def workflow(
    *, name: str | None = ..., version: str | None = ..., undo_on_cancel: bool = ...
) -> Callable[[Callable[P, T]], Workflow[P, T]]: ...


def workflow(
    fn: Any = None, /, *, name: str | None = None, version: str | None = None, undo_on_cancel: bool = False
) -> Any:
    """Make each call of a function a run of its own. As a decorator, on a sync or async function.

    `refund(order)` runs it under a new id, `refund.run("refund-1001", order)` under one of yours: the first time it is
    executed; a run that was cut off goes on; one that has ended returns its result, and nothing is executed.
    `steplog resume RUN` goes on with it in a process of its own, where the function is at the top level of a module.

    Args:
        fn: the function.
        name: of the workflow; the function's qualified name by default.
        version: its code revision; the git commit and digest of the file that defines it by default.
        undo_on_cancel: when a run is cancelled and the function has unwound, undo its finished steps, as `undo` does.

    Raises:
        InvalidArgument: it is no function.
    """

    def decorate(function: Any) -> Any:
        return Workflow(function, name=name, version=version, undo_on_cancel=undo_on_cancel)

    return decorate if fn is None else decorate(fn)
