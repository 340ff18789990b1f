"""Errors of the SDKs as results of the program's own tools: they come back with what they carry."""

from __future__ import annotations

import openai
import pytest

import steplog
from steplog.testing import LocalProvider
from tests.interceptors.support import ASK, KEY, answers, openai_client, rate_limited


def test_a_status_error_that_a_tool_raised_comes_back_with_its_response(home, offline):
    def program() -> openai.RateLimitError:
        @steplog.step(mode="safe")
        def ask() -> None:
            with openai_client(provider.url) as client:
                client.chat.completions.create(**ASK)

        with steplog.run("r") as run:
            with pytest.raises(openai.RateLimitError) as caught:
                ask()
        found.append((run.replayed, run.executed))
        return caught.value

    found: list[tuple[int, int]] = []
    with LocalProvider(handler=answers(rate_limited())) as provider:
        live = program()
        offline(provider)
        again = program()
    assert found == [(0, 2), (1, 0)]
    assert again is not live
    assert type(again) is type(live)
    assert (again.status_code, again.request_id, again.body, str(again)) == (429, "req_429", live.body, str(live))
    assert (again.response.status_code, again.response.content) == (429, live.response.content)
    assert again.response.json() == live.response.json()
    assert again.response.headers["x-request-id"] == "req_429"
    assert again.request.method == "POST"
    assert again.request.url == live.request.url
    assert again.request.content == live.request.content
    assert "authorization" not in again.request.headers
    assert again.response.request.headers["user-agent"] == live.request.headers["user-agent"]
    assert not any(KEY.encode() in path.read_bytes() for path in home.rglob("*") if path.is_file())


def test_a_connection_error_that_a_tool_raised_comes_back_with_its_request(home, offline):
    def program() -> openai.APIConnectionError:
        @steplog.step(mode="safe")
        def ask() -> None:
            with openai_client(provider.url) as client:
                client.chat.completions.create(**ASK)

        with steplog.run("r"), pytest.raises(openai.APIConnectionError) as caught:
            ask()
        return caught.value

    provider = LocalProvider(handler=answers({}))
    provider.close()
    live = program()
    offline(provider)
    again = program()
    assert again is not live
    assert type(again) is type(live)
    assert again.request.url == live.request.url
    assert type(again.__cause__) is type(live.__cause__)
    assert str(again.__cause__) == str(live.__cause__)
