"""What a replay sets up around a program, and takes back: interceptors, and stand-ins for credentials.

A replayed call needs no credentials, but an SDK may refuse to make a client without any. So where a recorded call went
through an SDK, the variables that it looks for are set to something, as long as they are not set. An SDK that the
recording did not use gets none: programs choose a provider by looking which key is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from steplog._runtime import install as installing
from steplog._runtime.door import PROCESS

if TYPE_CHECKING:
    from steplog._kernel.fold import RunState

STAND_IN: Final = "not-needed-in-a-replay"


def prepared(recorded: RunState) -> ExitStack:
    """Intercept what was intercepted when a run was recorded, and set stand-ins; closing it takes that back."""
    undo = ExitStack()
    undo.callback(_intercepting(recorded))
    undo.callback(_stand_ins(recorded))
    return undo


def _intercepting(recorded: RunState) -> Callable[[], None]:
    before, names = PROCESS.settings, set(installing.installed())
    also, http = (tuple(recorded.created.get(name, ())) for name in ("also", "http"))
    if before is None:
        installing.install(also=also, http=http)
    elif not {*also} <= {*before.also} or not {*http} <= {*before.http}:
        wanted = replace(before, also=_united(before.also, also), http=_united(before.http, http))
        installing.put_in([*also, *([installing.HTTP] if http else ())], wanted)
    else:
        return lambda: None
    ours = PROCESS.settings

    def take_back() -> None:
        if PROCESS.settings is not ours:
            return  # the program has called install() or uninstall() itself
        if before is None:
            installing.uninstall()
            return
        installing.take_out([name for name in installing.installed() if name not in names], before)

    return take_back


def _united(one: Iterable[str], other: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*one, *other]))


def _stand_ins(recorded: RunState) -> Callable[[], None]:
    used = set(_sdks(recorded))
    wanted = [
        variable
        for interceptor in installing.interceptors()
        if interceptor.name in used
        for variable in getattr(interceptor, "credentials", ())
        if variable not in os.environ
    ]
    os.environ.update(dict.fromkeys(wanted, STAND_IN))

    def take_back() -> None:
        for variable in wanted:
            if os.environ.get(variable) == STAND_IN:
                del os.environ[variable]

    return take_back


def _sdks(recorded: RunState) -> Iterator[str]:
    """The SDKs that the recorded calls went through. One call of each model tells; reading all would be slow."""
    told: set[Any] = set()
    for step in recorded.steps.values():
        if step.kind != "local" and step.target not in told:
            told.add(step.target)
            request = step.started.get("request")
            if isinstance(request, dict) and request.get("sdk"):
                yield request["sdk"]
