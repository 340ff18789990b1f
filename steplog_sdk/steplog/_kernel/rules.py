"""The shapes of secrets: which expressions `redact` looks for, and what each search is led by.

A false alarm is not harmless (a step whose result was redacted cannot be returned again), so every rule asks for the
shape of a real credential: prefix, length, alphabet and what stands around it. A rule replaces only characters that a
token consists of, by a marker without quotes, backslashes or control characters, so JSON stays JSON.

Most text holds no secret. Each rule is therefore led by a hint: one rare byte, which the expression engine looks for
fastest, and what every match has around it. Expressions are compiled when their hint is first found. And most text is
told by a glance (`Asks`): of its bytes only those are kept, in one pass, of which hints are made.
"""

from __future__ import annotations

import binascii
import functools
import re
from collections.abc import Callable
from typing import Final, NamedTuple

# Where a token may begin: not inside a word, a base64 text or an id. The `n` of an escaped line end is no letter, nor
# are the digits of a character that JSON or a URL has escaped.
_START: Final = rb"(?:(?<![A-Za-z0-9_+/-])|(?<=\\[nrtbf])|(?<=\\u00[0-9a-f]{2})|(?<=%[0-9A-Fa-f]{2}))"
_END: Final = rb"(?![A-Za-z0-9_+/=-])"
# At least one digit among the next characters of the token: words joined by hyphens have none.
_DIGIT: Final = rb"(?=[A-Za-z_.~+/-]*[0-9])"

# Line ends inside a key block: real ones, or those of JSON inside JSON inside JSON.
_FOLD: Final = rb"(?:\s|\\++[nrt])"
# A quotation mark, escaped as often as JSON stands in JSON, or none.
_QUOTE: Final = rb"(?:\\*+[\"'])?"

# `name: value`, `"name": "value"`, `name=value`, `--name value` and `["--name", "value"]`.
_IS: Final = rb"(?:" + _QUOTE + rb"\s{0,4}[:=]\s{0,4}" + _QUOTE + rb"|\\*+[\"']\s{0,4},\s{0,4}\\*+[\"']| )"
_VALUE: Final = rb"(?P<secret>[A-Za-z0-9_+/.~%-]{16,512}={0,2})" + _END

# Names under which a key stands in headers, JSON, environment files and command lines, by their last word. A bare
# `token` or `key` is not among them: they name words of a model and entries of a table as well.
_NAMES: Final = {
    b"key": b"api access secret private account subscription master signing encryption",
    b"token": b"access refresh auth bearer session security bot api",
    b"secret": b"client signing webhook app api",
}


def _named(lead: bytes) -> bytes:
    """An expression for a value behind a name of two words, which are joined by `lead`, or of which the last begins so.

    What it begins with has been read already.
    """
    names = []
    for last, firsts in _NAMES.items():
        joined = lead in b"_-"
        if joined or last[:1].upper() == lead:
            before = b"|".join(b"(?<=" + first + lead + b")" for first in firsts.split())
            names.append(b"(?:" + before + b")" + last[0 if joined else 1 :])
    return b"(?=[kKtTsSeEoO])(?i:" + b"|".join(names) + b")" + _IS + _VALUE


_AHEAD: Final = rb"(?=[A-Za-z0-9_+/.-]{16})"

