"""What is taken out is the program's choice: rules of its own, and kinds that it does without."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

import steplog
from steplog._runtime import redaction, settings
from steplog.errors import InvalidArgument


def recorded(home: Path, *texts: str) -> str:
    with steplog.run() as run:
        for number, text in enumerate(texts):
            steplog.step(f"text {number}", lambda text=text: text)
    return (home / "runs" / run.run_id / "events.jsonl").read_text()


def test_expressions_of_the_program_are_looked_for_too(home):
    steplog.install(interceptors=[], redact=[r"badge-\d{6}", re.compile(r"PATIENT (?P<secret>\w+)", re.IGNORECASE)])
    log = recorded(home, "he has badge-123456 and badge-12", "see patient bob42")
    assert "he has [redacted:custom] and badge-12" in log
    assert "see patient [redacted:custom]" in log


def test_kinds_have_names_and_can_be_switched_off(home):
    text = "postgres://app:hunter22@db/x with badge-123456"
    steplog.install(interceptors=[], redact={"badge": [r"badge-\d+", r"pass-\d+"]})
    assert "app:[redacted:password]@db/x with [redacted:badge]" in recorded(home, text)
    steplog.install(interceptors=[], redact={"password": False})
    assert "app:hunter22@db/x with [redacted:badge]" in recorded(home, text), "what was named before is still in force"
    steplog.uninstall()
    assert "app:[redacted:password]@db/x with badge-123456" in recorded(home, text)


def test_expressions_come_from_the_environment_too(home, monkeypatch):
    monkeypatch.setenv("STEPLOG_REDACT", "badge-\\d{6}\n  \\bcase [0-9,]+  \n")
    steplog.install(interceptors=[])
    log = recorded(home, "badge-123456", "case 1,2 of badge-1")
    assert "[redacted:custom]" in log
    assert "[redacted:custom] of badge-1" in log
    assert "123456" not in log


@steplog.step
def listed(size: int) -> list[int]:
    return list(range(size))


# What secrets may look like, and what steplog itself writes: bodies, ids, hashes, words of its own.
@pytest.mark.parametrize(
    "rule",
    [
        r"[0-9a-f]{64}",
        r"[A-Za-z0-9_]{20,}",
        r"done|unsafe|failed|tool_call|error",
        r"outcome|result|body|size|retry",
        r"no secret.*",
    ],
)
def test_an_expression_that_matches_what_the_log_is_made_of_loses_no_result(rule):
    steplog.install(interceptors=[], redact=[rule])
    executed = []
    for attempt in range(3):

        @steplog.step
        def last():
            if not attempt:  # noqa: B023  # it is called in this round only
                raise ValueError("not yet")

        with contextlib.suppress(ValueError), steplog.run("r") as run:
            assert [listed(2000), listed(2000), listed(9)] == [list(range(2000))] * 2 + [list(range(9))]
            last()
        executed.append(run.executed)
    assert executed == [4, 1, 0]


def test_what_is_kept_of_a_line_lets_no_secret_through(home):
    steplog.install(interceptors=[], redact=[r"hush.*"])
    with steplog.run("r"):
        steplog.step("form", lambda: {"outcome": "hush one", "body": "hush two", "size": 3, "sha256": "hush three"})
    log = (home / "runs" / "r" / "events.jsonl").read_text()
    assert "hush" not in log
    assert log.count("[redacted:custom]") == 3


@pytest.mark.parametrize(
    "redact, told",
    [
        ("badge", "takes expressions in a list"),
        ([r"badge-("], "no expression that secrets can be looked for"),
        ([r"x*"], "matches the empty text"),
        ([r"\b"], "matches the empty text"),
        ([r"."], "matches ordinary text, such as"),
        ({"word": r"\w+"}, "matches ordinary text, such as"),
        ([r"(a+)+b"], "a repeat inside a repeat"),
        ([r"(?:\w+\s?)+;"], "a repeat inside a repeat"),
        ([r"(\w+[.-])*\w+@corp\.example"], "a long text can keep it busy for minutes"),
        ([r"(?:q|b+)*x"], "a repeat inside a repeat"),
        ([re.compile(r"(?:[a-z]+A)+9", re.IGNORECASE)], "a repeat inside a repeat"),
        ({"badge": True}, "or False to switch the kind off"),
        ({"Badge": "b"}, "no name of a kind"),
        ({"badges": False}, "there is no kind 'badges' to switch off. The kinds are account-key, age-key"),
        ([7], "it takes a regular expression"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(redact, told):
    with pytest.raises(InvalidArgument, match=re.escape(told)):
        settings.resolve(redact=redact, environ={})


@pytest.mark.parametrize(
    "rule",
    [r"=(?:a+,)+", r"=(?:a++)+z", r"#(?:[a-z]+\d)+-id", r"[\w.-]{1,64}@corp\.example", r"\b\d{4}\b"],
)
def test_an_expression_of_which_every_round_ends_is_taken(rule):
    assert settings.resolve(redact=[rule], environ={}).redact == (("custom", rule),)


@pytest.mark.parametrize(
    "name, secret",
    [
        ("PGPASSWORD", True),
        ("MYSQL_PWD", True),
        ("DB_PASS", True),
        ("SECRET_KEY_BASE", True),
        ("OPENAI_API_KEY_2", True),
        ("GITHUB_PAT", True),
        ("STEPLOG_KEY", True),
        ("SERVICE_CREDENTIALS", True),
        ("SENTRY_DSN", True),
        ("PWD", False),
        ("OLDPWD", False),
        ("MAX_TOKENS", False),
        ("OPENAI_MAX_TOKENS", False),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", False),
        ("SECRET_NAME", False),
        ("MONKEY", False),
        ("SSH_AUTH_SOCK", False),
        ("PATH", False),
        ("COMPASS_MODE", False),
    ],
)
def test_names_say_secret(name, secret):
    assert redaction.names_secret(name) is secret


def test_each_of_several_keys_in_one_variable_is_a_secret():
    assert set(redaction.secret_values({"APP_KEY": "x", "STEPLOG_KEY": "abc123def456,zyx987wvu654"})) >= {
        "abc123def456",
        "zyx987wvu654",
    }
