"""What has been looked at by a person: requests that may be repeated although their method says that they may not.

Every request that is not a GET and that steplog takes for `safe` has a row here, with what a second one leaves behind;
so has every GET that is not `safe`. A row that nothing asks for, and a request without its row, fail the tests.
"""

from __future__ import annotations

from typing import Final

_ANSWER: Final = "computes an answer; a second one is paid for, and changes nothing"
_SHORT: Final = "makes a credential that expires by itself"
_COUNT: Final = "counts tokens"
_KEPT: Final = (
    "computes an answer; what the provider keeps of it by itself (a stored completion or response) says truly that it "
    "was asked"
)

SAFE: Final[dict[str, dict[str, str]]] = {
    "openai": {
        "POST /v1/audio/speech": _ANSWER,
        "POST /v1/audio/transcriptions": _ANSWER,
        "POST /v1/audio/translations": _ANSWER,
        "POST /v1/chat/completions": _KEPT,
        "POST /v1/completions": _ANSWER,
        "POST /v1/content_provenance_checks": "looks at a file and keeps none of it",
        "POST /v1/decisions": _ANSWER,
        "POST /v1/embeddings": _ANSWER,
        "POST /v1/fine_tuning/alpha/graders/run": "grades one sample; nothing is kept",
        "POST /v1/fine_tuning/alpha/graders/validate": "checks the form of a grader",
        "POST /v1/images/edits": _ANSWER,
        "POST /v1/images/generations": _ANSWER,
        "POST /v1/images/variations": _ANSWER,
        "POST /v1/moderations": _ANSWER,
        "POST /v1/responses": _KEPT,
        "POST /v1/responses/compact": _KEPT,
        "POST /v1/responses/input_tokens": _COUNT,
        "POST /v1/vector_stores/{id}/search": "reads",
        "POST /v1/chatkit/sessions": _SHORT,
        "POST /v1/realtime/client_secrets": _SHORT,
        "POST /v1/realtime/sessions": _SHORT,
        "POST /v1/realtime/transcription_sessions": _SHORT,
        "POST /v1/realtime/translations/client_secrets": _SHORT,
    },
    "anthropic": {
        "POST /v1/messages": _KEPT,
        "POST /v1/messages/count_tokens": _COUNT,
        # Before text completions were taken out of the SDK.
        "POST /v1/complete": _ANSWER,
    },
}

UNSAFE_READS: Final[dict[str, dict[str, str]]] = {"openai": {}, "anthropic": {}}

# Bodies that make a request of the first table change state after all, as the report shows them.
UNLESS: Final[tuple[tuple[str, str], ...]] = (
    ("`conversation`", "the response is appended to the conversation"),
    ("`background: true`", "a job goes on, whether or not anybody waits for it"),
    ("a tool of type `mcp` that may be called without asking, or an approval of one", "a remote server acts"),
    ("`mcp_servers`", "a remote server acts"),
    ("a container named by its id", "code runs a second time among the files of the first"),
    ("a container with a `network_policy` other than `disabled`", "code may act on the network"),
)
