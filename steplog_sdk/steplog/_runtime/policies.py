"""A policy as its owner gives it: Python objects, or a file in TOML or YAML."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any, Final

import orjson

from steplog._kernel.control import Asked
from steplog._kernel.rule import ACTIONS, ALLOW, DEFAULT, DEFAULTS, FIELDS, Rule
from steplog._runtime.conditions import Condition, condition
from steplog.errors import InvalidArgument

_TOP: Final = ("default_action", "rules")
_YAML: Final = (".yaml", ".yml")
_DIGITS: Final = 12


class Policy:
    """Which steps of a run may begin: rules in their order, of which the first that matches decides.

    Attributes:
        rules: the rules.
        default_action: what becomes of a step that no rule matches: `allow`, `deny` or `require_approval`. A local
            value that no rule matches is always allowed.
        source: absolute path of the file that it was read from, or None.
    """

    def __init__(
        self, rules: Iterable[Rule | Mapping[str, Any]] = (), *, default_action: str = ALLOW, source: str | None = None
    ) -> None:
        """Make a policy of rules.

        Raises:
            InvalidArgument: a rule is not accepted, or a condition needs `steplog[policy]`.
        """
        self.rules: tuple[Rule, ...] = tuple(_rule(rule, number) for number, rule in enumerate(rules, 1))
        self.default_action = _default(default_action)
        self.source = source
        self._check_ids()
        self._conditions = {rule.id: _condition(rule) for rule in self.rules if rule.when is not None}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from a file: TOML, or YAML where its name ends in .yaml or .yml.

        Raises:
            InvalidArgument: the file cannot be read, or is no policy; says the line where that is known.
        """
        name = os.fspath(path)
        try:
            with open(name, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"policy {name}: it cannot be read: {error}") from error
        tree = _parsed(name, text)
        try:
            return cls(**_fields(tree), source=os.path.abspath(name))
        except InvalidArgument as wrong:
            line = _line(text, tree, wrong)
            place = f"{name}, line {line}" if line else name
            raise InvalidArgument(f"policy {place}: {wrong}", path=name, line=line) from wrong

    @property
    def digest(self) -> str:
        """Twelve hex digits that stand for its rules in a log."""
        rules = [{name: value for name, value in asdict(rule).items() if value is not None} for rule in self.rules]
        text = orjson.dumps([self.default_action, rules], option=orjson.OPT_SORT_KEYS, default=str)
        return hashlib.sha256(text).hexdigest()[:_DIGITS]

    def holds(self, rule: Rule, asked: Asked) -> bool:
        """Whether the condition of a rule holds for a step. Raises `Unjudged`."""
        return self._conditions[rule.id](asked)

    def _check_ids(self) -> None:
        seen: set[str] = set()
        for rule in self.rules:
            if rule.id in seen or rule.id == DEFAULT:
                problem = "is taken already." if rule.id in seen else "is what stands where no rule has matched."
                text = f"rule {rule.id!r}: id {problem} Each rule has its own."
                raise InvalidArgument(text, rule=rule.id, field="id")
            seen.add(rule.id)

    def __repr__(self) -> str:
        where = f", source={self.source!r}" if self.source else ""
        return f"Policy({len(self.rules)} rules, default_action={self.default_action!r}{where})"


Given = Policy | str | os.PathLike[str] | Sequence[Rule] | None
"""How a program names a policy: the object, a file, or rules."""


def policy_of(given: Given) -> Policy | None:
    """The policy that a program names. Raises InvalidArgument."""
    if given is None or isinstance(given, Policy):
        return given
    if isinstance(given, (str, os.PathLike)):
        return Policy.load(given)
    rules: Any = given
    if isinstance(rules, (list, tuple)) and all(isinstance(rule, Rule) for rule in rules):
        return Policy(rules)
    message = (
        f"policy is a steplog.Policy, the path of its file or a list of rules, not {given!r}. Write "
        f'steplog.run(..., policy="policy.toml"), or policy=False for none.'
    )
    raise InvalidArgument(message)


