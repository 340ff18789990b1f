"""From the logs of a store to a cassette: noise is left out, streams are put together, bodies are collected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from steplog._kernel import events as ev
from steplog._runtime.pack import form_bytes
from steplog.testing import _noise
from steplog.testing._forms import event_lengths, is_form
from steplog.testing.cassettes import VALUES, Cassette, Data, Line, Tape, is_reference, stored

if TYPE_CHECKING:
    from steplog._kernel.events import Event
    from steplog.stores.base import BodyStore, Store


def taken(store: Store, runs: Iterable[str], test: str, day: str) -> Cassette:
    """The cassette that runs of a store make.

    Args:
        store: where they are.
        runs: their ids, in the order in which they were opened.
        test: the test that they belong to.
        day: the day on which they were recorded.
    """
    cassette = Cassette(test, day)
    for run in runs:
        taking = _Taking(run, store.read(run).events, store.bodies, cassette.bodies)
        cassette.tapes.append(Tape(run, taking.lines()))
    return cassette


class _Taking:
    """The events of one run on their way into a cassette."""

    def __init__(self, run: str, events: Sequence[Event], bodies: BodyStore, into: dict[str, bytes]) -> None:
        self._run = run
        self._events = events
        self._bodies = bodies
        self._into = into
        self._accounts = len({event.data["account"] for event in events if event.data.get("account")}) > 1
        self._whole = self._whole_streams()

    def lines(self) -> list[Line]:
        """The lines of the cassette."""
        claim = next((event for event in self._events if event.type == ev.RUN_CLAIMED), None)
        kept = [
            event
            for event in self._events
            if event is not claim and not (event.type == ev.STEP_PROGRESSED and event.step in self._whole)
        ]
        return [Line(event.type, event.step, self._collected(self._cleaned(event))) for event in kept]

    def _whole_streams(self) -> dict[str | None, tuple[Data, dict[int, bytes]]]:
        """By step, its outcome and the bodies of its exchanges, where they lie in notes."""
        notes: dict[str, list[Data]] = {}
        whole: dict[str | None, tuple[Data, dict[int, bytes]]] = {}
        for event in self._events:
            if event.step is None:
                continue
            if event.type == ev.STEP_PROGRESSED:
                notes.setdefault(event.step, []).append(event.data)
            elif event.type == ev.STEP_FINISHED and event.step in notes:
                found = _noise.whole_streams(event.data, notes[event.step], self._content)
                if found is not None:
                    whole[event.step] = found
        return whole

    def _cleaned(self, event: Event) -> Data:
        data = self._without_noise(event)
        if "withheld" in data:
            # The event as it was is encrypted in its store, and stays there.
            data = {**data, "redacted": data["withheld"]}
        return {name: value for name, value in data.items() if name not in ("withheld", "exact")}

    def _without_noise(self, event: Event) -> Data:
        if event.step is None:
            return _noise.created(event.data) if event.type == ev.RUN_CREATED else _noise.of_run(event.type, event.data)
        if event.type == ev.STEP_STARTED:
            return _noise.started(self._run, event.step, event.data, accounts=self._accounts)
        if event.type == ev.STEP_PROGRESSED:
            return event.data
        outcome, streams = self._whole.get(event.step, (event.data, {}))
        data = _noise.finished(outcome)
        for number, content in streams.items():
            data["exchanges"][number]["body"] = stored(content, self._into)
        for exchange in data.get("exchanges", ()):
            form = exchange.get("body")
            if "chunks" in exchange and _noise.is_events(exchange) and (is_form(form) or is_reference(form)):
                # Cut at its events, however it arrived.
                exchange["chunks"] = event_lengths(self._content(form))
        return data

    def _content(self, form: Data) -> bytes:
        name = form.get("body")
        return self._into[name] if isinstance(name, str) and name in self._into else form_bytes(form, self._bodies)

    def _collected(self, node: Any, key: str = "") -> Any:
        """A copy of event data; the bodies that it names are put into the cassette's own."""
        if key in VALUES:
            if isinstance(node, dict) and node.get("$steplog") == "body":
                # Another name than its own is that of a store that encrypts.
                content = self._bodies.get(node["sha256"])
                form = stored(content, self._into)
                return {"$steplog": "body", "sha256": form["body"], "size": len(content)}
            return node
        if is_reference(node):
            return stored(self._content(node), self._into)
        if isinstance(node, dict) and key != "params":
            return {name: self._collected(value, name) for name, value in node.items()}
        return [self._collected(value) for value in node] if isinstance(node, list) else node
