"""How values and raw bytes get into a line and out again: redacted, then inline or in the body store.

Everything that enters the log passes `Sink`, so there is one place where a secret can be stopped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

import orjson

from steplog._kernel.fragments import without_split
from steplog._kernel.redact import Redactor
from steplog._kernel.secret import KIND, MARK, hidden
from steplog._runtime.looking import Body, looked_at
from steplog.errors import DecodeError

if TYPE_CHECKING:
    from steplog._runtime.group import Facts
    from steplog.stores.base import BodyStore

# Lines stay short enough to read; a page is also what the file system moves anyway.
INLINE_LIMIT: Final = 4096

# Of model calls, requests and responses resemble those before them, with which they are compressed in the body store.
BODY_LIMIT: Final = 768


# What a value that its type calls secret begins with.
_MARKED: Final = orjson.dumps({MARK: KIND})[:-1]
_DOLLAR: Final = MARK.encode()[0]


def sha256_name(data: bytes) -> str:
    """The name of a body in a store that does not encrypt."""
    return hashlib.sha256(data).hexdigest()


NOTHING: Final = Redactor(())
"""Takes nothing out: for what goes to a store that encrypts."""


def is_ordinary(value: bytes, redactor: Redactor) -> bool:
    """Whether a value in JSON stands in a line as it is; False where only a `Sink` can tell."""
    return len(value) <= INLINE_LIMIT and not (_DOLLAR in value and _MARKED in value) and redactor.is_clear(value)


class Sink:
    """Collects what one event puts into the body store, and takes secrets out of everything that it writes.

    `name` is the body store's own: the name under which bytes are put there. Raw bodies above `limit` go there, values
    above 4 KiB.

    What stands in the line is redacted once, as part of the whole line; what goes to the body store, by itself.

    Attributes:
        bodies: what goes to the body store, by name.
        redacted: how many secrets were taken out of values and bodies.
        facts: what a fold reads of the event, where that is known and the line says just that.
    """

    __slots__ = ("_inline", "_limit", "_name", "_redactor", "bodies", "facts", "redacted")

    def __init__(self, redactor: Redactor, name: Callable[[bytes], str] = sha256_name, limit: int = BODY_LIMIT) -> None:
        self._redactor = redactor
        self._limit = limit
        self._name = name
        self._inline: list[bytes] = []
        self.bodies: list[tuple[str, bytes]] = []
        self.redacted = 0
        self.facts: Facts = None

    def value(self, tree: Any) -> Any:
        """An encoded value as it stands in a line: itself, or a reference when it is large."""
        return self.serialised(orjson.dumps(tree))

    def serialised(self, data: bytes) -> Any:
        """The same for a value that is JSON bytes already."""
        return orjson.Fragment(self.stored(data))

    def items(self, items: Any) -> Any:
        """The items of a stream as they stand in a line; a secret that stands in several of them is taken out too."""
        data = orjson.dumps(items)
        if self._redactor is not NOTHING:
            tree = orjson.loads(data)
            count = without_split(self._redactor.spans, tree) if isinstance(tree, list) else 0
            self.redacted += count
            data = orjson.dumps(tree) if count else data
        return self.serialised(data)

    def stored(self, data: bytes) -> bytes:
        """The JSON bytes that stand in a line for those of a value: themselves, or a reference."""
        if _DOLLAR in data and _MARKED in data and self._redactor is not NOTHING:
            tree, count = hidden(orjson.loads(data))
            data = orjson.dumps(tree)
            self.redacted += count
        if len(data) <= INLINE_LIMIT:
            self._inline.append(data)
            return data
        data, count = clean_json(self._redactor, data)
        self.redacted += count
        return orjson.dumps({"$steplog": "body", "sha256": self._store(data), "size": len(data)})

    def dumps(self, detail: dict[str, Any]) -> bytes:
        """A detail tree as JSON bytes, with a body form in the place of every `Body`."""
        # The encoder walks the tree anyway; it asks about the few nodes that are not JSON.
        return orjson.dumps(detail, default=self._placed)

    def _placed(self, node: Any) -> Any:
        if isinstance(node, Body):
            return self._form(node)
        if isinstance(node, tuple):
            return list(node)  # one with names
        raise TypeError

    def line(self, data: dict[str, Any]) -> bytes:
        """The event's data, a detail tree, as JSON bytes without secrets.

        Where a value or body lost something, `redacted` is added, the number of places: it cannot be returned again.
        """
        whole = self.dumps(data)
        line = self._cleaned(whole)
        if not self.redacted:
            return line
        if "redacted" in data:
            return self._cleaned(orjson.dumps({**orjson.loads(whole), "redacted": self.redacted}))
        return self._cleaned(b'%b,"redacted":%d}' % (whole[:-1], self.redacted))

    def apart(self, data: dict[str, Any]) -> bytes:
        """Data that is joined to a line which has been looked at, as JSON bytes without secrets."""
        return clean_event(self._redactor, orjson.dumps(data))[0]

    def text(self, data: bytes, found_in: bytes | None = None) -> bytes:
        """The same for data that is a JSON object in bytes already, without the field `redacted`.

        Args:
            data: the object.
            found_in: the part of it outside which no secret can be: ids, numbers and names that were looked at before.
        """
        if found_in is not None and not self.redacted and not self._redactor.redact(found_in)[1]:
            return data
        line = self._cleaned(data)
        return self._cleaned(b'%b,"redacted":%d}' % (data[:-1], self.redacted)) if self.redacted else line

    def _cleaned(self, line: bytes) -> bytes:
        line, count = clean_event(self._redactor, line, (name for name, _ in self.bodies))
        if count:
            inline, self._inline = self._inline, []
            self.redacted += sum(self._redactor.redact(part)[1] for part in inline)
        return line

    def event(self, build: Callable[[Sink], bytes], bodies: BodyStore) -> bytes:
        """The data of an event; where the body store encrypts, with a reference to the event as it was.

        Then nothing is lost: `withheld` takes the place of `redacted`.

        Args:
            build: makes the data with a sink, by `line`.
            bodies: the store.
        """
        line = build(self)
        if not self.redacted or getattr(bodies, "cipher", None) is None:
            return line
        whole = Sink(NOTHING, self._name, self._limit)
        data = build(whole)
        whole.bodies.append((self._name(data), data))
        self.bodies += whole.bodies
        tree = orjson.loads(line)
        tree["withheld"] = tree.pop("redacted")
        tree["exact"] = [{"body": name, "size": len(body)} for name, body in reversed(whole.bodies)]
        # What had been lost before it came here is lost all the same.
        self.redacted = whole.redacted
        lost = orjson.loads(data).get("redacted")
        return orjson.dumps(tree | ({"redacted": lost} if lost else {}))

    def _form(self, body: Body) -> dict[str, Any]:
        form = inline_form(body.data) if len(body.data) <= self._limit else None
        if form is not None and "base64" not in form and not body.events and body.plain is None:
            # It is looked at with the rest of the line.
            self._inline.append(body.data)
            return form
        data, count = (body.data, 0) if self._redactor is NOTHING else looked_at(self._redactor, body)
        self.redacted += count
        if len(data) > self._limit:
            return {"body": self._store(data), "size": len(data)}
        return inline_form(data)

    def _store(self, data: bytes) -> str:
        name = self._name(data)
        self.bodies.append((name, data))
        return name


# Ids, hashes and words of closed lists: what decisions are made of.
_STRUCTURE: Final = (
    *("format", "run_id", "durability", "key", "module", "kind", "mode", "scope", "after", "args_hash"),
    *("outcome", "reason", "retry", "step", "how"),
)


def clean_event(redactor: Redactor, data: bytes, names: Iterable[str] = ()) -> tuple[bytes, int]:
    """The data of an event without secrets, but with all that a resumed run needs to find its way.

    An expression of the program's own may match any of that.

    Args:
        redactor: says what is a secret.
        data: a JSON object.
        names: of the bodies that it refers to.
    """
    if not redactor.redact(data)[1]:
        return data, 0
    tree = orjson.loads(data)
    kept = [b'"%b":' % name.encode() for name in tree]
    kept += [orjson.dumps({field: tree[field]})[1:-1] for field in _STRUCTURE if field in tree]
    for name in map(str.encode, names):
        kept += name, b'{"$steplog":"body","sha256":"%b","size":' % name, b'{"body":"%b","size":' % name
    return clean_json(redactor, data, kept, _STRUCTURE)


def clean_json(
    redactor: Redactor, data: bytes, kept: Collection[bytes] = (), fields: Collection[str] = ()
) -> tuple[bytes, int]:
    """JSON without secrets, and still JSON: a secret of digits can look like part of a number, which is left alone.

    Args:
        redactor: says what is a secret.
        data: the JSON.
        kept: parts of it that are none.
        fields: of the object that it is, those that are none either.
    """
    cleaned, count = redactor.redact(data, kept)
    if count:
        try:
            orjson.loads(cleaned)
        except orjson.JSONDecodeError:
            counts = [0]
            cleaned = orjson.dumps(_clean_strings(redactor, orjson.loads(data), counts, kept, fields))
            count = counts[0]
    return cleaned, count


def _clean_strings(
    redactor: Redactor, node: Any, counts: list[int], kept: Collection[bytes], fields: Collection[str] = ()
) -> Any:
    if isinstance(node, str):
        cleaned, count = redactor.redact(node.encode(), kept)
        counts[0] += count
        return cleaned.decode()
    if isinstance(node, list):
        return [_clean_strings(redactor, value, counts, kept) for value in node]
    if not isinstance(node, dict):
        return node
    if "size" in node and any(str(node.get(field)).encode() in kept for field in ("sha256", "body")):
        # A reference to a body, beside whose name nothing else stands.
        return node
    if fields:
        return {
            field: value if field in fields else _clean_strings(redactor, value, counts, kept)
            for field, value in node.items()
        }
    return {
        _clean_strings(redactor, key, counts, kept): _clean_strings(redactor, value, counts, kept)
        for key, value in node.items()
    }


def inline_form(data: bytes) -> dict[str, Any]:
    """The most readable form from which the exact bytes can be restored."""
    if data[:1] in (b"{", b"["):
        try:
            if orjson.dumps(orjson.loads(data)) == data:
                return {"json": orjson.Fragment(data)}
        except orjson.JSONDecodeError:
            pass  # looks like JSON and is not: the text form below keeps it exactly
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def form_bytes(form: dict[str, Any], bodies: BodyStore) -> bytes:
    """The exact bytes of a body form.

    Raises:
        BodyMissing: it is in the body store no more.
        DecodeError: the form is of a kind that this release does not know.
    """
    if "json" in form:
        return orjson.dumps(form["json"])
    if "text" in form:
        return str(form["text"]).encode("utf-8")
    if "base64" in form:
        return base64.b64decode(form["base64"])
    if "body" in form:
        return bodies.get(form["body"])
    message = f"a recorded body has an unknown form {sorted(form)}; read it with the release of steplog that wrote it."
    raise DecodeError(message)


def whole_data(data: dict[str, Any], bodies: BodyStore) -> dict[str, Any]:
    """The data of an event as it was before secrets were taken out, where it was kept.

    Raises:
        BodyMissing: it is in the body store no more.
        KeyMissing: it is encrypted, with a key that is not at hand.
    """
    if "exact" not in data:
        return data
    whole: dict[str, Any] = orjson.loads(bodies.get(data["exact"][0]["body"]))
    return whole


def value_tree(recorded: Any, bodies: BodyStore) -> Any:
    """The encoded value that stands in a line, fetched from the body store when it is a reference.

    Raises:
        BodyMissing: it is in the body store no more.
    """
    if isinstance(recorded, dict) and recorded.get("$steplog") == "body":
        return orjson.loads(bodies.get(recorded["sha256"]))
    return recorded
