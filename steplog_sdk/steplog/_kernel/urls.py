"""Credentials in the query and path of the URLs that a text quotes."""

from __future__ import annotations

import functools
import re


@functools.cache
def _expressions() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    return (
        # A URL in a sentence; urllib3 names the path alone.
        re.compile(r"(?:\b(?:https?|wss?)://|\burl: /)[^\s'\"<>]+"),
        re.compile(r"(?P<name>[?&][\w.%~-]+=)[^\s&#'\"<>()]+"),
        re.compile(
            r"[?&](?:key|sig|(?:[\w.%~]+[_.-]|x-amz-|x-goog-)?"
            r"(?:api[_-]?key|access[_-]?key|secret|password|passwd|token"
            r"|(?:access|auth|refresh|id|session)token|credential|signature))=",
            re.IGNORECASE,
        ),
        # A segment that is no word and no id of small letters: a bot's token, the secret end of a webhook.
        re.compile(r"(?<=/)(?=[^/?#]*\d)(?=[^/?#]*[a-z])(?=[^/?#]*[A-Z])[A-Za-z0-9_:~-]{20,}(?![^/?#)\],.;])"),
    )


def scrub_urls(text: str) -> str:
    """A text in which the URLs have no credentials in their query or path, as exceptions quote them.

    Not for what a program gets back, such as a link that a model was given: it would be another link.
    """
    return _expressions()[0].sub(lambda match: _scrub_url(match[0]), text) if "/" in text else text


def _scrub_url(url: str) -> str:
    _, parameter, secret_parameter, secret_segment = _expressions()
    path, mark, query = url.partition("?")
    query = parameter.sub(
        lambda match: match["name"] + "[redacted]" if secret_parameter.fullmatch(match["name"]) else match[0],
        mark + query,
    )
    return secret_segment.sub("[redacted]", path) + query
