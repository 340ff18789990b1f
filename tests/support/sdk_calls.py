"""Make the SDK call that a recorded exchange came from, and describe what the caller gets.

    with LocalProvider(*script(tree)) as provider:
        live = call(tree, provider.url, asynchronous=True, raw=True)
    assert call(tree, provider.url, asynchronous=True, raw=True) == live      # from the log, the server gone

The description compares equal only for equal values of equal classes, at every depth, with the same fields set.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import warnings
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import anthropic
import openai

from tests.support.recorded import SHARED, Recorded, recorded

_OPENAI = {"openai", "azure-openai", "openrouter", "groq", "mistral", "cerebras", "bedrock-mantle"}

# Providers whose traffic neither of the two SDKs can produce.
_OTHER_SDK = {
    "bedrock": "the AWS SDK signs and frames it",
    "cohere": "the cohere SDK speaks it",
    "google": "the google-genai SDK speaks it",
    "mcp": "an MCP client speaks it",
    "ollama": "the ollama client speaks it",
}

# The request path of a call, below the base URL; what follows it is an id and perhaps a verb.
_RESOURCE = {
    "beta.files": "/v1/files",
    "beta.messages": "/v1/messages",
    "messages": "/v1/messages",
    "messages.batches": "/v1/messages/batches",
    "images": "/images",
}

_NOT_THE_ANSWER = {"connection", "content-length", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True)
class Outcome:
    """What a caller sees of one call.

    Attributes:
        value: the returned object, described; None for a stream or an error.
        chunks: what a stream yielded, described, up to its end or its error; None for anything else.
        wire: the object or the list of chunks as the SDK turns it back into JSON; None where it does not.
        error: the exception that the call or the stream raised; None when there was none.
        response: status, headers, request id and retries, where the caller asked for the raw response.
    """

    value: Any = None
    chunks: list[Any] | None = None
    wire: Any = None
    error: dict[str, Any] | None = None
    response: dict[str, Any] | None = None


def why_not(tree: dict[str, Any]) -> str | None:
    """Say why neither SDK can make this exchange, or None when one can."""
    return _OTHER_SDK.get(tree["provider"])


def covered() -> list[Recorded]:
    """Return the recorded exchanges that `call` can make."""
    return [exchange for exchange in recorded(SHARED) if why_not(exchange.tree) is None]


def script(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a provider must know to answer the call: the exchange, and what the SDK asks for before it."""
    if tree["sdk_call"] != "messages.batches.results":
        return [tree]
    # The SDK reads the address of the results out of the batch; the recording begins with the results.
    path = tree["request"]["path"]
    batch = {"id": path.split("/")[-2], "type": "message_batch", "processing_status": "ended", "results_url": path}
    request = {**tree["request"], "path": path.removesuffix("/results")}
    response = {"status": 200, "headers": {"content-type": "application/json"}, "body_type": "json", "body": batch}
    return [{"schema": 1, "request": request, "response": response}, tree]


def call(tree: dict[str, Any], url: str, *, asynchronous: bool = False, raw: bool = False) -> Outcome:
    """Make the call with a fresh client whose base URL is below `url`; retries are off."""
    if asynchronous:
        return asyncio.run(acall(tree, url, raw=raw))
    return _without_loop(_perform(tree, _client(tree, url, asynchronous=False), raw=raw))


async def acall(tree: dict[str, Any], url: str, *, raw: bool = False, client: Any = None) -> Outcome:
    """Make the call with an asynchronous client, in the running loop."""
    return await _perform(tree, client or _client(tree, url, asynchronous=True), raw=raw)


class Model(NamedTuple):
    """A pydantic object: its class, which fields were set, and all its fields with the unknown ones."""

    cls: str
    fields_set: list[str]
    request_id: str | None
    fields: dict[str, Any]


class Leaf(NamedTuple):
    """A value that is no container; its class is told apart because `1 == 1.0 == True`."""

    cls: str
    value: Any


