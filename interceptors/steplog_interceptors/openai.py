"""The openai SDK: OpenAI, Azure OpenAI, and everything else that speaks through its clients."""

from __future__ import annotations

import re
from typing import Any, Final

from steplog_interceptors._install import SdkInterceptor
from steplog_interceptors._sdk import Sdk

# POST requests that compute an answer and leave nothing behind that a second one would repeat.
_INFERENCE: Final = re.compile(
    r"""/(?:
        (?:chat/)?completions | responses | responses/input_tokens | responses/compact | embeddings | moderations
      | decisions
      | audio/(?:speech|transcriptions|translations)
      | images/(?:generations|edits|variations)
      | vector_stores/[^/]+/search
      # A new credential that expires by itself. It is not kept, so on resume there has to be another one.
      | realtime/(?:(?:translations/)?client_secrets|sessions|transcription_sessions) | chatkit/sessions
    )$""",
    re.VERBOSE,
)


def _changes_state(body: Any) -> bool:
    # A response inside a conversation appends its input and its output to that conversation. One in the background is a
    # job: it goes on, and is paid for, whether or not anybody still waits for it.
    return isinstance(body, dict) and (body.get("conversation") is not None or body.get("background") is True)


SDK: Final = Sdk("openai", (1, 109, 1), _INFERENCE, _changes_state, newest=3)

interceptor: Final = SdkInterceptor(SDK)
