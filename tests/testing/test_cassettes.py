"""Our own exchanges: in the shape of real ones, answered through the real SDKs, the same in both formats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pydantic
import pytest
import vcr
import yaml

from steplog.testing import LocalProvider
from tests.support.agents import (
    REFUND_ANSWER,
    REFUND_TOOLS,
    RESTOCK_ANSWER,
    RESTOCK_TOOLS,
    refund_agent,
    restock_agent,
)
from tests.support.recorded import OWN, SHARED, WHY_ABSENT, Recorded, recorded, runs
from tests.support.sdk_calls import assert_as_recorded, call

EXCHANGES = recorded(OWN)
BY_NAME = {exchange.name: exchange.tree for exchange in EXCHANGES}

# Below these keys the content is the program's own, not the provider's shape.
FREE_FORM = {"input", "metadata", "parameters", "schema", "input_schema"}


def test_the_set_is_complete():
    assert len(EXCHANGES) == 26


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
def test_exchange_goes_through_the_sdk(exchange: Recorded):
    with LocalProvider(OWN / "openai", OWN / "anthropic") as provider:
        outcomes = [call(exchange.tree, provider.url, asynchronous=a, raw=r) for a in (0, 1) for r in (0, 1)]

    assert provider.unmatched == []
    for outcome in outcomes:
        assert_as_recorded(outcome, exchange.tree)


@pytest.mark.skipif(not SHARED.is_dir(), reason=WHY_ABSENT)
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.name)
def test_every_object_has_the_fields_of_a_real_one(exchange: Recorded):
    real: dict[Any, set[frozenset[str]]] = {}
    for name in exchange.tree["source"]["shape_of"]:
        counterpart = json.loads((SHARED / f"{name}.json").read_bytes())
        for place, keys in objects(counterpart["response"]):
            real.setdefault(place, set()).add(keys)

    own = list(objects(exchange.tree["response"]))

    assert own
    assert [(place, sorted(keys)) for place, keys in own if keys not in real.get(place, ())] == []


def objects(response: dict[str, Any]) -> Iterator[tuple[tuple[str, str | None], frozenset[str]]]:
    """Yield the key set of every object, with its place and type."""
    if response["body_type"] == "json":
        yield from _objects(response["body"], "body")
    else:
        for line in response["body"].splitlines():
            if line.startswith("data:") and "[DONE]" not in line:
                yield from _objects(json.loads(line.removeprefix("data:")), "event")


def _objects(tree: Any, place: str) -> Iterator[tuple[tuple[str, str | None], frozenset[str]]]:
    if isinstance(tree, list):
        for item in tree:
            yield from _objects(item, f"{place}[]")
    elif isinstance(tree, dict):
        # An error's `type` is its kind; everywhere else it says which fields an object has.
        kind = tree.get("type") if not place.endswith("error") else None
        yield (place, kind), frozenset(tree)
        for key, item in tree.items():
            if key not in FREE_FORM:
                yield from _objects(item, f"{place}.{key}")


@pytest.mark.parametrize("run, turns", runs(OWN), ids=lambda value: value if isinstance(value, str) else "")
def test_each_request_of_a_run_continues_the_one_before(run: str, turns: list[Recorded]):
    requests = [turn.tree["request"]["body"] for turn in turns]
    answers = [turn.tree["response"]["body"] for turn in turns]

    assert len(turns) == 4
    for before, answer, after in zip(requests, answers, requests[1:], strict=False):
        known = len(before["messages"])
        said = answer["choices"][0]["message"] if "choices" in answer else answer
        assert after["messages"][:known] == before["messages"]
        assert after["messages"][known] == {key: said[key] for key in after["messages"][known]}
        assert {key: after[key] for key in after if key != "messages"} == {
            key: before[key] for key in before if key != "messages"
        }


def test_agents_find_their_turns_by_content():
    with LocalProvider(OWN / "openai", OWN / "anthropic") as provider:
        with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="test", max_retries=0) as client:
            assert refund_agent(client, REFUND_TOOLS) == REFUND_ANSWER
        with anthropic.Anthropic(base_url=provider.url, api_key="test", max_retries=0) as client:
            assert restock_agent(client, RESTOCK_TOOLS) == RESTOCK_ANSWER

        assert provider.unmatched == []
        assert len(provider.hits) == 8


def test_parse_builds_the_model_that_the_request_describes():
    class Triage(pydantic.BaseModel):
        team: str
        urgent: bool

    request = dict(BY_NAME["openai/chat/structured-output"]["request"]["body"], response_format=Triage)
    with (
        LocalProvider(OWN / "openai") as provider,
        openai.OpenAI(base_url=f"{provider.url}/v1", api_key="test") as client,
    ):
        parsed = client.chat.completions.parse(**request).choices[0].message.parsed

    assert parsed == Triage(team="facilities", urgent=True)


def test_stream_helpers_reach_their_final_object():
    with LocalProvider(OWN / "openai", OWN / "anthropic") as provider:
        request = dict(BY_NAME["openai/chat/stream-usage"]["request"]["body"])
        del request["stream"]
        with openai.OpenAI(base_url=f"{provider.url}/v1", api_key="test") as client:
            with client.chat.completions.stream(**request) as stream:
                completion = stream.get_final_completion()
        request = dict(BY_NAME["anthropic/messages/stream-tool-call"]["request"]["body"])
        del request["stream"]
        with anthropic.Anthropic(base_url=provider.url, api_key="test") as client:
            with client.messages.stream(**request) as stream:
                message = stream.get_final_message()

    assert completion.choices[0].message.content == "A log is a promise to a reader you will not meet."
    assert completion.usage.total_tokens == 29
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert message.content[1].input == {"harbour": "Brest"}


@pytest.mark.parametrize("file", ["openai/chat.yaml", "anthropic/messages.yaml"])
def test_vcr_cassette_says_the_same(file: str):
    interactions = yaml.safe_load((OWN / "vcr" / file).read_text())["interactions"]
    requests = {json.dumps(tree["request"]["body"], sort_keys=True): tree for tree in BY_NAME.values()}

    assert len(interactions) == 7
    for interaction in interactions:
        tree = requests[json.dumps(json.loads(interaction["request"]["body"]), sort_keys=True)]
        text = interaction["response"]["body"]["string"]
        assert interaction["request"]["uri"].endswith(tree["request"]["path"])
        assert interaction["response"]["status"]["code"] == tree["response"]["status"]
        assert {key: [value] for key, value in tree["response"]["headers"].items()} == interaction["response"][
            "headers"
        ]
        assert (text if tree["streaming"] else json.loads(text)) == tree["response"]["body"]


def test_openai_runs_through_vcr():
    with vcr.use_cassette(OWN / "vcr/openai/chat.yaml", **VCR) as cassette, openai.OpenAI(api_key="test") as client:
        plain = client.chat.completions.create(**BY_NAME["openai/chat/plain"]["request"]["body"])
        stream = client.chat.completions.create(**BY_NAME["openai/chat/stream-usage"]["request"]["body"])
        chunks = list(stream)
        with pytest.raises(openai.RateLimitError) as caught:
            client.with_options(max_retries=0).chat.completions.create(
                **BY_NAME["openai/errors/chat-429"]["request"]["body"]
            )

        assert plain.choices[0].message.content == "Tagus"
        assert len(chunks) == 16
        assert caught.value.response.headers["retry-after"] == "1"
        assert refund_agent(client, REFUND_TOOLS) == REFUND_ANSWER
        assert cassette.all_played


async def test_anthropic_runs_through_vcr():
    with vcr.use_cassette(OWN / "vcr/anthropic/messages.yaml", **VCR) as cassette:
        async with anthropic.AsyncAnthropic(api_key="test", max_retries=0) as client:
            plain = await client.messages.create(**BY_NAME["anthropic/messages/plain"]["request"]["body"])
            stream = await client.messages.create(**BY_NAME["anthropic/messages/stream-tool-call"]["request"]["body"])
            events = [event.type async for event in stream]
            with pytest.raises(anthropic.RateLimitError):
                await client.messages.create(**BY_NAME["anthropic/errors/messages-429"]["request"]["body"])
        with anthropic.Anthropic(api_key="test") as client:
            answer = restock_agent(client, RESTOCK_TOOLS)

        assert plain.content[0].text == "Petrichor."
        assert events[-1] == "message_stop"
        assert answer == RESTOCK_ANSWER
        assert cassette.all_played


VCR = {"record_mode": "none", "match_on": ("method", "scheme", "host", "port", "path", "query", "body")}
