"""What runs inside a program that is to be killed: it notes what every effect does, and dies where its plan says.

A file named `sitecustomize.py` arms it before the program's first line, so the program is started as ever and knows
nothing of it. The plan is a JSON file that `STEPLOG_CRASH_PLAN` names. What happens is appended to the plan's file of
notes, one unbuffered write a line, so what a killed process has noted is there, whole.

The moments of a step:

    before-intent    its intent is about to be written
    after-intent     the intent is written (of a `safe` step: in line), and the effect is about to begin
    inside           the effect is under way
    piece            a part of its stream has been handed over
    before-outcome   the effect has happened, and its outcome is about to be written
    after-outcome    the outcome is written, and the program is about to see it
"""

from __future__ import annotations

import atexit
import functools
import importlib.machinery
import importlib.util
import inspect
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import orjson

from steplog._kernel import events as ev
from steplog._kernel.codec import decode
from steplog._runtime import context, door, record, ulid
from steplog._runtime.api import _is_async
from steplog._runtime.step import Tool
from steplog.stores.files import FileStore
from steplog.stores.writer import FileWriter
from steplog.testing import _crash_wire
from steplog.testing._crash_body import Body, entered, load
from steplog.testing._crash_server import modules, serve

PLAN: Final = "STEPLOG_CRASH_PLAN"
SERVER: Final = "STEPLOG_CRASH_SERVER"
UNWRAPPED: Final = 87
"""Exit status of a program that is about to have an effect and has opened no run."""
NO_LEDGER: Final = 88
"""Exit status of a program in which the ledger cannot be read."""

_BEFORE: Final = {ev.STEP_STARTED: "before-intent", ev.STEP_FINISHED: "before-outcome", ev.RUN_ENDED: "before-end"}
_AFTER: Final = {
    ev.STEP_FINISHED: "after-outcome",
    ev.RUN_CREATED: "after-created",
    ev.RUN_ENDED: "after-end",
}


