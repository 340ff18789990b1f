"""Budgets: what a run may use up, what it has used, and whether the next step still fits.

Everything here is counted before an effect begins. What a model call will use is not known then, so the most that it
can use is set aside (`bounds.py`), and given back, as far as it was not used, when the answer is in the log. What was
set aside for an attempt of which no outcome is known stays counted: it may have been used.

Money is counted in whole nanodollars (10^-9 US dollars), rounded up, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from steplog.errors import InvalidArgument

NANO: Final = 1_000_000_000

COUNTS: Final = ("max_steps", "max_model_calls", "max_tool_calls", "max_tokens", "max_repeat", "max_stalls")
"""Limits that are whole numbers."""

# Larger numbers do not fit into a line of the log. Who wants no limit says None.
_MOST: Final = 10**15


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use up, over all its processes. None, the default of each limit, is no limit.

    Attributes:
        max_steps: attempts of steps of every kind: model calls, tools and local values.
        max_model_calls: model calls. An attempt that is made again counts again; what an SDK retries inside one call
            does not.
        max_tool_calls: calls of tools. An attempt that is made again counts again.
        max_tokens: tokens of all model calls, input and output.
        max_cost: US dollars, of all model calls. Needs the price list of `pip install "steplog[prices]"`.
        deadline: seconds in which the run is at work, or a timedelta. Time in which it is suspended, or in which all
            that it does is wait for a person, a signal or a wake-up time, does not count.
        max_repeat: how often the same call (target and arguments, in the same enclosing step) may be made. Local
            values are not counted.
        max_stalls: model calls in a row without a change of what `run.progress(...)` was last given.

    Raises:
        InvalidArgument: a limit is not a number of its kind, or negative, or above 10^15.
    """

    max_steps: int | None = None
    max_model_calls: int | None = None
    max_tool_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | Decimal | None = None
    deadline: float | timedelta | None = None
    max_repeat: int | None = None
    max_stalls: int | None = None

    def __post_init__(self) -> None:
        for name in COUNTS:
            _check_count(name, getattr(self, name))
        if self.max_cost is not None:
            object.__setattr__(self, "max_cost", _dollars(self.max_cost))
        if self.deadline is not None:
            object.__setattr__(self, "deadline", _seconds(self.deadline))

    def limits(self) -> dict[str, Any]:
        """The limits that are set, as JSON: counts and seconds as numbers, dollars as text."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: str(value) if name == "max_cost" else value for name, value in found.items() if value is not None}

    @classmethod
    def of(cls, limits: Mapping[str, Any]) -> Budget:
        """The budget that `limits` was made of; names that this release does not know are left out."""
        return cls(**{name: limits[name] for name in NAMES if name in limits})


NAMES: Final = tuple(each.name for each in fields(Budget))


def parse(words: str) -> dict[str, Any]:
    """Limits as they are typed, `max_tokens=5000,max_cost=2.50`; `none` lifts one.

    Raises:
        InvalidArgument: no such limit, or no such value.
    """
    found: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in words.split(","))):
        name, equals, text = (part.strip() for part in word.partition("="))
        if name not in NAMES or not equals:
            message = f"{word!r} is no limit of a budget. Write LIMIT=NUMBER, or LIMIT=none to lift it.\nThe limits are"
            raise InvalidArgument(f"{message} {', '.join(NAMES)}.")
        found[name] = None if text.lower() == "none" else _parsed(name, text)
    # It refuses what is no limit.
    known = Budget(**found).limits()
    return {name: known.get(name) for name in found}


def _parsed(name: str, text: str) -> int | float | str:
    try:
        if name in COUNTS:
            return int(text.replace("_", ""))
        return text if name == "max_cost" else float(text)
    except ValueError:
        kind = "a whole number" if name in COUNTS else "a number of seconds"
        raise InvalidArgument(f"{name} is {kind}, not {text!r}. Write {name}=100, or {name}=none.") from None


def _check_count(name: str, value: Any) -> None:
    if value is not None and (type(value) is not int or not 0 <= value <= _MOST):
        raise InvalidArgument(
            f"{name} is a whole number from 0 to 10^15, not {value!r:.40}. Write steplog.Budget({name}=20)."
        )


def _dollars(value: Any) -> Decimal:
    try:
        # By its text, so that 0.1 is a tenth.
        dollars = Decimal(str(value))
        if dollars.is_finite() and 0 <= dollars <= _MOST:
            return dollars
    except InvalidOperation:
        pass
    raise InvalidArgument(
        f"max_cost is a number of US dollars to 10^15, not {value!r:.40}. Write steplog.Budget(max_cost=2.50)."
    )


def _seconds(value: Any) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _MOST:
        raise InvalidArgument(
            f"deadline is a number of seconds to 10^15, not {value!r:.40}. Write steplog.Budget(deadline=600)."
        )
    return float(seconds)


def nanos(dollars: Decimal) -> int:
    """US dollars as whole nanodollars, rounded up."""
    return int((dollars * NANO).to_integral_value(ROUND_CEILING))


def usd(count: int) -> str:
    """Nanodollars as text in US dollars, as `0.0125`."""
    text = f"{Decimal(count) / NANO:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class Charge(NamedTuple):
    """What is set aside for an attempt, or was used by it.

    Attributes:
        tokens: input and output.
        nanos: its price in nanodollars.
    """

    tokens: int = 0
    nanos: int = 0

    def facts(self) -> dict[str, int]:
        """As a line of the log says it; empty where there is nothing to say."""
        return {name: count for name, count in zip(("tokens", "nano_usd"), self, strict=True) if count}

    @classmethod
    def of(cls, data: Any) -> Charge:
        """What a line of the log says."""
        return cls(data.get("tokens", 0), data.get("nano_usd", 0)) if isinstance(data, dict) else cls()


@dataclass(slots=True)
class Usage:
    """What a run has used up, as a fold of its log.

    Attributes:
        steps: attempts of steps.
        model_calls: attempts of model calls.
        tool_calls: attempts of tools.
        tokens: tokens of model calls of which an outcome is known, or never will be.
        nanos: their price in nanodollars.
        active_ms: milliseconds in which the run was at work.
        largest: tokens of its largest model call.
        reserved: by step, tokens and nanodollars that are set aside for the attempt under way.
    """

    steps: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    nanos: int = 0
    active_ms: int = 0
    largest: int = 0
    reserved: dict[str, list[int]] = field(default_factory=dict)

    def begin(self, step: str, kind: str, charge: Charge) -> None:
        """An attempt begins."""
        self.lose(step)
        self._count(kind, 1)
        if any(charge):
            self.reserved[step] = list(charge)

    def end(self, step: str, spent: Charge | None) -> None:
        """An attempt has ended; None where what it has used is not known."""
        set_aside = self.reserved.pop(step, None)
        found = spent if spent is not None else Charge(*set_aside) if set_aside else Charge()
        self.tokens += found.tokens
        self.nanos += found.nanos
        self.largest = max(self.largest, found.tokens)

    def lose(self, step: str) -> None:
        """What became of an attempt will never be known, so all that was set aside for it counts as used."""
        if step in self.reserved:
            self.end(step, None)

    def take_back(self, step: str, kind: str) -> None:
        """An attempt that was counted did not begin."""
        self.reserved.pop(step, None)
        self._count(kind, -1)

    def lose_all(self) -> None:
        """The process that had these attempts under way is dead."""
        for step in list(self.reserved):
            self.lose(step)

    def _count(self, kind: str, by: int) -> None:
        self.steps += by
        self.model_calls += by * (kind == "llm_call")
        self.tool_calls += by * (kind == "tool_call")

    @property
    def set_aside(self) -> Charge:
        """What is set aside for all attempts under way."""
        held = self.reserved.values()
        return Charge(sum(each[0] for each in held), sum(each[1] for each in held))

    def copy(self) -> Usage:
        """One that changes by itself."""
        twin = Usage(**{each.name: getattr(self, each.name) for each in fields(self)})
        twin.reserved = {step: list(held) for step, held in self.reserved.items()}
        return twin

    def facts(self) -> dict[str, Any]:
        """For programs: counts, US dollars as text, seconds."""
        ahead = self.set_aside
        return {
            "steps": self.steps,
            "model_calls": self.model_calls,
            "tool_calls": self.tool_calls,
            "tokens": self.tokens + ahead.tokens,
            "usd": usd(self.nanos + ahead.nanos),
            "active_seconds": self.active_ms / 1000,
        }


@dataclass(slots=True)
class BudgetState:
    """What a log says of the budget of its run.

    Attributes:
        program: the limits that the program set last, as JSON.
        operator: limits that a person set since, which count in their place; None lifts one.
        prices: the price list that was in use last, or "".
        usage: what was used up.
        changes: how often the run's progress has changed.
        progress: digest of what `run.progress(...)` was last given, or "".
        stalls: model calls since it changed.
    """

    program: dict[str, Any] = field(default_factory=dict)
    operator: dict[str, Any] = field(default_factory=dict)
    prices: str = ""
    usage: Usage = field(default_factory=Usage)
    changes: int = 0
    progress: str = ""
    stalls: int = 0

    @property
    def budget(self) -> Budget:
        """The limits in force."""
        return Budget.of({**self.program, **self.operator})

    def set_by_program(self, limits: dict[str, Any]) -> None:
        """The program sets its limits; where it has changed one, its word is newer than the operator's."""
        for name in list(self.operator):
            if limits.get(name) != self.program.get(name):
                del self.operator[name]
        self.program = dict(limits)

    def copy(self) -> BudgetState:
        """One that changes by itself."""
        return replace(self, program=dict(self.program), operator=dict(self.operator), usage=self.usage.copy())

    @classmethod
    def of(cls, tree: dict[str, Any]) -> BudgetState:
        """What `dataclasses.asdict` has made of one."""
        return cls(**{**tree, "usage": Usage(**tree["usage"])})


