"""Credentials in the bodies of the providers' APIs: replaced before a body is stored, and no part of identity.

They go by the names of fields. Where the program and the model speak (messages, inputs, schemas of tools, metadata) a
field may have any name and holds no credential of an API, so nothing is replaced there: what is replaced no longer
tells two requests apart.
"""

from __future__ import annotations

import re
from typing import Any, Final

from steplog import plugins

REDACTED: Final = "[redacted]"

_FIELDS: Final = frozenset(
    "authorization authorization_token api_key access_token refresh_token id_token tunnel_token token client_secret "
    "signing_secret secret secret_value password passphrase private_key".split()
)
# Objects and lists in which a credential stands under a plain name.
_HOLDERS: Final = frozenset({"client_secret", "domain_secrets", "api_key", "secret", "password"})
# Not looked into: conversations, schemas, and what the program names as it likes.
_SPEECH: Final = frozenset(
    "messages input content prompt system instructions metadata arguments output parameters input_schema output_schema "
    "schema json_schema properties text events".split()
)

# No API nests its own fields so deep; below it, the walk would only use up the stack.
_DEPTH: Final = 40

# Answers that hold a new credential: paths, and the name under which it stands beside those above.
_MINTING: Final = re.compile(
    r"""/(?:
        (?:realtime|live|chatkit)(?:/translations)?/(?:client_secrets|sessions|transcription_sessions)
      | admin_api_keys | service_accounts | api_keys
      | webhooks | webhooks/[^/]+(?:/(?:rotate_secret|regenerate_signing_secret))? | webhook_endpoints(?:/.*)?
      | tunnels/[^/]+/(?:reveal_token|rotate_token)
      | environments/[^/]+/work(?:/.*)?
    )/?$""",
    re.VERBOSE,
)


def redact(tree: Any) -> list[str]:
    """Replace the credentials of a request's body in place; the paths at which they stood."""
    found: list[str] = []
    _redact(tree, "", found, held=False)
    return found


def quoted_again(message: str, url: str, path: str) -> str:
    """A recorded message of an exception with the request's own URL as it was before `plugins.scrub_urls`.

    A program may give the text to a model, whose request must then be the recorded one.
    """
    for quoted in (url, f"url: {path}"):
        message = message.replace(plugins.scrub_urls(quoted), quoted)
    return message


# A segment that is no word and no id of small letters: a bot's token, the secret end of a webhook.
SECRET_SEGMENT: Final = re.compile(r"(?=[^/]*\d)(?=[^/]*[a-z])(?=[^/]*[A-Z])[A-Za-z0-9_:~-]{20,}")


def hide_path(text: str, path: str) -> str:
    """A URL that an answer leads to, without the credentials in the path of the request; `show_path` puts them back.

    Others stay: the program goes on with this URL, and a long id in it is no secret.
    """
    for number, segment in enumerate(path.split("/")):
        if SECRET_SEGMENT.fullmatch(segment):
            text = text.replace(segment, f"[redacted:{number}]")
    return text


def show_path(text: str, path: str) -> str:
    """Undo `hide_path`, for the same request."""
    for number, segment in enumerate(path.split("/")):
        text = text.replace(f"[redacted:{number}]", segment)
    return text


def mints(path: str) -> bool:
    """Whether the answers of an endpoint may hold a new credential."""
    return _MINTING.search(path) is not None


def redact_answer(tree: Any) -> list[str]:
    """Replace the credentials of an answer that mints some; the paths at which they stood."""
    found: list[str] = []
    # The credential itself is called `value` at the top of most of these.
    _redact(tree, "", found, held=True)
    return found


def _redact(node: Any, path: str, found: list[str], *, held: bool, depth: int = 0) -> None:
    if depth > _DEPTH:
        return
    if isinstance(node, list):
        for number, item in enumerate(node):
            _redact(item, f"{path}[{number}]", found, held=held, depth=depth + 1)
    elif isinstance(node, dict):
        for name, value in node.items():
            where = f"{path}.{name}" if path else name
            if name == "headers" and isinstance(value, dict):
                # What a provider sends on to a server of the program's choice.
                node[name] = dict.fromkeys(value, REDACTED)
                found.extend(f"{where}.{header}" for header in value)
            elif isinstance(value, str):
                if value and (name in _FIELDS or (held and name == "value")):
                    node[name] = REDACTED
                    found.append(where)
            elif name not in _SPEECH:
                _redact(value, where, found, held=name in _HOLDERS, depth=depth + 1)
