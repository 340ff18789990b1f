"""What may be repeated after a crash: what a body makes of a request, and what the user says."""

from __future__ import annotations

from typing import Any

import pytest

import steplog
from steplog.errors import Indeterminate, RunStopped
from steplog.testing import LocalProvider
from steplog_interceptors import anthropic, openai
from steplog_interceptors._canonical import Wire
from tests.interceptors.support import answers, http_of, openai_client

SDKS = {"openai": openai.SDK, "anthropic": anthropic.SDK}


def mode(sdk: str, path: str, body: Any = None, method: str = "POST") -> str:
    return SDKS[sdk].mode(Wire(method, path, (), "application/json", b""), body)


MCP = {"type": "mcp", "server_label": "mail", "server_url": "https://mail.example/mcp"}


@pytest.mark.parametrize(
    "body, expected",
    [
        ({"model": "m"}, "safe"),
        ({"store": True, "previous_response_id": "resp_1"}, "safe"),
        ({"conversation": None, "background": False, "tools": None}, "safe"),
        ({"conversation": "conv_1"}, "unsafe"),
        ({"conversation": {"id": "conv_1"}}, "unsafe"),
        ({"background": True}, "unsafe"),
        ({"tools": [{"type": "web_search"}, {"type": "file_search"}, {"type": "image_generation"}]}, "safe"),
        # Asking first is the rule; the approval of what was asked goes ahead.
        ({"tools": [MCP]}, "safe"),
        ({"tools": [MCP | {"require_approval": "always"}]}, "safe"),
        ({"tools": [MCP | {"require_approval": "never"}]}, "unsafe"),
        ({"tools": [{"type": "namespace", "tools": [MCP | {"require_approval": "never"}]}]}, "unsafe"),
        ({"tools": [MCP | {"require_approval": "never", "allowed_tools": {"read_only": True}}]}, "safe"),
        ({"tools": [MCP | {"require_approval": "never", "allowed_tools": ["send"]}]}, "unsafe"),
        ({"tools": [MCP | {"require_approval": {"never": {"read_only": True}}}]}, "safe"),
        ({"tools": [MCP | {"require_approval": {"never": {"tool_names": ["send"]}}}]}, "unsafe"),
        ({"tools": [MCP | {"require_approval": {"always": {"tool_names": ["delete"]}}}]}, "unsafe"),
        ({"tools": [MCP], "input": [{"type": "mcp_approval_response", "approve": True}]}, "unsafe"),
        ({"tools": [MCP], "input": [{"type": "mcp_approval_response", "approve": False}]}, "safe"),
        # A container of its own is thrown away; one with a name is there a second time.
        ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "safe"),
        ({"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}, "unsafe"),
        ({"tools": [{"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}}]}, "unsafe"),
        ({"tools": [{"type": "shell", "environment": {"network_policy": {"type": "allowlist"}}}]}, "unsafe"),
        ({"tools": [{"type": "shell", "environment": {"network_policy": {"type": "disabled"}}}]}, "safe"),
        ("no object", "safe"),
    ],
    ids=str,
)
def test_a_response_is_safe_while_the_provider_only_computes(body, expected):
    assert mode("openai", "/v1/responses", body) == expected


@pytest.mark.parametrize(
    "body, expected",
    [
        ({"max_tokens": 1, "tools": [{"name": "f"}], "mcp_servers": []}, "safe"),
        ({"mcp_servers": [{"type": "url", "url": "https://mail.example/mcp"}]}, "unsafe"),
        ({"container": "container_1"}, "unsafe"),
        ({"container": {"id": "container_1", "skills": []}}, "unsafe"),
        ({"container": {"id": None, "skills": [{"skill_id": "pptx"}]}}, "safe"),
    ],
    ids=str,
)
def test_a_message_is_safe_while_the_provider_only_computes(body, expected):
    assert mode("anthropic", "/v1/messages", body) == expected


@pytest.mark.parametrize(
    "sdk, path, expected",
    [
        ("openai", "/openai/deployments/gpt-x/chat/completions", "safe"),
        ("openai", "/openai/v1/responses", "safe"),
        ("openai", "/openai/deployments/gpt-x/batches", "unsafe"),
        ("anthropic", "/anthropic/v1/messages", "safe"),
        ("anthropic", "/model/anthropic.claude-x/invoke", "safe"),
        ("anthropic", "/model/anthropic.claude-x/invoke-with-response-stream", "safe"),
        ("anthropic", "/v1/projects/p/locations/l/publishers/anthropic/models/claude-x:rawPredict", "safe"),
        ("anthropic", "/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict", "safe"),
        ("anthropic", "/v1/messages/batches", "unsafe"),
    ],
)
def test_inference_is_known_on_every_platform(sdk, path, expected):
    assert mode(sdk, path, {}) == expected


@pytest.mark.parametrize(
    "pattern, path, expected",
    [
        ("POST /v1/files", "/v1/files", "safe"),
        ("POST /v1/files", "/v1/files/x", "unsafe"),
        ("POST /v1/files", "/v1/containers/files", "unsafe"),
        ("PUT /v1/files", "/v1/files", "unsafe"),
        ("POST /v1/vector_stores/*/files", "/v1/vector_stores/vs_1/files", "safe"),
        ("POST /v1/vector_stores/{id}/files", "/v1/vector_stores/vs_1/files", "safe"),
        ("POST /v1/vector_stores/*/files", "/v1/vector_stores/a/b/files", "unsafe"),
        ("POST /openai/**/files", "/openai/deployments/gpt-x/files", "safe"),
        ("POST /v1/fil.s", "/v1/files", "unsafe"),
    ],
)
def test_a_pattern_names_a_method_and_a_whole_path(pattern, path, expected, home):
    steplog.install(home=home, durability="process", interceptors=(), modes={"openai": {pattern: "safe"}})

    assert mode("openai", path) == expected
    assert mode("anthropic", path) == "unsafe"


def test_the_user_may_also_forbid_a_repetition(home):
    steplog.install(home=home, interceptors=(), modes={"openai": {"POST /v1/responses": "unsafe", "POST /**": "safe"}})

    assert mode("openai", "/v1/responses", {}) == "unsafe"
    assert mode("openai", "/v1/embeddings", {}) == mode("openai", "/v1/files") == "safe"


@pytest.mark.parametrize("modes", [None, {"openai": {"POST /v1/files": "safe"}}], ids=["unsafe", "said to be safe"])
def test_a_call_that_a_crash_left_open_is_made_again_only_where_the_user_allows_it(modes, home):
    import openai as sdk

    library = http_of(sdk)

    def killed(_request: Any) -> Any:
        raise KeyboardInterrupt

    steplog.install(home=home, durability="process", interceptors=(), modes=modes)
    dying = library.Client(transport=library.MockTransport(killed))
    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        openai_client("http://127.0.0.1:9", http_client=dying).files.create(file=("a.txt", b"abc"), purpose="batch")

    with LocalProvider(handler=answers({"id": "file-1", "object": "file"})) as provider:
        client = openai_client(provider.url)
        if modes is None:
            with pytest.raises(RunStopped) as stopped, steplog.run("r"):
                client.files.create(file=("a.txt", b"abc"), purpose="batch")
            assert isinstance(stopped.value.__cause__, Indeterminate)
            assert provider.hits == []
        else:
            with steplog.run("r"):
                assert client.files.create(file=("a.txt", b"abc"), purpose="batch").id == "file-1"
            assert len(provider.hits) == 1
