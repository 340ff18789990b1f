"""A cassette: what one test recorded, in one file that people read, review and merge.

    {
     "cassette": "steplog-cassette/1",
     "test": "test_agent.py::test_refund",
     "recorded": "2026-11-30",
     "runs": [{"run": "test_refund", "events": [{"type": "step.started", "step": "s_…", "data": {…}}, …]}]
    }

The events are those of the log (docs/log-format.md), with the bodies that they name in their places. Recording the same
thing again gives the same file: what only the moment says is left out (`_noise.py`), and events stand in an order that
does not depend on who was faster (`_kernel/arrange.py`; where that matters, `order` tells).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson

from steplog._kernel import arrange
from steplog._kernel import events as ev
from steplog._kernel.line import Chain
from steplog._runtime.pack import BODY_LIMIT, INLINE_LIMIT, form_bytes, inline_form, value_tree
from steplog.errors import SteplogError
from steplog.stores.memory import MemoryStore
from steplog.testing import _noise
from steplog.testing._forms import Shared, bytes_of, event_lengths, form_of, is_form
from steplog.testing._pretty import pretty
from steplog.testing._sums import edited, sum_of

FORMAT: Final = "steplog-cassette/1"

Data = dict[str, Any]
# Where values of the program stand in the data of an event. What is in them is the program's own.
VALUES: Final = ("args", "result", "value")
_CUT_AT_EVENTS: Final = "events"


class CassetteError(SteplogError):
    """A cassette that cannot be read, or that does not hold what it should.

    Attributes:
        path: the file.
    """

    path: str = ""


class Line(NamedTuple):
    """An event of a cassette: a line of a log without what the log's own chain adds to it."""

    type: str
    step: str | None
    data: Data


@dataclass
class Tape:
    """One run of a cassette.

    Attributes:
        run: its id.
        lines: its events in the order of the log, in the form of the log, with bodies by name; without the claim with
            which every log begins.
    """

    run: str
    lines: list[Line] = field(default_factory=list)