HINTS: Final = {
    b"A": rb"A(?:Iza[A-Za-z0-9_-]{16}|[KS]IA[A-Z0-9]{16}|GE-SECRET|TATT3|(?:(?<=[0-9]:A)|(?<=%3AA))A[A-Za-z0-9_-]{16})",
    b"B": rb"B(?:earer|asic) [A-Za-z0-9._~+/-]{8}",
    b"J": rb"J(?<=eyJ)[A-Za-z0-9_-]{8}",
    b"S": rb"S(?:G\.[A-Za-z0-9_-]{22}|K[0-9a-f]{32}|" + _named(b"S") + b")",
    b"T": rb"T(?:(?<=/T)[A-Z0-9]{6,}/B|" + _named(b"T") + b")",
    b"K": b"K" + _named(b"K"),
    b"z": rb"z(?<=horiz)ation",
    b"Z": rb"Z(?<=HORIZ)ATION",
    b"@": rb"@(?<=[^\s/@\"'<>\\]@)[A-Za-z0-9/\[]",
    b"=": rb"=(?<=(?:word|Word|WORD|.pwd|.Pwd|.PWD|tKey|sKey|.sig)=)",
    b"p": rb"password\\*+[\"']\s{0,4}:",
    b"-": (
        b"-(?:"
        + _AHEAD
        + rb"(?:(?<=sk-)|(?<=xox[a-z]-)|----BEGIN |(?<=xapp-)[0-9]-[A-Z]|(?<=gl[a-z]{2}-)|(?<=gl[a-z]{3}-)|(?<=OCSPX-)"
        rb"|(?<=pplx-)|(?<=xai-)|(?<=tvly-)|(?<=nvapi-)|(?<=pypi-)|(?<=PMAK-)|(?<=key-)[0-9a-f]{32})"
        rb"|----BEGIN |" + _named(b"-") + b")"
    ),
    b"_": (
        b"_(?:"
        + _AHEAD
        + rb"(?:(?<=gsk_)|(?<=gh[pousr]_)|(?<=hf_)|(?<=ithub_)|(?<=r8_)|(?<=[sr]k_)|(?<=npm_)|(?<=o[oprt]_)v1_"
        rb"|(?<=shp[a-z]{2}_)|(?<=sec_)|(?<=lsv2_)|(?<=ckr_)pat_|(?<=[sf]bp_)|(?<=gl[cs]_)|(?<=glsa_)|(?<=lin_)api_"
        rb"|(?<=ntn_)|(?<=figd_))|" + _named(b"_") + b")"
    ),
}
"""By the byte that leads it, an expression found in every text in which a rule of that lead can find something."""


# What every match of a hint holds one of, where that says more than the byte that leads it.
_HOLDS: Final = {
    b"A": (b"AIza", b"AKIA", b"ASIA", b"AGE-SECRET", b"ATATT3", b"AA"),
    b"Z": (b"HORIZATION",),
    b"p": (b"password",),
}
PASSED_OVER: Final = bytes(set(range(256)).difference(b"AIGBJSTKzZ@=-_w64"))
"""The bytes that a glance passes over; of each text above, others are left."""


def glance(data: bytes) -> str:
    """The bytes of a text that hints are made of, in order; as text, in which a search begins sooner than in bytes."""
    return data.translate(None, PASSED_OVER).decode("ascii")


@functools.cache
def held_by(lead: bytes) -> tuple[str, ...]:
    """Of which one is in what a glance leaves of every text that a hint is found in."""
    return tuple(dict.fromkeys(glance(text) for text in _HOLDS.get(lead, (lead,))))


class Pattern(NamedTuple):
    """One kind of secret.

    Attributes:
        kind: name in the marker `[redacted:<kind>]`.
        lead: of the hint in `HINTS` that is searched for first; empty where the expression itself is.
        find: the expression; the group `secret`, or else the whole match, is replaced.
        accept: a last look at a match that has the shape; None accepts all.
    """

    kind: str
    lead: bytes
    find: bytes | re.Pattern[bytes]
    accept: Callable[[bytes], bool] | None = None


@functools.cache
def compiled(find: bytes | re.Pattern[bytes]) -> re.Pattern[bytes]:
    """The expression of a rule, compiled once per process."""
    return re.compile(find)


@functools.cache
def hint_search(lead: bytes) -> Callable[[bytes], object]:
    """The search of a hint."""
    return re.compile(HINTS[lead]).search


def _is_basic(secret: bytes) -> bool:
    """Whether base64 text says `user:password`; in prose, "Basic authentication" does not."""
    try:
        return b":" in binascii.a2b_base64(secret + b"=" * (-len(secret) % 4), strict_mode=True)
    except binascii.Error:
        return False


def _is_password(secret: bytes) -> bool:
    """Whether a password is one, and not the placeholder of a manual or a template."""
    return secret.lower() not in _PLACEHOLDERS and not re.fullmatch(rb"[$%{<\[(].*|(?:[*x.`]|\xe2\x80\xa6)+", secret)


