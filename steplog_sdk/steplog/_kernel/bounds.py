"""The most tokens that a request to a model can use, told from the request alone.

Input: the tokenizers in use work on bytes, and a token stands for at least one byte of the text that it was made of. So
a text never has more tokens than bytes. What a provider adds (marks around messages, instructions for tools) is shorter
than the JSON around them, except that tools bring instructions of their own. So the bytes of the request's JSON, and a
constant, are a bound: mostly about four times too high, and never too low for what stands in the request.

Output: the cap that the request names, for each of the answers that it asks for. Without one, the longest answer that
any model gives, or twice the model's context window where that is known and smaller: an answer lies inside the window,
and the factor covers lists that round it or give that of the input alone.

What a request refers to and does not contain is not bounded here: a file, an address of an image, what a provider's own
tool finds. It counts when the answer says how much it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

ADDED: Final = 64
"""Tokens that a provider adds to any request."""

ADDED_FOR_TOOLS: Final = 1_024
"""Tokens of the instructions that a provider adds to a request with tools."""

UNCAPPED: Final = 128_000
"""Tokens of an answer whose request names no cap: the longest answer that the models of the large providers give."""

_WINDOWS: Final = 2

_ASK: Final = frozenset("messages input prompt contents instances inputs inputText".split())
# Their answers hold no text of a model.
_WITHOUT_ANSWER: Final = ("embeddings", "embedContent", "batchEmbedContents", "rerank")
_FREE: Final = ("count_tokens", "countTokens", "computeTokens", "input_tokens", "moderations")
_CAPS: Final = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens_to_sample",
    "maxOutputTokens",
    "maxTokens",
    "max_gen_len",
)
_CAP_OF: Final = {
    "chat/completions": "max_completion_tokens",
    "responses": "max_output_tokens",
    "messages": "max_tokens",
    "completions": "max_tokens",
    "generateContent": "max_output_tokens in its config",
    "converse": "maxTokens in its inferenceConfig",
}
"""What a request to an API names its cap, by the end of the path."""

# Where the providers' APIs keep a request's settings.
_NESTED: Final = ("generationConfig", "generation_config", "inferenceConfig", "textGenerationConfig", "parameters")
_CHOICES: Final = ("n", "candidateCount", "candidate_count", "best_of", "num_generations")


class Bound(NamedTuple):
    """The most tokens that a request can use.

    Attributes:
        input: of what is sent.
        output: of what comes back.
        capped: whether the request names the cap of its answer.
        continues: it goes on from an earlier answer that the provider keeps, which is input as well.
    """

    input: int = 0
    output: int = 0
    capped: bool = True
    continues: bool = False


def of_request(method: str, path: str, body: Any, size: int) -> Bound:
    """The bound of a request over HTTP.

    Args:
        method: of HTTP.
        path: of its URL, which tells inference from the rest of an API.
        body: its JSON, or None.
        size: bytes of its body.
    """
    ends = path.rstrip("/").rpartition("/")[2].rpartition(":")[2]
    if method != "POST" or not isinstance(body, Mapping) or ends in _FREE or not _ASK.intersection(body):
        return Bound()
    given = size + ADDED + (ADDED_FOR_TOOLS if body.get("tools") or body.get("functions") else 0)
    if ends in _WITHOUT_ANSWER:
        return Bound(given)
    continues = bool(body.get("previous_response_id") or body.get("conversation"))
    cap = _cap(body)
    if cap is None:
        return Bound(given, UNCAPPED * _choices(body), capped=False, continues=continues)
    return Bound(given, cap * _choices(body), continues=continues)


def of_arguments(arguments: Any, size: int) -> Bound:
    """The bound of a model call that somebody's own code makes; its arguments may name the cap as the APIs do."""
    cap = _cap(arguments) if isinstance(arguments, Mapping) else None
    if cap is None:
        return Bound(size + ADDED, UNCAPPED, capped=False)
    return Bound(size + ADDED, cap * _choices(arguments))


def of_window(bound: Bound, window: int | None) -> Bound:
    """A closer bound of a request without a cap, from the context window of its model in tokens; None: not known."""
    if bound.capped or not window:
        return bound
    return bound._replace(output=bound.output // UNCAPPED * min(UNCAPPED, window * _WINDOWS))


def cap_name(path: str) -> str:
    """How a request to this path names the cap of its answer; "" where that is not known."""
    ends = path.rstrip("/").replace("streamGenerateContent", "generateContent").replace("converse-stream", "converse")
    return next((name for end, name in _CAP_OF.items() if ends.endswith(end)), "")


def _places(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [body, *(inner for name in _NESTED if isinstance(inner := body.get(name), Mapping))]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _cap(body: Mapping[str, Any]) -> int | None:
    found: list[int] = [place[name] for place in _places(body) for name in _CAPS if _is_count(place.get(name))]
    # Where two are named, it is not known which one counts.
    return max(found, default=None)


def _choices(body: Mapping[str, Any]) -> int:
    found: list[int] = [place[name] for place in _places(body) for name in _CHOICES if type(place.get(name)) is int]
    return max([1, *found])
