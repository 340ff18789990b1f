"""Which of several equal requests one is, when a run is resumed and they come in another order.

Equal requests of one scope differ in their occurrence alone. What tells which recorded one a request is:

    the account      for whom it is made, where an interceptor knows that. It is no part of identity, since credentials
                     change while a run is suspended: it decides among equal requests and nowhere else.
    the lineage      the step behind which it is made. In a sequence that names one request; branches that were forked
                     off at one place have it in common.
    the branch       which of the threads that were started at that place makes it. Tasks of an event loop share one
                     name; they ask in the order in which they were made.
    the order        in which they were recorded.

A branch whose own request is not in the log must not be given what another one did, whose next step follows from it. So
where none is recorded at its place, or only others', its question is put off until they have taken what is theirs.

An account that the log does not know may be a recorded one whose credentials have changed, or another one that had not
asked yet when the recording ended. In a sequence the lineage answers that. In a branch the question is put off until
other branches have had the time to take what is theirs (`give_to` returns None); what is left then belongs to it,
where it can belong to one recorded account alone. Everything else is a `Clash`, which its caller must not pass over in
silence.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from typing import Final, Literal, NamedTuple

from steplog._kernel.fold import FINISHED, RunState, StepState
from steplog._kernel.state import UNNAMED

Request = str
"""What equal requests of one scope have in common: the step id of the first of them."""

OfOthers = Literal["take", "leave", "wait"]


class Caller(NamedTuple):
    """Who makes a request.

    Attributes:
        account: digest of the account, as it is recorded.
        forked: it is the first request of a branch, whose place in the run it shares with other branches.
        strict: what was recorded for another account is a wrong result for this one.
        changes: the request changes something, so that one too many is a second effect.
        branch: the branch whose first request it is, or "".
        waited: other branches have had the time to ask for what is theirs.
    """

    account: str
    forked: bool = False
    strict: bool = True
    changes: bool = True
    branch: str = ""
    waited: bool = True


class Clash(NamedTuple):
    """An occurrence was given out on a guess.

    Attributes:
        numbers: the occurrences in question, in recorded order.
        account: who asks.
        taken: they are the account's own, and were given to another account before.
        old: an older release recorded them, and for whom it did not say.
    """

    numbers: tuple[int, ...]
    account: str
    taken: bool = False
    old: bool = False


class Given(NamedTuple):
    """An occurrence, and what is doubtful about it, if anything is."""

    number: int
    clash: Clash | None = None


class Occurrences:
    """Which occurrence a request gets, among the identical ones of its scope.

    In a sequence they are counted from zero. Concurrent branches reach the log in another order than they are counted
    in, and reach it in another order again when the run is resumed. So of the recorded ones that nobody has asked for
    yet a request gets

    1. one that was recorded for its own account,
    2. one that was recorded at its own place, behind the same step, in the same branch: it finds what it did itself,
    3. one that was recorded at the same place in another branch, when that one does not come for it,
    4. else any other, when nobody else comes for it: an identical request is an identical request, wherever the program
       makes it now.

    Finished ones come first: whoever gets an open one runs its effect, and must not run it while what has happened
    already is still to be asked for. Only at its own place, where a task asks in its turn, a request that may be
    repeated gets its own number even if that one is open. When all recorded ones are given out, a request is a new one.
    """

    def __init__(self, state: RunState) -> None:
        self._accounts = _Accounts()
        # A single first occurrence is found by counting, and a long log is made of these. Of several equal ones some
        # have a number above zero; one that a branch began with is that branch's.
        several = {_asked(step) for step in state.steps.values() if step.occurrence or step.branch}
        recorded: dict[tuple[str, Request], list[_Place]] = {}
        for step in state.steps.values() if several else ():
            asked = _asked(step)
            if asked in several:
                recorded.setdefault(asked, []).append(_place(step))
        self._recorded = {key: sorted(places, key=_by_outcome) for key, places in recorded.items()}
        # The single ones that are somebody's.
        self._owned: dict[tuple[str, Request], StepState] = {}
        for step in state.steps.values():
            if step.account:
                self._accounts.recorded.add(step.account)
                self._owned[_asked(step)] = step
        self._given: dict[str, dict[Request, int | _Group]] = {}

    def give(
        self, scope: str, request: Request, after: str | None, branch: str = "", of_others: OfOthers = "take"
    ) -> int | None:
        """The occurrence of a request that is made in a scope, behind the step `after`, for nobody in particular.

        Args:
            scope: id of the enclosing step, or "".
            request: what is asked for.
            after: the step behind which it is made.
            branch: the branch whose first request it is, or "".
            of_others: what to do where only other branches' occurrences are left: `take` one, `leave` them and begin
                a new one, or `wait`.

        Returns:
            None to wait.
        """
        given = self._given.get(scope)
        if given is None:
            given = self._given[scope] = {}
        counted = given.get(request)
        if counted is None:
            counted = self._recorded_of(scope, request) if self._recorded else 0
        if isinstance(counted, int):
            given[request] = counted + 1
            return counted
        given[request] = counted
        return counted.give(after, branch, of_others)

    def give_to(self, scope: str, request: Request, after: str | None, caller: Caller) -> Given | None:
        """The occurrence of a request that is made for an account; None where other branches may have to ask first."""
        self._accounts.used.add(caller.account)
        given = self._given.setdefault(scope, {})
        counted = given.get(request)
        if counted is None:
            counted = self._recorded_of(scope, request)
        if counted == 0:
            owned = self._owned.get((scope, request))
            if owned is not None and owned.account != caller.account:
                counted = _Group([_place(owned)])
        if isinstance(counted, int):
            given[request] = counted + 1
            return Given(counted)
        given[request] = counted
        return counted.give_to(after, caller, self._accounts)

    def restart(self, scope: str) -> None:
        """Give out the occurrences inside a step again, because the step is attempted again."""
        self._given.pop(scope, None)

    def _recorded_of(self, scope: str, request: Request) -> int | _Group:
        places = self._recorded.get((scope, request))
        return 0 if places is None else _Group(places)


def _asked(step: StepState) -> tuple[str, Request]:
    return step.scope, step.request


def _place(step: StepState) -> _Place:
    # One that the program gave up was asked for in its turn like a finished one, and is given up again there.
    is_open = step.status not in FINISHED and step.given_up is None
    return _Place(is_open, step.occurrence, is_open and step.mode != "safe", step.after, step.branch, step.account)


class _Place(NamedTuple):
    """Where an occurrence was recorded.

    Attributes:
        is_open: it has no outcome.
        number: the occurrence.
        doubtful: it has no outcome and may not be repeated just so.
        after: id of the step that it follows, or None.
        branch: the branch whose first request it was, "" of a later one, `UNNAMED` where the log does not name it.
        account: for whom it was recorded, or "".
    """

    is_open: bool
    number: int
    doubtful: bool
    after: str | None
    branch: str
    account: str


def _by_outcome(place: _Place) -> tuple[bool, int]:
    return place.is_open, place.number


def _by_turn(place: _Place) -> tuple[bool, int]:
    return place.doubtful, place.number


class _Accounts:
    """The accounts of a run.

    Attributes:
        recorded: those in the log.
        used: those for which this process has asked.
        renamed: recorded ones that are taken to have other credentials now, by what those are.
    """

    def __init__(self) -> None:
        self.recorded: set[str] = set()
        self.used: set[str] = set()
        self.renamed: dict[str, dict[str, None]] = {}

    def formerly(self, account: str) -> list[str]:
        """The recorded accounts whose credentials are these now; not those that turned out to have kept theirs."""
        return [theirs for theirs in self.renamed.get(account, ()) if theirs not in self.used]


class _Left:
    """Recorded occurrences that were not given out, in the order in which they are."""

    def __init__(self, places: Iterable[_Place]) -> None:
        self.places: dict[int, _Place] = {place.number: place for place in places}
        self._behind: dict[str | None, deque[int]] = {}
        self._own: dict[tuple[str | None, str], deque[int]] = {}
        for place in sorted(self.places.values(), key=_by_turn):
            self._behind.setdefault(place.after, deque()).append(place.number)
            self._own.setdefault((place.after, place.branch), deque()).append(place.number)
        self._branches: dict[str | None, Counter[str]] = {}
        for place in self.places.values():
            self._branches.setdefault(place.after, Counter())[place.branch] += 1

    def first(self, after: str | None, branch: str) -> int | None:
        """The one to be given out to a request behind the step `after`."""
        number = self._next(self._own.get((after, branch)))
        if number is None:
            number = self.at(after)
        return next(iter(self.places), None) if number is None else number

    def at(self, after: str | None) -> int | None:
        """The first one that was recorded behind the step `after`."""
        return self._next(self._behind.get(after))

    def is_of_others(self, after: str | None, branch: str) -> bool:
        """Whether all that is left was recorded by others than this branch, behind `after` or anywhere else."""
        branches = self._branches.get(after)
        if not branches:
            return bool(self.places)
        return UNNAMED not in branches and branch not in branches

    def take(self, number: int) -> _Place:
        """Give one out."""
        place = self.places.pop(number)
        branches = self._branches[place.after]
        branches[place.branch] -= 1
        if not branches[place.branch]:
            del branches[place.branch]
        return place

    def _next(self, numbers: deque[int] | None) -> int | None:
        while numbers:
            if numbers[0] in self.places:
                return numbers[0]
            numbers.popleft()
        return None

    def accounts_at(self, after: str | None) -> set[str]:
        """For whom the ones behind the step `after` were recorded."""
        return {self.places[number].account for number in self._behind.get(after, ()) if number in self.places}


_NONE: Final = _Left(())


class _Group:
    """The recorded occurrences of one request, and which of them were given out."""

    def __init__(self, places: list[_Place]) -> None:
        self._left = _Left(places)
        by_account: dict[str, list[_Place]] = {}
        for place in places:
            by_account.setdefault(place.account, []).append(place)
        self._of = {account: _Left(theirs) for account, theirs in by_account.items()}
        self._taken: dict[str, list[int]] = {}
        self._askers: set[str] = set()
        recorded = frozenset(self._left.places)
        self._new: Iterator[int] = (number for number in itertools.count() if number not in recorded)

    def give(self, after: str | None, branch: str, of_others: OfOthers) -> int | None:
        if of_others != "take" and self._left.is_of_others(after, branch):
            return None if of_others == "wait" else next(self._new)
        return self._give_any(after, branch)

    def _give_any(self, after: str | None, branch: str) -> int:
        number = self._left.first(after, branch)
        return next(self._new) if number is None else self._take(number)

    def give_to(self, after: str | None, caller: Caller, accounts: _Accounts) -> Given | None:
        """Give one out to an account: its own, or what must be its own, or what may be."""
        for theirs in (caller.account, *accounts.formerly(caller.account), ""):
            left = self._of.get(theirs, _NONE)
            if not caller.waited and left.is_of_others(after, caller.branch):
                return None
            number = left.first(after, caller.branch)
            if number is not None:
                return Given(self._take(number), None if theirs else self._nobodys(caller, number))
        if caller.account in self._taken:
            return self._give_anything(after, caller, taken=True)
        if not self._left.places:
            return self._give_new(caller, accounts)
        number = self._left.at(after)
        if number is not None and not caller.forked and len(self._left.accounts_at(after)) == 1:
            return self._give_up_to(caller, accounts, number)
        return self._give_of_others(after, caller, accounts) if caller.waited else None

    def _nobodys(self, caller: Caller, number: int) -> Clash | None:
        self._askers.add(caller.account)
        if len(self._askers) == 1 or not caller.forked:
            return None
        return Clash((number,), caller.account, old=True)

    def _give_new(self, caller: Caller, accounts: _Accounts) -> Given:
        """All are given out. It is a new one, unless one of them was given to somebody else in its place."""
        known = caller.account in accounts.recorded or caller.account in accounts.renamed
        if caller.forked and caller.changes and self._taken and not known:
            numbers = tuple(sorted(number for taken in self._taken.values() for number in taken))
            return Given(next(self._new), Clash(numbers, caller.account))
        return Given(next(self._new))

    def _give_of_others(self, after: str | None, caller: Caller, accounts: _Accounts) -> Given:
        """What is left was recorded for others, who have had their time to ask for it."""
        others = [account for account, left in self._of.items() if left.places and account not in accounts.used]
        if not others or caller.account in accounts.recorded:
            # Both accounts are there: what was recorded for the one is nothing of the other's.
            return Given(next(self._new) if caller.strict else self._hand_over(after, caller.branch))
        at_place = self._left.accounts_at(after).intersection(others)
        meant = others if len(others) == 1 else list(at_place)
        if len(meant) != 1:
            return self._give_anything(after, caller, taken=False)
        number = self._of[meant[0]].first(after, caller.branch)
        assert number is not None
        return self._give_up_to(caller, accounts, number)

    def _give_up_to(self, caller: Caller, accounts: _Accounts, number: int) -> Given:
        """Give out what was recorded for another account, since that one must have other credentials now."""
        account = self._left.places[number].account
        self._taken.setdefault(account, []).append(number)
        accounts.renamed.setdefault(caller.account, {})[account] = None
        return Given(self._take(number))

    def _hand_over(self, after: str | None, branch: str) -> int:
        number = self._left.first(after, branch)
        assert number is not None
        self._taken.setdefault(self._left.places[number].account, []).append(number)
        return self._take(number)

    def _give_anything(self, after: str | None, caller: Caller, *, taken: bool) -> Given:
        numbers: Collection[int] = self._taken[caller.account] if taken else sorted(self._left.places)
        clash = Clash(tuple(numbers), caller.account, taken)
        return Given(next(self._new) if taken and caller.strict else self._give_any(after, caller.branch), clash)

    def _take(self, number: int) -> int:
        place = self._left.take(number)
        theirs = self._of[place.account]
        theirs.take(number)
        if not theirs.places:
            del self._of[place.account]
        return number
