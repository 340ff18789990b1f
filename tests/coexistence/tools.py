"""The other tools: how each is put in and taken out, and how many spans of model calls it has emitted."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

_EXPORTED: list[Any] = []


class Tool(NamedTuple):
    """One tool.

    Attributes:
        module: what has to be installed for it.
        put_in: patches the SDKs.
        take_out: takes that back, or None where the tool cannot.
        spans: how many spans it has emitted so far, or None where it keeps them to itself.
    """

    module: str
    put_in: Callable[[], None]
    take_out: Callable[[], None] | None
    spans: Callable[[], int] | None


def _provider() -> Any:
    """A tracer provider that keeps every span in memory; one per process."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    if not _EXPORTED:
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        _EXPORTED.extend([exporter, provider])
    return _EXPORTED[1]


def _spans() -> int:
    return len(_EXPORTED[0].get_finished_spans()) if _EXPORTED else 0


def _instrumentor(*paths: str) -> Tool:
    """A tool in the shape of OpenTelemetry's instrumentors, one for each SDK."""
    made: list[Any] = []

    def put_in() -> None:
        for path in paths:
            module, _, name = path.rpartition(".")
            made.append(getattr(importlib.import_module(module), name)())
            made[-1].instrument(tracer_provider=_provider(), skip_dep_check=True)

    def take_out() -> None:
        while made:
            made.pop().uninstrument()

    return Tool(paths[0].rpartition(".")[0], put_in, take_out, _spans)


def _logfire(*, instances: bool) -> Tool:
    made: list[Any] = []

    def put_in() -> None:
        import logfire
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        _EXPORTED.append(InMemorySpanExporter())
        logfire.configure(
            send_to_logfire=False, console=False, additional_span_processors=[SimpleSpanProcessor(_EXPORTED[0])]
        )
        if not instances:
            made.extend([logfire.instrument_openai(), logfire.instrument_anthropic()])

    def take_out() -> None:
        while made:
            with made.pop():
                pass  # leaving it is what takes the tool out

    return Tool("logfire", put_in, take_out, _spans)


def _sentry() -> Tool:
    sent: list[Any] = []

    def put_in() -> None:
        import sentry_sdk

        os.environ.pop("SENTRY_DSN", None)
        sentry_sdk.init(traces_sample_rate=1.0, transport=sent.append)

    return Tool("sentry_sdk", put_in, None, None)


def _langfuse() -> Tool:
    def put_in() -> None:
        os.environ.update(
            LANGFUSE_PUBLIC_KEY="pk-lf-x", LANGFUSE_SECRET_KEY="sk-lf-x", LANGFUSE_TRACING_ENABLED="false"
        )
        importlib.import_module("langfuse.openai")

    return Tool("langfuse", put_in, None, None)


def _ddtrace() -> Tool:
    def put_in() -> None:
        os.environ.update(DD_TRACE_ENABLED="true", DD_INSTRUMENTATION_TELEMETRY_ENABLED="false", DD_TRACE_AGENT_URL="")
        import ddtrace

        ddtrace.patch(openai=True, anthropic=True)

    def take_out() -> None:
        from ddtrace.contrib.internal.anthropic.patch import unpatch as unpatch_anthropic
        from ddtrace.contrib.internal.openai.patch import unpatch

        unpatch()
        unpatch_anthropic()

    return Tool("ddtrace", put_in, take_out, None)


TOOLS: dict[str, Tool] = {
    "openinference": _instrumentor(
        "openinference.instrumentation.openai.OpenAIInstrumentor",
        "openinference.instrumentation.anthropic.AnthropicInstrumentor",
    ),
    "openllmetry": _instrumentor(
        "opentelemetry.instrumentation.openai.OpenAIInstrumentor",
        "opentelemetry.instrumentation.anthropic.AnthropicInstrumentor",
    ),
    "logfire": _logfire(instances=False),
    "logfire on clients": _logfire(instances=True),
    "sentry": _sentry(),
    "langfuse": _langfuse(),
    "ddtrace": _ddtrace(),
}
