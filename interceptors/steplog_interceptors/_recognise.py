"""Which requests are calls of a model, and which must never be recorded, told by what goes to the wire.

A client that no interceptor knows (litellm's own, one that an agent wrote itself) says nothing of itself, so a model
call is known by its path, and where other services use such a path as well, by its body too. A host is not asked for:
gateways and private deployments have any name.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from typing import Any, Final

import orjson

from steplog_interceptors._modes import changes_state
from steplog_interceptors._sdk import Sdk

# Paths that nothing but a model has.
_CERTAIN: Final = re.compile(
    r"""(?:
        /chat/completions | /fim/completions | /agents/completions
      | /messages/count_tokens | /responses/(?:compact|input_tokens)
      | /audio/(?:speech|transcriptions|translations) | /images/(?:generations|edits|variations)
      | :(?:generateContent|streamGenerateContent|embedContent|batchEmbedContents|countTokens|computeTokens)
      | :(?:rawPredict|streamRawPredict)
      | /model/[^/]+/(?:converse|converse-stream|invoke|invoke-with-response-stream|count-tokens)   # Bedrock
      | /ml/v1/text/(?:chat|chat_stream|generation|generation_stream|embeddings)                    # watsonx
    )$""",
    re.VERBOSE,
)
# Paths that other services have too, with the fields that the body of a model call has.
_WITH_BODY: Final = (
    (re.compile(r"/messages$"), ("model", "messages", "max_tokens")),  # Anthropic
    (re.compile(r"/responses$"), ("model", "input")),  # OpenAI
    (re.compile(r"/(?:completions|complete)$"), ("prompt",)),
    (re.compile(r"/embeddings$"), ("model", "input")),
    (re.compile(r"/moderations$"), ("input",)),
    (re.compile(r"/ocr$"), ("model", "document")),  # Mistral
    (re.compile(r"/v2/chat$|/api/chat$"), ("model", "messages")),  # Cohere, Ollama
    (re.compile(r"/v1/chat$"), ("message",)),  # Cohere
    (re.compile(r"/v[12]/(?:embed|rerank)$"), ("model",)),  # Cohere
    (re.compile(r"/api/(?:generate|embeddings)$"), ("model", "prompt")),  # Ollama
    (re.compile(r"/api/embed$"), ("model", "input")),  # Ollama
    (re.compile(r"/invocations$"), ("messages",)),  # Databricks, SageMaker
    (re.compile(r":predict$"), ("instances",)),  # Vertex
)
# Later requests about an answer of the Responses API, which has an id of its own form.
_ANSWER: Final = re.compile(r"/responses/resp_[^/]+(?:/cancel|/input_items)?$")
_ENDING: Final = re.compile(
    _CERTAIN.pattern + "|" + "|".join(f"(?:{path.pattern})" for path, _ in _WITH_BODY) + "|" + _ANSWER.pattern,
    re.VERBOSE,
)
# Paths of requests that compute an answer and change nothing.
INFERENCE: Final = re.compile(
    "|".join(f"(?:{path})" for path in (_CERTAIN.pattern, *(path.pattern for path, _ in _WITH_BODY))), re.VERBOSE
)


# A model call of a client that nobody announced.
MODEL: Final = Sdk("", (0, 0), INFERENCE, changes_state)


def is_model_call(request: Any, *, named: bool = False) -> bool:
    """Whether a request of either HTTP library is a call of a model.

    Args:
        request: the request.
        named: the user named its host as one whose requests are steps. What it does there is then known for a model
            call only by a path that nothing else has: a call of a model may be repeated, and another one must not be.
    """
    path = request.url.path
    if named:
        return request.method.upper() == "POST" and _CERTAIN.search(path) is not None
    if _ENDING.search(path) is None:
        return False
    if _ANSWER.search(path):
        return True
    if request.method.upper() != "POST":
        return False
    if _CERTAIN.search(path):
        return True
    body = _body(request)
    return any(where.search(path) and all(name in body for name in fields) for where, fields in _WITH_BODY)


def _body(request: Any) -> dict[str, Any]:
    # One that is a stream is the program's to read; clients of models send theirs whole.
    try:
        tree = orjson.loads(getattr(request, "_content", b""))
    except orjson.JSONDecodeError:
        return {}
    return tree if isinstance(tree, dict) else {}


# Requests that carry or fetch a credential. Their answers are secrets, and to return an old one would be an error.
_CREDENTIAL_HOSTS: Final = re.compile(
    r"""(?:^|\.)(?:
        oauth2\.googleapis\.com | sts\.googleapis\.com | iamcredentials\.googleapis\.com | metadata\.google\.internal
      | sts(?:\.[a-z0-9-]+)?\.amazonaws\.com | (?:oidc|portal\.sso)\.[a-z0-9-]+\.amazonaws\.com
      | login\.microsoftonline\.com | login\.windows\.net | auth0\.com
      | vault\.azure\.net | secretmanager\.googleapis\.com | secretsmanager(?:\.[a-z0-9-]+)?\.amazonaws\.com
    )$ | ^(?:169\.254\.169\.254|169\.254\.170\.2|fd00:ec2::254)$""",
    re.VERBOSE,
)
_CREDENTIAL_PATHS: Final = re.compile(
    r"""(?:
        # The whole path, since the same words end the paths of business, too: /subscriptions/7/revoke.
        ^(?:/v\d+)?/(?:token|authorize|introspect|revoke|jwks(?:\.json)?|login|signin|sign-in)
      | /(?:oauth2?|openid-connect|auth|connect|o)(?:/[^/]+)*/(?:token|authorize|introspect|revoke|certs|keys)
      | /oauth2?(?:/.*)? | /openid-connect/.*
      | /\.well-known/.* | ^/computeMetadata/.* | ^/latest/(?:meta-data|api/token).* | :generateAccessToken
    )/?$""",
    re.VERBOSE | re.IGNORECASE,
)
_GRANTS: Final = frozenset({"grant_type", "client_assertion", "refresh_token"})
_GRANT: Final = re.compile(rb"(?:^|&)(?:grant_type|client_assertion|refresh_token)=")

_TELEMETRY_HOSTS: Final = re.compile(
    r"""(?:^|\.)(?:
        sentry\.io | segment\.(?:io|com) | posthog\.com | mixpanel\.com | amplitude\.com | honeycomb\.io
      | datadoghq\.(?:com|eu) | newrelic\.com | (?:nr-data)\.net | langfuse\.com | smith\.langchain\.com
      | logfire(?:-[a-z0-9]+)?\.pydantic\.dev | traceloop\.com | arize\.com | galileo\.ai | helicone\.ai
      | braintrust\.dev | wandb\.ai | comet\.com | agentops\.ai | scarf\.sh | launchdarkly\.com | statsig\.com
    )$ | ^telemetry\.""",
    re.VERBOSE,
)
_TELEMETRY_PATHS: Final = re.compile(
    r"/(?:v1/(?:traces|metrics|logs|traces/ingest)|api/public/(?:ingestion|otel/.*)|envelope|api/\d+/(?:store|envelope))/?$"
)


def must_pass(request: Any, pattern: str) -> bool:
    """Whether a request to a listed host is credential or telemetry traffic or that of an MCP session: not a step.

    Args:
        request: of either HTTP library.
        pattern: the glob that the host matched; telemetry goes by its host only where that was not named as such.
    """
    host, path = request.url.host, request.url.path
    if "mcp-protocol-version" in request.headers or "mcp-session-id" in request.headers or _is_rpc(request):
        # The transport of an MCP session, whose calls are steps already; the rest of it belongs to the connection.
        return True
    if _CREDENTIAL_HOSTS.search(host) or _CREDENTIAL_PATHS.search(path):
        return True
    if "*" in pattern and (_TELEMETRY_HOSTS.search(host) or _TELEMETRY_PATHS.search(path)):
        return True
    return (_TELEMETRY_PATHS.search(path) is not None and _is_telemetry(request)) or _asks_for_a_token(request)


def _asks_for_a_token(request: Any) -> bool:
    """Whether a body asks for a token, by a field of its own: a text may say the same words."""
    if "urlencoded" in request.headers.get("content-type", ""):
        return _GRANT.search(getattr(request, "_content", b"")) is not None
    return not _GRANTS.isdisjoint(_body(request))


def _is_telemetry(request: Any) -> bool:
    """Whether a request to such a path is one: a service may have a resource called logs, and takes JSON for it."""
    body = _body(request)
    named_otherwise = re.search(r"/v1/(?:traces|metrics|logs)/?$", request.url.path) is None
    return named_otherwise or not body or any(name.startswith("resource") for name in body)


# The methods that open an MCP session or belong to one; other protocols on JSON-RPC have others.
_MCP_METHOD: Final = re.compile(
    r"(?:initialize|ping|(?:notifications|tools|resources|prompts|logging|completion|sampling|roots|elicitation)/.+)$"
)


def _is_rpc(request: Any) -> bool:
    if "text/event-stream" not in request.headers.get("accept", ""):
        return False
    body = _body(request)
    return "jsonrpc" in body and _MCP_METHOD.match(str(body.get("method", ""))) is not None


def pattern_for(url: Any, patterns: tuple[str, ...]) -> str | None:
    """The first host glob that a URL of either HTTP library matches, or None."""
    return _match(url.host, url.port, patterns)


@functools.lru_cache(maxsize=1024)
def _match(host: str, port: int | None, patterns: tuple[str, ...]) -> str | None:
    name = f"[{host}]" if ":" in host else host
    for pattern in patterns:
        # A bracket opens a set of characters in a glob; here it encloses an address.
        glob = pattern.replace("[", "[[]", 1) if pattern.startswith("[") else pattern
        if fnmatch.fnmatchcase(name, glob) or (port is not None and fnmatch.fnmatchcase(f"{name}:{port}", glob)):
            return pattern
    return None
