"""What stands behind the references of a line: bodies and large values, fetched for reading.

Reading never fails because a body is gone. A missing one is shown as missing; the rest of the step is still worth
looking at.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from steplog._kernel.references import FOREIGN, VALUES, is_form
from steplog._runtime.pack import form_bytes, value_tree, whole_data
from steplog.errors import SteplogError

if TYPE_CHECKING:
    from steplog.stores.base import BodyStore


class Contents:
    """Fetches what the lines of a run refer to.

    Args:
        bodies: where it is.
        reveal: show what was withheld from the lines and kept encrypted, as well.
    """

    def __init__(self, bodies: BodyStore, *, reveal: bool = False) -> None:
        self._bodies = bodies
        self._reveal = reveal

    def event(self, data: dict[str, Any]) -> dict[str, Any]:
        """The data of an event: as the line says it, or with the secrets that were withheld from it.

        Raises:
            KeyMissing: they are to be shown, and the key is not at hand.
            BodyMissing: they are in the body store no more.
        """
        return whole_data(data, self._bodies) if self._reveal else data

    def value(self, recorded: Any) -> Any:
        """An encoded value as a JSON tree."""
        try:
            return value_tree(recorded, self._bodies)
        except (SteplogError, ValueError) as error:
            return _missing(recorded, error)

    def form(self, form: dict[str, Any]) -> Any:
        """Bytes as what they are: a JSON tree, text, or `{"base64": ...}`."""
        try:
            return _readable(form_bytes(form, self._bodies))
        except (SteplogError, ValueError) as error:
            return _missing(form, error)

    def pieces(self, notes: list[dict[str, Any]], number: int, rest: Any = None) -> Any:
        """A streamed body: the pieces of exchange `number` that were written while it passed, and the rest of it."""
        forms = [note["body"] for note in notes if note.get("exchange") == number and "body" in note]
        forms += [rest] if rest else []
        try:
            return _readable(b"".join(form_bytes(form, self._bodies) for form in forms))
        except (SteplogError, ValueError) as error:
            return _missing(forms, error)

    def detail(self, node: Any) -> Any:
        """A detail tree with every body in it fetched."""
        if is_form(node):
            return self.form(node)
        if isinstance(node, dict):
            return {key: self._item(key, item) for key, item in node.items()}
        if isinstance(node, list):
            return [self.detail(item) for item in node]
        return node

    def _item(self, key: str, item: Any) -> Any:
        if key in FOREIGN:
            return item
        return self.value(item) if key in VALUES else self.detail(item)


def _readable(data: bytes) -> Any:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
    try:
        return json.loads(text)
    except ValueError:
        return text


def _missing(reference: Any, error: Exception) -> dict[str, Any]:
    return {"missing": reference, "why": str(error)}
