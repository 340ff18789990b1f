"""What a request is, and what of it is kept: identity without accident, storage without secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

import steplog
from steplog.errors import DriftDetected, Indeterminate, RunStopped, StepFailed
from steplog.testing import LocalProvider
from steplog.testing.provider import Reply
from steplog_interceptors._canonical import canonical, digest, read_wire, without_credentials
from tests.interceptors.support import ASK, ASK_CLAUDE, answers, anthropic_client, chat, http_of, message, openai_client

HTTP = http_of(openai)


def wire(url: str = "http://h/v1/x", method: str = "POST", **options: Any) -> Any:
    request = HTTP.Request(method, url, **options)
    return read_wire(request, request.read())


def identity(*args: Any, **options: Any) -> Any:
    return canonical(wire(*args, **options)).identity


def test_host_headers_and_credentials_are_not_part_of_identity():
    one = identity("http://a/v1/x?b=2&a=1&key=secret", json={"m": 1}, headers={"authorization": "one"})
    two = identity("https://u:p@b:99/v1/x?sig=other&a=1&b=2", json={"m": 1}, headers={"x-stainless-retry-count": "3"})
    assert one == two


@pytest.mark.parametrize(
    "other",
    [
        {"url": "http://h/v2/x"},
        {"url": "http://h/v1/x?api-version=1"},
        {"method": "PUT"},
        {"json": {"m": 2}},
        {"json": {"m": 1, "n": None}},
        {"content": b"\xff\x00"},
    ],
    ids=str,
)
def test_path_query_method_and_body_are_part_of_identity(other):
    base = {"json": {"m": 1}}
    assert identity(**base) != identity(**(other if "json" in other or "content" in other else {**base, **other}))


json_trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_trees, max_size=6))
def test_key_order_and_spacing_do_not_matter(tree):
    reordered = dict(reversed(tree.items()))
    compact = canonical(wire(content=json.dumps(tree, separators=(",", ":")).encode()))
    spaced = canonical(wire(content=json.dumps(reordered, indent=2).encode()))
    assert compact.identity == spaced.identity
    assert digest(compact) == digest(spaced)


@given(st.binary(max_size=200))
def test_any_body_has_an_identity_and_is_kept_exactly(data):
    form = canonical(wire(content=data))
    assert form.stored is None if not data else form.stored.data == data or form.redacted
    assert json.loads(json.dumps(form.identity, allow_nan=False)) == form.identity


def test_a_multipart_body_is_the_same_whatever_its_boundary():
    def upload(boundary: str, data: bytes = b"x" * 5000) -> Any:
        headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
        files = {"file": ("a.bin", data, "application/octet-stream")}
        return identity(headers=headers, data={"purpose": "batch"}, files=files)

    assert upload("aaaa") == upload("bbbb")
    assert upload("aaaa") != upload("aaaa", b"y" * 5000)
    assert "batch" in str(upload("aaaa"))


def test_the_url_of_a_recorded_request_carries_no_credentials():
    url = HTTP.URL("https://user:pass@h/p?key=k&a=1")
    assert without_credentials(url) == "https://h/p?a=1"
    assert without_credentials(HTTP.URL("https://h/p?key=k")) == "https://h/p"


SECRETS = {
    "openai, header of a remote tool": (
        openai_client,
        chat(),
        lambda c, secret: c.responses.create(
            model="gpt-x",
            input="hi",
            tools=[{"type": "mcp", "server_label": "s", "server_url": "https://s", "headers": {"X-Mine": secret}}],
        ),
    ),
    "openai, authorization of a remote tool": (
        openai_client,
        chat(),
        lambda c, secret: c.responses.create(
            model="gpt-x",
            input="hi",
            tools=[{"type": "mcp", "server_label": "s", "server_url": "https://s", "authorization": secret}],
        ),
    ),
    "anthropic, token of a remote server": (
        anthropic_client,
        message(),
        lambda c, secret: c.beta.messages.create(
            mcp_servers=[{"type": "url", "name": "s", "url": "https://s", "authorization_token": secret}], **ASK_CLAUDE
        ),
    ),
    "a query parameter": (
        openai_client,
        chat(),
        lambda c, secret: c.chat.completions.create(extra_query={"key": secret}, **ASK),
    ),
    "a header": (
        openai_client,
        chat(),
        lambda c, secret: c.chat.completions.create(extra_headers={"x-gateway-key": secret}, **ASK),
    ),
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_credential_is_sent_but_neither_stored_nor_part_of_identity(name, home, offline):
    make, answer, use = SECRETS[name]
    with LocalProvider(handler=answers(answer)) as provider:
        with steplog.run("r"):
            live = use(make(provider.url), "opaque-credential-1")
        hit = provider.hits[0]
        assert "opaque-credential-1" in hit.body.decode() + hit.path + str(hit.headers)
        offline(provider)
        with steplog.run("r") as run:
            assert use(make(provider.url), "rotated-credential-2") == live
            assert run.replayed == 1
    written = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert b"-credential-" not in written


def test_account_ids_and_cookies_of_the_answer_are_not_stored(home, events):
    headers = {
        "content-type": "application/json",
        "openai-organization": "acme",
        "set-cookie": "session=1",
        "x-ok": "1",
    }
    reply = Reply(200, headers, json.dumps(chat()).encode())
    with LocalProvider(handler=answers(reply)) as provider, steplog.run("r"):
        openai_client(provider.url).chat.completions.create(**ASK)
    stored = dict(events()[3]["data"]["exchanges"][0]["headers"])
    assert stored["x-ok"] == "1"
    assert not {"openai-organization", "set-cookie"} & set(stored)


def test_azure_names_the_deployment_in_its_path(home, offline, events):
    def program() -> Any:
        client = openai.AzureOpenAI(
            azure_endpoint=provider.url, azure_deployment="my-gpt", api_version="2024-10-21", api_key="azure-key"
        )
        with client, steplog.run("r"):
            return client.chat.completions.create(**ASK)

    with LocalProvider(handler=answers(chat())) as provider:
        live = program()
        offline(provider)
        assert program() == live
    request = events()[2]["data"]["request"]
    assert request["path"] == "/openai/deployments/my-gpt/chat/completions"
    assert request["query"] == [["api-version", "2024-10-21"]]
    assert events()[2]["data"]["mode"] == "safe"


def test_a_changed_request_halts_with_the_field_that_changed(home):
    with LocalProvider(handler=answers(chat())) as provider:
        client = openai_client(provider.url)
        with steplog.run("r"):
            client.chat.completions.create(temperature=0.1, **ASK)
        with pytest.raises(RunStopped) as stopped, steplog.run("r"):
            client.chat.completions.create(temperature=0.2, **ASK)
        assert len(provider.hits) == 1
    drift = stopped.value.__cause__
    assert isinstance(drift, DriftDetected)
    assert (drift.field, drift.recorded, drift.found) == ("temperature", 0.1, 0.2)


def settle(home: Path, step: str, *how: str) -> None:
    command = [sys.executable, "-m", "steplog", "resolve", "r", step, *how, "--home", str(home)]
    subprocess.run(command, check=True, capture_output=True)


class Interrupted(HTTP.BaseTransport):
    """A transport that is interrupted, as by Ctrl-C."""

    def handle_request(self, request: Any) -> Any:
        raise KeyboardInterrupt


@pytest.fixture
def in_doubt(home: Path, events: Any) -> str:
    """Run `r` with a deletion of which nobody knows whether it happened; its step id."""
    with HTTP.Client(transport=Interrupted()) as broken:
        client = openai_client("http://127.0.0.1:9", http_client=broken)
        with pytest.raises(KeyboardInterrupt), steplog.run("r"):
            client.models.delete("ft:gpt-x-1")
        with pytest.raises(RunStopped) as stopped, steplog.run("r"):
            client.models.delete("ft:gpt-x-1")
    assert isinstance(stopped.value.__cause__, Indeterminate)
    return events()[2]["step"]


def test_the_result_that_an_operator_gave_is_what_the_sdk_returns(home, in_doubt):
    settle(home, in_doubt, "--done", '{"id": "ft:gpt-x-1", "object": "model", "deleted": true}')
    with steplog.run("r"):
        deleted = openai_client("http://127.0.0.1:9").models.delete("ft:gpt-x-1")
    assert type(deleted).__name__ == "ModelDeleted"
    assert deleted.deleted is True


def test_the_failure_that_an_operator_gave_reaches_the_program_as_itself(home, in_doubt):
    settle(home, in_doubt, "--failed", "the model is still there")
    with steplog.run("r"), pytest.raises(StepFailed, match="the model is still there"):
        openai_client("http://127.0.0.1:9", max_retries=2).models.delete("ft:gpt-x-1")
