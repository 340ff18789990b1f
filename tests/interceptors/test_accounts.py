"""What tells accounts apart, and what does not: the digests that the log holds of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import steplog
from steplog import plugins
from steplog.testing import LocalProvider, Reply
from steplog_interceptors._account import account_of
from tests.interceptors.support import ASK, KEY, OTHER_KEY, chat, openai_client

URL = "https://api.example.com/refund"


def account(headers: dict[str, str] | None = None, url: str = URL, auth: Any = None) -> str:
    with httpx.Client(auth=auth) as client:
        request = client.build_request("POST", url, headers=headers)
        return account_of(request, client, httpx.USE_CLIENT_DEFAULT)


def jwt(**claims: Any) -> str:
    head, body = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims))
    return f"Bearer {head}.{body}.signature-of-{claims['iat']}"


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "one, other",
    [
        ({"authorization": f"Bearer {KEY}"}, {"authorization": f"Bearer {OTHER_KEY}"}),
        ({"x-api-key": KEY}, {"X-Api-Key": OTHER_KEY}),
        ({"x-api-key": "north"}, {"x-api-key": "south"}),
        ({"api-key": KEY}, {}),
        ({"openai-organization": "org-1"}, {"openai-organization": "org-2"}),
        ({"X-Tenant": "1"}, {"X-Tenant": "2"}),
        ({"authorization": basic("north", "x")}, {"authorization": basic("south", "x")}),
        ({"authorization": basic("api", KEY)}, {"authorization": basic("api", OTHER_KEY)}),
        ({"authorization": jwt(sub="north", iat=1)}, {"authorization": jwt(sub="south", iat=1)}),
        (
            {"authorization": "AWS4 Credential=A/1/x, Signature=a"},
            {"authorization": "AWS4 Credential=B/1/x, Signature=a"},
        ),
    ],
)
def test_accounts_that_are_told_apart(one: dict[str, str], other: dict[str, str]) -> None:
    assert account(one) != account(other)
    assert account(one) == account(dict(one))


@pytest.mark.parametrize(
    "one, other",
    [
        (
            {"user-agent": "a", "traceparent": "1", "cookie": "a=1"},
            {"user-agent": "b", "traceparent": "2", "cookie": "a=2"},
        ),
        ({"idempotency-key": "1"}, {"idempotency-key": "2"}),
        ({"x-csrf-nonce": "1"}, {"x-csrf-nonce": "2"}),
        ({"authorization": basic("north", "hunter2")}, {"authorization": basic("north", "hunter3")}),
        ({"authorization": jwt(sub="north", iat=1)}, {"authorization": jwt(sub="north", iat=2)}),
        (
            {"authorization": "HMAC keyId=A, nonce=1, signature=x"},
            {"authorization": "HMAC keyId=A, nonce=2, signature=y"},
        ),
    ],
)
def test_what_changes_by_itself_makes_no_other_account(one: dict[str, str], other: dict[str, str]) -> None:
    assert account(one) == account(other)


def test_hosts_users_and_keys_of_a_url_are_told_apart() -> None:
    urls = [
        URL,
        URL.replace("api", "eu"),
        "https://n@api.example.com/x",
        f"{URL}?api_key={KEY}",
        f"{URL}?key={OTHER_KEY}",
    ]

    assert len({account(url=url) for url in urls}) == len(urls)
    assert account(url=f"{URL}?sig=1&page=2") == account(url=f"{URL}?sig=2&page=3") == account()


def test_what_a_client_signs_with_is_told_apart() -> None:
    class Signed(httpx.Auth):
        def __init__(self, api_key: str) -> None:
            self._api_key = api_key
            self._nonce = object()

    auths: list[Any] = [None, ("n", "x"), ("s", "x"), httpx.DigestAuth("n", "x"), httpx.DigestAuth("s", "x")]
    auths += [Signed(KEY), Signed(OTHER_KEY)]

    assert len({account(auth=auth) for auth in auths}) == len(auths)
    assert account(auth=Signed(KEY)) == account(auth=Signed(KEY))


def test_the_log_holds_two_bytes_that_are_others_in_every_run(events: Callable[[str], list[dict[str, Any]]]) -> None:
    for run in ("r", "r2"):
        with LocalProvider(handler=lambda _hit: Reply.json(chat())) as provider, steplog.run(run):
            for key in (KEY, OTHER_KEY, KEY):
                openai_client(provider.url, api_key=key).chat.completions.create(**ASK)

    told = {
        run: [one["data"]["account"] for one in events(run) if one["type"] == "step.started"] for run in ("r", "r2")
    }

    assert all(len(one) == 4 and int(one, 16) >= 0 for one in told["r"])
    assert told["r"][0] == told["r"][2] != told["r"][1]
    assert told["r"] != told["r2"]


def test_an_author_says_for_whom_a_call_is(home: Any, events: Callable[[str], list[dict[str, Any]]]) -> None:
    del home

    def call(name: str) -> plugins.Call:
        return plugins.Call("tool_call", "acme/refund", {"order": 1}, account=name)

    with steplog.run("r"):
        assert [plugins.record(call(name), lambda _ticket, name=name: name) for name in ("n", "s")] == ["n", "s"]

    assert len({one["data"].get("account") for one in events("r") if one["type"] == "step.started"}) == 2
    with steplog.run("r"):
        assert [plugins.record(call(name), lambda _ticket: "again") for name in ("s", "n")] == ["s", "n"]
