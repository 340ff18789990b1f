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

from typing import Any, Final

import orjson

from steplog_interceptors._exchange import Exchange

_REQUEST_ID: Final = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid")


def derive(exchange: Exchange) -> dict[str, Any]:
    """What the head of an exchange tells; fields that cannot be read are absent."""
    found: dict[str, Any] = {}
    if "status" in exchange:
        found["status"] = exchange["status"]
    headers = {name.lower(): value for name, value in exchange.get("headers", ())}
    for name in _REQUEST_ID:
        if name in headers:
            found["request_id"] = headers[name]
            break
    return found


def loads(data: bytes) -> dict[str, Any] | None:
    """A JSON object, or None where the bytes are anything else."""
    try:
        tree = orjson.loads(data)
    except orjson.JSONDecodeError:
        # `[DONE]`, or an event that was cut off.
        return None
    return tree if isinstance(tree, dict) else None


def read(tree: dict[str, Any], found: dict[str, Any]) -> None:
    """Add what a tree of an answer, or of one event of it, tells to what was found so far."""
    # A responses event holds the response, anthropic's `message_start` the message, `message_delta` the stop reason.
    for name in ("response", "message", "delta"):
        inner = tree.get(name)
        if isinstance(inner, dict):
            read(inner, found)
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
        if type(thoughts) is int and type(counts["output"] or 0) is int:
            counts["output"] = (counts["output"] or 0) + thoughts
    # No provider counts below zero or beyond that; such a number would undo what a budget has counted.
    found = {name: count for name, count in counts.items() if type(count) is int and 0 <= count < 1 << 40}
    if "input" in found:
        # Anthropic counts cached tokens beside the input, not within it.
        found["input"] += found.get("cached", 0) * (read is not None) + found.get("cache_write", 0)
    return found


def _first(tree: dict[str, Any], *names: str) -> Any:
    return next((tree[name] for name in names if tree.get(name) is not None), None)


def _total(usage: dict[str, int]) -> None:
    if "input" in usage:
        usage["total"] = usage["input"] + usage.get("output", 0)
