"""Budgets of runs whose model calls are made with the real SDKs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import anthropic
import openai
import pytest

import steplog
from steplog._runtime import price_list
from steplog.errors import RunStopped
from steplog.testing import Fault, LocalProvider, Reply


def answer(hit):
    """An answer of few tokens, in the form of the API that was asked."""
    model = hit.json["model"]
    if hit.path.endswith("/messages"):
        usage = {"input_tokens": 20, "output_tokens": 5}
        body = {"id": "m", "type": "message", "role": "assistant", "model": model, "content": [], "usage": usage}
    else:
        usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
        said = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Done."}}
        body = {"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": [said], "usage": usage}
    return Reply.json(body)


@pytest.fixture(autouse=True)
def _installed():
    steplog.install()
    yield
    steplog.uninstall()


@pytest.fixture
def model():
    with LocalProvider(handler=answer) as server:
        yield server


@pytest.fixture
def streaming():
    piece = {"index": 0, "delta": {"content": "Done."}, "finish_reason": "stop"}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o", "choices": [piece]}
    with LocalProvider(handler=lambda _hit: Reply.sse([chunk, "[DONE]"])) as server:
        yield server


def openai_call(server, number, **more):
    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0) as client:
        asked = [{"role": "user", "content": f"number {number}"}]
        client.chat.completions.create(**{"model": "gpt-4o", "messages": asked, "max_tokens": 100, **more})


def anthropic_call(server, number):
    with anthropic.Anthropic(api_key="none", base_url=server.url, max_retries=0) as client:
        asked = [{"role": "user", "content": f"number {number}"}]
        client.messages.create(model="claude-opus-4-8", messages=asked, max_tokens=100)


def exceeded(body, **limits):
    with pytest.raises(RunStopped) as caught, steplog.run("r", budget=steplog.Budget(**limits)) as run:
        body(run)
    return caught.value.__cause__


@pytest.mark.parametrize("call", [openai_call, anthropic_call])
def test_what_a_call_did_not_use_is_given_back_when_its_answer_is_there(model, call):
    def body(_run):
        for number in range(50):
            call(model, number)

    stop = exceeded(body, max_tokens=500)

    made = len(model.hits)
    assert stop.used == 25 * made <= 500 < stop.used + stop.needs
    assert made >= 8  # twice as many as fit without giving back, at the least


def test_cost_is_kept_below_the_limit_and_its_prices_are_dated(model):
    pytest.importorskip("genai_prices")

    def body(run):
        for number in range(50):
            openai_call(model, number)
            used = run.state.controls.budget.usage
            assert used.nanos == (number + 1) * (20 * 2_500 + 5 * 10_000)

    stop = exceeded(body, max_cost="0.003")

    assert stop.limit == "max_cost"
    assert 5 < len(model.hits) < 30
    assert float(stop.used) <= 0.003 < float(stop.used) + float(stop.needs)
    with steplog.run("r", budget=steplog.Budget()) as run:
        known = run.state.controls.budget
        step = next(iter(run.state.steps.values()))
    assert known.prices.startswith("genai-prices ")
    assert step.started["judged"]["budget"]["priced"].startswith("20")
    assert step.finished["spent"] == {"tokens": 25, "nano_usd": 100_000}


def test_a_model_without_a_price_is_refused_where_cost_is_limited(model, monkeypatch):
    pytest.importorskip("genai_prices")
    stop = exceeded(lambda _run: openai_call(model, 1, model="no-such-model"), max_cost=5)

    assert "The price of no-such-model is not known" in str(stop)
    assert stop.commands == ("steplog resume r --budget max_cost=none",)
    assert not model.hits
    monkeypatch.setattr(price_list, "_library", lambda: None)
    with pytest.raises(steplog.InvalidArgument, match="no price list is installed"):
        steplog.run("s", budget=steplog.Budget(max_cost=5)).__enter__()


def test_a_call_without_a_cap_is_bounded_by_its_model_and_told_what_to_set(model):
    pytest.importorskip("genai_prices")

    stop = exceeded(lambda _run: openai_call(model, 1, model="gpt-4", max_tokens=openai.omit), max_tokens=1_000)

    assert 2 * 8_192 < stop.needs < 2 * 8_192 + 500
    assert "16,384 tokens are set aside for it. Set max_completion_tokens in the request" in str(stop)
    assert not model.hits


def test_a_refusal_of_the_provider_costs_nothing_and_a_stream_without_usage_all_that_was_set_aside(streaming):
    with steplog.run("r", budget=steplog.Budget(max_tokens=900)) as run:
        with LocalProvider() as silent, pytest.raises(openai.NotFoundError):
            openai_call(silent, 1)
        assert run.state.controls.budget.usage.tokens == 0
        with openai.OpenAI(api_key="none", base_url=f"{streaming.url}/v1", max_retries=0) as client:
            asked = [{"role": "user", "content": "hi"}]
            list(client.chat.completions.create(model="gpt-4o", messages=asked, max_tokens=100, stream=True))
        assert run.state.controls.budget.usage.tokens > 200


def started(hit):
    """A stream of the anthropic API, which tells at its beginning what it has counted so far."""
    usage = {"input_tokens": 20, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": hit.json["model"], "content": []}
    said = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Done."}}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 90}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    first = {"type": "message_start", "message": {**message, "usage": usage}}
    events = [first, block, said, said, {"type": "content_block_stop", "index": 0}, end, {"type": "message_stop"}]
    lines = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
    return Reply(200, {"content-type": "text/event-stream"}, lines.encode(), streamed=True)


@pytest.mark.parametrize("how", ["whole", "left", "dropped"])
def test_a_stream_that_breaks_off_counts_with_all_that_was_set_aside(how):
    with (
        LocalProvider(handler=started) as server,
        steplog.run("r", budget=steplog.Budget(max_tokens=900)) as run,
        anthropic.Anthropic(api_key="none", base_url=server.url, max_retries=0) as client,
    ):
        if how == "dropped":
            server.inject(Fault("drop", after=3))
        asked = [{"role": "user", "content": "hi"}]
        with client.messages.create(model="claude-opus-4-8", messages=asked, max_tokens=100, stream=True) as stream:
            if how == "left":
                next(iter(stream))
            else:
                with pytest.raises(Exception, match="closed") if how == "dropped" else contextlib.nullcontext():
                    list(stream)
        used = run.state.controls.budget.usage.tokens

    assert used == 110 if how == "whole" else used > 200


@pytest.mark.parametrize("counts", [(-500, 5), (2**62, 2**62), (True, 1)])
def test_an_impossible_count_is_no_count(counts):
    def absurd(hit):
        tree = json.loads(answer(hit).body)
        tree["usage"] = dict(zip(("prompt_tokens", "completion_tokens"), counts, strict=True))
        return Reply.json(tree)

    with LocalProvider(handler=absurd) as server, steplog.run("r", budget=steplog.Budget(max_tokens=900)) as run:
        openai_call(server, 1)
        assert 200 < run.state.controls.budget.usage.tokens < 400


@pytest.mark.parametrize("how", ["sync", "async"])
def test_the_time_that_is_left_is_the_timeout_of_the_next_call(how):
    asked = {"model": "gpt-4o", "messages": [], "max_tokens": 9}

    async def in_task(server):
        async with (
            openai.AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1") as client,
            steplog.run("r", budget=steplog.Budget(deadline=0.3)),
        ):
            await client.chat.completions.create(**asked)

    with LocalProvider(handler=answer, delay=1) as server:
        began = time.monotonic()
        with pytest.raises(RunStopped, match="deadline") as caught:
            if how == "async":
                asyncio.run(in_task(server))
            else:
                with steplog.run("r", budget=steplog.Budget(deadline=0.3)):
                    openai_call(server, 1)
        took = time.monotonic() - began
        hits = len(server.hits)
    assert caught.value.__cause__.limit == "deadline"
    assert (hits, took < 0.95) == (1, True)
    # The failure came of the budget alone, so it is no outcome: with more time the call is made again.
    with LocalProvider(handler=answer) as server:
        if how == "async":
            return
        with steplog.run("r", budget=steplog.Budget(deadline=60)):
            openai_call(server, 1)
        assert len(server.hits) == 1
