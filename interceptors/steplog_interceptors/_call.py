"""One logical call of an SDK while it is under way: what it asked, what it got, and where that is written.

It belongs to the frame that opened it. A stream that outlives the frame keeps its own reference.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

import orjson

from steplog import plugins
from steplog.errors import OutcomeUnknown, StepFailed
from steplog_interceptors._canonical import Canonical, Wire, canonical, digest, read_wire
from steplog_interceptors._derive import derive
from steplog_interceptors._exchange import Exchange, Library, with_content
from steplog_interceptors._sdk import UNKNOWN, Sdk, parameters, target
from steplog_interceptors._terminal import EndMark
from steplog_interceptors._told import NO_EVENTS, as_events, reads_events


class Refused(BaseException):
    """Carries an error of steplog through an SDK.

    The anthropic SDK takes any `Exception` of its HTTP client for a failed connection and tries again; an error that
    says "this call may not be made" must reach the caller as it is.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def shorten(request: Any, ticket: plugins.Ticket) -> None:
    """Lower the timeouts of a request to the seconds that the run may still be at work."""
    left = ticket.remaining()
    if left is None:
        return
    ticket.check_deadline()
    given = request.extensions.get("timeout") or {}
    limits = {name: given.get(name) for name in ("connect", "read", "write", "pool")}
    shorter = {name: left if limit is None else min(limit, left) for name, limit in limits.items()}
    request.extensions = {**request.extensions, "timeout": shorter}