def _is_key(secret: bytes) -> bool:
    """Whether what stands under the name of a key is one: digits and letters, and no id that says what it is of."""
    return (
        re.search(rb"[0-9]", secret) is not None
        and re.search(rb"[A-Za-z]", secret) is not None
        and len(set(secret)) > 5
        and _is_password(secret)
    )


_PLACEHOLDERS: Final = frozenset((b"password", b"passwd", b"pass", b"pwd", b"secret", b"token", b"your-password"))


def _token(expression: bytes) -> bytes:
    return _START + b"(?:" + expression + b")" + _END


def _bearer(scheme: bytes) -> bytes:
    return scheme + rb" (?P<secret>" + _DIGIT + rb"[A-Za-z0-9._~+/-]{16,}={0,2})"


def _basic(scheme: bytes) -> bytes:
    return scheme + rb" (?P<secret>[A-Za-z0-9+/]{8,}={0,2})" + _END


_PRIVATE_KEY: Final = (
    rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    # Headers of an encrypted key, then lines of base64; at least one line, or it is talk about keys. Nothing here gives
    # back what it took (`++`, `*+`): text made for the purpose would keep the search busy for ever.
    rb"(?:" + _FOLD + rb"|(?:Proc-Type|DEK-Info|Version|Comment): ?[A-Za-z0-9,. -]++)*+"
    rb"[A-Za-z0-9+/=]{16,}+(?:" + _FOLD + rb"++[A-Za-z0-9+/=]{16,}+)*+"
    # The last line may be short, which only the closing mark tells from the words after a key that was cut off.
    rb"(?:(?:" + _FOLD + rb"++[A-Za-z0-9+/=]{1,15}+)?+" + _FOLD + rb"*+"
    rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?"
)

