"""What this process takes out of its logs: the rules that were chosen, and the secrets of its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from steplog._kernel import fragments
from steplog._kernel.redact import Redactor, pattern_of
from steplog._kernel.rules import KINDS, PATTERNS, Pattern
from steplog._runtime.readings import readings
from steplog.errors import InvalidArgument

Choice = tuple[str, Any]
"""A kind, and the expression that is looked for under that name, or False where its rules are switched off."""

Given = Iterable[Any] | Mapping[str, Any]
"""What `install(redact=...)` takes."""

_CUSTOM: Final = "custom"
_EXAMPLE: Final = r'redact={"badge": r"badge-\d{6}", "password": False} or redact=[r"badge-\d{6}"]'

# In the words of an environment variable's name: which say that its value is secret, and which say that it is not.
_SECRET_WORDS: Final = re.compile(
    r"(?:^|_)[A-Z0-9]*(?:TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|CREDS|APIKEY)(?:_|$)"
    r"|_(?:PWD|PASS|PAT)(?:_|$)|(?:^|_)DSN(?:_|$)"
    r"|(?:^|_)(?:API|ACCESS|SECRET|PRIVATE|ENCRYPTION|SIGNING|MASTER|AUTH|ACCOUNT|STEPLOG|SHARED|SERVICE|DEPLOY)_?KEYS?(?:_|$)"
)
_NO_SECRET: Final = re.compile(
    r"^(?:MAX|MIN|NUM)_|_(?:FILE|PATH|DIR|URL|URI|NAME|ID|ARN|LIMIT|COUNT|TTL|EXPIRES|EXPIRY|EXPIRATION|SECONDS|MINUTES"
    r"|HOURS|DAYS|SIZE|TYPE|HOST|PORT|REGION|ENABLED|DISABLED|HEADER|LENGTH|MODE|PROVIDER|VERSION|ENDPOINT|TOKENS"
    r"|ALGORITHM|PARALLELISM|SOCK)$"
)
# A lower-case word or two is what `postgres` and `created_at` are. Taking those out of every result would cost more
# than it protects.
_WORDS: Final = re.compile(r"[a-z]+(?:[_-][a-z]+)*")
_LONGEST_WORDS: Final = 15


def choices(before: Iterable[Choice], environment: str, given: Given) -> tuple[Choice, ...]:
    """Rules of the program's own, and kinds that it does not want, checked and added up.

    Args:
        before: what is in force.
        environment: `STEPLOG_REDACT`, an expression a line.
        given: a list of expressions, or a mapping of kinds to expressions or False.

    Raises:
        InvalidArgument: one of them is no expression, or no kind that there is.
    """
    lines = [(_CUSTOM, line.strip()) for line in environment.splitlines() if line.strip()]
    found = [*before, *lines, *_pairs(given)]
    for kind, expression in found:
        _check(kind, expression)
    # A kind that is given an expression again is wanted again.
    return tuple(dict.fromkeys(found))


def _pairs(given: Any) -> list[Choice]:
    if isinstance(given, Mapping):
        return [
            (kind, each) for kind, one in given.items() for each in (one if isinstance(one, (list, tuple)) else [one])
        ]
    if isinstance(given, (str, bytes, re.Pattern)) or not isinstance(given, Iterable):
        message = f"redact takes expressions in a list, or by the name of their kind, not {given!r}.\nWrite {_EXAMPLE}."
        raise InvalidArgument(message)
    return [(_CUSTOM, one) for one in given]


def _check(kind: Any, expression: Any) -> None:
    if not isinstance(kind, str) or not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", kind):
        message = (
            f"redact: {kind!r} is no name of a kind, which stands in the log as [redacted:kind]: use small letters, "
            f"digits and hyphens.\nWrite {_EXAMPLE}."
        )
        raise InvalidArgument(message)
    if expression is False:
        if kind not in KINDS:
            message = f"redact: there is no kind {kind!r} to switch off. The kinds are {', '.join(KINDS)}."
            raise InvalidArgument(message)
        return
    if not isinstance(expression, (str, bytes, re.Pattern)):
        message = (
            f"redact: {kind} is {expression!r}; it takes a regular expression (as text or compiled), several in a "
            f"list, or False to switch the kind off.\nWrite {_EXAMPLE}."
        )
        raise InvalidArgument(message)
    try:
        pattern_of(kind, expression)
    except ValueError as error:
        shown = getattr(expression, "pattern", expression)
        message = (
            f"redact: {shown!r} ({kind}) is no expression that secrets can be looked for with: {error}.\n"
            f"Write {_EXAMPLE}; a group (?P<secret>...) says which part is taken out."
        )
        raise InvalidArgument(message) from error


def redactor(chosen: Iterable[Choice] = ()) -> Redactor:
    """A redactor for what looks like a secret, and for the secrets in this process's environment."""
    return _redactor(tuple(chosen), tuple(secret_values()))


@lru_cache(maxsize=8)
def _redactor(chosen: tuple[Choice, ...], secrets: tuple[str, ...]) -> Redactor:
    off = {kind for kind, expression in chosen if expression is False}
    own = [pattern_of(kind, expression) for kind, expression in chosen if expression is not False]
    patterns: list[Pattern] = [*own, *(pattern for pattern in PATTERNS if pattern.kind not in off)]
    return Redactor(patterns, secrets, readings)


def safe_cut(data: bytes, *, events: bool) -> int:
    """How many bytes of a stream may be written down, so that no secret in it is parted and missed.

    Args:
        data: what has passed and is not written down.
        events: whether it is an event stream.
    """
    return fragments.safe_cut(data, [value.encode() for value in secret_values()], events=events)


def secret_values(environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Values of environment variables whose names say that they are secret, unless they are ordinary words."""
    for name, value in environ.items():
        if names_secret(name):
            # Several keys stand in one variable where keys are rotated.
            parts = {value, *(value.split(",") if name.upper().endswith(("KEY", "KEYS")) else ())}
            for part in sorted(parts):
                if part and not (_WORDS.fullmatch(part) and len(part) <= _LONGEST_WORDS):
                    yield part


def names_secret(name: str) -> bool:
    """Whether the name of an environment variable says that its value is secret."""
    upper = name.upper()
    return _SECRET_WORDS.search(upper) is not None and _NO_SECRET.search(upper) is None
