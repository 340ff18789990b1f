"""The walk itself: a resource's methods are called in a run against a local provider, then replayed without one."""

from __future__ import annotations

import asyncio
import json
import socket
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import steplog
from steplog.errors import RunStopped
from steplog.testing.provider import Hit, LocalProvider, Reply
from tests.interceptors.support import complete
from tests.interceptors.walk.calls import Call, calls
from tests.interceptors.walk.inventory import COLOURS, client, methods
from tests.interceptors.walk.refused import REFUSED
from tests.interceptors.walk.survey import template


@dataclass
class Outcome:
    """What became of a walk over one resource.

    Attributes:
        calls: number of calls made.
        faults: per method, what went wrong first.
        modes: of each kind of request that was made, the mode that was recorded.
    """

    calls: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)


def walk(sdk: str, resource: str, home: Path, *, only: Collection[str] = ()) -> Outcome:
    """Walk one resource; steplog and its interceptors are installed, and log below `home`.

    Args:
        sdk: `openai` or `anthropic`.
        resource: where the client keeps it.
        home: the log's directory.
        only: methods to walk, also refused ones; by default all that are not refused.
    """
    outcome = Outcome()
    planned = _plan(sdk, resource, outcome, only)
    provider = LocalProvider(handler=_Script())
    try:
        with steplog.run(resource):
            live = _pass(sdk, planned, provider.url, outcome, provider)
    finally:
        provider.close()
    steps = _steps(home, resource)
    _check_steps(provider.hits, steps, live, outcome)
    replayed: dict[Any, _Seen] = {}
    try:
        with _no_connection(), steplog.run(resource):
            replayed |= _pass(sdk, planned, provider.url, outcome, None)
    except RunStopped as stopped:
        outcome.faults["all"] = f"replay: {stopped}"
    if len(_steps(home, resource)) != len(steps):
        outcome.faults.setdefault(f"{sdk}.{resource}", "the replay recorded steps of its own")
    for key, seen in live.items():
        outcome.calls += 1
        if key in replayed and replayed[key].result != seen.result:
            _fault(outcome, key, f"replayed as something else:\n  {seen.result}\n  {replayed[key].result}")
    return outcome


class _Script:
    """Hands out the replies of the call that is under way."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def __call__(self, hit: Hit) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@dataclass
class _Seen:
    call: Call
    result: Any
    hits: slice


def _plan(sdk: str, resource: str, outcome: Outcome, only: Collection[str]) -> list[Call]:
    planned: list[Call] = []
    for method in methods(sdk):
        wanted = str(method) in only if only else str(method) not in REFUSED
        if method.resource != resource or not wanted:
            continue
        try:
            planned += calls(method)
        except Exception as error:
            outcome.faults[str(method)] = f"cannot be called: {error!r}"
    return planned


def _pass(
    sdk: str, planned: list[Call], url: str, outcome: Outcome, provider: LocalProvider | None
) -> dict[tuple[str, int, Call], _Seen]:
    """Make every call, first with a synchronous client, then with an asynchronous one."""
    seen: dict[Any, _Seen] = {}

    async def through(colour: str, opened: Any) -> None:
        for position, call in enumerate(planned):
            if colour not in call.method.colours:
                continue
            before = 0
            if provider is not None:
                number = 1000 * (1 + COLOURS.index(colour)) + position
                provider._handler.replies = call.answer.replies(number)  # type: ignore[union-attr]
                before = len(provider.hits)
            key = (colour, position, str(call))
            try:
                result = await call.perform(opened)
            except Exception as error:
                _fault(outcome, key, f"{'replay: ' if provider is None else ''}{error!r}")
                continue
            seen[key] = _Seen(call, result, slice(before, len(provider.hits) if provider else 0))

    async def through_async() -> None:
        async with client(sdk, url, asynchronous=True) as opened:
            await through("async", opened)

    with warnings.catch_warnings():
        # Deprecated methods are methods too.
        warnings.simplefilter("ignore", DeprecationWarning)
        with client(sdk, url) as opened:
            complete(through("sync", opened))
        asyncio.run(through_async())
    return seen


def _fault(outcome: Outcome, key: Any, what: str) -> None:
    colour, _, call = key
    outcome.faults.setdefault(f"{call} {colour}", what)


def _steps(home: Path, run_id: str) -> list[dict[str, Any]]:
    lines = (home / "runs" / run_id / "events.jsonl").read_bytes().splitlines()
    return [event for line in lines if (event := json.loads(line))["type"] == "step.started"]


def _check_steps(hits: list[Hit], steps: list[dict[str, Any]], live: dict[Any, _Seen], outcome: Outcome) -> None:
    """Every request that the provider saw is a step, in the same order; note its mode."""
    asked = [(hit.method, unquote(hit.path.partition("?")[0])) for hit in hits]
    kept = [(step["data"]["request"]["method"], step["data"]["request"]["path"]) for step in steps]
    if asked != kept:
        outcome.faults["all"] = f"the provider saw {len(asked)} requests, the log holds {len(kept)} steps"
        return
    for key, seen in live.items():
        if not asked[seen.hits]:
            _fault(outcome, key, "made no request")
    for request, step in zip(asked, steps, strict=True):
        outcome.modes[template(*request)] = step["data"]["mode"]


@contextmanager
def _no_connection() -> Iterator[None]:
    kept = socket.socket.connect, socket.socket.connect_ex

    def forbidden(self: socket.socket, address: Any) -> Any:
        raise AssertionError(f"a replayed call connects to {address}")

    socket.socket.connect = socket.socket.connect_ex = forbidden  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        socket.socket.connect, socket.socket.connect_ex = kept  # type: ignore[method-assign]