class LogicalCall:
    """One logical call: one step, with an exchange for each attempt.

    Attributes:
        sdk: the SDK that makes it.
        origin: the client and the options object that it was made with, by which it recognises itself.
        net: it is a bare send that no scope announced.
        ticket: the step, once the first request is known.
        passing: no run is open here; nothing is recorded.
        stream: the body that is still to be read, live or replayed, or None.
        closed: the frame that opened it is gone.
        deferred: an error about missing credentials, held back until it is known whether they are needed.
        deferred_sends: the SDK takes that error for a failure to send, and may try again.
        put_off: hooks of the SDK that fetch credentials and have not run yet.
        tokens: what the tokens are whose place the SDK was given a placeholder for.
        authenticating: such a hook is running now.
        asked_inside: whether such a hook has asked for steps of its own.
        waited: seconds spent waiting on the provider.
        raw: the caller asked for the response instead of the parsed object.
        exchanges: those that have ended.
        kind: of the step.
        attaches: its work goes on at the provider when it is cut off, and can be taken up there.
        keys: credentials in the request's body, by which accounts differ.
    """

    kind = "llm_call"
    keys: tuple[str, ...] = ()

    def __init__(self, sdk: Sdk = UNKNOWN, origin: tuple[Any, Any] = (None, None), *, net: bool = False) -> None:
        self.sdk = sdk
        self.origin = origin
        self.net = net
        # Whose `ignore` and `modes` count, the narrowest first.
        self.tables: tuple[str, ...] = (sdk.name or "http",)
        self.ticket: plugins.Ticket | None = None
        self.passing = False
        self.closed = False
        self.stream: Any = None
        self.deferred: Exception | None = None
        self.deferred_sends = False
        self.put_off: list[Any] = []
        self.tokens: dict[str, str] = {}
        self.authenticating = False
        self.asked_inside = False
        self.waited = 0.0
        self.raw = False
        self.exchanges: list[Exchange] = []
        self._wire: Wire | None = None
        self._first: str | None = None
        self._unserved: list[Exchange] = []
        self._last: Exchange | None = None
        self._job: dict[str, Any] | None = None
        self._reads_events = False
        self.attaches = False

    @property
    def replaying(self) -> bool:
        """Whether the answers come from the log."""
        return self.ticket is not None and self.ticket.recorded is not None

    @property
    def undecided(self) -> bool:
        """Whether the recorder has not been asked yet."""
        return self.ticket is None and not self.passing

    @property
    def recorded(self) -> plugins.Recorded:
        """The recorded outcome of a call that is replayed."""
        assert self.ticket is not None
        assert self.ticket.recorded is not None
        return self.ticket.recorded

    def describe(self, request: Any, content: bytes, *, stream: bool) -> plugins.Call:
        """The effect to submit for the call's first request."""
        wire = self._wire = read_wire(request, content)
        # The caller parses a raw response himself, so nobody knows here whether it parses.
        self.raw = "x-stainless-raw-response" in request.headers
        form = canonical(wire, self.ignored)
        # Attempts that differ in what does not count are the same request.
        self._first = digest(form) if self.ignored else None
        self._reads_events = reads_events(request, form.json, stream=stream)
        self.attaches = self.sdk.jobs is not None and self.sdk.jobs.is_one(wire, form.json)
        call = plugins.Call(
            kind=self.kind,
            target=target(wire, form),
            args=form.identity,
            mode=self.sdk.mode(wire, form.json, self.tables),
            request=_stored(self.sdk, wire, form, request.headers, stream=stream) | self._note_ignored(),
        )
        call.attaches = self.attaches
        call.amends = isinstance(form.json, dict)
        call.lookup = self.sdk.lookup(wire)
        return call

    def mode_of(self, _request: Any) -> str:
        """Idempotency mode, told without the body, of a request that is made outside every run."""
        return "safe"

    def bind(self, ticket: plugins.Ticket | None) -> None:
        """Take the recorder's answer."""
        self.ticket = ticket
        self.passing = ticket is None
        if ticket is None:
            return
        if ticket.earlier is not None:
            self._job = ticket.earlier.job
        if ticket.recorded is not None:
            self._unserved = list(ticket.recorded.data.get("exchanges") or ())
            self._job = {} if ticket.recorded.data.get("job_open") else None

    def name(self, request: Any, content: bytes) -> str | None:
        """The digest of an attempt's request, or None where it is the step's own request again."""
        wire = read_wire(request, content)
        if wire == self._wire:
            return None
        found = digest(canonical(wire, self.ignored))
        return None if found == self._first else found

    @property
    def ignored(self) -> tuple[str, ...]:
        """Paths in the request's body that the program has taken out of its identity."""
        table = plugins.settings().ignore
        return tuple(path for name in self.tables for path in table.get(name, ()))

    def _note_ignored(self) -> dict[str, Any]:
        return {"ignored": list(self.ignored)} if self.ignored else {}

    def settled_by_hand(self) -> Exchange | None:
        """The answer that an operator gave for a step in doubt, which has no exchanges of its own.

        Raises Unreplayable where the program reads a stream and none can be made of it.
        """
        data = self.recorded.data
        if "exchanges" in data:
            return None
        if self.recorded.outcome == "failed":
            error = data.get("error") or {}
            message = error.get("message") or "an operator recorded this call as failed"
            kind = OutcomeUnknown if data.get("how") == "unknown" else StepFailed
            return {"error": {"module": kind.__module__, "class": kind.__qualname__, "message": message}}
        result = self.recorded.value("result")
        media, body = "application/json", orjson.dumps(result).decode()
        if self._reads_events:
            told = as_events(result, self.sdk.jobs.told if self.sdk.jobs is not None else None)
            if told is None:
                raise self.recorded.unreturnable(NO_EVENTS)
            media, body = "text/event-stream", told
        return {"status": 200, "http": "HTTP/1.1", "headers": [["content-type", media]], "body": {"text": body}}

    def expected(self, name: str | None) -> Exchange | None:
        """The recorded answer that an attempt will get, or None."""
        return next((exchange for exchange in self._unserved if exchange.get("request") == name), None)

    def next_exchange(self, name: str | None) -> Exchange:
        """The recorded answer to an attempt. Raises DriftDetected (through the ticket) where there is none."""
        ticket = self.ticket
        assert ticket is not None
        for number, exchange in enumerate(self._unserved):
            if exchange.get("request") == name:
                self._last = self._unserved.pop(number)
                return self._last
        if not self._unserved and self._last is not None and self._last.get("request") == name and _failed(self._last):
            # The client now allows more retries than when the call was recorded; the last answer was final.
            return self._last
        raise ticket.diverged(
            "The call makes a request to the provider that it did not make when it was recorded.",
            field="request",
            recorded=[exchange.get("request") for exchange in self._unserved],
            found=name,
        )

    def check_served(self) -> None:
        """A replayed call must have taken every recorded answer, or its result is not the recorded one."""
        if self._unserved and self.ticket is not None:
            self.ticket.diverged(
                "The call was recorded with more attempts than the SDK makes now; its recorded result comes from an "
                "attempt that is not made. Use the `max_retries` of the recorded run.",
                field="attempts",
                recorded=len(self._unserved) + 1,
                found=1,
            )

    def add(self, exchange: Exchange, name: str | None, seconds: float) -> None:
        """Note an exchange that has ended. One that failed because the run's time was up is no outcome."""
        if "error" in exchange and self.ticket is not None:
            self.ticket.check_deadline()
        exchange["ms"] = round(seconds * 1000, 3)
        if name is not None:
            exchange["request"] = name
        self.waited += seconds
        self.exchanges.append(exchange)

    def finality(self) -> dict[str, Any]:
        """What says in the log that a failure of this call is never tried again by itself.

        A request that changes something and was answered by nothing, or by a fault of the server, may have had its
        effect. Its failure is returned for ever, unless a person says otherwise. A job that can be taken up is no
        doubt: that repeats nothing.
        """
        if self._job is not None or self.ticket is None or self.ticket.call.mode in ("safe", "keyed", "verify"):
            return {}
        return {"final": True} if any(map(_had_an_effect, self.exchanges)) else {}

    def amended(self, library: Library, request: Any, name: str | None) -> Any:
        """What to send in place of the step's own request, where a fork changes that; before anything signs it."""
        changes = self.ticket.changes if self.ticket is not None and name is None else None
        return with_content(library, request, plugins.changed(request.content, changes)) if changes else request

    def put_key(self, request: Any) -> None:
        """Send the step's idempotency key where the SDK would send one of its own making.

        So an attempt that is made again after a crash is the same request to a provider that honours keys. It may also
        take no longer than the run's budget leaves.
        """
        if self.ticket is not None:
            shorten(request, self.ticket)
        declared = getattr(self.origin[0], "_idempotency_header", None) or "idempotency-key"
        if self.ticket is not None and request.headers.get(declared, "").startswith(_MADE_UP):
            request.headers[declared] = self.ticket.key

    def job_of(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The job that a stream's first event names, where this call can take one up again."""
        if self.attaches and self.sdk.jobs is not None:
            self._job = self.sdk.jobs.name(event)
            return self._job
        return None

    def job_ended(self) -> None:
        """The job's stream has come to its end."""
        self._job = None

    def detail(
        self, error: BaseException | None = None, *, told: dict[str, Any] | None = None, failed: bool = False
    ) -> dict[str, Any]:
        """What to record about the outcome.

        Args:
            error: what the SDK raised, having an answer.
            told: what a streamed answer has told of itself.
            failed: the outcome is a failure.
        """
        detail: dict[str, Any] = {"exchanges": self.exchanges}
        taken = sum(len(exchange.get("redacted", ())) for exchange in self.exchanges)
        if taken:
            # The recorder's own word for an outcome that lost a secret: it is not returned without it.
            detail["redacted"] = taken
        if self.asked_inside:
            detail["credentials"] = "steps"
        last = self.exchanges[-1] if self.exchanges else {}
        with plugins.guard("read model and usage from a provider's answer"):
            detail.update(derive(last))
            detail.update(told if told is not None else _told(last))
        if (failed or error is not None) and self._job is not None:
            detail["job_open"] = True
        detail.update(self.finality())
        if 200 <= last.get("status", 0) < 300 and not self.net:
            if error is not None:
                detail["parse"] = {"type": type(error).__qualname__, "message": str(error)}
            elif not self.raw and "chunks" not in last:
                detail["parse"] = "ok"
        return detail


CURRENT: Final[ContextVar[LogicalCall | None]] = ContextVar("steplog_interceptors_call", default=None)

# Stands for "inside a send": credential traffic, a transport that sends through another client.
PASSING: Final = LogicalCall()
PASSING.passing = True


def current() -> LogicalCall | None:
    """The call that is open in this context; one that a forgotten task inherited is no longer open."""
    call = CURRENT.get()
    return None if call is None or call.closed else call


# Failures of a transport before the first byte of a request has left.
_UNSENT: Final = frozenset(
    "ConnectError ConnectTimeout PoolTimeout UnsupportedProtocol LocalProtocolError InvalidURL ProxyError".split()
)


def _had_an_effect(exchange: Exchange) -> bool:
    """Whether a request may have done what it asks for: it was not refused, and it was sent."""
    if exchange.get("history") or exchange.get("led"):
        # Whoever answers with a redirect has taken the request; what became of the second one says nothing of it.
        return True
    if "status" in exchange:
        status = exchange["status"]
        return bool(not 400 <= status < 500 or status == 408)
    error = exchange.get("error", {})
    return error.get("before") != "send" and error.get("class") not in _UNSENT


# How the keys begin that a generated SDK makes up; any other is the user's own.
_MADE_UP: Final = "stainless-python-retry-"


def _told(exchange: Exchange) -> dict[str, Any]:
    body = exchange.get("body")
    headers = {name.lower(): value for name, value in exchange.get("headers", ())}
    mark = EndMark(headers.get("content-type", ""), "")
    mark.feed(body.data if isinstance(body, plugins.Body) else b"")
    mark.close()
    return mark.found


def _failed(exchange: Exchange) -> bool:
    return bool(exchange.get("status", 599) >= 400)


def _stored(sdk: Sdk, wire: Wire, form: Canonical, headers: Any, *, stream: bool) -> dict[str, Any]:
    request: dict[str, Any] = {
        "method": wire.method,
        "path": wire.path,
        "sdk": sdk.name or headers.get("user-agent", "").partition("/")[0].lower(),
        "sdk_version": headers.get("x-stainless-package-version", ""),
        "stream": stream,
        "params": parameters(form),
    }
    for name in ("anthropic-beta", "openai-beta"):
        if name in headers:
            request[name] = headers[name]
    if wire.query:
        request["query"] = [list(pair) for pair in wire.query]
    if form.json is None and wire.content_type:
        request["content_type"] = wire.content_type
    if form.redacted:
        request["redacted"] = form.redacted
    if form.stored is not None:
        request["body"] = form.stored
    return request
