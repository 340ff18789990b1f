"""For whom a request is made: what tells a program's accounts apart, and is no part of a request's identity.

    the host, with its port
    headers that name an account (organization, project, tenant and the like) or hold a key
    `authorization`: a token; of a JWT only whom it speaks for, so that a refreshed one is the same account; of a
        signature only the key's name
    keys in the query
    user name and password of the URL or of the client: the name, and the password only where it is as long as a key

What is new with each request (signatures, nonces, cookies) does not count: it would make every request one of another
account. Of what is recorded, no secret can be found by trying: a key has more bits than anybody can try, a shorter one
counts with 8 bits and no more, in however many runs, and a password that goes with a name does not count.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import hashlib
import re
from collections.abc import Iterable
from typing import Any, Final

import orjson

# What is as long as this was generated, and cannot be guessed.
_KEY_LENGTH: Final = 20

_NAMING: Final = re.compile(
    r"""(?:.+-)?(?:
        authorization | (?:api|access|auth|subscription|private|secret)-?key | apikey
      | (?:auth|access|api|private|personal|service|bot|app|user|client|job|deploy)-?token | x-token
      | organi[sz]ation(?:-?id)? | org(?:-?id)? | project(?:-?id)? | tenant(?:-?id)? | account(?:-?id)?
      | workspace(?:-?id)? | team(?:-?id)? | customer(?:-?id)? | client-?id | user-?id
    )""",
    re.VERBOSE,
)
_NAMED_KEY: Final = re.compile(
    r'(?:Credential|keyId|username|oauth_consumer_key|oauth_token|access_key|client_id)="?([^",/\s]+)', re.IGNORECASE
)
# Of the query's credentials those that last; `sig` and the like are new with each request.
_LASTING: Final = frozenset({"key", "api_key", "api-key", "apikey", "token", "access_token", "auth_token"})
# Whom a JWT speaks for, and by whose word.
_CLAIMS: Final = ("iss", "sub", "tid", "oid", "azp", "appid", "client_id", "org_id", "act")
_PASSWORD: Final = re.compile(r"(://[^\s:@/]*):([^\s@/]*)(?=@)")
# What steplog has put in the place of a token that is fetched when it is needed.
_PLACEHOLDER: Final = "steplog-token-"


def account_of(request: Any, client: Any = None, auth: Any = None, more: tuple[str, ...] = ()) -> str:
    """What tells the account of a request of any HTTP library from others, as the hex digits of a digest.

    Args:
        request: with `url` and `headers` as httpx has them.
        client: that sends it, whose `auth` is applied on the way.
        auth: that it is sent with instead.
        more: credentials in its body.
    """
    url, headers = request.url, request.headers
    raw = getattr(headers, "raw", None)
    named = [pair for pair in (headers.items() if raw is None else raw) if _names[pair[0]]]
    # What httpx passes on where its caller has not said.
    found = getattr(client, "_auth", None) if type(auth).__name__ == "UseClientDefault" else auth
    signed = "" if found is None else _of_auth(found)
    if url.query:
        more += tuple(value for name, value in url.params.multi_items() if name.lower() in _LASTING)
    return _digest_of(url.host, url.port, getattr(url, "userinfo", b""), tuple(named), (signed, *more))


@functools.lru_cache(maxsize=256)
def _digest_of(host: str, port: int | None, userinfo: bytes, named: tuple[Any, ...], more: tuple[str, ...]) -> str:
    signed, *keys = more
    told = [f"{host}:{port}", _of_pair(userinfo.decode("utf-8", "replace")), signed, *map(of_key, keys)]
    told += sorted(f"{name.lower()} {_told_by(name, value)}" for name, value in (map(_text, pair) for pair in named))
    return digest(told)


def digest(told: Iterable[str]) -> str:
    """The digest of what tells an account from others."""
    return hashlib.sha256("\n".join(told).encode("utf-8", "surrogatepass")).hexdigest()


def without_password(text: str) -> str:
    """A text without the passwords in the URLs of databases and the like that it quotes, unless they are keys."""
    return _PASSWORD.sub(lambda found: found[0] if len(found[2]) >= _KEY_LENGTH else found[1], text)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


class _Names(dict[str | bytes, bool]):
    """Which headers name an account or hold a key, by all names that were asked for."""

    def __missing__(self, name: str | bytes) -> bool:
        found = _NAMING.fullmatch(_text(name).lower()) is not None
        if len(self) < _MOST_NAMES:
            self[name] = found
        return found


_MOST_NAMES: Final = 1024
_names: Final = _Names()


def _told_by(name: str, value: str) -> str:
    """What a header tells of the account."""
    if not _holds_key(name):
        return value
    scheme, _, rest = value.strip().partition(" ")
    if not rest:
        scheme, rest = "", scheme
    if rest.startswith(_PLACEHOLDER):
        return scheme
    if scheme.lower() == "basic":
        return "basic " + _of_basic(rest)
    if " " in rest or "," in rest:
        # Parameters, with a signature among them: only the name of the key lasts.
        return " ".join([scheme, *_NAMED_KEY.findall(value)])
    return f"{scheme.lower()} {of_key(rest)}"


def _holds_key(name: str) -> bool:
    return name.lower().endswith(("authorization", "key", "token"))


def _of_basic(coded: str) -> str:
    try:
        return _of_pair(base64.b64decode(coded).decode("utf-8", "replace"))
    except (binascii.Error, ValueError):
        return ""


def _of_pair(pair: str) -> str:
    name, _, password = pair.partition(":")
    return f"{name}:{password}" if len(password) >= _KEY_LENGTH else name


def of_key(token: str) -> str:
    """What a key or token tells of the account."""
    parts = token.split(".")
    if len(parts) == 3:
        with contextlib.suppress(binascii.Error, ValueError):
            claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
            if isinstance(claims, dict) and "sub" in claims:
                return repr([claims.get(name) for name in _CLAIMS])
    return token if len(token) >= _KEY_LENGTH else hashlib.sha256(token.encode()).hexdigest()[:2]


def _of_auth(auth: Any) -> str:
    """What an object that signs requests tells: user and password, or what it holds of texts that name an account."""
    if isinstance(auth, tuple):
        return _of_pair(":".join(str(part) for part in auth[:2]))
    header = getattr(auth, "_auth_header", None)
    if isinstance(header, str):
        return _told_by("authorization", header)
    told = [type(auth).__qualname__]
    for name, value in sorted(getattr(auth, "__dict__", {}).items()):
        plain = name.strip("_").replace("_", "-")
        if isinstance(value, (str, bytes)) and plain in ("user", "username", "login"):
            told.append(_text(value))
        elif isinstance(value, (str, bytes)) and _names[plain]:
            told.append(f"{plain} {_told_by(plain, _text(value))}")
    return " ".join(told)
