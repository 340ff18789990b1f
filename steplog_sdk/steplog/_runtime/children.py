"""Child processes of a replay: a python takes the guard along in its environment; any other may do what it likes.

So a python child is let through where it will import `guarded/sitecustomize.py` before its program, which needs two
variables and none of the options that make python look at no variables.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

MARK: Final = "STEPLOG_GUARDED"
"""Set in the environment of children that are under the guard. Words divided by blanks: the file into which they tell
what happened (`reports`), or `1` where nobody reads it; what they may reach; behind `!`, what is as if it were down."""

WATCHER: Final = "STEPLOG_GUARDED_BY"
"""Set beside it where the kernel stops connections (`kernel_guard`): the id of the process that decides on them."""

_PATH: Final = "PYTHONPATH"
_HERE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guarded")
_PYTHON: Final = re.compile(r"python[\d.]*(\.exe)?", re.IGNORECASE)
# Options that leave out variables (E), `site` (S) or both (I), and those that take the next word.
_BLIND: Final = frozenset("EIS")
_TAKES_WORD: Final = frozenset("WX")


class Told(NamedTuple):
    """What a child under the guard was told by its environment.

    Attributes:
        report: the file into which it tells what happened, or "".
        allowed: what it may reach.
        ignored: hosts that are as if they were down.
    """

    report: str
    allowed: list[str]
    ignored: list[str]


class Marked:
    """The environment of this process, prepared for children that are started from now on.

    Args:
        environment: which one.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._before = {name: environment.get(name) for name in (MARK, _PATH)}
        self.say(Told("", [], []))
        if _HERE not in environment.get(_PATH, "").split(os.pathsep):
            environment[_PATH] = os.pathsep.join(filter(None, (_HERE, environment.get(_PATH))))

    def say(self, told: Told) -> None:
        """Tell it to children that are started from now on."""
        words = [told.report or "1", *sorted(told.allowed), *(f"!{one}" for one in sorted(told.ignored))]
        self._environment[MARK] = " ".join(quote(word, safe="/!:[]") for word in words)

    def take_back(self) -> None:
        """Leave it as it was."""
        for name, value in self._before.items():
            if value is None:
                self._environment.pop(name, None)
            else:
                self._environment[name] = value


def told_here() -> Told:
    """What this process, a child under the guard, was told."""
    report, *words = [unquote(word) for word in os.environ.get(MARK, "1").split()]
    ignored = [word[1:] for word in words if word.startswith("!")]
    return Told("" if report == "1" else report, [word for word in words if not word.startswith("!")], ignored)


def why_unguarded(program: Any, words: Iterable[Any], environment: Mapping[Any, Any] | None) -> str:
    """Why a child would not be under the guard, in a few words; "" where it will be.

    Args:
        program: what is to be executed.
        words: the command line, with the program's name.
        environment: of the child, or None where it inherits this one.
    """
    typed = [_text(word) for word in words]
    name = _text(program) if program is not None else next(iter(typed), "")
    if not (_PYTHON.fullmatch(os.path.basename(name)) or name == sys.executable):
        return "only a python child takes the guard along"
    variables = os.environ if environment is None else {_text(key): _text(environment[key]) for key in environment}
    if not variables.get(MARK) or _HERE not in variables.get(_PATH, "").split(os.pathsep):
        return f"its environment lacks {MARK} and {_PATH} of this one"
    return "it is told to ignore its environment" if _is_blind(typed[1:]) else ""


def _is_blind(words: list[str]) -> bool:
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        if not word.startswith("-") or word in ("-", "-c", "-m"):
            return False
        letters = word[1:]
        if letters[:1] in _TAKES_WORD:
            skip = len(letters) == 1
        elif not letters.startswith("-") and _BLIND & set(letters):
            return True
    return False


def _text(value: Any) -> str:
    try:
        return os.fsdecode(value)
    except TypeError:
        return str(value)