def _rule(given: Rule | Mapping[str, Any], number: int) -> Rule:
    if isinstance(given, Rule):
        return given
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"rule {number} is {given!r}; it is a table with `id` and `action`.", number=number)
    name = str(given.get("id", number))
    unknown = [field for field in given if field not in FIELDS]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), FIELDS, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        text = f"rule {name!r}: {unknown[0]} is no field of a rule.{meant} There are {', '.join(FIELDS)}."
        raise InvalidArgument(text, number=number, field=unknown[0])
    missing = [field for field in ("id", "action") if field not in given]
    if missing:
        allowed = f": {', '.join(ACTIONS)}" if missing[0] == "action" else ", by which the log names it"
        raise InvalidArgument(f"rule {name!r}: {missing[0]} is missing{allowed}.", number=number)
    try:
        return Rule(**given)
    except InvalidArgument as wrong:
        wrong.__dict__["number"] = number
        raise


def _condition(rule: Rule) -> Condition:
    try:
        return condition(rule.when or "")
    except InvalidArgument as wrong:
        raise InvalidArgument(f"rule {rule.id!r}: when: {wrong}", rule=rule.id, field="when") from wrong


def _default(action: Any) -> str:
    if action in DEFAULTS:
        return str(action)
    raise InvalidArgument(f"default_action is {action!r}; it is one of {', '.join(DEFAULTS)}.", field="default_action")


def _parsed(name: str, text: str) -> Any:
    if name.lower().endswith(_YAML):
        return _yaml(name, text)
    import tomllib  # few programs need it

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"policy {name}: it is no TOML: {error}", path=name) from error


def _yaml(name: str, text: str) -> Any:
    try:
        yaml: Any = import_module("yaml")
    except ImportError as missing:
        message = f"policy {name}: YAML needs the library PyYAML. Install it: pip install 'steplog[policy]'"
        raise InvalidArgument(message, path=name) from missing
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidArgument(f"policy {name}: it is no YAML: {error}", path=name) from error


def _fields(tree: Any) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise InvalidArgument("it has no rules. It is a table with `default_action` and `rules`.")
    unknown = [name for name in tree if name not in _TOP]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), _TOP, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        text = f"{unknown[0]} is no part of a policy.{meant} There are {', '.join(_TOP)}."
        raise InvalidArgument(text, field=unknown[0])
    rules = tree.get("rules", [])
    if not isinstance(rules, list):
        raise InvalidArgument("rules is a list: one [[rules]] for each.", field="rules")
    return {**tree, "rules": rules}


def _starts(lines: list[str]) -> list[int]:
    """The lines on which rules begin: `[[rules]]` of TOML, or the items of `rules` in YAML."""
    items = [at for at, line in enumerate(lines) if re.match(r"\s*\[\[\s*rules\s*\]\]", line)]
    if items:
        return items
    items = [at for at, line in enumerate(lines) if re.match(r"\s*- ", line)]
    return [at for at in items if lines[at].index("-") == lines[items[0]].index("-")]


def _line(text: str, tree: Any, wrong: InvalidArgument) -> int | None:
    """The line that an error is about, as far as the text tells; the parsers do not say where a value stood."""
    lines = text.splitlines()
    field, number = getattr(wrong, "field", None), getattr(wrong, "number", None)
    rule = getattr(wrong, "rule", None)
    if number is None and rule is not None:
        ids = [each.get("id") for each in tree["rules"] if isinstance(each, dict)]
        # Of two with one name, the second is too many.
        number = len(ids) - ids[::-1].index(rule) if rule in ids else None
    begin, end = 0, len(lines)
    if number is not None:
        starts = _starts(lines)
        if number > len(starts):
            return None
        begin, end = starts[number - 1], starts[number] if number < len(starts) else len(lines)
    named = re.compile(rf"""\s*(- )?["']?{re.escape(str(field))}["']?\s*[=:.]""")
    found = next((at for at in range(begin, end) if field is not None and named.match(lines[at])), None)
    if found is None and number is None:
        return None
    return (begin if found is None else found) + 1
