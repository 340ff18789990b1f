"""Generated logs in a real store: what a checkpoint and the lines behind it give is what the whole log gives."""

from __future__ import annotations

import shutil
import tempfile

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import HealthCheck, given, settings

from steplog._kernel.decide import Effect, Replay, decide
from steplog._kernel.fold import fold
from steplog._kernel.line import Chain
from steplog.stores import checkpoint
from steplog.stores.files import FileStore
from tests.kernel.logs import completed, logs
from tests.models.test_log import SHARED_MEMORY
from tests.stores.test_source import loaded
from tests.support.examples import examples

RUN = "r"


def append(home, events, *, keep):
    """Append events as one process does; with `keep` it writes a checkpoint behind them."""
    store = FileStore(home, durability="process")
    writer = store.open(RUN)
    chain = Chain(RUN, writer.view.events)
    first, lines = chain.seq, []
    for event in events:
        chain.epoch = event.epoch
        lines.append(chain.seal(event.type, event.step, event.ts, orjson.dumps(event.data)))
    if lines:
        writer.append(lines, first, sync=False)
    if keep:
        state = writer.view.state
        writer.save(fold(list(store.read(RUN).events)[first:], state))
    writer.close()


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(drawn=logs().map(lambda log: (log, False)) | completed().map(lambda log: (log, True)), data=st.data())
def test_a_checkpoint_and_the_rest_of_a_log_are_the_whole(drawn, data):
    log, has_completed = drawn
    cut = data.draw(st.integers(2, len(log.events)))
    home = tempfile.mkdtemp(dir=SHARED_MEMORY)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, "_FEWEST_EVENTS", 1)
            patch.setattr(checkpoint, "_SMALLEST_LOG", 0)
            append(home, log.events[:cut], keep=True)
            append(home, log.events[cut:], keep=False)
            writer = FileStore(home).open(RUN)
        try:
            assert writer._covered.events == cut
            state = loaded(writer.view.state)
        finally:
            writer.close()
        events = list(FileStore(home).read(RUN).events)
        assert [event.data for event in events] == [event.data for event in log.events]
        assert state == fold(events)
        if has_completed:
            _only_replays(state)
    finally:
        shutil.rmtree(home)


def _only_replays(state):
    """The same calls in a run that has completed are answered from the log, in whatever order they come."""
    for step in state.steps.values():
        if "unreplayable" not in (step.finished or {}):
            effect = Effect(step.id, step.kind, step.target, step.scope, step.after, step.mode, step.job is not None)
            assert decide(state, set(), effect) == Replay(step)
