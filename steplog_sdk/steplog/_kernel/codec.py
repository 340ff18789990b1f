"""Values to JSON trees for the log, and back to the same values of the same types.

What JSON holds exactly stands for itself. Everything else is wrapped in an object that says what it is,
`{"$steplog": "<kind>", ...}`: readable with jq, and equally well written by every JSON encoder, because no tree holds
what encoders disagree about (NaN, large ints, lone surrogates, keys that are not str, deep nesting).

Nothing is pickled and nothing is imported because a log names it; `codec_classes` says how classes are found. Shared
references are written once per appearance and come back as separate values; a value that contains itself is refused.
"""

from __future__ import annotations

from typing import Any, Final

from steplog._kernel import codec_errors
from steplog._kernel.canonical import is_plain
from steplog._kernel.codec_classes import MARK, Classes, classes_in, register_codec
from steplog._kernel.codec_decode import Decoder
from steplog._kernel.codec_encode import Encoder
from steplog._kernel.codec_errors import Lost
from steplog._kernel.refusal import Refused, shortened, type_name, with_article
from steplog.errors import DecodeError, EncodeError

__all__ = [
    "Classes",
    "Lost",
    "classes_in",
    "decode",
    "decode_exception",
    "encode",
    "encode_exception",
    "holds_wrapped",
    "register_codec",
]

_NO_CLASSES: Final = Classes()
_MARK: Final = MARK.encode()
_DOLLAR: Final = ord("$")
_BACKSLASH: Final = ord("\\")


def encode(value: Any, where: str = "result", classes: Classes = _NO_CLASSES, above: int = 0) -> Any:
    """Return the JSON tree of a value.

    Where nothing needs wrapping the tree *is* the value, or shares parts with it: serialise it at once, before the
    program can change the value again.

    Args:
        value: any value that steplog can restore.
        where: what to call the value in an error, such as `result` or `args`.
        classes: where classes will be found when the value is restored; checked now, so that a class which could not
            be found again is refused before it is needed.
        above: how many levels of the tree that it becomes part of stand above it.

    Raises:
        EncodeError: with the `path` inside the value and the `type_name` of what cannot be recorded.
    """
    try:
        tree = value if is_plain(value, above) else Encoder(classes).tree(value, above)
        return tree if classes.plan is None else classes.plan(tree, classes.secret)
    except Refused as refused:
        raise _encode_error(refused, where) from refused.__cause__
    except (MemoryError, EncodeError):
        raise
    except Exception as error:
        message = (
            f"{where} could not be recorded: {type(error).__name__}: {error}. Was it changed by another thread while "
            f"it was being recorded, or does one of its classes raise when it is read?"
        )
        raise EncodeError(message, path=where, type_name=type_name(value)) from error


def decode(tree: Any, classes: Classes = _NO_CLASSES, where: str = "result") -> Any:
    """Return the value of a tree that `encode` made, as a fresh object each time.

    Args:
        tree: as read from the log.
        classes: where classes are found, besides registered codecs and imported modules.
        where: what to call the value in an error.

    Raises:
        DecodeError: with the `path`, the `type_name`, and the import or the registration that is missing.
    """
    return _decoded(Decoder(classes), tree, where)


def holds_wrapped(text: bytes) -> bool:
    """Whether the tree in these JSON bytes may hold what is wrapped. Else it is its own value, as `decode` gives it."""
    # One character first, as a number, since that is found many times faster. A letter of the mark may be escaped.
    return (_DOLLAR in text and _MARK in text) or (_BACKSLASH in text and b"\\u00" in text)


def encode_exception(exc: BaseException, classes: Classes = _NO_CLASSES) -> dict[str, Any]:
    """Return the tree of an exception, whatever it carries: this never refuses.

    What cannot be recorded is dropped and named under "lost" (`args[1]`, `response`, `__cause__`); an argument leaves a
    stand-in that prints as it did. The tree of a class that cannot be found again has "unfindable".
    """
    encoder = Encoder(classes, lenient=True)
    try:
        return codec_errors.exception_to(encoder, exc, 0)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - an exception whose own attributes raise is still a failure to record
        return codec_errors.unreadable(encoder, exc)


def decode_exception(tree: Any, classes: Classes = _NO_CLASSES) -> BaseException:
    """Return the exception of a tree: of its own class, or `StepFailed` where this program cannot rebuild that.

    Raises:
        DecodeError: the tree is not that of an exception.
    """
    exc = _decoded(Decoder(classes, lenient=True), tree, "error")
    if not isinstance(exc, BaseException):
        raise DecodeError(f"error was recorded as {with_article(type_name(exc))}, not as an exception.", path="error")
    return exc


def _encode_error(refused: Refused, where: str) -> EncodeError:
    loop = refused.loop(where)
    if loop is not None:
        inner, outer = loop
        message = f"{shortened(inner)} is {shortened(outer)} itself; a value that contains itself cannot be recorded."
        return EncodeError(message, path=inner, type_name=refused.type_name)
    path = refused.path(where)
    return EncodeError(f"{shortened(path)} {refused.problem}", path=path, type_name=refused.type_name)


def _decoded(decoder: Decoder, tree: Any, where: str) -> Any:
    try:
        return decoder.value(tree)
    except Refused as refused:
        path = refused.path(where)
        message = f"{shortened(path)} {refused.problem}"
        raise DecodeError(message, path=path, type_name=refused.type_name) from refused.__cause__
