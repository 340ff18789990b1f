"""The interceptors that ship, against the contract that ships."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from steplog.testing import InterceptorContract
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import chat, chat_events, message, message_events
from tests.support.sdk_calls import describe

_HTTP = ("httpx", "httpx2")


class TestOpenAI(InterceptorContract):
    interceptor = "steplog_interceptors.openai:interceptor"
    sdk = "openai"
    packages = ("openai", *_HTTP)

    def client(self, url: str, key: str, *, asynchronous: bool) -> Any:
        cls = openai.AsyncOpenAI if asynchronous else openai.OpenAI
        return cls(base_url=url + "/v1", api_key=key, max_retries=0)

    def call(self, client: Any, text: str) -> Any:
        return client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": text}])

    def write(self, client: Any, text: str) -> Any:
        return client.conversations.create(metadata={"topic": text})

    def stream(self, client: Any, text: str) -> Any:
        messages = [{"role": "user", "content": text}]
        return client.chat.completions.create(model="gpt-x", messages=messages, stream=True)

    def answer(self, hit: Hit) -> Reply:
        if hit.path.endswith("/conversations"):
            return Reply.json({"id": "conv_1", "object": "conversation", "created_at": 1, **hit.json})
        text = "echo " + hit.json["messages"][0]["content"]
        return Reply.sse(chat_events(*text.split())) if hit.json.get("stream") else Reply.json(chat(text))

    def facts(self, value: Any) -> Any:
        return describe(value)


class TestAnthropic(InterceptorContract):
    interceptor = "steplog_interceptors.anthropic:interceptor"
    sdk = "anthropic"
    packages = ("anthropic", *_HTTP)

    def client(self, url: str, key: str, *, asynchronous: bool) -> Any:
        cls = anthropic.AsyncAnthropic if asynchronous else anthropic.Anthropic
        return cls(base_url=url, api_key=key, max_retries=0)

    def call(self, client: Any, text: str) -> Any:
        return client.messages.create(model="claude-x", max_tokens=9, messages=[{"role": "user", "content": text}])

    def write(self, client: Any, text: str) -> Any:
        return client.messages.batches.cancel("msgbatch_" + text)

    def stream(self, client: Any, text: str) -> Any:
        messages = [{"role": "user", "content": text}]
        return client.messages.create(model="claude-x", max_tokens=9, messages=messages, stream=True)

    def answer(self, hit: Hit) -> Reply:
        if "/batches/" in hit.path:
            batch = hit.path.split("/")[-2]
            return Reply.json({"id": batch, "type": "message_batch", "processing_status": "canceling"})
        text = "echo " + hit.json["messages"][0]["content"]
        return Reply.sse(message_events(*text.split())) if hit.json.get("stream") else Reply.json(message(text))

    def facts(self, value: Any) -> Any:
        return describe(value)


class TestGroq(InterceptorContract):
    interceptor = "steplog_interceptors.stainless:groq"
    sdk = "groq"
    packages = ("groq", *_HTTP)

    def client(self, url: str, key: str, *, asynchronous: bool) -> Any:
        groq = pytest.importorskip("groq", reason="the groq SDK is not installed")
        return (groq.AsyncGroq if asynchronous else groq.Groq)(base_url=url, api_key=key, max_retries=0)

    def call(self, client: Any, text: str) -> Any:
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])

    def write(self, client: Any, text: str) -> Any:
        return client.batches.create(completion_window="24h", endpoint="/v1/chat/completions", input_file_id=text)

    def stream(self, client: Any, text: str) -> Any:
        return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], stream=True)

    def answer(self, hit: Hit) -> Reply:
        if hit.path.endswith("/batches"):
            return Reply.json({"id": "batch_1", "object": "batch", **hit.json})
        text = "echo " + hit.json["messages"][0]["content"]
        return Reply.sse(chat_events(*text.split())) if hit.json.get("stream") else Reply.json(chat(text))

    def facts(self, value: Any) -> Any:
        return describe(value)
