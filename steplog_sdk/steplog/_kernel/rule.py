"""One rule of a policy: how it is written, and what is accepted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

from steplog.errors import InvalidArgument

ALLOW: Final = "allow"
DENY: Final = "deny"
APPROVAL: Final = "require_approval"
RATE: Final = "rate_limit"

ACTIONS: Final = (ALLOW, DENY, APPROVAL, RATE)
DEFAULTS: Final = (ALLOW, DENY, APPROVAL)
KINDS: Final = ("llm_call", "tool_call", "local")
RUN_FIELDS: Final = ("run_id", "workflow", "version", "goal", "trigger.kind", "trigger.by")

DEFAULT: Final = "default_action"
"""What stands where the id of a rule would, when no rule has matched."""

# A step that is made to wait keeps its thread or task, and the agent's patience is not known here.
LONGEST_WAIT: Final = 60.0
DEFAULT_WAIT: Final = 5.0

# How deep a value that an argument must have may be.
_DEEPEST: Final = 32

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)?(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_RATE: Final = re.compile(r"(\d+)\s*/\s*(\S+)")
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Rate(NamedTuple):
    """A number of steps in a number of seconds."""

    steps: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule of a policy: which steps it matches, and what becomes of them. What is left out matches everything.

    Attributes:
        id: its name in the log and in messages, 1 to 64 of `A-Z a-z 0-9 . _ -`, unique in its policy.
        action: `allow`, `deny`, `require_approval` or `rate_limit`.
        kind: llm_call, tool_call or local, or several of them.
        target: glob for the tool's name, the model's id or the name of a local value, or several; `*` and `?`.
        args: by the path of an argument, as `order.total`, the value that it must have; in a list, one of several.
        run: by the field of the run (`run_id`, `workflow`, `version`, `goal`, `trigger.kind`, `trigger.by`), a glob.
        when: condition in CEL over `args`, `kind`, `target`, `mode` and `run`; needs the extra `steplog[policy]`.
        count_over: it matches only once so many steps that reach this rule and match it have begun.
        rate_over: it matches only while the steps that reach it and match it exceed this rate, as `10/1h`.
        rate: of `rate_limit`: how many steps in which time, as `10/1m`.
        burst: how many steps may come at once; the number in the rate by default.
        max_wait: of `rate_limit`: seconds that a step may be made to wait (at most 60), before the agent is told when
            to come again; 5 by default.
        expires: of `require_approval`: how long somebody may take to decide, in seconds or as `24h`; after it the step
            counts as rejected. None: for ever.
        reason: what the agent, or the person who decides, is told.

    Raises:
        InvalidArgument: something of it is not accepted.
    """

    id: str
    action: str
    kind: str | Sequence[str] | None = None
    target: str | Sequence[str] | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)
    when: str | None = None
    count_over: int | None = None
    rate_over: str | None = None
    rate: str | None = None
    burst: int | None = None
    max_wait: float | str | None = None
    expires: float | str | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        _check(self)

    @property
    def limit(self) -> Rate | None:
        """The rate that it measures, or None."""
        written = self.rate or self.rate_over
        return None if written is None else rate_of(written)

    @property
    def size(self) -> int:
        """How many tokens its bucket holds."""
        limit = self.limit
        return self.burst or (limit.steps if limit is not None else 0)

    @property
    def told(self) -> str:
        """What the agent is told."""
        return self.reason or _REASONS[self.action].format(self.id)


_REASONS: Final = {
    ALLOW: "Rule {} allows it.",
    DENY: "Rule {} does not allow this step.",
    APPROVAL: "Rule {} lets this step run only when a person has approved it.",
    RATE: "Rule {} does not allow so many of these steps in so short a time.",
}

FIELDS: Final = tuple(attribute.name for attribute in fields(Rule))


def _check(rule: Rule) -> None:
    for name in FIELDS:
        check = _CHECKS.get(name)
        value = getattr(rule, name)
        if check is not None and value is not None:
            problem = check(value)
            if problem:
                raise refused(rule.id, name, problem)
    for name, action in _ONLY.items():
        if getattr(rule, name) is not None and rule.action != action:
            raise refused(rule.id, name, f"belongs to action = {action!r}, and this one is {rule.action!r}.")
    if rule.action == RATE and rule.rate is None:
        raise refused(rule.id, "rate", "is missing: rate_limit needs one, such as '10/1m'.")
    if rule.action == RATE and rule.rate_over is not None:
        raise refused(rule.id, "rate_over", "is a condition of the other actions; a rate_limit has its rate in `rate`.")
    if rule.burst is not None and rule.limit is None:
        raise refused(rule.id, "burst", "needs a rate: `rate` of a rate_limit, or `rate_over`.")