def describe(value: Any) -> Any:
    """Return a tree that compares equal for equal values of equal classes with the same fields set."""
    if hasattr(value, "model_fields_set"):
        fields = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        described = {key: describe(item) for key, item in fields.items()}
        return Model(_name(value), sorted(value.model_fields_set), getattr(value, "_request_id", None), described)
    if value is None:
        return None
    if isinstance(value, dict):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(getattr(value, "content", None), bytes):
        return Leaf(_name(value), value.content)
    return Leaf(_name(value), repr(value) if isinstance(value, float) and value != value else value)  # NaN


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the facts of an SDK exception that a program can see."""
    response = getattr(error, "response", None)
    names = ("message", "status_code", "body", "code", "param", "type", "request_id")
    return {
        "class": _name(error),
        "text": str(error),
        "cause": type(error.__cause__).__name__,
        "headers": None if response is None else _headers(response.headers),
        **{name: getattr(error, name, None) for name in names},
    }


def assert_as_recorded(outcome: Outcome, tree: dict[str, Any]) -> None:
    """Assert that a caller got what the provider sent: the tree, the number of events, the bytes, or the error."""
    response = tree["response"]
    if response["status"] >= 400:
        error = outcome.error
        assert error is not None
        assert error["status_code"] == response["status"]
        assert error["body"] == response["body"] or error["body"] == response["body"]["error"]
    elif response["body_type"] == "sse":
        assert len(outcome.chunks) + bool(outcome.error) == len(events(response["body"]))
    elif response["body_type"] == "json":
        assert outcome.wire == response["body"]
    elif response["body_type"] == "ndjson":
        assert outcome.wire == [json.loads(line) for line in response["body"].splitlines()]
    else:
        assert outcome.value.value == base64.b64decode(response["body"])


def events(text: str) -> list[dict[str, Any]]:
    """Return the events that the SDK shows: all but pings and the end marker, and nothing after an error."""
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
    shown = [event for line in lines if line != "[DONE]" and (event := json.loads(line)).get("type") != "ping"]
    error = next((i for i, event in enumerate(shown) if event.get("error")), len(shown))
    return shown[: error + 1]


async def _perform(tree: dict[str, Any], client: Any, *, raw: bool) -> Outcome:
    chunks: list[Any] | None = None
    response = None
    try:
        with warnings.catch_warnings():
            # Recorded requests name models and methods that have been retired since.
            warnings.simplefilter("ignore", DeprecationWarning)
            value = await _settled(_bound(tree, client, raw=raw))
        if raw:
            response = _response_facts(value)
            value = await _settled(value.parse())
        if not _is_stream(tree):
            return Outcome(value=describe(value), wire=_wire(value), response=response)
        chunks = []
        async for chunk in _iterated(value):
            chunks.append(chunk)
        return Outcome(chunks=describe(chunks), wire=_wire(chunks), response=response)
    except (openai.OpenAIError, anthropic.AnthropicError) as error:
        return Outcome(chunks=describe(chunks), wire=_wire(chunks), error=describe_error(error), response=response)
    finally:
        await _settled(client.close())


def _wire(value: Any) -> Any:
    if isinstance(value, list):
        return [_wire(item) for item in value]
    return value.to_dict(mode="json", warnings=False) if hasattr(value, "to_dict") else None


def _bound(tree: dict[str, Any], client: Any, *, raw: bool) -> Any:
    *resources, verb = tree["sdk_call"].split(".")
    resource = client
    for name in resources:
        resource = getattr(resource, name)
    # The plain method has the signature; the raw one is a wrapper of it.
    positional, named = _arguments(tree, getattr(resource, verb))
    method = getattr(resource.with_raw_response, verb) if raw else getattr(resource, verb)
    return method(*positional, **named)


def _client(tree: dict[str, Any], url: str, *, asynchronous: bool) -> Any:
    path, _, query = tree["request"]["path"].partition("?")
    common = {"api_key": "test", "max_retries": 0, "timeout": 30.0}
    if tree["provider"] == "anthropic":
        return (anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic)(base_url=url, **common)
    base = path[: path.index(_resource_path(tree))]
    version = dict(parse_qsl(query)).get("api-version")
    if version:
        deployment = base.removeprefix("/openai/deployments/")
        azure = {"azure_endpoint": url, "azure_deployment": deployment, "api_version": version}
        return (openai.AsyncAzureOpenAI if asynchronous else openai.AzureOpenAI)(**azure, **common)
    return (openai.AsyncOpenAI if asynchronous else openai.OpenAI)(base_url=url + base, **common)


def _arguments(tree: dict[str, Any], method: Any) -> tuple[list[Any], dict[str, Any]]:
    """Split a recorded request into what the method takes by name and what must go around it."""
    request = tree["request"]
    known = inspect.signature(method).parameters
    query = {key: value for key, value in parse_qsl(request["path"].partition("?")[2]) if key != "api-version"}
    given = _fields(request) | {key: _typed(value) for key, value in query.items() if key in known}
    around = {
        "extra_body": {key: value for key, value in given.items() if key not in known},
        "extra_headers": {key: value for key, value in request["headers"].items() if key == "anthropic-beta"},
        "extra_query": {key: value for key, value in query.items() if key not in known},
    }
    if tree["sdk_call"] == "embeddings.create" and "encoding_format" not in given:
        # The SDK asks for base64 unless told otherwise; a null field is a request without it.
        around["extra_body"]["encoding_format"] = None
    named = {key: value for key, value in given.items() if key in known}
    takes_id = next(iter(known.values())).kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [_id(tree)] if takes_id else [], named | {key: value for key, value in around.items() if value}


def _fields(request: dict[str, Any]) -> dict[str, Any]:
    body = request["body"]
    if request["body_type"] != "multipart":
        return dict(body or {})
    files = {f["name"]: (f["filename"], bytes(f["size"]), f["content_type"]) for f in body["files"]}
    return {key: _typed(value) for key, value in body["fields"].items()} | files


def _id(tree: dict[str, Any]) -> str:
    path = tree["request"]["path"].partition("?")[0]
    return path.partition(_resource_path(tree))[2].strip("/").partition("/")[0]


def _resource_path(tree: dict[str, Any]) -> str:
    resource = tree["sdk_call"].rpartition(".")[0]
    return _RESOURCE.get(resource, "/" + resource.replace(".", "/"))


def _typed(text: str) -> Any:
    """Query and form values are text; the method wants what they stand for."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_stream(tree: dict[str, Any]) -> bool:
    return tree["response"]["body_type"] in {"sse", "ndjson"}


def _response_facts(raw: Any) -> dict[str, Any]:
    return {
        "class": type(raw).__qualname__,
        "status": raw.status_code,
        "headers": _headers(raw.headers),
        "request_id": raw.request_id,
        "retries": raw.retries_taken,
        "text_method": str(raw.http_request.method),
    }


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _headers(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower() not in _NOT_THE_ANSWER}


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _iterated(stream: Any) -> AsyncIterator[Any]:
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            yield item
    else:
        for item in stream:
            yield item


def _without_loop(coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine that has nothing to wait for, so that synchronous calls see no running loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("a synchronous client gave something to await")
