"""What vcrpy has recorded, read: format 1, YAML and JSON.

An interaction is an HTTP request and its answer as bytes. Serializers in use write the body in different ways: as text,
as bytes (`!!binary`), in base64 or, since JSON in a YAML string is hard to read, parsed.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from steplog.errors import SteplogError

Headers = list[tuple[str, str]]

_FORMAT: Final = 1
SUFFIXES: Final = (".yaml", ".yml", ".json")


class NotVcr(SteplogError):
    """A file that is no cassette of vcrpy, or none of its format 1."""


class Interaction(NamedTuple):
    """A request and its answer.

    Attributes:
        number: its place in the file, from 1.
        method: upper case.
        url: whole.
        headers: of the request.
        body: of the request.
        status: of the answer.
        reason: of the answer.
        answer_headers: of the answer, without those that describe an encoding that the body has lost.
        answer: its body, without an encoding.
    """

    number: int
    method: str
    url: str
    headers: Headers
    body: bytes
    status: int
    reason: str
    answer_headers: Headers
    answer: bytes


class Skipped(NamedTuple):
    """Something that cannot be imported.

    Attributes:
        number: its place in the file, from 1.
        what: the request, as `POST https://api.example.com/v1/x`.
        why: one clause.
    """

    number: int
    what: str
    why: str


def interactions(path: str) -> Iterator[Interaction | Skipped]:
    """The interactions of a file, in order.

    Raises:
        NotVcr: it is no cassette of vcrpy.
        OSError: it cannot be read.
    """
    tree = _parsed(path)
    if not isinstance(tree, dict) or not isinstance(tree.get("interactions"), list):
        raise NotVcr(f"{path} is no cassette of vcrpy: there is no list of interactions in it.")
    if tree.get("version", _FORMAT) != _FORMAT:
        raise NotVcr(f"{path} is of vcrpy's format {tree['version']!r}; format {_FORMAT} can be read.")
    for number, found in enumerate(tree["interactions"], 1):
        yield _interaction(number, found)


def _parsed(path: str) -> Any:
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".json"):
        try:
            return json.loads(data)
        except ValueError as error:
            raise NotVcr(f"{path} is no JSON: {error}") from error
    yaml = _yaml()
    try:
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise NotVcr(f"{path} is no plain YAML: {' '.join(str(error).split())[:300]}") from error


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise SteplogError("reading YAML needs PyYAML, which vcrpy brings: pip install 'steplog[vcr]'") from error
    return yaml


def _interaction(number: int, tree: Any) -> Interaction | Skipped:
    what = "an interaction"
    try:
        request, response = tree["request"], tree["response"]
        method, url = str(request["method"]).upper(), str(request.get("uri") or request["url"])
        what = f"{method} {url}"
        headers = _headers(request.get("headers"))
        status = response["status"]
        code, reason = (status["code"], status.get("message")) if isinstance(status, dict) else (status, "")
        answer_headers = _headers(response.get("headers"))
        body, answer = _body(request), _body(response)
        answer, answer_headers = _decoded(answer, answer_headers)
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error, OSError, EOFError) as error:
        return Skipped(number, what, f"it cannot be read ({type(error).__name__}: {error})")
    if not 200 <= int(code) <= 599:
        return Skipped(number, what, f"status {code} is no answer")
    return Interaction(number, method, url, headers, body, int(code), str(reason or ""), answer_headers, answer)


def _headers(tree: Any) -> Headers:
    pairs = tree.items() if isinstance(tree, dict) else (tree or ())
    return [
        (str(name).lower(), _text(value))
        for name, values in pairs
        for value in (values if isinstance(values, list) else [values])
    ]


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _body(tree: dict[str, Any]) -> bytes:
    if tree.get("parsed_body") is not None:
        # What pydantic-ai's serializer and those after it write; the SDKs send and read compact JSON.
        return json.dumps(tree["parsed_body"], ensure_ascii=False, separators=(",", ":")).encode()
    body = tree.get("body", tree.get("content", ""))
    if isinstance(body, dict):
        if body.get("base64_string") is not None:
            return base64.b64decode(body["base64_string"])
        if "string" not in body and "encoding" not in body:
            return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        body = body.get("string")
    if body is None:
        return b""
    if isinstance(body, bytes):
        return body
    if not isinstance(body, str):
        raise TypeError(f"a body that is {type(body).__name__}")
    # vcrpy writes bytes that are no UTF-8 with surrogates.
    return body.encode("utf-8", "surrogateescape")


def _inflate(data: bytes) -> bytes:
    # With the header of zlib, as the standard says, or without, as some servers do.
    return zlib.decompress(data, zlib.MAX_WBITS if data[:1] == b"\x78" else -zlib.MAX_WBITS)


_DECODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gzip": gzip.decompress,
    "x-gzip": gzip.decompress,
    "deflate": _inflate,
}
# They describe the bytes on the wire.
_OF_THE_WIRE: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def _decoded(body: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """A body without its encoding. Where vcrpy was told to decode, the header may say what is no longer so."""
    named = next((value for name, value in headers if name == "content-encoding"), "").strip().lower()
    kept = [(name, value) for name, value in headers if name not in _OF_THE_WIRE]
    if not body or named in ("", "identity") or body[:1] in (b"{", b"["):
        return body, kept
    decode = _DECODERS.get(named)
    if decode is None and named == "br":
        decode = _brotli
    if decode is None:
        raise ValueError(f"its answer is encoded as {named}")
    return decode(body), kept


def _brotli(data: bytes) -> bytes:
    try:
        import brotli  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ValueError("its answer is encoded as br; pip install brotli to read it") from error
    decoded: bytes = brotli.decompress(data)
    return decoded


def looks_like_vcr(path: str) -> bool:
    """Whether a file is worth reading as a cassette of vcrpy: by its name and its first lines."""
    if not path.endswith(SUFFIXES) or path.endswith(".steplog.json"):
        return False
    try:
        with open(path, "rb") as file:
            return b"interactions" in file.read(1 << 16)
    except OSError:
        return False


def found_below(path: str) -> list[str]:
    """The cassettes of vcrpy in a folder, or the file itself."""
    if not os.path.isdir(path):
        return [path]
    below = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sorted(file for file in below if looks_like_vcr(file))
