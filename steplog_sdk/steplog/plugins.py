"""All that the author of an interceptor needs.

An interceptor turns calls of somebody else's SDK into steps. It is an object with a name and two methods, found through
the entry-point group `steplog.interceptors`:

    [project.entry-points."steplog.interceptors"]
    mysdk = "my_package:interceptor"

Inside a patched call it submits the effect, then either gives back what was recorded or lets the call happen:

    ticket = begin(Call("llm_call", model, {"path": path, "body": body}, "safe", request))
    if ticket is None:                      # outside every run: not our business
        return original(...)
    if ticket.recorded is not None:         # nothing may reach the network
        ...rebuild from ticket.recorded.data, then ticket.replayed()
    result = original(...)
    ticket.finish("done", {...})            # on disk before the caller sees the result
    return result

An exception that comes out of a recorded outcome is named with `ticket.replayed(error)` or `ticket.blame(error)`: when
it ends the run, the step is tried again on resume instead of failing for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, runtime_checkable

from steplog._kernel.codec import register_codec
from steplog._kernel.paths import without
from steplog._runtime.collector import collecting
from steplog._runtime.door import PROCESS, active
from steplog._runtime.pack import Body
from steplog._runtime.patches import Patch, Patches, Wrapper
from steplog._runtime.record import (
    asked,
    begin,
    begin_async,
    foresee,
    record,
    record_async,
    record_items,
    record_items_async,
)
from steplog._runtime.settings import Settings
from steplog._runtime.ticket import Call, Recorded, Ticket
from steplog._runtime.wrappers import recording, recording_items

__all__ = [
    "Body",
    "Call",
    "Interceptor",
    "Patch",
    "Patches",
    "Recorded",
    "Settings",
    "Ticket",
    "Wrapper",
    "active",
    "asked",
    "begin",
    "begin_async",
    "collecting",
    "foresee",
    "guard",
    "log",
    "record",
    "record_async",
    "record_items",
    "record_items_async",
    "recording",
    "recording_items",
    "register_codec",
    "settings",
    "without",
]

log: Final = logging.getLogger("steplog")


@runtime_checkable
class Interceptor(Protocol):
    """Turns calls of one SDK into steps.

    An interceptor with an attribute `opt_in = True` is installed only where it is named, in `install(also=[...])`.

    Attributes:
        name: as it is named in `install(interceptors=[...])`.
    """

    name: str

    def install(self) -> None:
        """Patch the SDK, now or when it is imported. Idempotent; must not import the SDK."""

    def uninstall(self) -> None:
        """Take back the patches that are still this interceptor's. Idempotent."""


_NONE: Final = Settings()


def settings() -> Settings:
    """The settings in force: those of the last `install()`, or the defaults where it was not called."""
    return PROCESS.settings or _NONE


@contextmanager
def guard(what: str) -> Iterator[None]:
    """Keep a fault of our own away from the user's call: it is logged with its traceback, and the call goes on.

    For what only informs, such as token counts. Never for what decides or records.
    """
    try:
        yield
    except Exception:
        log.exception("steplog: could not %s; the call itself is not affected", what)
