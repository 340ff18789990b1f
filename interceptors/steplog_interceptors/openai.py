"""The openai SDK: OpenAI, Azure OpenAI, and everything else that speaks through its clients."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

from steplog_interceptors._canonical import Wire
from steplog_interceptors._install import SdkInterceptor
from steplog_interceptors._jobs import Jobs, Question
from steplog_interceptors._modes import changes_state
from steplog_interceptors._sdk import Sdk
from steplog_interceptors._told import as_stream

# POST requests that compute an answer and leave nothing behind that a second one would repeat.
_INFERENCE: Final = re.compile(
    r"""/(?:
        (?:chat/)?completions | responses | responses/input_tokens | responses/compact | embeddings | moderations
      | decisions | content_provenance_checks | fine_tuning/alpha/graders/(?:run|validate)
      | audio/(?:speech|transcriptions|translations)
      | images/(?:generations|edits|variations)
      | vector_stores/[^/]+/search
      # A new credential that expires by itself. It is not kept, so on resume there has to be another one.
      | realtime/(?:(?:translations/)?client_secrets|sessions|transcription_sessions) | chatkit/sessions
    )$""",
    re.VERBOSE,
)


def _is_job(wire: Wire, body: Any) -> bool:
    return (
        wire.method == "POST"
        and wire.path.endswith("/responses")
        and isinstance(body, dict)
        and body.get("background") is True
        and body.get("stream") is True
    )


def _job(event: dict[str, Any]) -> dict[str, Any] | None:
    response = event.get("response")
    name = response.get("id") if isinstance(response, dict) else None
    return {"kind": "response", "id": name} if isinstance(name, str) and name else None


def _number(event: dict[str, Any]) -> int | None:
    number = event.get("sequence_number")
    # An error ends this connection; whether it ends the job, the provider says when it is asked again.
    return number if isinstance(number, int) and event.get("type") != "error" else None


def _question(path: str, job: dict[str, Any], last: int | None) -> Question:
    after = {} if last is None else {"starting_after": str(last)}
    return Question(f"{path}/{quote(job['id'], safe='')}", {"stream": "true", **after})


def _lookup(wire: Wire) -> str:
    if wire.path.endswith("/responses"):
        return (
            "OpenAI lists no responses through its API. Look for it in the dashboard, under Logs, by its time and "
            "metadata; client.responses.retrieve(ID).to_json() is the JSON for --done."
        )
    if wire.path.endswith("/batches"):
        return "client.batches.list() tells; the JSON of the batch with this input_file_id is the JSON for --done."
    return ""


def _piece(event: dict[str, Any]) -> tuple[str | None, str | None]:
    item = event.get("item")
    begun = item.get("id") if event.get("type") == "response.output_item.added" and isinstance(item, dict) else None
    of = event.get("item_id")
    return begun if isinstance(begun, str) else None, of if isinstance(of, str) else None


_JOBS: Final = Jobs(_is_job, _job, _number, _question, as_stream, _piece)

SDK: Final = Sdk("openai", (1, 109, 1), _INFERENCE, changes_state, newest=3, jobs=_JOBS, lookup=_lookup)

interceptor: Final = SdkInterceptor(SDK, "OPENAI_API_KEY", "AZURE_OPENAI_API_KEY")