@dataclass
class Cassette:
    """What a test recorded.

    Attributes:
        test: the test, as `file.py::Class::test[case]`.
        recorded: the day, as `2026-11-30`.
        tapes: the runs that it opened, in order.
        bodies: bodies that their lines name.
        files: the content of files beside the cassette, by name.
    """

    test: str
    recorded: str
    tapes: list[Tape] = field(default_factory=list)
    bodies: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How many steps it holds."""
        return len({(tape.run, line.step) for tape in self.tapes for line in tape.lines if line.step is not None})

    @property
    def redacted(self) -> int:
        """How many steps have lost a secret."""
        lost = {(tape.run, line.step) for tape in self.tapes for line in tape.lines if "redacted" in line.data}
        return len({step for _, step in lost if step is not None})

    def store(self, *, sessions: dict[str, int] | None = None) -> MemoryStore:
        """The runs as logs in a store of their own.

        Args:
            sessions: by run, how many times it was opened before what is wanted ends; all of it by default.
        """
        store = MemoryStore()
        store.bodies.put(self.bodies.items())
        for tape in self.tapes:
            lines = tape.lines if sessions is None else _until(tape.lines, sessions.get(tape.run, 1))
            writer = store.open(tape.run)
            writer.append(_sealed(tape.run, lines, self.recorded), 0, sync=False)
            writer.close()
        return store


def _until(lines: Sequence[Line], sessions: int) -> Sequence[Line]:
    claims = [number for number, line in enumerate(lines) if line.type == ev.RUN_CLAIMED]
    return lines[: claims[sessions - 1]] if sessions <= len(claims) else lines


def _sealed(run: str, lines: Iterable[Line], day: str) -> list[bytes]:
    chain = Chain(run)
    chain.epoch, ts = 1, f"{day}T00:00:00Z"
    sealed = []
    for line in lines:
        if line.type == ev.RUN_CREATED:
            created = orjson.dumps({"format": ev.FORMAT, "run_id": run, **line.data})
            sealed += [chain.seal(line.type, None, ts, created), chain.seal(ev.RUN_CLAIMED, None, ts, b"{}")]
            continue
        if line.type == ev.RUN_CLAIMED:
            chain.epoch += 1
        # A result from which a secret was taken out is given back with the marker in its place.
        data = {name: value for name, value in line.data.items() if name != "redacted"} if line.step else line.data
        sealed.append(chain.seal(line.type, line.step, ts, orjson.dumps(data)))
    return sealed


# from a cassette to its text -----------------------------------------------------------------------------------------


def is_reference(node: Any) -> bool:
    """Whether a node of event data names a body."""
    return isinstance(node, dict) and isinstance(node.get("body"), str) and "size" in node


def stored(data: bytes, into: dict[str, bytes]) -> Data:
    """Bytes as a form of the log; long ones are put into a table of bodies."""
    if len(data) <= BODY_LIMIT:
        form = inline_form(data)
        return {"json": orjson.loads(data)} if "json" in form else form
    name = sha256(data).hexdigest()
    into[name] = data
    return {"body": name, "size": len(data)}


class _Own:
    """The bodies of a cassette, as a body store gives them."""

    def __init__(self, bodies: dict[str, bytes]) -> None:
        self._bodies = bodies

    def get(self, name: str) -> bytes:
        return self._bodies[name]


def dumps(cassette: Cassette) -> str:
    """The text of a cassette. What lies beside it is in `cassette.files` afterwards."""
    cassette.files = {}
    head = {"cassette": FORMAT, "test": cassette.test, "recorded": cassette.recorded}
    return pretty({**head, "runs": [_tape_tree(tape, cassette) for tape in cassette.tapes]}) + "\n"


def _tape_tree(tape: Tape, cassette: Cassette) -> Data:
    order = arrange.arranged([_told(line) for line in tape.lines])
    shared = Shared()
    events = [_line_tree(tape.lines[number], cassette, shared) for number in order]
    tree: Data = {"run": tape.run}
    if order != sorted(order):
        # Where in the listing each line of the log stands.
        back = sorted(range(len(order)), key=order.__getitem__)
        tree["order"] = arrange.said(back)
    return {**tree, "events": events}


def _told(line: Line) -> arrange.Told:
    if line.type != ev.STEP_STARTED:
        return arrange.Told(line.step)
    data = line.data
    return arrange.Told(line.step, data.get("scope", ""), data.get("after"), f"{data['target']} {data.get('kind')}")


def _line_tree(line: Line, cassette: Cassette, shared: Shared) -> Data:
    tree: Data = {"type": line.type}
    if line.step is not None:
        tree["step"] = line.step
    data = _told_out(line.data, cassette)
    if line.type == ev.STEP_STARTED and line.step is not None:
        tree["sum"] = sum_of(line.step, data)
        if is_form(data.get("request", {}).get("body")):
            data["request"]["body"] = shared.shorten(line.step, data["request"]["body"])
    return {**tree, "data": data} if data else tree


def _told_out(data: Data, cassette: Cassette) -> Data:
    own: Any = _Own(cassette.bodies)
    keep = cassette.files.__setitem__

    def walk(node: Any, key: str = "", *, events: bool = False) -> Any:
        if key in VALUES:
            return value_tree(node, own)
        if key in ("body", "rest") and (is_form(node) or is_reference(node)):
            return form_of(form_bytes(node, own), keep, events=events)
        if isinstance(node, dict) and key != "params":
            streamed = "chunks" in node and _noise.is_events(node)
            told = {name: walk(value, name, events=streamed) for name, value in node.items()}
            if streamed and is_form(told.get("body")):
                told["chunks"] = _CUT_AT_EVENTS
            return told
        return [walk(value) for value in node] if isinstance(node, list) else node

    told: Data = walk(data)
    return told


# from a text to a cassette -------------------------------------------------------------------------------------------


def loads(text: str | bytes, path: str = "", fetch: Callable[[str], bytes] | None = None) -> Cassette:
    """The cassette that a text says.

    Args:
        text: the text.
        path: the file that it comes from, for errors.
        fetch: gives the content of a file beside it.

    Raises:
        CassetteError: it is no cassette, one of another format, or one whose requests were edited.
    """
    tree = _parsed(text, path)
    cassette = Cassette(str(tree.get("test", "")), str(tree.get("recorded", "")))

    def check(event: Data, data: Data) -> None:
        if event.get("sum") != sum_of(event["step"], data):
            raise CassetteError(edited(path, text, event), path=path)

    try:
        for run in tree["runs"]:
            cassette.tapes.append(_tape(run, cassette, fetch or nothing_beside, check))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        message = f"{path or 'the cassette'} cannot be read: {what}.\nRecord it again: pytest --steplog=all TEST"
        raise CassetteError(message, path=path) from error
    return cassette


def _parsed(text: str | bytes, path: str) -> Data:
    try:
        tree = json.loads(text)
    except ValueError as error:
        message = (
            f"{path or 'the cassette'} is no JSON: {error}.\nA merge may have left its marks in it. "
            "Record it again: pytest --steplog=all TEST"
        )
        raise CassetteError(message, path=path) from error
    found = tree.get("cassette") if isinstance(tree, dict) else None
    if found != FORMAT:
        what = f"is in the format {found}" if found else "is no steplog cassette"
        message = f"{path or 'the text'} {what}; this release of steplog reads {FORMAT}."
        raise CassetteError(message, path=path)
    checked: Data = tree
    return checked


def nothing_beside(name: str) -> bytes:
    """Refuse: there is no such file."""
    message = f"the file {name} beside it is missing"
    raise ValueError(message)


_Check = Callable[[Data, Data], None]


def _tape(tree: Data, cassette: Cassette, fetch: Callable[[str], bytes], check: _Check) -> Tape:
    shared = Shared()

    def beside(name: str) -> bytes:
        content = fetch(name)
        if sha256(content).hexdigest() != name:
            message = f"the file {name} beside it was changed"
            raise ValueError(message)
        cassette.files[name] = content
        return content

    listed = [_line(event, cassette, shared, beside, check) for event in tree["events"]]
    order = arrange.read(tree["order"], len(listed)) if "order" in tree else range(len(listed))
    return Tape(tree["run"], [listed[number] for number in order])


def _line(tree: Data, cassette: Cassette, shared: Shared, fetch: Callable[[str], bytes], check: _Check) -> Line:
    step, data = tree.get("step"), tree.get("data", {})
    if step is not None and is_form((data.get("request") or {}).get("body")):
        request = {**data["request"], "body": shared.restore(step, data["request"]["body"])}
        data = {**data, "request": request}
    if tree["type"] == ev.STEP_STARTED:
        check(tree, data)

    def walk(node: Any, key: str = "") -> Any:
        if key in VALUES:
            content = orjson.dumps(node)
            if len(content) <= INLINE_LIMIT:
                return node
            name = sha256(content).hexdigest()
            cassette.bodies[name] = content
            return {"$steplog": "body", "sha256": name, "size": len(content)}
        if key in ("body", "rest") and is_form(node):
            return stored(bytes_of(node, fetch), cassette.bodies)
        if isinstance(node, dict) and key != "params":
            if node.get("chunks") == _CUT_AT_EVENTS:
                return {**walk({**node, "chunks": []}), "chunks": event_lengths(bytes_of(node["body"], fetch))}
            return {name: walk(value, name) for name, value in node.items()}
        return [walk(value) for value in node] if isinstance(node, list) else node

    return Line(tree["type"], step, walk(data))
