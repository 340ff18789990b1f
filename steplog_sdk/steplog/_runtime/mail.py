"""The inbox of an open run, as its writer reads it: messages become events of the log, each once and in order.

It is looked at when the run is opened, before a step begins, and while the run waits. Looking is one call of the
system; it is made before every model call and every step that has an effect, and else at most 20 times a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel.inbox import Message
from steplog._kernel.state import RunState
from steplog._kernel.waiting import taken_as
from steplog._runtime.drive import Pause
from steplog._runtime.group import Entry
from steplog._runtime.pack import Sink
from steplog._runtime.post import whole
from steplog.errors import LeaseLost, LogFailed, StoreError

if TYPE_CHECKING:
    from steplog._kernel.redact import Redactor
    from steplog._runtime.drive import Steps
    from steplog._runtime.journal import Journal
    from steplog._runtime.recorder import Recorder
    from steplog._runtime.ticket import Call, Ticket
    from steplog.stores.base import Inbox

_LOOK_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 0.001

Taken = tuple[str, str | None, dict[str, Any]]
"""Type, step and data of the event that a message becomes."""


class Mail:
    """The messages to one open run.

    Attributes:
        handlers: by kind of message, what makes an event of one: of approvals, which are judged by who asks for them.
            Such messages stay where they are as long as nobody handles them, or their handler gives None.
        reserved: signals that a wait is about to consume.
        lock: around choosing one.
    """

    def __init__(self, journal: Journal, inbox: Inbox, redactor: Redactor) -> None:
        self.handlers: dict[str, Callable[[Message], Taken | None]] = {}
        self.reserved: set[str] = set()
        self.lock = threading.Lock()
        self._journal = journal
        self._inbox = inbox
        self._redactor = redactor
        self._size = 0
        self._read = 0
        self._put: set[str] = set()
        self._left: list[Message] = []
        self._next = 0.0
        self._under_way: Entry | None = None

    @property
    def state(self) -> RunState:
        """What the log of the run folds to."""
        return self._journal.state

    def is_due(self, call: Call) -> bool:
        """Whether there is something new, and a step like this is worth looking for it."""
        now = time.monotonic()
        if now < self._next and self._under_way is None and call.mode == "safe" and call.kind != "llm_call":
            return False
        if self._under_way is not None or self._inbox.size() != self._size:
            return True
        self._next = now + _LOOK_SECONDS
        return False

    def take(self) -> Steps[None]:
        """Take over what is new; it is folded into the state when this returns.

        Raises:
            StoreError, LogFailed, LeaseLost: the inbox cannot be read, or the log not be written.
        """
        with self.lock:
            entries = [self._journal.put(entry) for entry in self._events(self._new())]
            # Whoever waits for the last of them waits for all.
            before, last = self._under_way, entries[-1] if entries else None
            self._under_way = last or before
        if last is not None:
            try:
                yield last
            except BaseException:
                self._journal.flush_soon()
                raise
        while before is not None and not before.done:
            # Another branch has taken them, and waits for the disk; what they say holds for this one too.
            yield Pause(_PAUSE_SECONDS)
        with self.lock:
            if self._under_way is not None and self._under_way.done:
                self._under_way = None

    def _new(self) -> list[Message]:
        size = self._inbox.size()
        if size == self._size and not (self._left and self.handlers):
            return []
        if size < self._read:
            self._read = 0  # another file took its place
        found, used = whole(self._inbox, self._journal.run_id, self._inbox.read(self._read))
        self._size, self._read = size, self._read + used
        left, self._left = self._left, []
        return [*left, *found]

    def _events(self, messages: list[Message]) -> list[Entry]:
        controls = self.state.controls
        taken = () if controls is None else controls.taken
        entries = []
        for message in messages:
            if message.id in taken or message.id in self._put:
                continue
            event = self._event(message)
            if event is None:
                self._left.append(message)
                continue
            self._put.add(message.id)
            entries.append(self._entry(*event))
        return entries

    def _event(self, message: Message) -> Taken | None:
        known = taken_as(message)
        if known is not None:
            return known[0], None, known[1]
        handler = self.handlers.get(message.kind)
        return None if handler is None else handler(message)

    def _entry(self, type_: str, step: str | None, data: dict[str, Any]) -> Entry:
        bodies = self._journal.store.bodies
        sink = Sink(self._redactor, bodies.name)

        def build(into: Sink) -> bytes:
            # What it says may be long, and looks like any other value.
            return into.line({**data, "value": into.value(data["value"])} if "value" in data else data)

        line = sink.event(build, bodies)
        return Entry(type_, step, line, sink.bodies, sync=True)


def attend(recorder: Recorder, ticket: Ticket) -> Steps[None]:
    """Take over what is new in the inbox of a run, before a step of it begins or while it waits.

    Raises:
        Interrupt: that cannot be done. The run halts.
    """
    mail = recorder.mail
    if mail is None:
        return
    try:
        yield from mail.take()
    except (StoreError, LogFailed, LeaseLost) as failed:
        raise recorder.unwritten(ticket, failed, begun=False) from failed
