"""All that the author of an interceptor needs; the guide is docs/interceptors.md.

An interceptor turns calls of somebody else's SDK into steps. It is an object such as `Interceptor` describes, found
through the entry-point group `steplog.interceptors`:

    [project.entry-points."steplog.interceptors"]
    acme = "steplog_acme:interceptor"

Mostly it patches a method and says what a call asks for:

    patches = Patches()
    patches.install({"acme": lambda acme: patches.apply(acme.Client, "send", recording(describe))})

    def describe(client, path, body):
        return Call("tool_call", f"acme{path}", body, mode="safe" if path in READS else "unsafe")

What there is, from the least work to the most:

    recording, recording_items                 a method as steps, plain or async, whole or as an iterator
    record, record_items, and `_async` forms   any code as a step
    begin, begin_async                         a step by hand: a `Ticket`, with a `Recorded` outcome or without

    Patches, Patch, Wrapper   replaced methods, visible and reversible
    Body                      raw bytes in what is recorded
    register_codec            how values of a class are written and read
    settings, Settings        what `install()` has decided
    paced                     whether a replay makes pauses as they were
    checking, Answer          whether a recorded answer is to be compared with a new one
    active, asked, foresee    whether a run is open; how far it has come; what the log holds for a call
    changed                   a JSON body with what a fork changes in it (`Ticket.changes`, `Call.amends`)
    collecting                whether nothing may be written, because the garbage collector is at work
    aside                     whether code runs beside the program's course, as a log formatter or a signal handler
    safe_cut                  how much of a stream may be written down so that no secret in it is parted
    scrub_urls                a text without the credentials in the URLs that it quotes
    guard, log                a fault of the interceptor's own is logged and does not reach the program
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol, runtime_checkable

from steplog._kernel.codec import register_codec
from steplog._kernel.paths import without
from steplog._kernel.urls import scrub_urls
from steplog._runtime.aside import aside
from steplog._runtime.blame import conceal
from steplog._runtime.collector import collecting
from steplog._runtime.door import PROCESS, active, paced
from steplog._runtime.forked import changed_bytes as changed
from steplog._runtime.items import interrupted
from steplog._runtime.looking import Body
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
from steplog._runtime.redaction import safe_cut
from steplog._runtime.settings import Settings
from steplog._runtime.ticket import Call, Conclusion, Recorded, Ticket
from steplog._runtime.wrappers import recording, recording_items

__all__ = [
    "Answer",
    "Body",
    "Call",
    "Conclusion",
    "Interceptor",
    "Patch",
    "Patches",
    "Recorded",
    "Settings",
    "Ticket",
    "Wrapper",
    "active",
    "aside",
    "asked",
    "begin",
    "begin_async",
    "changed",
    "checking",
    "collecting",
    "conceal",
    "foresee",
    "guard",
    "interrupted",
    "log",
    "paced",
    "record",
    "record_async",
    "record_items",
    "record_items_async",
    "recording",
    "recording_items",
    "register_codec",
    "safe_cut",
    "scrub_urls",
    "settings",
    "without",
]

log: Final = logging.getLogger("steplog")


@runtime_checkable
class Interceptor(Protocol):
    """Turns calls of one SDK into steps.

    An interceptor with an attribute `opt_in = True` is installed only where it is named, in `install(also=[...])`.
    One that looks itself up in `settings().ignore` or `settings().modes` says so by `honours = ("ignore", "modes")`:
    `install()` refuses to name any other there, since it would be passed over in silence. One that stands for several
    SDKs has their names in `names`. One whose SDK makes no client without a key names in `credentials` the variables in
    which it looks for one: a replay sets those to something, since it needs none.

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


class Answer(NamedTuple):
    """An answer of a provider, as far as it is compared with another one.

    Attributes:
        status: of HTTP; 0 where there was no answer.
        kind: its content type.
        body: its bytes, without an encoding; why there was none.
        whole: it was read to its end.
    """

    status: int
    kind: str
    body: bytes
    whole: bool = True


def checking() -> Callable[[str, Answer, Answer], None] | None:
    """What compares the recorded and a new answer to a call, while `pytest --steplog=verify` runs a test; else None.

    Then an interceptor makes a recorded model call once more, hands both answers over, and returns the recorded one.
    """
    check: Callable[[str, Answer, Answer], None] | None = getattr(PROCESS.replay, "check", None)
    return check


@contextmanager
def guard(what: str) -> Iterator[None]:
    """Keep a fault of our own away from the user's call: it is logged with its traceback, and the call goes on.

    For what only informs, such as token counts. Never for what decides or records.
    """
    try:
        yield
    except Exception:
        log.exception("steplog: could not %s; the call itself is not affected", what)