def refused(rule: str, name: str, problem: str) -> InvalidArgument:
    """The error for a field of a rule."""
    return InvalidArgument(f"rule {rule!r}: {name} {problem}", rule=rule, field=name, problem=problem)


def _one_of(allowed: Collection[str]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        wrong = [each for each in listed(value) if not isinstance(each, str) or each not in allowed]
        return f"is {(wrong or [value])[0]!r}; it is one of {', '.join(allowed)}." if wrong or not listed(value) else ""

    return check


def _globs(value: Any) -> str:
    good = bool(listed(value)) and all(isinstance(each, str) and each for each in listed(value))
    return "" if good else f"is {value!r}; it is a name with * and ?, such as 'refund*', or a list of them."


def _run_fields(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"is {value!r}; it is a table, such as {{ workflow = 'refunds*' }}."
    wrong = [name for name in value if name not in RUN_FIELDS]
    if wrong:
        return f"names {wrong[0]!r}; the fields of a run are {', '.join(RUN_FIELDS)}."
    return next((problem for glob in value.values() if (problem := _globs(glob))), "")


def _args(value: Any) -> str:
    if not isinstance(value, Mapping) or not all(isinstance(path, str) and path for path in value):
        return f"is {value!r}; it is a table of arguments, such as {{ region = 'eu' }}."
    for path, wanted in value.items():
        if not _is_plain(wanted):
            # Arguments are compared as JSON: a rule that wants anything else would never match, and deny nothing.
            return (
                f"wants {wanted!r} of {path}; a value is a text, a number, true or false, or a list or table of these. "
                f'Write a date as its text, "2026-12-24".'
            )
    return ""


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, (list, tuple)):
        return depth < _DEEPEST and all(_is_plain(item, depth + 1) for item in value)
    if isinstance(value, Mapping):
        inside = value.items()
        return depth < _DEEPEST and all(isinstance(name, str) and _is_plain(item, depth + 1) for name, item in inside)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (str, int))


def _count(least: int) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        good = type(value) is int and value >= least
        return "" if good else f"is {value!r}; it is a whole number of at least {least}."

    return check


def _rate(value: Any) -> str:
    try:
        rate_of(value)
    except ValueError:
        return f"is {value!r}; it is a number of steps and a time, such as '10/1m' or '500/24h'."
    return ""


def _time(least: float, most: float) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        try:
            good = least <= seconds_of(value) <= most
        except ValueError:
            good = False
        return "" if good else f"is {value!r}; it is a time from {least:g} to {most:g} seconds, such as 30 or '30s'."

    return check


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value.strip() else f"is {value!r}; it is a text."


_YEARS: Final = 10 * 366 * 86400.0
_CHECKS: Final[dict[str, Callable[[Any], str]]] = {
    "id": lambda value: (
        "" if isinstance(value, str) and _ID.fullmatch(value) else "is not 1 to 64 of A-Z a-z 0-9 . _ - ."
    ),
    "action": _one_of(ACTIONS),
    "kind": _one_of(KINDS),
    "target": _globs,
    "args": _args,
    "run": _run_fields,
    "when": _text,
    "count_over": _count(0),
    "rate_over": _rate,
    "rate": _rate,
    "burst": _count(1),
    "max_wait": _time(0, LONGEST_WAIT),
    "expires": _time(1, _YEARS),
    "reason": _text,
}
# Fields that mean something with one action alone.
_ONLY: Final = {"rate": RATE, "max_wait": RATE, "expires": APPROVAL}


def seconds_of(value: Any) -> float:
    """A time in seconds: a number, or text such as `90s`, `5m`, `24h` or `7d`. Raises ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(value)
    return float(found[1] or 1) * _UNITS[found[2]]


def rate_of(value: Any) -> Rate:
    """A rate, written as `10/1m` or `10/m`. Raises ValueError."""
    found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    rate = Rate(0, 0.0) if found is None else Rate(int(found[1]), seconds_of(found[2]))
    if rate.steps < 1 or not rate.seconds > 0:
        raise ValueError(value)
    return rate


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]
