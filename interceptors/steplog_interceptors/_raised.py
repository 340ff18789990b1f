"""Whose failure an exception of an SDK is, where the SDK does not close the stream that the failure came out of.

An error event ends a stream, and the SDK makes an exception of it. Newer releases then close the response, which tells
the stream's record; older ones (openai 1.x, anthropic before 0.80 or so) let the exception pass and leave the response
as it is. Every error of these SDKs carries its request, so the request leads back to the step.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from steplog import plugins
from steplog.plugins import Patch, Patches

# The requests that are answered by a stream, each with what gives the step once the stream has failed.
_streamed: Final[WeakKeyDictionary[Any, Callable[[], plugins.Ticket | None]]] = WeakKeyDictionary()


def note(request: Any, failed: Callable[[], plugins.Ticket | None]) -> None:
    """Remember the request of a stream. `failed` must not refer to the request, which could then never be freed."""
    _streamed[request] = failed


def hooks(patches: Patches, name: str) -> dict[str, Callable[[ModuleType], None]]:
    """What to do when the exceptions of the SDK `name` are imported."""

    def exceptions(module: ModuleType) -> None:
        patches.apply(module.APIError, "__init__", _init)

    return {f"{name}._exceptions": exceptions}


def _init(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it stands for that method
        original(self, *args, **kwargs)
        if patch.on:
            ticket = _ticket(getattr(self, "request", None))
            if ticket is not None:
                ticket.blame(self)

    return __init__


def _ticket(request: Any) -> plugins.Ticket | None:
    try:
        failed = _streamed.get(request)
    except TypeError:
        # A program that makes such an exception itself may give it anything for a request.
        return None
    return None if failed is None else failed()