class Kit:
    """The plan of this process, and its notes.

    Attributes:
        plan: what the process is to do; `steplog.testing._crash_process` writes it.
        point: where it dies, or None where it may live.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.point: dict[str, Any] | None = plan.get("point")
        self._known: Collection[tuple[str, str]] = frozenset((run, step) for run, step in plan.get("known", ()))
        self._values: dict[str, Any] = plan.get("values", {})
        self._notes = os.open(plan["notes"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._targets: dict[str, str] = {}
        self._met: Counter[str] = Counter()
        self._under_way: Counter[int] = Counter()
        self._ledger: Callable[[], Any] | None = None

    # notes -----------------------------------------------------------------------------------------------------------

    def note(self, what: str, **facts: Any) -> None:
        """Write down what has happened."""
        os.write(self._notes, orjson.dumps({"what": what, **facts}) + b"\n")

    def begun(self, step: str, run: str, **facts: Any) -> None:
        """An effect begins."""
        self.note("begun", step=step, run=run, **facts)

    def ended(self, step: str, run: str, **facts: Any) -> None:
        """An effect has returned or raised."""
        self.note("ended", step=step, run=run, **facts)

    # moments ---------------------------------------------------------------------------------------------------------

    def moment(self, phase: str, run: str, step: str, target: str = "") -> None:
        """Die here, if this is where."""
        if self.point is not None and phase == self.point["phase"] and self._is_it(run, step, target):
            self.die(step)

    def _is_it(self, run: str, step: str, target: str) -> bool:
        """Whether the step is the one that the plan means.

        Where a program asks for something else each time it is started, its steps have other ids than in the baseline,
        and the one of the same target and number is taken.
        """
        point = self.point
        assert point is not None
        exact = (run, step) == (point["run"], point["step"])
        if not exact and (
            point["kind"] == "run"
            or (run, step) in self._known
            or (target or self._targets.get(step)) != point["target"]
        ):
            return False
        with self._lock:
            key = step if exact else ""
            self._met[key] += 1
            return bool(self._met[key] == (point["nth"] if key else point["ordinal"]))

    def is_inside(self, run: str, step: str, target: str) -> dict[str, Any] | None:
        """How far into this effect the process is to die, or None."""
        point = self.point
        if point is None or point["phase"] != "inside" or not self._is_it(run, step, target):
            return None
        extent: dict[str, Any] | None = point["inside"]
        return extent

    def die(self, step: str) -> None:
        """SIGKILL, for this process and all that it has started: no handler runs, no buffer is flushed."""
        self.note("killed", step=step)
        os.killpg(0, signal.SIGKILL)
        signal.pause()

    # the log ---------------------------------------------------------------------------------------------------------

    def watch_log(self) -> None:
        """Watch every append, and keep all runs in the home of this process."""
        append, make, kit = FileWriter.append, FileStore.__init__, self

        def watched(writer: FileWriter, lines: Sequence[bytes], first_seq: int, *, sync: bool) -> None:
            events, run = [orjson.loads(line) for line in lines], writer._log.run_id  # noqa: SLF001  # it has no name of its own
            for event in events:
                kit._pass(run, event, _BEFORE)
            append(writer, lines, first_seq, sync=sync)
            for event in events:
                kit._pass(run, event, _AFTER)

        def at_home(store: FileStore, home: Any, **options: Any) -> None:  # noqa: ARG001  # wherever the program says
            make(store, kit.plan["home"], **options)

        _replace(FileWriter, "append", watched)
        _replace(FileStore, "__init__", at_home)

    def _pass(self, run: str, event: dict[str, Any], phases: dict[str, str]) -> None:
        kind, step = event["type"], event.get("step") or event["type"]
        if kind == ev.STEP_STARTED:
            self._targets[step] = event["data"]["target"]
        if kind in phases:
            self.moment(phases[kind], run, step, self._targets.get(step, kind))

    # tools -----------------------------------------------------------------------------------------------------------

    def watch_tools(self) -> None:
        """Watch the function of every tool and value, and what interceptors record as a whole."""
        make, kit = Tool.__init__, self

        def watched(tool: Tool, fn: Any, **options: Any) -> None:
            make(tool, fn, **options)
            if isinstance(fn, functools.partial):
                tool.fn = functools.partial(kit._watch(tool, fn.func), *fn.args, **fn.keywords)
            else:
                tool.fn = kit._watch(tool, fn)
            if tool.kind == "tool_call":
                kit._describe(tool, fn)

        class Inside(context.inside):
            def __enter__(self) -> None:
                super().__enter__()
                recorder, step = self._frame[:2]
                kit.moment("after-intent", recorder.journal.run_id, step)
                kit.begun(step, recorder.journal.run_id)

            def __exit__(self, *raised: object) -> None:
                recorder, step = self._frame[:2]
                kit.ended(step, recorder.journal.run_id, failed=raised[0] is not None)
                super().__exit__(*raised)

        _replace(Tool, "__init__", watched)
        _replace(record, "inside", Inside)

    def _describe(self, tool: Tool, fn: Any) -> None:
        while isinstance(fn, functools.partial):
            fn = fn.func
        code = getattr(inspect.unwrap(fn), "__code__", None)
        place = {} if code is None else {"file": code.co_filename, "line": code.co_firstlineno}
        self.note("tool", name=tool.name, mode=tool.mode, key=tool.binder.takes_key, **place)

    def _watch(self, tool: Tool, fn: Callable[..., Any]) -> Callable[..., Any]:
        if _is_async(fn):

            @functools.wraps(fn)
            async def call_async(*args: Any, **named: Any) -> Any:
                place = _place()
                if place is None:
                    return await fn(*args, **named)
                body = self._enter(tool, place, fn)
                try:
                    return await body.stepped(fn(*args, **self._named(tool, named)))
                finally:
                    self._leave(body)

            return call_async

        @functools.wraps(fn)
        def call(*args: Any, **named: Any) -> Any:
            place = _place()
            if place is None:
                return fn(*args, **named)
            body = self._enter(tool, place, fn)
            try:
                value = f"{body.run} {body.step}"
                if tool.kind == "local" and value in self._values:
                    return decode(self._values[value])
                with body.traced():
                    return fn(*args, **self._named(tool, named))
            finally:
                self._leave(body)

        return call

    def _enter(self, tool: Tool, place: context.Frame, fn: Callable[..., Any]) -> Body:
        step, run = place.scope, place.recorder.journal.run_id
        self.moment("after-intent", run, step, tool.name)
        body = Body(
            step, run, fn, self.is_inside(run, step, tool.name), self.die, measured=bool(self.plan.get("baseline"))
        )
        if tool.kind == "tool_call":
            body.world = self._look()
        self.begun(step, run, tool=tool.name)
        return body

    def _leave(self, body: Body) -> None:
        body.over()
        if isinstance(sys.exception(), GeneratorExit):
            return  # a task that nobody waits for any more: its effect was cut off
        seen = self._look() if body.world is not None else None
        facts: dict[str, Any] = {} if seen is None else {"acts": seen != body.world}
        self.ended(body.step, body.run, failed=sys.exception() is not None, inside=body.extent(), **facts)

    def _look(self) -> Any:
        """What the ledger says; None where there is none, or where this is not the baseline."""
        named = self.plan.get("ledger")
        if named is None or not self.plan.get("baseline"):
            return None
        try:
            if self._ledger is None:
                self._ledger = load(**named)
            with context.unrecorded():
                return [entered(entry) for entry in self._ledger()]
        except Exception as error:  # noqa: BLE001  # of whatever kind, the caller's process reports it
            # Raised here, it would look like a failure of the tool.
            self.note("no ledger", why=f"{type(error).__name__}: {error}")
            os._exit(NO_LEDGER)

    def _named(self, tool: Tool, named: dict[str, Any]) -> dict[str, Any]:
        """A key of this case's own: the world must not take its effects for those of the case before."""
        key = named.get("idempotency_key")
        return {**named, "idempotency_key": key + self.plan["key"]} if tool.binder.takes_key and key else named

    # what has no run -------------------------------------------------------------------------------------------------

    def watch_the_outside(self) -> None:
        """End the process before its first effect, where no run was opened for it."""
        outside = door._outside  # noqa: SLF001

        def refuse(kind: str, target: str, mode: str) -> None:
            if kind != "local" and not door.PROCESS.opened:
                self.note("unwrapped", target=target)
                os._exit(UNWRAPPED)
            outside(kind, target, mode)

        _replace(door, "_outside", refuse)


def _replace(owner: Any, name: str, value: Any) -> None:
    """For good: the process is there to be killed."""
    setattr(owner, name, value)


def _place() -> context.Frame | None:
    return None if context.PASSING.get() else context.frame()


def _same_names() -> None:
    """Runs without an id get the same ones in every process, in their order."""
    count = iter(range(1, 1 << 30))
    ulid.new = lambda: f"crash-test-{next(count)}"


def arm(site: str) -> None:
    """Take up the plan of this process, and make room for the `sitecustomize` that it would have found without us."""
    folder = os.path.dirname(os.path.abspath(site))
    sys.path[:] = [part for part in sys.path if part != folder]
    names = os.environ.pop(SERVER, None)
    if names:
        serve(names)
    plan = os.environ.get(PLAN)
    if plan:
        with open(plan, "rb") as file:
            kit = Kit(orjson.loads(file.read()))
        kit.watch_log()
        kit.watch_tools()
        _crash_wire.watch(kit)
        if kit.plan.get("probe"):
            kit.watch_the_outside()
        _same_names()
        if kit.plan.get("baseline"):
            atexit.register(lambda: kit.note("imported", names=modules()))
        kit.note("armed", pid=os.getpid(), at=time.time())
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