PATTERNS: Final = (
    Pattern("anthropic-key", b"-", _token(rb"sk-ant-[A-Za-z0-9_-]{16,}")),
    Pattern(
        "openai-key",
        b"-",
        _token(
            rb"sk-(?:proj|svcacct|admin|None|or|lf)-" + _DIGIT + rb"[A-Za-z0-9_-]{16,}"
            rb"|sk-(?:[a-z0-9]{1,12}-){0,2}" + _DIGIT + rb"[A-Za-z0-9_]{20,}"
        ),
    ),
    Pattern("google-key", b"A", _token(rb"AIza[A-Za-z0-9_-]{35}")),
    Pattern("google-key", b"-", _token(rb"GOCSPX-[A-Za-z0-9_-]{20,}")),
    Pattern("aws-key", b"A", _token(rb"A[KS]IA[A-Z0-9]{16}")),
    Pattern("groq-key", b"_", _token(rb"gsk_[A-Za-z0-9]{32,}")),
    Pattern("huggingface-key", b"_", _token(rb"hf_[A-Za-z0-9]{30,}")),
    Pattern("github-token", b"_", _token(rb"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{40,}")),
    Pattern("gitlab-token", b"-", _token(rb"gl(?:pat|oas|cbt|ptt|imt|rt|ft|dt)-" + _DIGIT + rb"[A-Za-z0-9_-]{20,}")),
    Pattern("stripe-key", b"_", _token(rb"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{24,}={0,2}")),
    Pattern(
        "slack-token", b"-", _token(rb"xox[abeoprs]-" + _DIGIT + rb"[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Z0-9a-z-]{20,}")
    ),
    Pattern("slack-webhook", b"T", rb"/services/(?P<secret>T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{16,})"),
    Pattern("telegram-token", b"A", _token(rb"[0-9]{8,10}(?::|%3A)AA[A-Za-z0-9_-]{33}")),
    Pattern("sendgrid-key", b"S", _token(rb"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}")),
    Pattern("twilio-key", b"S", _token(rb"SK[0-9a-f]{32}")),
    Pattern("mailgun-key", b"-", _token(rb"key-[0-9a-f]{32}")),
    Pattern("atlassian-token", b"A", _token(rb"ATATT3[A-Za-z0-9_=-]{100,}")),
    Pattern("age-key", b"A", _token(rb"AGE-SECRET-KEY-1[0-9A-Z]{50,}")),
    Pattern(
        "api-key",
        b"-",
        _token(
            rb"pplx-[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{60,}|tvly-(?:[a-z]{3,4}-)?" + _DIGIT + rb"[A-Za-z0-9-]{24,}"
            rb"|nvapi-[A-Za-z0-9_-]{50,}|pypi-Ag[A-Za-z0-9_-]{40,}|PMAK-[0-9a-f]{24}-[0-9a-f]{34}"
        ),
    ),
    Pattern(
        "api-key",
        b"_",
        _token(
            rb"r8_[A-Za-z0-9]{37}|npm_[A-Za-z0-9]{36}|do[oprt]_v1_[0-9a-f]{64}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"
            rb"|lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}|dckr_pat_[A-Za-z0-9_-]{27}|sbp_[0-9a-f]{40}"
            rb"|glc_[A-Za-z0-9+/]{32,}|glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}|lin_api_[A-Za-z0-9]{40}|ntn_[A-Za-z0-9]{40,}"
            rb"|pcsk_[A-Za-z0-9_]{50,}|sk_[0-9a-f]{48}|figd_[A-Za-z0-9_-]{40}"
        ),
    ),
    Pattern("bearer", b"B", _bearer(rb"Bearer")),
    Pattern("bearer", b"z", _bearer(rb"bearer")),
    Pattern("basic", b"B", _basic(rb"Basic"), _is_basic),
    Pattern("basic", b"z", _basic(rb"basic"), _is_basic),
    Pattern(
        "authorization",
        b"z",
        rb"(?i:authorization)"
        + _IS
        + rb"(?:[A-Za-z][A-Za-z0-9-]{1,20} )?(?:token=)?"
        + _QUOTE
        + rb"(?P<secret>[A-Za-z0-9_+/.~-]{16,}={0,2})"
        + _END,
        _is_key,
    ),
    # Three parts of a signed token, or the five of an encrypted one, whose second may be empty.
    Pattern(
        "jwt",
        b"J",
        _token(rb"eyJ[A-Za-z0-9_-]{8,}(?:\.eyJ[A-Za-z0-9_-]{8,}|(?:\.[A-Za-z0-9_-]*){3})\.[A-Za-z0-9_-]{8,}"),
    ),
    Pattern("private-key", b"-", _PRIVATE_KEY),
    Pattern("password", b"@", rb"://[^\s/:@\"'<>\\]*:(?P<secret>[^\s/@\"'<>\\]+)@(?=[A-Za-z0-9\[])", _is_password),
    Pattern("password", b"@", rb"thin:[A-Za-z0-9_$]+/(?P<secret>[^\s/@\"'<>\\]+)@(?=[A-Za-z0-9/\[])", _is_password),
    # ADO, ODBC, JDBC and libpq.
    Pattern(
        "password",
        b"=",
        rb"(?<![A-Za-z0-9])(?i:password|pwd) ?= ?(?P<secret>[^\s;&\"'<>\\,)]{4,256})",
        _is_password,
    ),
    Pattern("account-key", b"=", rb"(?:AccountKey|AccessKey)=(?P<secret>[A-Za-z0-9+/%]{20,}={0,2})"),
    Pattern("signature", b"=", rb"[?&;]sig=(?P<secret>[A-Za-z0-9+/%]{40,}={0,2})"),
    Pattern(
        "password",
        b"p",
        rb"password(?<![A-Za-z0-9]password)\\*+[\"']\s{0,4}:\s{0,4}\\*+[\"']"
        rb"(?P<secret>(?=[^\"'\s\\]*[0-9])[^\"'\s\\]{6,128})(?=\\*+[\"'])",
        _is_password,
    ),
    *(Pattern("api-key", lead, lead + _named(lead), _is_key) for lead in (b"_", b"-", b"K", b"T", b"S")),
)
"""The rules that a `Redactor` has when none are given."""

KINDS: Final = tuple(sorted({pattern.kind for pattern in PATTERNS}))
"""Their names."""
