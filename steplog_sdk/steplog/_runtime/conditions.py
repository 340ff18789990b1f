"""Conditions of rules in CEL, the Common Expression Language, by its reference implementation.

The library is loaded when the first condition is. It checks an expression when that is written down: its syntax, the
names in it, and that it comes to yes or no.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

from steplog._kernel.control import Asked
from steplog._kernel.policy import Unjudged
from steplog.errors import InvalidArgument

Condition = Callable[[Asked], bool]

# The integers of CEL have 64 bits.
_LARGEST: Final = 2**63


@cache
def _language() -> Any:
    try:
        cel: Any = import_module("cel_expr_python.cel")
    except ImportError as missing:
        message = "a condition (`when`) needs the library for CEL. Install it: pip install 'steplog[policy]'"
        raise InvalidArgument(message) from missing
    kinds = cel.Type
    names = {"args": kinds.DYN, "run": kinds.DYN, "kind": kinds.STRING, "target": kinds.STRING, "mode": kinds.STRING}
    return cel, cel.NewEnv(variables=names)


def condition(text: str) -> Condition:
    """Make a condition of its text.

    Raises:
        InvalidArgument: it is no condition, or the library is not installed.
    """
    cel, environment = _language()
    try:
        expression = environment.compile(text)
    except RuntimeError as refused:
        raise InvalidArgument(_told(str(refused))) from None
    if expression.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise InvalidArgument(f"comes to {expression.return_type().name()}, and not to yes or no: {text}")

    def holds(asked: Asked) -> bool:
        names = {"kind": asked.kind, "target": asked.target, "mode": asked.mode}
        try:
            found = expression.eval(data={**names, "args": _within(asked.args), "run": _within(asked.run)})
        except Exception as error:  # whatever the library raises, the condition has no answer
            raise Unjudged(f"its condition fails: {_told(str(error))}") from error
        if found.type() == cel.Type.BOOL:
            return bool(found.value())
        if found.type() == cel.Type.ERROR:
            raise Unjudged(f"its condition fails: {_told(str(found.value()))}")
        raise Unjudged("its condition comes neither to yes nor to no.")

    return holds


def _told(text: str) -> str:
    """What the library says, without its own codes."""
    for code in ("INVALID_ARGUMENT: ", "NOT_FOUND: ", "ERROR: <input>:", " [INVALID_ARGUMENT]"):
        text = text.replace(code, "")
    return text.strip()


def _within(tree: Any) -> Any:
    """A tree whose numbers CEL can hold: a larger integer becomes a float, which compares as it does."""
    if isinstance(tree, dict):
        return {key: _within(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_within(item) for item in tree]
    if type(tree) is int and not -_LARGEST <= tree < _LARGEST:
        return float(tree)
    return tree
