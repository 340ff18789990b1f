"""Options that every verb takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from steplog._cli.output import DEFAULT_HOME

F = TypeVar("F", bound=Callable[..., Any])

# Words behind the script belong to the script, `--json` among them.
_PASSES_WORDS_ON = frozenset({"run", "crash-test", "doctor"})

OWN_PROCESS = "own process"
"""The object of the command line's context where the process does nothing else than this command."""


def has_own_process() -> bool:
    """Whether what is changed in this process matters to nobody behind the command."""
    context = click.get_current_context(silent=True)
    return context is not None and context.find_root().obj == OWN_PROCESS


def common(function: F) -> F:
    """Add `--home` and `--json`."""
    home = click.option(
        "--home",
        envvar="STEPLOG_HOME",
        type=click.Path(path_type=Path),
        default=DEFAULT_HOME,
        show_default=True,
        show_envvar=True,
        help="Where runs are kept.",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")
    return home(as_json(function))


def on_drift(function: F) -> F:
    """Add `--on-drift`."""
    return click.option(
        "--on-drift",
        type=click.Choice(["halt", "warn", "run"]),
        help="What to do when the program asks for something else than its log holds.  [default: halt]",
    )(function)


def policy(function: F) -> F:
    """Add `--policy`."""
    return click.option(
        "--policy",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Which steps may begin (docs/control.md).  [default: STEPLOG_POLICY]",
    )(function)


def recorded_beside(function: F) -> F:
    """Add `--also` and `--http`."""
    also = click.option(
        "--also", metavar="NAME", multiple=True, help="Also record this: `clock`, `random`, `uuid`. Repeatable."
    )
    http = click.option("--http", metavar="HOST", multiple=True, help="Also record requests to this host. Repeatable.")
    return also(http(function))


def budget(function: F) -> F:
    """Add `--budget`."""
    return click.option(
        "--budget",
        "budget",
        metavar="LIMIT=N",
        multiple=True,
        callback=lambda _ctx, _param, words: _checked(words),
        help="Set a limit of the run's budget, such as `max_tokens=50000`; LIMIT=none lifts it. Repeatable.",
    )(function)


def _checked(words: Sequence[str]) -> str:
    """Limits in the form of the variable that programs read. Raises InvalidArgument for what is none."""
    from steplog._kernel.budget import parse

    text = ",".join(words)
    parse(text)
    return text


def chosen_home(home: Path, found: Path | None = None) -> Path | None:
    """The home, when it was given by the option: then commands that are printed must name it as well.

    Args:
        home: the value of the option, or of what stands for it.
        found: the home in which the run was found, which is another one where the run was named by its path.
    """
    if found is not None and found != home:
        return found
    context = click.get_current_context(silent=True)
    source = None if context is None else context.get_parameter_source("home")
    return home if source is click.core.ParameterSource.COMMANDLINE else None


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, decided without parsing it: it may be the parsing that failed."""
    if words and words[0] in _PASSES_WORDS_ON:
        words = words[: next((i for i, word in enumerate(words) if i and not word.startswith("-")), len(words))]
    return "--json" in words
