"""The anthropic SDK: Anthropic's own API, and its models on Bedrock, Vertex and Foundry."""

from __future__ import annotations

import re
from typing import Final

from steplog_interceptors._canonical import Wire
from steplog_interceptors._install import SdkInterceptor
from steplog_interceptors._modes import changes_state
from steplog_interceptors._sdk import Sdk

# POST requests that compute an answer and leave nothing behind that a second one would repeat.
_INFERENCE: Final = re.compile(
    r"""(?:
        /v1/(?:messages | messages/count_tokens | complete)       # Anthropic, Foundry
      | /model/[^/]+/(?:invoke | invoke-with-response-stream)     # Bedrock
      | /models/[^/]+:(?:rawPredict | streamRawPredict)           # Vertex
    )$""",
    re.VERBOSE,
)


def _lookup(wire: Wire) -> str:
    if wire.path.endswith("/messages/batches"):
        return "client.messages.batches.list() tells; the JSON of the batch is the JSON for --done."
    return ""


SDK: Final = Sdk("anthropic", (0, 73, 0), _INFERENCE, changes_state, newest=2, lookup=_lookup)

interceptor: Final = SdkInterceptor(SDK)
