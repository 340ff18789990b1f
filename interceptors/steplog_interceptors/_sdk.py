"""What differs between providers, as data: an interceptor is one `Sdk` and the wire that all of them share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from steplog_interceptors._canonical import Canonical, Wire
from steplog_interceptors._jobs import Jobs
from steplog_interceptors._modes import changes_state, chosen

# Text of a conversation, and fields that have a place of their own in the log.
_NOT_PARAMETERS: Final = frozenset(
    {"model", "messages", "input", "prompt", "instructions", "system", "tools", "functions", "stream"}
)
_PARAMETER_LENGTH: Final = 256

# Where Azure, Vertex, Bedrock and resource paths name a model.
_MODEL_IN_PATH: Final = re.compile(r"/(?:deployments|models|model|engines)/([^/:]+(?::\d+)?)")
# A path segment that names one object: long, with a digit in it (`chatcmpl-9AbC`, `file-42ff`, `msgbatch_01X`).
_ID: Final = re.compile(r"(?=[^/]*\d)[^/]{8,}")


@dataclass(frozen=True)
class Sdk:
    """A provider's SDK.

    Attributes:
        name: name of its package, as in `openai`.
        minimum: lowest version that the tests run with.
        inference: matches the paths of POST requests that compute and change nothing, so they may be repeated.
        changes_state: for a request that `inference` matches: whether its body makes it change state after all.
        jobs: the jobs that its requests can begin, or None.
        lookup: for a request that changes state: how a person finds out whether it arrived, or "".
        mark: a header that the SDK puts on every request of its own and on nothing else, and text that its value has.
        newest: highest major version that the tests run with, or None where nobody keeps track.
    """

    name: str
    minimum: tuple[int, ...]
    inference: re.Pattern[str]
    changes_state: Callable[[Any], bool] = lambda _body: False
    mark: tuple[str, str] = ("x-stainless-lang", "")
    newest: int | None = None
    jobs: Jobs | None = None
    lookup: Callable[[Wire], str] = lambda _wire: ""

    @property
    def base_module(self) -> str:
        """The module with the generated base clients."""
        return f"{self.name}._base_client"

    def owns(self, request: Any) -> bool:
        """Whether a request is one of this SDK's own."""
        name, text = self.mark
        return name in request.headers and text in request.headers[name]

    def mode(self, wire: Wire, body: Any, tables: Sequence[str] = ()) -> str:
        """Idempotency mode of a request: what the user says about its kind, else what is known of it.

        Args:
            wire: the request.
            body: its JSON.
            tables: under which names the user may have said it; by default the SDK's.
        """
        said = chosen(tables or (self.name,), wire.method, wire.path)
        if said is not None:
            return said
        if wire.method in ("GET", "HEAD", "OPTIONS"):
            return "safe"
        if wire.method == "POST" and self.inference.search(wire.path) and not self.changes_state(body):
            return "safe"
        return "unsafe"


# Other SDKs of the same generator mark their requests too; what they do is unknown, so only reading is safe.
UNKNOWN: Final = Sdk(
    "", (0, 0), re.compile(r"/(?:chat/)?completions$|/embeddings$|/messages$|/responses$"), changes_state
)


def target(wire: Wire, canonical: Canonical) -> str:
    """What a request is about: the model where one is named, else `METHOD /path` with ids left out."""
    model = canonical.json.get("model") if isinstance(canonical.json, dict) else _multipart_model(canonical)
    if isinstance(model, str) and model:
        return model
    named = _MODEL_IN_PATH.search(wire.path)
    if named is not None and wire.method == "POST":
        return named.group(1)
    return f"{wire.method} {without_ids(wire.path)}"


def without_ids(path: str) -> str:
    """A path with `{id}` in the place of what names one object."""
    return _ID.sub("{id}", path)


def _multipart_model(canonical: Canonical) -> Any:
    for part in canonical.identity["body"].get("multipart", ()):
        if any('name="model"' in line for line in part["head"]):
            return part.get("text")
    return None


def parameters(canonical: Canonical) -> dict[str, Any]:
    """The settings of a request, small enough to read: scalars as they are, lists by their length."""
    if not isinstance(canonical.json, dict):
        return {}
    found: dict[str, Any] = {}
    for name, value in canonical.json.items():
        if name in ("tools", "functions", "messages") and isinstance(value, list):
            found[name] = len(value)
        elif name not in _NOT_PARAMETERS and _is_short(value):
            found[name] = value
    return found


def _is_short(value: Any) -> bool:
    return (
        value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _PARAMETER_LENGTH)
    )
