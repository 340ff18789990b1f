"""What the rules of a policy come to for a step.

The rules of a policy are looked at in their order, and the first that matches decides. A rule sees the steps that no
rule before it has decided on: it counts those, and those take its tokens. Nothing here reads a clock: the present time
comes with the question and is recorded with the answer, so the state of a rate is a fold of the log like all state.

The token bucket: one token a step, refilled evenly, never fuller than `burst` (Turner, "New directions in
communications", 1986).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from steplog._kernel.control import Allow, Asked, Block, Deny, Later
from steplog._kernel.rule import ALLOW, APPROVAL, DEFAULT, DEFAULT_WAIT, DENY, Rule, listed, seconds_of
from steplog._kernel.secret import SHOWN


class Unjudged(Exception):  # no error of a program: it says that a rule could not be applied
    """A rule cannot be applied to this step; the step is denied."""


Bucket = Sequence[float]
"""Tokens left when one was last taken, and when that was, in milliseconds since 1970."""


class Knowledge(NamedTuple):
    """What a judgement is made of, beside the rules and the step.

    Attributes:
        now: the present time in milliseconds since 1970.
        buckets: by the id of a rule, the state of its rate.
        counted: by the id of a rule with `count_over`, the ids of the steps that it has counted.
        holds: whether the condition `when` of a rule holds for a step; raises `Unjudged`.
    """

    now: int
    buckets: Mapping[str, Bucket]
    counted: Mapping[str, Collection[str]]
    holds: Callable[[Rule, Asked], bool]


class Judgement(NamedTuple):
    """What the rules come to for a step.

    Attributes:
        verdict: what becomes of it.
        rule: id of the rule that decided, or `default_action`.
        action: what that rule says.
        counts: ids of the rules that count the step, if it begins.
        took: by rule, the state of its rate, if the step begins.
    """

    verdict: Allow | Deny | Block | Later
    rule: str
    action: str
    counts: list[str]
    took: dict[str, list[float]]


def judge(rules: Sequence[Rule], default: str, asked: Asked, known: Knowledge) -> Judgement:
    """Judge a step by rules in their order. A rule that cannot be applied to it denies it."""
    counts: list[str] = []
    took: dict[str, list[float]] = {}
    for rule in rules:
        try:
            if not matches(rule, asked, known.holds):
                continue
        except Unjudged as why:
            text = f"It cannot be told whether rule {rule.id} allows this step, so it is denied: {why}"
            return Judgement(Deny(rule.id, text), rule.id, DENY, counts, took)
        # Both are looked at: a rule that has both conditions counts, and measures, every step that reaches it.
        many = _is_over(rule, asked, known, counts)
        fast = _is_fast(rule, known, took)
        if many and fast:
            return Judgement(_verdict(rule, known, took), rule.id, rule.action, counts, took)
    return Judgement(_by_default(default, asked), DEFAULT, default, counts, took)


def matches(rule: Rule, asked: Asked, holds: Callable[[Rule, Asked], bool]) -> bool:
    """Whether a rule is for a step, whatever has happened before. Raises `Unjudged` where that cannot be told."""
    if rule.kind is not None and asked.kind not in listed(rule.kind):
        return False
    if rule.target is not None and not _fits(rule.target, asked.target):
        return False
    if rule.run and not all(_fits(glob, _at(asked.run, path)) for path, glob in rule.run.items()):
        return False
    if rule.args or rule.when is not None:
        if asked.args is None:
            raise Unjudged("its arguments cannot be read.")
        if not all(_is(_at(asked.args, path), wanted, path) for path, wanted in rule.args.items()):
            return False
    return rule.when is None or holds(rule, asked)


def _is_over(rule: Rule, asked: Asked, known: Knowledge, counts: list[str]) -> bool:
    if rule.count_over is None:
        return True
    counts.append(rule.id)
    counted = known.counted.get(rule.id, ())
    # A step that is attempted again has been counted.
    return len(counted) - (asked.id in counted) >= rule.count_over


def _is_fast(rule: Rule, known: Knowledge, took: dict[str, list[float]]) -> bool:
    if rule.rate_over is None:
        return True
    left = _left(rule, known)
    took[rule.id] = _taken(rule, known, left)
    return left < 1


def _verdict(rule: Rule, known: Knowledge, took: dict[str, list[float]]) -> Allow | Deny | Block | Later:
    if rule.action == ALLOW:
        return Allow()
    if rule.action == DENY:
        return Deny(rule.id, rule.told)
    if rule.action == APPROVAL:
        expires = None if rule.expires is None else known.now + int(seconds_of(rule.expires) * 1000)
        return Block(rule.id, rule.told, expires)
    left = _left(rule, known)
    if left >= 1:
        took[rule.id] = _taken(rule, known, left)
        return Allow()
    limit = rule.limit
    assert limit is not None
    wait = (1 - left) * limit.seconds / limit.steps
    return Later(rule.id, rule.told, wait, seconds_of(DEFAULT_WAIT if rule.max_wait is None else rule.max_wait))


def _by_default(default: str, asked: Asked) -> Allow | Deny | Block:
    # A local value is the program's own: the time, an id, a choice. Without it the program could do nothing at all.
    if default == ALLOW or asked.kind == "local":
        return Allow()
    what = f"{asked.kind} {asked.target}"
    if default == DENY:
        return Deny(DEFAULT, f"No rule allows {what}.")
    return Block(DEFAULT, f"No rule allows {what}, so a person has to approve it.")


def _left(rule: Rule, known: Knowledge) -> float:
    """How many tokens the bucket of a rule holds now."""
    limit = rule.limit
    assert limit is not None
    left, at = known.buckets.get(rule.id) or (rule.size, known.now)
    # A clock that was set back gives no tokens and takes none.
    return min(rule.size, left + max(0.0, known.now - at) * limit.steps / (limit.seconds * 1000))


def _taken(rule: Rule, known: Knowledge, left: float) -> list[float]:
    _, at = known.buckets.get(rule.id) or (0, 0)
    return [max(0.0, left - 1), max(known.now, at)]


_MISSING: Final = object()


def _at(tree: Any, path: str) -> Any:
    """What stands at a path of names, and of numbers in lists."""
    if isinstance(tree, Mapping) and path in tree:
        return tree[path]
    for name in path.split("."):
        if isinstance(tree, Mapping) and name in tree:
            tree = tree[name]
        elif isinstance(tree, list) and name.isdecimal() and int(name) < len(tree):
            tree = tree[int(name)]
        else:
            return _MISSING
    return tree


def _is(found: Any, wanted: Any, path: str) -> bool:
    if found == SHOWN:
        raise Unjudged(f"its argument {path} is secret.")
    if isinstance(wanted, (list, tuple)):
        return found == list(wanted) or any(_same(found, each) for each in wanted)
    return _same(found, wanted)


def _same(found: Any, wanted: Any) -> bool:
    # 1 is no truth value, although Python says so.
    return isinstance(found, bool) is isinstance(wanted, bool) and bool(found == wanted)


def _fits(globs: str | Sequence[str], name: Any) -> bool:
    return isinstance(name, str) and any(_pattern(glob).fullmatch(name) for glob in listed(globs))


@functools.lru_cache(maxsize=1024)
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile("".join({"*": ".*", "?": "."}.get(part, re.escape(part)) for part in glob), re.DOTALL)