class Proposed(NamedTuple):
    """The next attempt, as far as a budget is concerned.

    Attributes:
        kind: llm_call, tool_call or local.
        target: model, tool or name.
        times: how often the same call was made before in the same enclosing step.
        again: it is a further attempt of a step, so it is no repeated call.
        charge: the most that it can use.
        stalls: model calls since the run's progress last changed.
        unpriced: why its price is not known, as a sentence; "" where it is, or is not asked for.
        assumed: what its bound rests on, where the request does not say it, as a clause; else "".
    """

    kind: str
    target: str
    times: int = 0
    again: bool = False
    charge: Charge = Charge()
    stalls: int = 0
    unpriced: str = ""
    assumed: str = ""


class Exceeded(NamedTuple):
    """A limit that the next attempt would exceed.

    Attributes:
        limit: its name.
        used: what is used or set aside: a count, seconds, or US dollars as text.
        needs: what the attempt needs more, in the same unit.
        allowed: the limit.
        why: what is to be known besides, as a sentence, or "".
    """

    limit: str
    used: Any
    needs: Any
    allowed: Any
    why: str = ""


def judge(budget: Budget, usage: Usage, next_: Proposed) -> Exceeded | None:
    """The first limit that the next attempt would exceed, or None where it fits. Pure."""
    seconds = usage.active_ms / 1000
    if budget.deadline is not None and seconds >= budget.deadline:  # type: ignore[operator]  # seconds since its making
        return Exceeded("deadline", seconds, 0, budget.deadline)
    counted = [("max_steps", usage.steps)]
    if next_.kind == "llm_call":
        counted.append(("max_model_calls", usage.model_calls))
        counted.append(("max_stalls", next_.stalls))
    elif next_.kind == "tool_call":
        counted.append(("max_tool_calls", usage.tool_calls))
    if next_.kind != "local" and not next_.again:
        counted.append(("max_repeat", next_.times))
    for limit, used in counted:
        allowed = getattr(budget, limit)
        if allowed is not None and used >= allowed:
            return Exceeded(limit, used, 1, allowed)
    return _over_tokens(budget, usage, next_) or _over_cost(budget, usage, next_)


def _over_tokens(budget: Budget, usage: Usage, next_: Proposed) -> Exceeded | None:
    used, needs = usage.tokens + usage.set_aside.tokens, next_.charge.tokens
    if budget.max_tokens is None or not needs or used + needs <= budget.max_tokens:
        return None
    return Exceeded("max_tokens", used, needs, budget.max_tokens, next_.assumed)


def _over_cost(budget: Budget, usage: Usage, next_: Proposed) -> Exceeded | None:
    if budget.max_cost is None:
        return None
    used, needs = usage.nanos + usage.set_aside.nanos, next_.charge.nanos
    allowed = Decimal(str(budget.max_cost))
    if next_.unpriced:
        return Exceeded("max_cost", usd(used), None, str(allowed), next_.unpriced)
    if not needs or used + needs <= nanos(allowed):
        return None
    return Exceeded("max_cost", usd(used), usd(needs), str(allowed), next_.assumed)
