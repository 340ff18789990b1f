"""What a step asked for, as a tree that two requests can be compared by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from steplog._kernel.drift import Difference, first_difference
from steplog._kernel.paths import without
from steplog._runtime.looking import Body
from steplog._runtime.pack import form_bytes, value_tree
from steplog.errors import BodyMissing, KeyMissing

if TYPE_CHECKING:
    from steplog._kernel.decide import Effect
    from steplog._kernel.fold import StepState
    from steplog._kernel.redact import Redactor
    from steplog._runtime.ticket import Call
    from steplog.stores.base import BodyStore


def difference_from(
    step: StepState | None, call: Call, effect: Effect, redactor: Redactor, bodies: BodyStore
) -> Difference | None:
    """The first field in which a submitted call differs from a recorded step, or None where nothing can be compared."""
    if step is None:
        return None
    for name, recorded, found in (("kind", step.kind, effect.kind), ("target", step.target, effect.target)):
        if recorded != found:
            return Difference(name, recorded, found)
    try:
        asked = recorded_request(step, bodies)
    except (BodyMissing, KeyMissing):
        return None
    return first_difference(asked, _submitted_request(call, redactor))


def recorded_request(step: StepState, bodies: BodyStore) -> Any:
    """The arguments of a recorded step, or the request of a recorded model call, with its body parsed where it is JSON.

    Raises:
        BodyMissing: the body was pruned or lost.
        KeyMissing: it is encrypted, with a key that is not at hand.
    """
    request = step.started.get("request")
    if request is None:
        return value_tree(step.started.get("args"), bodies)
    body = request.get("body")
    return _comparable(request, None if body is None else form_bytes(body, bodies))


def _submitted_request(call: Call, redactor: Redactor) -> Any:
    # Redacted like the recorded side: a message about drift must not print what the log may not hold.
    if call.request is None:
        return orjson.loads(redactor.redact(orjson.dumps(call.args))[0])
    body = call.request.get("body")
    return _comparable(call.request, redactor.redact(body.data)[0] if isinstance(body, Body) else None)


def _comparable(request: dict[str, Any], body: bytes | None) -> dict[str, Any]:
    tree = {name: request[name] for name in ("method", "host", "path", "query", "headers") if request.get(name)}
    if body is not None:
        tree.update(without(_fields(body), request.get("ignored", ())))
    # Last: where nothing else differs, the difference is what was said not to count.
    return tree | {"ignored": request["ignored"]} if request.get("ignored") else tree


def _fields(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {"body": body.decode("utf-8", "backslashreplace")}
    return parsed if isinstance(parsed, dict) else {"body": parsed}
