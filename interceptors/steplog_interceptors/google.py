"""The google-genai SDK: the Gemini API and Vertex AI.

`_request` of its base client is one logical call with all its retries, and so is the transfer of a file. Its
asynchronous client prefers aiohttp where that is installed; inside a run it uses the httpx client that it has as well,
which can be recorded. A program's own `aiohttp_client` cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from steplog import plugins
from steplog.errors import NotInRun
from steplog.plugins import Patch, Patches
from steplog_interceptors import _credentials, _scope, _wire
from steplog_interceptors._call import current
from steplog_interceptors._install import SHARED, both
from steplog_interceptors._sdk import Sdk

# Requests that compute an answer and leave nothing behind that a second one would repeat.
_INFERENCE: Final = re.compile(
    r":(?:generateContent|streamGenerateContent|embedContent|batchEmbedContents|countTokens|computeTokens|predict)$"
)


class _Google(Sdk):
    """What differs from the generated SDKs: the mark, and the parts of a file, which carry none."""

    def owns(self, request: Any) -> bool:
        """Whether a request is one of this SDK's own."""
        return super().owns(request) or "x-goog-upload-command" in request.headers


SDK: Final = _Google("google-genai", (2, 0), _INFERENCE, mark=("x-goog-api-client", "google-genai-sdk/"))

_MODULE: Final = "google.genai._api_client"


class GoogleInterceptor:
    """Turns the calls of google-genai into steps.

    Attributes:
        name: `google-genai`.
        honours: settings that may name it.
        credentials: the variable in which the SDK looks for a key when it makes a client.
    """

    name = "google-genai"
    honours = ("ignore", "modes")
    credentials = ("GOOGLE_API_KEY",)

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Patch the SDK and the HTTP libraries, now or when they are imported. Idempotent."""
        SHARED.acquire(self.name)
        if SDK not in _wire.marked:
            _wire.marked.append(SDK)
        self._patches.install(both({_MODULE: self._apply}, _credentials.hooks(self._patches, self.name)))

    def uninstall(self) -> None:
        """Take back what is still ours. Idempotent."""
        self._patches.uninstall()
        if SDK in _wire.marked:
            _wire.marked.remove(SDK)
        SHARED.release(self.name)

    def _apply(self, module: ModuleType) -> None:
        client = module.BaseApiClient
        for name in ("_request", "_upload_fd", "download_file"):
            self._patches.apply(client, name, _scope.sync_scope(SDK))
        for name in ("_async_request", "_async_upload_fd", "async_download_file"):
            self._patches.apply(client, name, _scope.async_scope(SDK))
        self._patches.apply(client, "_use_aiohttp", _without_aiohttp)
        self._patches.apply(client, "_request_once", _without_pauses("_retry"))
        self._patches.apply(client, "_async_request_once", _without_pauses("_async_retry"))
        module_itself: Any = module
        self._patches.apply(module_itself, "retry_args", _pausing)


def _without_aiohttp(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    def _use_aiohttp(self: Any) -> bool:
        wanted: bool = original(self)
        call = current() if wanted and patch.on else None
        if call is None or call.passing or not plugins.active():
            return wanted
        if getattr(self, "_async_httpx_client", None) is None or self._http_options.aiohttp_client is not None:
            raise NotInRun(
                "A call of google-genai inside a run goes through aiohttp, which steplog cannot record: a resumed run "
                "would make it again. It was not sent.\n"
                "Leave `aiohttp_client` out of the client's http_options, or give it `httpx_async_client`."
            )
        return False

    return _use_aiohttp


def _without_pauses(attribute: str) -> Any:
    """The pauses of a client that was made before `install()`; those of later ones come out of `retry_args`."""

    def wrap(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        def request_once(self: Any, *args: Any, **kwargs: Any) -> Any:
            retrying = getattr(self, attribute, None)
            if patch.on and retrying is not None and not isinstance(retrying.wait, _Wait):
                retrying.wait = _Wait(retrying.wait)
            return original(self, *args, **kwargs)

        async def request_once_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await request_once(self, *args, **kwargs)

        return request_once_async if attribute.startswith("_async") else request_once

    return wrap


def _pausing(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    def retry_args(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if patch.on and "wait" in found:
            found["wait"] = _Wait(found["wait"])
        return found

    return retry_args


class _Wait:
    """How long to pause between two attempts: not at all where both come from the log."""

    def __init__(self, original: Callable[[Any], float]) -> None:
        self._original = original

    def __call__(self, state: Any) -> float:
        return 0.0 if _scope.is_replay() else self._original(state)


interceptor: Final = GoogleInterceptor()
