"""What is recorded beyond the default: `also`, `http`, `ignore` and `modes`, checked and added up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from steplog._kernel.paths import parse
from steplog.errors import InvalidArgument

# A host as a URL holds it, with `*` and `?` for any part of it; IPv6 in brackets; a port where one is meant.
_HOST: Final = re.compile(r"(?:[a-z0-9.*?_-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?")

_REQUEST: Final = re.compile(r"[A-Z]+ /\S*")


def names(before: Iterable[str], environment: str, given: Iterable[str]) -> tuple[str, ...]:
    """Names of opt-in interceptors, each once.

    Raises:
        InvalidArgument: they are not a list of names.
    """
    given = listed("also", given, 'also=["clock", "uuid"]')
    return tuple(dict.fromkeys([*before, *_words(environment), *given]))


def hosts(before: Iterable[str], environment: str, given: Iterable[str]) -> tuple[str, ...]:
    """Host globs in lower case, each once.

    Raises:
        InvalidArgument: one of them is not a host, such as a URL.
    """
    found = []
    for host in [*_words(environment), *listed("http", given, 'http=["api.tavily.com", "*.example.com"]')]:
        if not _HOST.fullmatch(host.lower()):
            bare = re.sub(r"^[a-z0-9+.-]+://|[/?#].*$", "", host.lower())
            named = bare if _HOST.fullmatch(bare) else "api.tavily.com"
            message = (
                f"http names hosts, and {host!r} is not one: a scheme or a path does not belong to it.\n"
                f'Write steplog.install(http=["{named}"]); `*` stands for any part of a name.'
            )
            raise InvalidArgument(message)
        found.append(host.lower())
    return tuple(dict.fromkeys([*before, *found]))


def ignored(before: Mapping[str, Iterable[str]], given: Any) -> dict[str, tuple[str, ...]]:
    """Paths to leave out of a request's identity, by interceptor.

    Raises:
        InvalidArgument: it is not a mapping of names to lists of paths, or one of those is no path.
    """
    example = 'ignore={"openai": ["metadata.request_id"]}'
    if not isinstance(given, Mapping):
        message = f"ignore maps the name of an interceptor to paths, and {given!r} does not.\nWrite {example}."
        raise InvalidArgument(message)
    found = {name: tuple(paths) for name, paths in before.items()}
    for name, paths in given.items():
        checked = listed(f"ignore[{name!r}]", paths, example)
        for path in checked:
            parse(path)
        found[name] = tuple(dict.fromkeys([*found.get(name, ()), *checked]))
    return found


def modes(before: Mapping[str, Mapping[str, str]], given: Any) -> dict[str, dict[str, str]]:
    """Modes of requests, by interceptor and by `METHOD /path`; what is named last comes first.

    Raises:
        InvalidArgument: it is not such a mapping, a pattern has another form, or a mode does not exist.
    """
    example = 'modes={"openai": {"POST /v1/files": "safe"}}'
    tables = given.values() if isinstance(given, Mapping) else [None]
    if not all(isinstance(table, Mapping) for table in tables):
        message = (
            f"modes maps the name of an interceptor to modes by request, and {given!r} does not.\nWrite {example}."
        )
        raise InvalidArgument(message)
    found = {name: dict(table) for name, table in before.items()}
    for name, table in given.items():
        for pattern, mode in table.items():
            _check_mode(pattern, mode, example)
        found[name] = {**table, **{key: mode for key, mode in found.get(name, {}).items() if key not in table}}
    return found


def _check_mode(pattern: Any, mode: Any, example: str) -> None:
    if not isinstance(pattern, str) or not _REQUEST.fullmatch(pattern):
        message = (
            f"{pattern!r} names no kind of request. Write its method and its whole path, as in {example}; `*` or "
            f"`{{id}}` stands for one part of the path, `**` for any number of them."
        )
        raise InvalidArgument(message)
    if mode not in ("safe", "unsafe"):
        message = (
            f"the mode of {pattern!r} is {mode!r}; a request to a provider is either safe (a repetition does no harm) "
            f"or unsafe (a call that a crash has left open halts the run). Write {example}."
        )
        raise InvalidArgument(message)


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def listed(what: str, given: Any, example: str) -> list[str]:
    """A setting that is a list of names. Raises InvalidArgument where it is something else."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        message = f"{what} is a list of names, not {given!r}. Write steplog.install({example})."
        raise InvalidArgument(message)
    items = list(given)
    wrong = [item for item in items if not isinstance(item, str) or not item.strip()]
    if wrong:
        message = f"{what} is a list of names, and {wrong[0]!r} is not a name. Write steplog.install({example})."
        raise InvalidArgument(message)
    return [item.strip() for item in items]
