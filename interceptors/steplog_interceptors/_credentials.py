"""Credentials are fetched when a request is really sent, and not when its answer is in the log.

The SDKs ask for a token, or sign, while they build a request: before anybody can know whether the call is replayed,
because that shows on the finished request alone. So inside a run these hooks are put off until `send`, where the log is
asked first. A replayed call runs none of them: no identity provider is asked, no cloud library is loaded.

    a hook that returns a token     the request is built with a placeholder in its place
    a hook that signs the request   runs on the finished request, as if nothing had been added to it since

What a hook raises, when it runs in the end, reaches the caller as the SDK would have raised it, and is recorded as the
failure of the call.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from steplog import plugins
from steplog.plugins import Patch, Patches, Wrapper
from steplog_interceptors._call import LogicalCall, current

Hooks = dict[str, Callable[[ModuleType], None]]

_numbers: Final = itertools.count(1)


class PutOff:
    """A hook of an SDK that waits until its result is needed.

    Args:
        original: the hook.
        client: the object whose method it is.
        args: its other arguments.
    """

    # Whether the SDK runs it where it also sends, and takes what it raises for a failure to send.
    sends = False

    def __init__(self, original: Callable[..., Any], client: Any, args: tuple[Any, ...]) -> None:
        self.original = original
        self.client = client
        self.args = args

    def run(self, request: Any) -> Any:
        """Run the hook for the request that is about to be sent; what it returns may have to be awaited."""
        raise NotImplementedError

    def apply(self, result: Any, request: Any, call: LogicalCall) -> None:
        """Bring the request into the state in which the hook would have left it."""


class Token(PutOff):
    """A hook that returns a token.

    Attributes:
        placeholder: what it returned for the time being.
    """

    def __init__(self, original: Callable[..., Any], client: Any, args: tuple[Any, ...]) -> None:
        super().__init__(original, client, args)
        self.placeholder = f"steplog-token-to-be-fetched-{next(_numbers)}"

    def run(self, _request: Any) -> Any:
        """Fetch the token."""
        return self.original(self.client, *self.args)

    def apply(self, result: Any, request: Any, call: LogicalCall) -> None:
        """Put it where the placeholder stands."""
        call.tokens[self.placeholder] = result
        held = [(name, value) for name, value in request.headers.multi_items() if self.placeholder in value]
        for name, value in held:
            if result:
                request.headers[name] = value.replace(self.placeholder, result)
            else:
                del request.headers[name]
        if result and not held and not _is_own(self.client, call):
            # openai 2 ignores what the hook returns and builds the header from an attribute that the hook has set.
            request.headers["authorization"] = f"Bearer {result}"
            call.deferred = None
        elif not result and hasattr(self.client, "_validate_headers"):
            self.client._validate_headers({}, {})  # noqa: SLF001  # says what the SDK says about a missing key


def _is_own(client: Any, call: LogicalCall) -> bool:
    """Whether the program gave this client or call an authorization of its own (or the wish for none)."""
    given = (getattr(client, "_custom_headers", None), getattr(call.origin[1], "headers", None))
    named = [name.lower() for headers in given if isinstance(headers, Mapping) for name in headers]
    return "authorization" in named or not hasattr(client, "_custom_headers")


class Key(Token):
    """A callable key of openai; the hook of the first releases only sets an attribute, and returns nothing."""

    def apply(self, result: Any, request: Any, call: LogicalCall) -> None:
        """Put it where the placeholder stands, or where the SDK would have put it."""
        super().apply(self.client.api_key if result is None else result, request, call)


class ExchangedToken(Token):
    """A token that openai fetches on the way to `send`."""

    sends = True


class Signature(PutOff):
    """A hook that signs a request, or gives it a token by itself."""

    def __init__(self, original: Callable[..., Any], client: Any, args: tuple[Any, ...]) -> None:
        super().__init__(original, client, args)
        self._before = dict(args[0].headers)
        self._later: dict[str, str | None] = {}

    def run(self, request: Any) -> Any:
        """Sign the request with the headers that it had when the SDK asked for it."""
        now = dict(request.headers)
        self._later = {name: now.get(name) for name in self._before | now if now.get(name) != self._before.get(name)}
        for name in self._later:
            _set(request.headers, name, self._before.get(name))
        return self.original(self.client, request)

    def apply(self, _result: Any, request: Any, _call: LogicalCall) -> None:
        """Put back what was added or changed since, such as trace context, which proxies may rewrite."""
        for name, value in self._later.items():
            _set(request.headers, name, value)


def _set(headers: Any, name: str, value: str | None) -> None:
    if value is not None:
        headers[name] = value
    elif name in headers:
        del headers[name]


def wanted(call: LogicalCall, effect: plugins.Call) -> bool:
    """Whether to run the hooks of a call before it is submitted."""
    if not call.put_off:
        return False
    recorded = plugins.foresee(effect)
    # Steps that a hook has asked for are asked for again, or the run would miss them.
    return recorded is None or recorded.get("credentials") == "steps"


def authenticate(call: LogicalCall, request: Any) -> None:
    """Run the hooks that were put off. What one raises is kept: it counts only if the call is not replayed."""
    for late in _each(call):
        with _running(call, late):
            late.apply(late.run(request), request, call)


async def authenticate_async(call: LogicalCall, request: Any) -> None:
    """The same for a task."""
    for late in _each(call):
        with _running(call, late):
            result = late.run(request)
            late.apply(await result if inspect.isawaitable(result) else result, request, call)


def _each(call: LogicalCall) -> Iterator[PutOff]:
    while call.put_off:
        yield call.put_off.pop(0)


@contextmanager
def _running(call: LogicalCall, late: PutOff) -> Iterator[None]:
    before = plugins.asked()
    call.authenticating = True
    try:
        yield
    except Exception as error:  # noqa: BLE001 - it is raised where the request would be sent
        plugins.conceal(error, _quoted(error))
        call.deferred, call.deferred_sends = error, late.sends
        call.put_off.clear()
    finally:
        call.authenticating = False
        call.asked_inside = call.asked_inside or plugins.asked() != before


_WORD: Final = re.compile(r"[\w+/~-]{12,}={0,2}", re.ASCII)
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def _may_be_credential(word: str) -> bool:
    """Whether a word has letters and digits and is no id in the form of a UUID."""
    return not word.isdigit() and any(map(str.isdigit, word)) and _UUID.fullmatch(word) is None


def _quoted(error: BaseException) -> list[str]:
    """What may be credentials in an error of somebody who was asked for one, and in what it was raised from.

    No rule knows what the grants and assertions of an identity provider look like, and its errors like to quote them.
    So whatever is not plainly a word, a number or an id counts.
    """
    found: set[str] = set()
    seen: list[BaseException] = []
    queue: list[BaseException | None] = [error]
    while queue:
        current = queue.pop()
        if current is not None and current not in seen:
            seen.append(current)
            found.update(filter(_may_be_credential, _WORD.findall(str(current))))
            queue += [current.__cause__, current.__context__]
    return sorted(found, key=len, reverse=True)


def _open_call(patch: Patch) -> LogicalCall | None:
    """The call whose credentials are wanted, where it is not known yet, or known to be replayed."""
    call = current() if patch.on else None
    if call is None or call.passing or call.authenticating:
        return None
    if call.undecided:
        return call if plugins.active() else None
    return call if call.replaying else None


def _token(needed: Callable[[Any], bool], kind: type[Token] = Token) -> Wrapper:
    """Put off a hook that returns a token, for clients that have to fetch it."""

    def wrap(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        def begin(self: Any, args: tuple[Any, ...]) -> str | None:
            call = _open_call(patch) if needed(self) else None
            if call is None:
                return None
            late = kind(original, self, args)
            if call.undecided:
                call.put_off.append(late)
            return late.placeholder

        def hook(self: Any, *args: Any) -> Any:
            return begin(self, args) or original(self, *args)

        async def hook_async(self: Any, *args: Any) -> Any:
            return begin(self, args) or await original(self, *args)

        return hook_async if inspect.iscoroutinefunction(original) else hook

    return wrap


def _signature(needed: Callable[[Any], bool]) -> Wrapper:
    """Put off a hook that signs the request."""

    def wrap(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
        def begin(self: Any, request: Any) -> bool:
            call = _open_call(patch) if needed(self) else None
            if call is not None and call.undecided:
                call.put_off.append(Signature(original, self, (request,)))
            return call is not None

        def hook(self: Any, request: Any) -> Any:
            return None if begin(self, request) else original(self, request)

        async def hook_async(self: Any, request: Any) -> Any:
            return None if begin(self, request) else await original(self, request)

        return hook_async if inspect.iscoroutinefunction(original) else hook

    return wrap


def _held_back(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    """Run a hook whose token is checked before `send`, but keep its failure back until the token is needed."""

    def hook(self: Any, request: Any) -> Any:
        try:
            return original(self, request)
        except Exception as error:  # noqa: BLE001 - it is raised where the token is needed, or at once
            return _hold(patch, error)

    async def hook_async(self: Any, request: Any) -> Any:
        try:
            return await original(self, request)
        except Exception as error:  # noqa: BLE001 - it is raised where the token is needed, or at once
            return _hold(patch, error)

    return hook_async if inspect.iscoroutinefunction(original) else hook


def _hold(patch: Patch, error: Exception) -> str:
    call = _open_call(patch)
    if call is None:
        raise error
    call.deferred = error
    return "steplog-token-that-could-not-be-fetched"


def _invalidate(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
    """A refused token is forgotten by the name under which the SDK knows it."""

    def invalidate_token(self: Any, token: str | None = None, *args: Any) -> Any:
        call = current() if patch.on else None
        if token is None:
            return original(self, *args)
        return original(self, token if call is None else call.tokens.get(token, token), *args)

    return invalidate_token


def _always(_client: Any) -> bool:
    return True


def _has_key_callable(client: Any) -> bool:
    return getattr(client, "_api_key_provider", None) is not None


def _has_token_callable(client: Any) -> bool:
    fixed = getattr(client, "_azure_ad_token", None)
    return fixed is None and getattr(client, "_azure_ad_token_provider", None) is not None


def _has_provider(client: Any) -> bool:
    return getattr(client, "_provider_runtime", None) is not None


def _is_exchanged(auth: Any) -> bool:
    # An X.509 identity checks the header again on its way to `send`, where a placeholder would not pass.
    return not hasattr(auth, "send_api_request")


# By module: classes, and their hooks with what is done about each. What a release of an SDK does not have is left out.
_Table = dict[str, list[tuple[tuple[str, ...], dict[str, Wrapper]]]]

_SIGNED: Final[dict[str, Wrapper]] = {"_prepare_request": _signature(_always)}
_AZURE: Final[dict[str, Wrapper]] = {"_get_azure_ad_token": _token(_has_token_callable)}
_KEY: Final[dict[str, Wrapper]] = {
    "_refresh_api_key": _token(_has_key_callable, Key),
    "_prepare_request": _signature(_has_provider),
}
_EXCHANGE: Final[dict[str, Wrapper]] = {
    "get_token": _token(_is_exchanged, ExchangedToken),
    "get_token_async": _token(_is_exchanged, ExchangedToken),
    "invalidate_token": _invalidate,
}
_X509: Final[dict[str, Wrapper]] = {"get_token_for_request": _held_back}

_GOOGLE: Final[dict[str, Wrapper]] = {"_access_token": _token(_always), "_async_access_token": _token(_always)}

_HOOKS: Final[dict[str, _Table]] = {
    "google-genai": {"google.genai._api_client": [(("BaseApiClient",), _GOOGLE)]},
    "openai": {
        "openai._client": [(("OpenAI", "AsyncOpenAI"), _KEY)],
        "openai.lib.azure": [(("AzureOpenAI", "AsyncAzureOpenAI"), _AZURE)],
        "openai.auth._workload": [(("_WorkloadIdentityAuth", "WorkloadIdentityAuth"), _EXCHANGE)],
        "openai.auth._x509": [(("SyncX509WorkloadIdentityAuth", "AsyncX509WorkloadIdentityAuth"), _X509)],
    },
    "anthropic": {
        "anthropic.lib.bedrock._client": [(("AnthropicBedrock", "AsyncAnthropicBedrock"), _SIGNED)],
        "anthropic.lib.bedrock._mantle": [(("AnthropicBedrockMantle", "AsyncAnthropicBedrockMantle"), _SIGNED)],
        "anthropic.lib.aws._client": [(("AnthropicAWS", "AsyncAnthropicAWS"), _SIGNED)],
        "anthropic.lib.vertex._client": [(("AnthropicVertex", "AsyncAnthropicVertex"), _SIGNED)],
        "anthropic.lib.google_cloud._client": [(("AnthropicGoogleCloud", "AsyncAnthropicGoogleCloud"), _SIGNED)],
        "anthropic.lib.foundry": [(("AnthropicFoundry", "AsyncAnthropicFoundry"), _AZURE)],
    },
}


def hooks(patches: Patches, sdk: str) -> Hooks:
    """What to do when the modules of an SDK that hold credential hooks are imported."""

    def of(table: list[tuple[tuple[str, ...], dict[str, Wrapper]]]) -> Callable[[ModuleType], None]:
        def apply(module: ModuleType) -> None:
            for owner, found in ((getattr(module, name, None), found) for names, found in table for name in names):
                for method, wrapper in found.items():
                    if isinstance(owner, type) and method in vars(owner):
                        patches.apply(owner, method, wrapper)

        return apply

    return {module: of(table) for module, table in _HOOKS.get(sdk, {}).items()}
