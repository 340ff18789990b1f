"""From vcrpy's cassettes to steplog's: each request is sent once more, through the interceptors, to what answered it.

So a step is what it would be had steplog recorded it, and the identity of a call is computed in one place. Nothing
leaves the process: the client has a transport that knows the answer.
"""

from __future__ import annotations

import contextvars
import datetime as dt
import os
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import steplog
from steplog._kernel import events as ev
from steplog._runtime.door import PROCESS
from steplog.errors import Interrupt, SteplogError
from steplog.stores.memory import MemoryStore
from steplog.testing import vcr
from steplog.testing._files import SUFFIX, write
from steplog.testing._taking import taken
from steplog.testing.cassettes import Cassette, Data, Line
from steplog.testing.vcr import Interaction, Skipped

# How the SDKs mark their requests. Cassettes often have lost it, with the other headers.
_SDKS: Final = (
    ("anthropic.com", "Anthropic/Python"),
    ("openai.com", "OpenAI/Python"),
    ("openai.azure.com", "AzureOpenAI/Python"),
)
_MARK: Final = "x-stainless-lang"
# Where a request carries what answers it.
_ANSWER: Final = "steplog.vcr"

# What an SDK tries again by itself; the answers of all attempts belong to one call.
_RETRIED: Final = frozenset({408, 409, 429, *range(500, 600)})
# Set by the client.
_OWN_HEADERS: Final = frozenset(
    "host content-length transfer-encoding connection accept-encoding authorization cookie".split()
)


class Imported(NamedTuple):
    """What came of a file.

    Attributes:
        source: the file.
        target: the cassette that was written, or None.
        steps: how many steps it has.
        skipped: what could not be imported.
        hosts: hosts of requests that are no model calls: a test names them in `install(http=[...])`.
    """

    source: str
    target: str | None
    steps: int
    skipped: list[Skipped]
    hosts: list[str]


def import_vcr(source: str, target: str | None = None, *, replace: bool = False) -> Imported:
    """Write a cassette of vcrpy as one of steplog, beside it by default.

    Args:
        source: a file that vcrpy has written.
        target: the cassette to write.
        replace: write over a cassette that is there.

    Raises:
        NotVcr: it is none.
        SteplogError: there is a cassette already, or no HTTP library to read it with.
    """
    target = target or os.path.splitext(source)[0] + SUFFIX
    if os.path.exists(target) and not replace:
        raise SteplogError(f"{target} is there already. Say --force to write over it.")
    found = list(vcr.interactions(source))
    skipped = [one for one in found if isinstance(one, Skipped)]
    readable = [one for one in found if isinstance(one, Interaction)]
    name = os.path.basename(os.path.splitext(source)[0])
    cassette, hosts, failed = _Recording(name, readable).cassette(_day(source))
    if cassette.steps:
        write(target, cassette)
    skipped = sorted([*skipped, *failed])
    return Imported(source, target if cassette.steps else None, cassette.steps, skipped, hosts)


def _day(source: str) -> str:
    """When the file was written: vcrpy does not say when it recorded."""
    return dt.datetime.fromtimestamp(os.stat(source).st_mtime, dt.UTC).date().isoformat()


