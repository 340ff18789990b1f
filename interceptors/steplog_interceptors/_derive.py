"""Model, usage, finish reason and request id, read from the recorded bytes of an answer.

For people, bills and budgets only: replay serves the bytes. Field names differ between the providers' APIs and are
brought to one form here:

    input      tokens of the prompt, those read from a cache included
    cached     of these: read from a cache
    cache_write  of these: written to a cache (anthropic)
    output     tokens of the answer, reasoning included
    reasoning  of these: reasoning
    total      input + output
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

import orjson

from steplog_interceptors._exchange import Exchange

_REQUEST_ID: Final = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid")


def derive(exchange: Exchange) -> dict[str, Any]:
    """The fields that can be read from an exchange; those that cannot are absent."""
    found: dict[str, Any] = {}
    if "status" in exchange:
        found["status"] = exchange["status"]
    headers = {name.lower(): value for name, value in exchange.get("headers", ())}
    for name in _REQUEST_ID:
        if name in headers:
            found["request_id"] = headers[name]
            break
    for tree in _trees(exchange, headers):
        _read(tree, found)
    return found


def _trees(exchange: Exchange, headers: dict[str, str]) -> Iterator[dict[str, Any]]:
    body = exchange.get("body")
    data = body.data if body is not None else b""
    content_type = headers.get("content-type", "")
    if "chunks" in exchange:
        data = inflate(data, headers.get("content-encoding", ""))
    if "event-stream" in content_type:
        yield from _events(data)
    elif "json" in content_type and data:
        tree = _loads(data)
        if tree is not None:
            yield tree


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        if line.startswith(b"data:"):
            tree = _loads(line[5:].strip())
            if tree is not None:
                yield tree


def _loads(data: bytes) -> dict[str, Any] | None:
    try:
        tree = orjson.loads(data)
    except orjson.JSONDecodeError:
        # `[DONE]`, or an event that was cut off.
        return None
    return tree if isinstance(tree, dict) else None


def _read(tree: dict[str, Any], found: dict[str, Any]) -> None:
    # A responses event holds the response, anthropic's `message_start` the message, `message_delta` the stop reason.
    for name in ("response", "message", "delta"):
        inner = tree.get(name)
        if isinstance(inner, dict):
            _read(inner, found)
    model = tree.get("model", tree.get("modelVersion"))
    if isinstance(model, str):
        found["model"] = model
    finish = _finish(tree)
    if finish is not None:
        found["finish"] = finish
    usage = tree.get("usage", tree.get("usageMetadata"))
    if isinstance(usage, dict):
        found["usage"] = {**found.get("usage", {}), **_usage(usage)}
        _total(found["usage"])


def _finish(tree: dict[str, Any]) -> str | None:
    choices = tree.get("choices", tree.get("candidates"))
    if isinstance(choices, list):
        reasons = [
            choice.get("finish_reason", choice.get("finishReason")) for choice in choices if isinstance(choice, dict)
        ]
        return next((reason for reason in reasons if isinstance(reason, str)), None)
    stop = tree.get("stop_reason", tree.get("stopReason"))
    if isinstance(stop, str):
        return stop
    if tree.get("object") == "response" and isinstance(tree.get("status"), str):
        why = tree.get("incomplete_details")
        reason = why.get("reason") if isinstance(why, dict) else None
        return str(reason or tree["status"])
    return None


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    inputs = _first(usage, "prompt_tokens_details", "input_tokens_details") or {}
    outputs = _first(usage, "completion_tokens_details", "output_tokens_details") or {}
    read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    counts = {
        "input": _first(usage, "prompt_tokens", "input_tokens", "promptTokenCount", "inputTokens"),
        "output": _first(usage, "completion_tokens", "output_tokens", "candidatesTokenCount", "outputTokens"),
        "cached": _first(inputs, "cached_tokens") if read is None else read,
        "cache_write": written,
        "reasoning": outputs.get("reasoning_tokens"),
    }
    if "promptTokenCount" in usage:
        # Google counts reasoning beside the answer, not within it.
        thoughts = usage.get("thoughtsTokenCount")
        counts |= {"cached": usage.get("cachedContentTokenCount"), "reasoning": thoughts}
        counts["output"] = (counts["output"] or 0) + (thoughts or 0)
    found = {name: count for name, count in counts.items() if isinstance(count, int)}
    if "input" in found:
        # Anthropic counts cached tokens beside the input, not within it.
        found["input"] += (read or 0) + (written or 0)
    return found


def _first(tree: dict[str, Any], *names: str) -> Any:
    return next((tree[name] for name in names if tree.get(name) is not None), None)


def _total(usage: dict[str, int]) -> None:
    if "input" in usage:
        usage["total"] = usage["input"] + usage.get("output", 0)


def inflate(data: bytes, encoding: str) -> bytes:
    """Undo gzip or deflate as far as the data goes; other encodings give nothing."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return data
    decoder = inflater(name)
    return b"" if decoder is None else decoder.decompress(data)


def inflater(encoding: str) -> Any:
    """An incremental decoder for a content encoding, or None where this process has none at hand."""
    if encoding == "gzip":
        return zlib.decompressobj(zlib.MAX_WBITS | 16)
    if encoding == "deflate":
        return zlib.decompressobj()
    return None
