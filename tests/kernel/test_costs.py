"""Which expressions of a program's own are refused because a text can be written that keeps them busy."""

from __future__ import annotations

import re

import pytest

from steplog._kernel.expressions import check
from steplog._kernel.redact import pattern_of

FREE = [
    r"badge-\d{6}",
    r"patient (?P<secret>\w+)",
    r"[a-z]{1,64}@",
    r"id=[a-z]+@",
    r"key=.{1,200};",
    r"=(?:a+,)+x",
    r"x(?:a++)+b",
    r"(?:[a-z]{2,5}\.){1,5}x",
    r"card (?:\d{4} )+x",
    r"\bEMP\d+\b",
    r"(?<!\d)\d{6,9}(?!\d)",
    r"[A-Z]{2}\d{2}[A-Z0-9]{11,30}",
    r"[0-9a-f]{512}",
    r"a{1,16}a{1,16}b",
    r"\w{1,16}@\w{1,16}\.(?:com|org)",
]

COSTLY = {
    "a repeat without an end in the first round of another": [r"(?:c*?b){2}[bc]{1,3}", r"(?:a+,)+"],
    "a repeat without an end, tried from each of its letters": [
        r"[a-z]+@",
        r"\s+$",
        r"key=.*;",
        r"key=[^;]*;",
        r"a++b",
    ],
    "two of them, side by side": [r"a*a*b", r"\d+\d+x", r"x=[a-z]+y[a-z]+@", r"a{1,20}a{1,20}b"],
    "alternatives that begin alike": [r"(?:aa|a)*b", r"x(?:aa|a)*b", r"=(?:a|ab)(?:c|bcd)+e"],
    "a repeat of what may be absent": [r"(?:a?b?c?d?)*e", r"x(?:a{1,3})+b", r"(?:a{0,3}){0,20}b"],
    "a look ahead without an end": [r"(?=.*x)q", r"(?!a*b)q"],
    "what was found before": [r"(\w{2,9})-\1"],
    "a long beginning": [r"a{5000}b", r"ba{5000,}"],
}


@pytest.mark.parametrize("expression", FREE)
def test_a_text_of_its_own_letters_does_not_keep_it_busy(expression):
    """The steps are bounded, so this ends at once; what is refused below would take minutes or years for it."""
    find = pattern_of("custom", expression).find
    assert isinstance(find, re.Pattern)
    for unit in (b"a", b"key=", b"id=a", b"ab", b"=a,", b"1", b"card 1234 ", b"EMP1", b"a@", b"a.", b"patient "):
        for _ in find.finditer(unit * 30_000):
            pass


@pytest.mark.parametrize("expression", [each for several in COSTLY.values() for each in several])
def test_what_may_take_the_square_of_a_text_is_refused_with_what_to_write(expression):
    with pytest.raises(ValueError, match=r"can keep it busy for minutes|can take for ever") as refused:
        check(re.compile(expression.encode()))
    if "minutes" in str(refused.value):
        assert "Give it an end, as in [a-z]{1,64}@" in str(refused.value)