class _Recording:
    """A recording of what vcrpy has recorded."""

    def __init__(self, name: str, found: Sequence[Interaction]) -> None:
        self._name = name
        self._run = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:100] or "vcr"
        self._calls = _calls(found)
        self._hosts: list[str] = []
        self._skipped: list[Skipped] = []
        self._failed: set[str | None] = set()

    def cassette(self, day: str) -> tuple[Cassette, list[str], list[Skipped]]:
        """The cassette, the hosts that are no models', and what is not in it."""
        before = PROCESS.settings
        if before is not None:
            raise SteplogError("vcrpy's cassettes are imported by a process that has not called steplog.install() yet.")
        names = {_host(one.url) for call in self._calls for one in call}
        steplog.install(http=sorted(names), durability="memory", strict=False)
        try:
            store = MemoryStore()
            earlier = self._record(store)
            cassette = taken(store, [self._run], self._name, day)
        finally:
            steplog.uninstall()
        tape = cassette.tapes[0]
        tape.lines = [line for line in tape.lines if line.step not in self._failed]
        for line in tape.lines:
            if line.step in earlier and line.type == ev.STEP_FINISHED:
                line.data["exchanges"][:0] = earlier[line.step]
        return cassette, self._hosts, self._skipped

    def _record(self, store: MemoryStore) -> dict[str | None, list[Data]]:
        """Record every call; what earlier attempts of a call were answered, by step."""
        earlier: dict[str | None, list[Data]] = {}
        with _client() as client, steplog.run(self._run, store=store) as run:
            for call in self._calls:
                before = {*run.state.steps}
                failure = _send(client, call[-1])
                new = [step for step in run.state.steps.values() if step.id not in before]
                if failure or not new:
                    why = failure or "steplog records no such request: it fetches a credential, or is telemetry"
                    self._failed.update(step.id for step in new)
                    self._skipped += [Skipped(one.number, f"{one.method} {one.url}", why) for one in call]
                    continue
                if new[0].kind != "llm_call" and _host(call[-1].url) not in self._hosts:
                    self._hosts.append(_host(call[-1].url))
                if len(call) > 1:
                    earlier[new[0].id] = [exchange for one in call[:-1] for exchange in _exchanges(one)]
        return earlier


def _calls(found: Sequence[Interaction]) -> list[list[Interaction]]:
    """The attempts of each call: equal requests behind each other, of which all but the last were to be tried again."""
    calls: list[list[Interaction]] = []
    for one in found:
        last = calls[-1][-1] if calls else None
        if last is not None and last.status in _RETRIED and _asked(last) == _asked(one):
            calls[-1].append(one)
        else:
            calls.append([one])
    return calls


def _asked(one: Interaction) -> tuple[str, str, bytes]:
    return one.method, one.url, one.body


def _exchanges(one: Interaction) -> list[Data]:
    """The exchange of an attempt, recorded by itself."""
    store = MemoryStore()

    # Inside no run of ours: it would be a second request there.
    def alone() -> None:
        with _client() as client, steplog.run("attempt", store=store):
            _send(client, one)

    contextvars.Context().run(alone)
    lines: list[Line] = taken(store, ["attempt"], "", "").tapes[0].lines
    return [exchange for line in lines if line.type == ev.STEP_FINISHED for exchange in line.data["exchanges"]]


def _send(client: Any, one: Interaction) -> str:
    """Send a request; why it could not be sent, or ""."""
    headers = [(name, value) for name, value in one.headers if name not in _OWN_HEADERS]
    named = {name for name, _ in headers}
    host = urlsplit(one.url).hostname or ""
    for domain, agent in _SDKS:
        if (host == domain or host.endswith("." + domain)) and _MARK not in named:
            headers = [pair for pair in headers if pair[0] != "user-agent"]
            headers += [(_MARK, "python"), ("user-agent", agent)]
    asked = client.stream(one.method, one.url, headers=headers, content=one.body, extensions={_ANSWER: one})
    try:
        # Read as a stream where it was one, so that it is one on replay too.
        with asked as answer:
            if "text/event-stream" in answer.headers.get("content-type", ""):
                for _ in answer.iter_raw():
                    pass
            else:
                answer.read()
    except (Interrupt, Exception) as error:  # noqa: BLE001 - whatever is wrong with it, the others can be imported
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _client() -> Any:
    for name in ("httpx2", "httpx"):
        try:
            library = import_module(name)
        except ImportError:
            continue

        def answer(request: Any, library: Any = library) -> Any:
            one: Interaction = request.extensions[_ANSWER]
            more = {"reason_phrase": one.reason.encode("ascii", "replace")}
            body = library.ByteStream(one.answer)
            return library.Response(one.status, headers=one.answer_headers, stream=body, extensions=more)

        return library.Client(transport=library.MockTransport(answer))
    raise SteplogError("importing vcrpy's cassettes needs httpx: pip install 'steplog[httpx]'")


def _host(url: str) -> str:
    split = urlsplit(url)
    name = (split.hostname or "").lower()
    return f"[{name}]" if ":" in name else name
