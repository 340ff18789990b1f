"""A model call that the policy denies reaches the agent as what it is, past the SDK, and nothing is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import steplog
from steplog import Rule
from steplog.testing import LocalProvider
from steplog.testing.provider import Reply
from tests.interceptors.support import anthropic_client, chat, openai_client

ASK = {"messages": [{"role": "user", "content": "hi"}]}
RULES = [
    Rule(id="no-big", action="deny", kind="llm_call", when="args.model.startsWith('big')", reason="Use a small model."),
    Rule(id="no-stream", action="deny", kind="llm_call", when="has(args.stream) && args.stream"),
]


@pytest.fixture
def provider(tmp_path: Path):
    steplog.install(home=tmp_path / "home")
    with LocalProvider(handler=lambda _hit: Reply.json(chat("hello"))) as provider:
        yield provider
    steplog.uninstall()


def by_openai(provider, model, **more):
    return openai_client(provider.url).chat.completions.create(model=model, **ASK, **more).choices[0].message.content


def by_anthropic(provider, model, **more):
    return anthropic_client(provider.url).messages.create(model=model, max_tokens=9, **ASK, **more)


@pytest.mark.parametrize("call", [by_openai, by_anthropic])
def test_a_denied_model_call_raises_the_denial_past_the_sdk(provider, call):
    for _ in range(2):  # live, and out of the log
        with steplog.run("r1", policy=RULES):
            with pytest.raises(steplog.StepDenied, match="Use a small model") as denied:
                call(provider, "big-1")
            assert (type(denied.value), denied.value.rule) == (steplog.StepDenied, "no-big")
            with pytest.raises(steplog.StepDenied):
                call(provider, "small", stream=True)
    assert provider.hits == []


def test_the_agent_falls_back_and_gets_the_same_answers_again(provider):
    def agent():
        try:
            return by_openai(provider, "big-1")
        except steplog.StepDenied:
            return by_openai(provider, "small")

    for _ in range(2):
        with steplog.run("r1", policy=RULES):
            assert agent() == "hello"
    assert len(provider.hits) == 1


def test_tasks_get_their_own_denials(provider):
    import openai

    async def main():
        url = f"{provider.url}/v1"
        async with (
            openai.AsyncOpenAI(api_key="sk-test-0123456789abcdef", base_url=url) as client,
            steplog.run("r1", policy=RULES),
        ):
            calls = (client.chat.completions.create(model=model, **ASK) for model in ("big-1", "small", "big-2"))
            return await asyncio.gather(*calls, return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert second.choices[0].message.content == "hello"
    assert [type(first), type(third)] == [steplog.StepDenied] * 2
    assert len(provider.hits) == 1
