"""What looks like a secret is taken out before anything is written.

Works on bytes: one JSON document, one body, one chunk. A rule replaces only characters that a token consists of, by a
marker without quotes, backslashes or control characters, so JSON stays JSON. A false alarm is not harmless (a step
whose result was redacted cannot be returned again), so every rule asks for the shape of a real credential: prefix,
length, alphabet and what stands around it.

Most text holds no secret. Each rule is therefore led by a hint, a cheap search for a few rare bytes that every match
has; its costly expression runs only where the hint is found.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

MIN_SECRET: Final = 8
"""Characters below which a given secret is ignored: `true` or `dev` would take ordinary words out of every log."""

# Where a token may begin: not inside a word, a base64 text or an id. The `n` of an escaped line end is no letter, nor
# are the digits of a character that JSON or a URL has escaped.
_START: Final = rb"(?:(?<![A-Za-z0-9_+/-])|(?<=\\[nrtbf])|(?<=\\u00[0-9a-f]{2})|(?<=%[0-9A-F]{2}))"
_END: Final = rb"(?![A-Za-z0-9_+/=-])"
# At least one digit among the next characters of the token: words joined by hyphens have none.
_DIGIT: Final = rb"(?=[A-Za-z_.~+/-]*[0-9])"

Hint = bytes | re.Pattern[bytes]


class Pattern(NamedTuple):
    """One kind of secret.

    Attributes:
        kind: name in the marker `[redacted:<kind>]`.
        hint: bytes, or an expression, found in every text that `find` can match.
        find: the expression; the group `secret`, or else the whole match, is replaced.
        accept: a last look at a match that has the shape; None accepts all.
    """

    kind: str
    hint: Hint
    find: re.Pattern[bytes]
    accept: Callable[[bytes], bool] | None = None


def _is_basic(secret: bytes) -> bool:
    """Whether base64 text says `user:password`; in prose, "Basic authentication" does not."""
    try:
        return b":" in binascii.a2b_base64(secret + b"=" * (-len(secret) % 4), strict_mode=True)
    except binascii.Error:
        return False


def _is_password(secret: bytes) -> bool:
    """Whether the password of a URL is one, and not the placeholder of a manual or a template."""
    return secret.lower() not in _PLACEHOLDERS and not re.fullmatch(rb"[$%{<\[(].*|[*x.]+", secret)


_PLACEHOLDERS: Final = frozenset((b"password", b"passwd", b"pass", b"pwd", b"secret", b"token", b"your-password"))

# Hints begin with one rare byte, which the expression engine looks for fastest, and look back from there.
_AFTER_A: Final = re.compile(rb"A(?:Iza|[KS]IA)[A-Za-z0-9_-]{16}")
_AFTER_B: Final = re.compile(rb"B(?:earer|asic) [A-Za-z0-9._~+/-]{8}")
_AFTER_J: Final = re.compile(rb"J(?<=eyJ)[A-Za-z0-9_-]{8}")
_AFTER_DASH: Final = re.compile(rb"-(?:(?<=sk-)[A-Za-z0-9_-]{16}|(?<=xox[a-z]-)[A-Za-z0-9-]{10}|----BEGIN )")
_AFTER_UNDERSCORE: Final = re.compile(
    rb"_(?:(?<=gsk_)|(?<=gh[pousr]_)|(?<=hf_)|(?<=[sr]k_)|(?<=ithub_))[A-Za-z0-9_]{16}"
)
# In small letters the schemes are ordinary words; they count only in the company of their header.
_HEADER: Final = b"uthorization"

# Line ends inside a key block: real ones, or those of JSON inside JSON inside JSON.
_FOLD: Final = rb"(?:\s|\\++[nrt])"


def _token(expression: bytes) -> re.Pattern[bytes]:
    return re.compile(_START + b"(?:" + expression + b")" + _END)


def _bearer(scheme: bytes) -> re.Pattern[bytes]:
    return re.compile(scheme + rb" (?P<secret>" + _DIGIT + rb"[A-Za-z0-9._~+/-]{16,}={0,2})")


def _basic(scheme: bytes) -> re.Pattern[bytes]:
    return re.compile(scheme + rb" (?P<secret>[A-Za-z0-9+/]{8,}={0,2})" + _END)


PATTERNS: Final = (
    Pattern("anthropic-key", _AFTER_DASH, _token(rb"sk-ant-[A-Za-z0-9_-]{16,}")),
    Pattern(
        "openai-key",
        _AFTER_DASH,
        _token(
            rb"sk-(?:proj|svcacct|admin|None|or|lf)-" + _DIGIT + rb"[A-Za-z0-9_-]{16,}"
            rb"|sk-(?:[a-z0-9]{1,12}-){0,2}" + _DIGIT + rb"[A-Za-z0-9_]{20,}"
        ),
    ),
    Pattern("google-key", _AFTER_A, _token(rb"AIza[A-Za-z0-9_-]{35}")),
    Pattern("aws-key", _AFTER_A, _token(rb"A[KS]IA[A-Z0-9]{16}")),
    Pattern("groq-key", _AFTER_UNDERSCORE, _token(rb"gsk_[A-Za-z0-9]{32,}")),
    Pattern("huggingface-key", _AFTER_UNDERSCORE, _token(rb"hf_[A-Za-z0-9]{30,}")),
    Pattern("github-token", _AFTER_UNDERSCORE, _token(rb"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{40,}")),
    Pattern("stripe-key", _AFTER_UNDERSCORE, _token(rb"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}")),
    Pattern("slack-token", _AFTER_DASH, _token(rb"xox[abeoprs]-" + _DIGIT + rb"[A-Za-z0-9-]{10,}")),
    Pattern("bearer", _AFTER_B, _bearer(rb"Bearer")),
    Pattern("bearer", _HEADER, _bearer(rb"bearer")),
    Pattern("basic", _AFTER_B, _basic(rb"Basic"), _is_basic),
    Pattern("basic", _HEADER, _basic(rb"basic"), _is_basic),
    # Three parts of a signed token, or the five of an encrypted one, whose second may be empty.
    Pattern(
        "jwt",
        _AFTER_J,
        _token(rb"eyJ[A-Za-z0-9_-]{8,}(?:\.eyJ[A-Za-z0-9_-]{8,}|(?:\.[A-Za-z0-9_-]*){3})\.[A-Za-z0-9_-]{8,}"),
    ),
    Pattern(
        "private-key",
        _AFTER_DASH,
        re.compile(
            rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            # Headers of an encrypted key, then lines of base64; at least one line, or it is talk about keys. Nothing
            # here gives back what it took (`++`, `*+`): text made for the purpose would keep the search busy for ever.
            rb"(?:" + _FOLD + rb"|(?:Proc-Type|DEK-Info|Version|Comment): ?[A-Za-z0-9,. -]++)*+"
            rb"[A-Za-z0-9+/=]{16,}+(?:" + _FOLD + rb"++[A-Za-z0-9+/=]{16,}+)*+"
            # The last line may be short, which only the closing mark tells from the words after a key that was cut off.
            rb"(?:(?:" + _FOLD + rb"++[A-Za-z0-9+/=]{1,15}+)?+" + _FOLD + rb"*+"
            rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
        ),
    ),
    Pattern(
        "password",
        b"@",
        re.compile(rb"://[^\s/:@\"'<>\\]*:(?P<secret>[^\s/@\"'<>\\]+)@(?=[A-Za-z0-9\[])"),
        _is_password,
    ),
)
"""The rules that a `Redactor` has when none are given."""

# A URL in a sentence; urllib3 names the path alone.
_URL: Final = re.compile(r"(?:\b(?:https?|wss?)://|\burl: /)[^\s'\"<>]+")
_PARAMETER: Final = re.compile(r"(?P<name>[?&][\w.%~-]+=)[^\s&#'\"<>()]+")
_SECRET_PARAMETER: Final = re.compile(
    r"[?&](?:key|sig|(?:[\w.%~]+[_.-]|x-amz-|x-goog-)?(?:api[_-]?key|access[_-]?key|secret|password|passwd|token"
    r"|(?:access|auth|refresh|id|session)token|credential|signature))=",
    re.IGNORECASE,
)
# A segment that is no word and no id of small letters: a bot's token, the secret end of a webhook.
_SECRET_SEGMENT: Final = re.compile(
    r"(?<=/)(?=[^/?#]*\d)(?=[^/?#]*[a-z])(?=[^/?#]*[A-Z])[A-Za-z0-9_:~-]{20,}(?![^/?#)\],.;])"
)


def scrub_urls(text: str) -> str:
    """A text in which the URLs have no credentials in their query or path, as exceptions quote them.

    Not for what a program gets back, such as a link that a model was given: it would be another link.
    """
    return _URL.sub(lambda match: _scrub_url(match[0]), text) if "/" in text else text


def _scrub_url(url: str) -> str:
    path, mark, query = url.partition("?")
    query = _PARAMETER.sub(
        lambda match: match["name"] + "[redacted]" if _SECRET_PARAMETER.fullmatch(match["name"]) else match[0],
        mark + query,
    )
    return _SECRET_SEGMENT.sub("[redacted]", path) + query


class Redactor:
    """Replaces secrets in bytes.

    Args:
        patterns: kinds of secrets to look for.
        secrets: values known to be secret, such as those of environment variables called KEY, TOKEN, SECRET or
            PASSWORD. Values shorter than 8 characters are ignored.
    """

    __slots__ = ("_groups", "_secrets")

    def __init__(self, patterns: Iterable[Pattern] = PATTERNS, secrets: Iterable[str] = ()) -> None:
        groups: dict[Hint, list[Pattern]] = {}
        for pattern in patterns:
            groups.setdefault(pattern.hint, []).append(pattern)
        self._groups = tuple((_finder(hint), tuple(found)) for hint, found in groups.items())
        spellings = {spelling for secret in secrets if len(secret) >= MIN_SECRET for spelling in _spellings(secret)}
        # The longest first: a secret that contains another must go whole.
        self._secrets = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))

    def redact(self, data: bytes) -> tuple[bytes, int]:
        """Return the data with every secret replaced by `[redacted:<kind>]`, and how many were replaced.

        Data without secrets comes back as the same object. Redacting twice changes nothing more.
        """
        count = 0
        for spelling in self._secrets:
            if spelling in data:
                count += data.count(spelling)
                data = data.replace(spelling, b"[redacted:secret]")
        for found, patterns in self._groups:
            if found(data):
                for pattern in patterns:
                    data, more = _apply(pattern, data)
                    count += more
        return data, count


def _finder(hint: Hint) -> Callable[[bytes], object]:
    return hint.search if isinstance(hint, re.Pattern) else lambda data: hint in data


def _apply(pattern: Pattern, data: bytes) -> tuple[bytes, int]:
    marker = b"[redacted:" + pattern.kind.encode() + b"]"
    group = "secret" if "secret" in pattern.find.groupindex else 0
    parts: list[bytes] = []
    end = 0
    for match in pattern.find.finditer(data):
        if pattern.accept is None or pattern.accept(match[group]):
            parts += data[end : match.start(group)], marker
            end = match.end(group)
    return (b"".join((*parts, data[end:])), len(parts) // 2) if parts else (data, 0)


def _spellings(secret: str) -> set[bytes]:
    """A secret as text, as JSON encoders write it, and as JSON inside JSON, where tool arguments travel."""
    spellings = {secret}
    for _ in range(2):
        spellings |= {
            json.dumps(text, ensure_ascii=ascii_only)[1:-1] for text in spellings for ascii_only in (True, False)
        }
    spellings |= {spelling.replace("/", "\\/") for spelling in spellings}
    return {spelling.encode("utf-8", "surrogatepass") for spelling in spellings}
