"""What one process has asked for so far in a run, and what it still has to ask for."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel.decide import FIRST, Decision, Effect, Halt, Place, Replay, decide, inside, owed_by, unasked
from steplog._kernel.fold import FINISHED, StepState, behind
from steplog._kernel.fork import origin_of
from steplog._kernel.identity import step_id
from steplog._kernel.occurrences import Caller, Given, Occurrences, OfOthers
from steplog._kernel.replaying import decide_recorded, is_denied, unplayed
from steplog._runtime.accounts import Digests, Doubt
from steplog._runtime.context import Frame, branch_at, current_task
from steplog._runtime.door import PROCESS
from steplog._runtime.group import reentered
from steplog.errors import InvalidArgument

if TYPE_CHECKING:
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Call

# Characters of a branch's name: threads that start threads that start threads.
_LONG: Final = 64


# Recorded steps of one place from which on it is worth keeping which of them were asked for.
_MANY: Final = 32
Submitted = tuple[Effect, int, Decision]
"""An effect with its id, its occurrence, and what is to be done with it."""

# As `Effect(...)` does it, without a second call.
_effect: Final = tuple.__new__


def took(step: StepState) -> float:
    """How many seconds a recorded attempt took; 0 where that is not recorded."""
    seconds: float = (step.finished or {}).get("ms", {}).get("total", 0.0) / 1000
    return seconds


class Dispatch:
    """The submissions of one process; gives them their ids and asks the kernel what to do with them.

    Attributes:
        branched: whether anything was submitted from a branch, now or when the log was recorded: a thread or task that
            was forked off inside the run.
        patient: whether a branch may be made to wait until others have asked for what is theirs.
        names: by the name of a step without a name of its own, what tells its function from others.
        innocent: what intents say beside ids and arguments, where that was found to hold no secret; with its JSON.
        live: whether what is not recorded may happen; not so in a replay.
        paced: whether recorded steps take the time that they took.
        goes_on: what to do instead of a halt, where a replay is to find all differences; else None.
        live_tools: in a replay, tools run whatever is recorded of them, as a cassette may want it.
        doubt: a request of which it is not known whose it is in the log, or None; nothing new may happen after it.
    """

    def __init__(self, recorder: Recorder, on_drift: str) -> None:
        journal = recorder.journal
        self.live = True
        self.paced = False
        self.goes_on: Callable[[Halt, Call, Effect], tuple[Effect, Decision]] | None = None
        self.live_tools = False
        self.branched = any(step.branch for step in journal.state.steps.values())
        self._journal = journal
        self._on_drift = on_drift
        self._wanted = "run" if on_drift == "run" else "halt"
        self._recorder = recorder
        self._lock = threading.RLock()
        # The thread that is counting a call, or 0.
        self._counting = 0
        self._seen: set[str] = set()
        # Of places with many recorded steps: those that were not asked for yet.
        self._left: dict[Place, dict[str, None]] = {}
        self._owed = owed_by(journal.state)
        self._occurrences = Occurrences(journal.state)
        self._recorded: dict[str, list[StepState]] | None = None
        self.names: dict[str, Any] = {}
        self._inner_runs: dict[str, int] = {}
        self._receivers: dict[tuple[str, str, str], Any] = {}
        self._digests = Digests(origin_of(journal.state.created, journal.run_id))
        self._forks: dict[tuple[str, ...], Iterator[int]] = {}
        self.patient = not journal.state.completed_once
        self.innocent: dict[tuple[Any, ...], tuple[str, str]] = {}
        self.doubt: Doubt | None = None

    @property
    def seen(self) -> Collection[str]:
        """Ids of the steps that were submitted so far."""
        return self._seen

    @property
    def asked(self) -> int:
        """How many steps were submitted so far."""
        return len(self._seen)

    def submit(self, call: Call, place: Frame, hashed: str, branch: str, *, may_wait: bool = True) -> Submitted | None:
        """Count a call and decide on it. Raises what `Journal.check_usable` raises, and the halted run's interrupt.

        Returns:
            None where it depends on what other branches ask for; to be submitted again soon. Not unless it
            `may_wait`.
        """
        # Before the call is counted: one that is refused and made again must get the same id.
        self._journal.check_usable()
        thread = get_ident()
        if thread == self._counting:
            # A signal handler that interrupted this thread in here would count its own call under the same number.
            raise reentered(self._journal.run_id)
        with self._lock:
            self._counting = thread
            try:
                if self._recorder.halted is not None:
                    self._recorder.refuse_if_halted()
                return self._count(call, place, hashed, branch, may_wait=may_wait)
            finally:
                self._counting = 0

    def _count(self, call: Call, place: Frame, hashed: str, branch: str, *, may_wait: bool) -> Submitted | None:
        if branch:
            # Branches that make the same call may find each other's, and with it the other's next step. So from now on
            # a step that is missing may only be late.
            self.branched = True
        scope, after, kind, target = place.scope, place.after, call.kind, call.target
        same = (kind, target, hashed)
        identity = step_id(scope, kind, target, hashed, 0)
        if call.account or (self.branched and self.patient):
            occurrence = self._give(call, place, branch, same, identity, may_wait=may_wait)
        else:
            occurrence = self._occurrences.give(scope, identity, after, branch)
        if occurrence is None:
            return None
        if occurrence:
            identity = step_id(scope, kind, target, hashed, occurrence)
        if call.receiver is not None:
            self._note_receiver(same, call.receiver)
        self._seen.add(identity)
        if self._owed or self._left:
            self._forget(identity)
        effect = _effect(Effect, (identity, kind, target, scope, after, call.mode, call.attaches))
        decision = self._decide(effect, self._wanted)
        if type(decision) is not Replay:
            if not may_wait and self._may_draw(call, decision):
                decision = self._decide(effect, "run")
            decision = self._unless_in_doubt(decision)
            if self.goes_on is not None and isinstance(decision, Halt):
                effect, decision = self.goes_on(decision, call, effect)
                self._seen.add(effect.id)
        return effect, occurrence, decision

    def account(self, call: Call) -> str:
        """For whom a call is made, as it is recorded."""
        return self._digests.of(call.account)

    def _may_draw(self, call: Call, decision: Decision) -> bool:
        """Whether a plain call in an event loop may go ahead of recorded steps that other branches may yet ask for.

        It cannot wait for them. A safe local value changes nothing; what follows from it is a step that can.
        """
        missed = decision.missed if isinstance(decision, Halt) and decision.reason == "drift" else ()
        is_value = call.kind == "local" and call.mode == "safe"
        return is_value and bool(missed) and self.patient and self.may_be_late(missed)

    def _give(
        self, call: Call, place: Frame, branch: str, same: tuple[str, str, str], first: str, *, may_wait: bool
    ) -> int | None:
        asks_others = self.branched and self.patient
        if call.account:
            given = self._give_to(call, place, branch, same, first, waited=not (asks_others and may_wait))
            return None if given is None else given.number
        of_others: OfOthers = "take"
        if asks_others:
            of_others = "wait" if may_wait else "leave" if call.mode == "safe" else "take"
        return self._occurrences.give(place.scope, first, place.after, branch, of_others)

    def _give_to(
        self, call: Call, place: Frame, branch: str, same: tuple[str, str, str], first: str, *, waited: bool
    ) -> Given | None:
        changes = call.mode != "safe"
        # A model's answer to an equal request is as good an answer whoever asked for it.
        strict = changes or call.kind != "llm_call"
        caller = Caller(self.account(call), bool(branch), strict, changes, branch, waited)
        given = self._occurrences.give_to(place.scope, first, place.after, caller)
        if given is not None and given.clash is not None:
            clash = given.clash
            steps = tuple(step_id(place.scope, *same, number) for number in clash.numbers)
            self._note_doubt(call, Doubt(clash.taken, clash.account, steps), strict=strict and not clash.old)
        return given

    def _note_doubt(self, call: Call, doubt: Doubt, *, strict: bool) -> None:
        if strict and self._on_drift == "halt":
            self.doubt = self.doubt or doubt
            return
        message = (
            f"run {self._journal.run_id}: {call.target}: equal requests are recorded for several accounts, and which "
            f"of them asks now (account {doubt.account}) the log does not tell. It gets what comes first. (Said once.)"
        )
        PROCESS.warn_once(f"account {self._journal.run_id} {call.target}", message)

    def may_be_late(self, missed: tuple[str, ...]) -> bool:
        """Whether all of these recorded steps were asked for by branches, which keep their own time."""
        steps = self._journal.state.steps
        return all(steps[step].branch for step in missed)

    def _note_receiver(self, same: tuple[str, str, str], receiver: Any) -> None:
        """Say so when equal calls go to two objects: on a resume in another order each would get the other's result."""
        known = self._receivers.get(same)
        if known is None or known() is None:
            with contextlib.suppress(TypeError):  # an object that allows no weak reference is not worth keeping alive
                self._receivers[same] = weakref.ref(receiver)
        elif known() is not receiver:
            name = same[1]
            message = (
                f"{name} is called with equal arguments on two objects, which a resumed run cannot tell apart. Pass "
                f"what distinguishes them as an argument, or make them frozen dataclasses. (Said once.)"
            )
            PROCESS.warn_once(f"receivers {name}", message)

    def foresee(self, call: Call, place: Frame, hashed: str) -> dict[str, Any] | None:
        """What the log holds of the outcome that a call would get if it were submitted now; None where it holds none.

        A hint that changes nothing: another branch may be given that outcome before the call is submitted.
        """
        with self._lock:
            if self._recorded is None:
                self._recorded = {}
                for step in self._journal.state.steps.values():
                    self._recorded.setdefault(step.request, []).append(step)
            first = step_id(place.scope, call.kind, call.target, hashed, 0)
            for step in self._recorded.get(first, ()):
                ended = step.status in FINISHED and step.id not in self._journal.state.retry
                if step.id not in self._seen and (ended or step.given_up is not None):
                    return step.finished or {}
        return None

    def decide(self, effect: Effect, on_drift: str | None = None) -> Decision:
        """Decide on an effect that has been counted."""
        with self._lock:
            decision = self._decide(effect, on_drift or self._wanted)
        return decision if on_drift is not None else self._unless_in_doubt(decision)

    def _decide(self, effect: Effect, on_drift: str) -> Decision:
        state = self._journal.state
        if not self.live:
            live_tool = self.live_tools and effect.kind == "tool_call" and not is_denied(state, effect.id)
            decision: Decision = FIRST if live_tool else self._decide_recorded(effect)
        else:
            decision = decide(state, self._seen, effect, owed=self._owed, left=self._left, on_drift=on_drift)
        if decision is not FIRST and type(decision) is not Replay and effect.id not in state.steps:
            # It is mostly asked again, soon.
            self._keep_left((effect.scope, effect.after))
        return decision

    def _unless_in_doubt(self, decision: Decision) -> Decision:
        if self.doubt is None or isinstance(decision, Replay) or not self.live:
            return decision
        return Halt("account")

    def replay_only(self, *, paced: bool) -> None:
        """From now on nothing happens that is not recorded; `paced`: and steps take the time that they took."""
        self.live = False
        self.paced = paced
        # As in a run that has ended: recorded steps are given out as they are asked for, and nobody waits for others.
        self.patient = False

    def _decide_recorded(self, effect: Effect) -> Decision:
        decision = decide_recorded(self._journal.state, self._seen, effect, self._left)
        if isinstance(decision, Halt) and decision.reason == "unrecorded" and self.branched:
            # Other branches may still be on their way to what is recorded for them.
            missed = tuple(step.id for step in unplayed(self._journal.state, self._seen))
            decision = decision._replace(missed=missed, elsewhere=True)
        return decision

    def _keep_left(self, place: Place) -> None:
        """Keep from now on which steps of a place were not asked for yet, where looking through all takes long."""
        followers = self._journal.state.followers.get(place, ())
        if len(followers) > _MANY and place not in self._left:
            self._left[place] = dict.fromkeys(step for step in followers if step not in self._seen)

    def _forget(self, identity: str) -> None:
        """What was asked for is neither owed nor left any more."""
        self._owed.pop(identity, None)
        step = self._journal.state.steps.get(identity)
        if step is not None and (step.scope, step.after) in self._left:
            self._left[step.scope, step.after].pop(identity, None)

    def fork(self, place: Frame, how: str) -> str:
        """The name of a branch that is forked off at a place: the same whenever the program forks there again."""
        outer = branch_at(place)
        forks = self._forks.setdefault((place.scope, outer, place.after or "", how), itertools.count())
        name = f"{outer}.{how}{next(forks)}".lstrip(".")
        return name if len(name) < _LONG else hashlib.sha256(name.encode()).hexdigest()[:16]

    def enter(self, step: str) -> None:
        """An attempt of a step begins: its inner steps count from zero again, so that those that finished are found."""
        with self._lock:
            self._occurrences.restart(step)
            for forked in [key for key in self._forks if key[0] == step]:
                del self._forks[forked]

    def settle_inside(self, step: StepState) -> None:
        """A step is returned as a whole; what it did inside will not be asked for."""
        if self._owed and step.id in self._journal.state.inner:
            with self._lock:
                for inner in inside(self._journal.state, step.id):
                    self._owed.pop(inner.id, None)

    def expect_no_more(self, effect: Effect) -> None:
        """A failed step is tried again; what the program did because of its failure may not be asked for now."""
        step = self._journal.state.steps.get(effect.id)
        if step is not None and step.id in self._journal.state.retry and self._owed:
            with self._lock:
                for following in behind(self._journal.state, step):
                    self._owed.pop(following, None)

    def expect_again(self, step: str) -> None:
        """A step's own retry policy repeats it; what its last attempt did inside must be asked for again."""
        with self._lock:
            for inner in inside(self._journal.state, step):
                self._seen.discard(inner.id)
                if (inner.scope, inner.after) in self._left:
                    self._left[inner.scope, inner.after][inner.id] = None
                if inner.mode != "safe" and inner.status in FINISHED and inner.id not in self._journal.state.retry:
                    self._owed[inner.id] = None

    def runs_ahead(self, step: StepState | None) -> bool:
        """Whether a plain tool behind a step would be new, while branches have not asked for what they did.

        Behind a recorded one, or, where there is none, behind one that is executed now.
        """
        if not (self._owed and self.branched and self.patient and PROCESS.has_plain_tools):
            return False
        if current_task() is None:
            return False
        return step is None or not unasked(self._journal.state, self._seen, step.scope, step.id)

    @property
    def replaying(self) -> bool:
        """Whether recorded results are still to be asked for."""
        steps = tuple(self._journal.state.steps.values())
        return any(step.end is not None and not step.scope and step.id not in self._seen for step in steps)

    def unplayed(self) -> list[str]:
        """Ids of finished steps at the top of the log that this dispatch has not asked for."""
        state = self._journal.state
        steps = list(state.steps.values())
        return [step.id for step in steps if not step.scope and step.end is not None and step.id not in self._seen]

    def check_name(self, name: str, code: Any) -> None:
        """Refuse two different functions that happen to have one name: each would be given the other's results.

        Raises:
            InvalidArgument: the name belongs to another function.
        """
        if code is None or self.names.setdefault(name, code) == code:
            return
        message = (
            f"run {self._journal.run_id}: two different functions are recorded as {name!r}, so each could get the "
            f'results of the other.\nGive one of them a name of its own: @steplog.step(name="...")'
        )
        raise InvalidArgument(message, run_id=self._journal.run_id)

    def name_of_inner_run(self, scope: str) -> str:
        """The id of a run that is opened at a place in this one without an id: the same whenever the program runs."""
        with self._lock:
            number = self._inner_runs[scope] = self._inner_runs.get(scope, 0) + 1
        return self.nth_inner_run(scope, number)

    def nth_inner_run(self, scope: str, number: int) -> str:
        """The id of the run that is opened without one at a place in this one, counted from 1."""
        place = f".{scope[:14]}" if scope else ""
        outer = self._journal.run_id
        if len(outer) > 100:
            outer = outer[:80] + hashlib.sha256(outer.encode()).hexdigest()[:16]
        return f"{outer}{place}.{number}"
