"""What a run has done is undone when it is cancelled, where its program wants that (`undo_on_cancel`)."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from steplog._runtime import messages
from steplog._runtime.blame import told
from steplog._runtime.context import FRAME, running_loop
from steplog._runtime.drive import Work
from steplog._runtime.undo import carry_out
from steplog.errors import UndoFailed
from steplog.stores.base import folded

if TYPE_CHECKING:
    from steplog._runtime.drive import Steps
    from steplog._runtime.owner import OwnerTask
    from steplog._runtime.recorder import Recorder

log: Final = logging.getLogger("steplog")


def after_cancel(recorder: Recorder, owner: OwnerTask | None) -> Steps[dict[str, Any]]:
    """Undo what a run has done whose program has unwound, and say for its end what became of that.

    Before its end is written, so that a process that dies meanwhile leaves a run that is being cancelled, which is
    taken up again. One that cannot be undone to its end is cancelled all the same; the rest is left to `steplog undo`.
    """
    assert recorder.unwinding is not None
    # Nothing of it may begin any more, and nobody is to be hurried.
    recorder.halt(messages.again(recorder.unwinding.interrupt))
    if owner is not None:
        owner.left()
    found: dict[str, Any] = {}
    yield Work(lambda: found.update(_anywhere(recorder)))
    return found


def _anywhere(recorder: Recorder) -> dict[str, Any]:
    if running_loop() is None:
        return _undone(recorder)
    # A plain `with` in an event loop: an undo that is async needs a loop of its own, which this thread cannot have.
    found: list[dict[str, Any] | BaseException] = []
    token = FRAME.set(None)
    try:
        thread = threading.Thread(target=lambda: found.append(_caught(recorder)), name="steplog-undo")
        thread.start()
        thread.join()
    finally:
        FRAME.reset(token)
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _caught(recorder: Recorder) -> dict[str, Any] | BaseException:
    try:
        return _undone(recorder)
    except BaseException as error:  # noqa: BLE001  # raised where the run is left
        return error


def _undone(recorder: Recorder) -> dict[str, Any]:
    run_id, store = recorder.journal.run_id, recorder.journal.store
    assert recorder.unwinding is not None
    # It is a run beside this one, and not one inside it: a replay of this one undoes nothing.
    token = FRAME.set(None)
    try:
        # As a stranger reads it, and as `steplog undo` will if this process dies.
        state = folded(store.read(run_id))
        done = carry_out(state, recorder.unwinding.interrupt.by, store)
    except Exception as error:  # noqa: BLE001  # recorded; a run that was cancelled has to end
        log.error("run %s was cancelled, and what it has done is not undone to the end: %s", run_id, error)  # noqa: TRY400  # it is raised with the cancellation
        rest = {"rest": len(error.rest)} if isinstance(error, UndoFailed) else {}
        return {"run": f"{run_id}.undo", **rest, "error": told(error)}
    finally:
        FRAME.reset(token)
    left = [state.steps[step].target for step in done.left]
    return {"run": done.run_id or None, "undone": len(done.undone), "left": left}
