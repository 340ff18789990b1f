"""A model call reads as a conversation, in the shapes of both providers, whole or streamed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steplog._cli.chat import Message, answered, asked, parameters

CASSETTES = Path(__file__).parents[2] / "cassettes"


def cassette(name: str) -> tuple[dict, object]:
    exchange = json.loads((CASSETTES / f"{name}.json").read_text())
    return exchange["request"]["body"], exchange["response"]["body"]


def test_an_openai_conversation_with_tools():
    request, response = cassette("openai/runs/refund/02")
    system, user, call, result = asked(request)
    assert (system.role, user.role, call.role) == ("system", "user", "assistant")
    assert call.text.startswith('-> lookup_order({"order_id"')
    assert (result.role, json.loads(result.text)["item"]) == ("tool call_refund_01", "teapot")
    (answer,) = answered(response)
    assert answer.text.startswith("-> refund(")


def test_an_anthropic_conversation_with_tools():
    request, response = cassette("anthropic/runs/restock/02")
    system, user, calls, results = asked(request)
    assert system == Message("system", request["system"])
    assert user == Message("user", "Go through tea-7 and cup-2, please.")
    assert calls.text.splitlines()[1] == '-> check_stock({"sku": "tea-7"})  [toolu_restock_01a]'
    assert results.text.startswith("<- [toolu_restock_01a] {")
    (answer,) = answered(response)
    assert '-> restock({"sku": "tea-7", "quantity": 34})' in answer.text


def test_parameters_are_what_is_not_conversation():
    request, _ = cassette("anthropic/runs/restock/01")
    assert set(parameters(request)) == {"max_tokens", "model", "tools"}


@pytest.mark.parametrize(
    "name, words",
    [
        ("openai/chat/stream-usage", None),
        ("openai/responses/stream", None),
        ("anthropic/messages/stream-tool-call", "-> "),
    ],
)
def test_a_stream_is_put_together(name, words):
    _, events = cassette(name)
    said = "\n".join(message.text for message in answered(events))
    assert said
    assert "data:" not in said
    assert words is None or words in said


def test_every_recorded_answer_is_readable():
    for file in sorted(CASSETTES.rglob("*.json")):
        exchange = json.loads(file.read_text())
        for messages in (asked(exchange["request"]["body"]), answered(exchange["response"]["body"])):
            assert all(isinstance(message.text, str) for message in messages), file


KEYS = (
    "messages input system instructions role content tool_calls function name arguments id type text thinking tool_use "
    "tool_use_id tool_result choices message delta output response output_index index refusal tool_call_id call_id"
).split()
LEAVES = st.none() | st.booleans() | st.integers() | st.sampled_from([*KEYS, "assistant", "response.output_text.delta"])
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner))


@given(TREES)
def test_no_shape_is_too_strange_to_be_shown(tree):
    for body in (tree, f"data: {json.dumps(tree)}\n\ndata: {{"):
        for message in (*answered(body), *asked(body)):
            assert isinstance(message.text, str)


@pytest.mark.parametrize("body", [{}, {"choices": [7]}, {"output": []}, {"error": {"message": "no"}}, "no stream", 7])
def test_an_answer_that_is_not_understood_is_shown_as_it_is(body):
    (message,) = answered(body)
    assert message.role == "body"
    assert message.text == (body if isinstance(body, str) else json.dumps(body, indent=2))


def test_base64_is_shortened_and_text_never():
    text, data = "word " * 1000, "A" * 5000
    blocks = [{"type": "text", "text": text}, {"type": "image", "source": {"data": data}}]
    (message,) = asked({"messages": [{"role": "user", "content": blocks}]})
    assert text in message.text
    assert data not in message.text
    assert "5,000 characters" in message.text
