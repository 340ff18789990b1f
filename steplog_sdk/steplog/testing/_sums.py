"""Whether the requests of a cassette are those that were recorded.

A step's id is a hash of its request, and a call finds its answer by that id. So a request that was edited in the file
would go on giving its answer to the old question, and the file would say something that never happened. Ids cannot be
computed here (what counts of a request is its interceptor's to say), so each request carries a sum of its own.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final

# What a step's id is made of, in the form in which it stands in the file.
_ASKED: Final = ("kind", "target", "scope", "occurrence", "args", "request")
# An edit is no attack: 64 bits are enough to notice it, and short enough to read over.
_DIGITS: Final = 16


def sum_of(step: str, data: dict[str, Any]) -> str:
    """The sum of a step's request, the same whatever the order of its fields.

    Args:
        step: the step.
        data: the data of its `step.started` as a tree of the file, with nothing left to an earlier request.
    """
    asked = [step, {name: data[name] for name in _ASKED if name in data}]
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:_DIGITS]


def edited(path: str, text: str | bytes, tree: dict[str, Any]) -> str:
    """What to say of an event whose request has another sum than it says."""
    data = tree.get("data", {})
    where = f"{path or 'the cassette'}:{_line(text, tree)}"
    return (
        f"{where}: what {data.get('kind')} {data.get('target')} ({tree['step']}) asks for is not what was recorded: it "
        "was edited, or a merge has mixed two recordings.\nA call finds its answer by all that it asks for, so here it "
        "would get the answer to another question. (Answers may be edited.)\n"
        f"Take the change back (git diff {path}), or record it again: pytest --steplog=all TEST"
    )


def _line(text: str | bytes, tree: dict[str, Any]) -> int:
    """The line of an event: that of its sum, which no other event has, or the first that names its step."""
    whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    places = (whole.find(f'"{tree[name]}"') for name in ("sum", "step") if name in tree)
    return whole.count("\n", 0, next((place for place in places if place >= 0), 0)) + 1
