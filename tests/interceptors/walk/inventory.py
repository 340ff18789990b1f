"""What there is to walk: every method of every resource of an SDK, found by looking at a client.

Nothing here knows a version. Resources are the objects that a client's own properties give, and theirs; a method is a
public function of a resource's class. A method with a `stream` argument counts once for each way to call it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, Literal

import anthropic
import openai

from tests.interceptors.support import KEY

SDKS: Final[dict[str, ModuleType]] = {"openai": openai, "anthropic": anthropic}

COLOURS: Final = ("sync", "async")

# Other ways to reach the same methods, and what gives no resource.
_VIEWS: Final = frozenset({"with_raw_response", "with_streaming_response"})


@dataclass(frozen=True)
class Form:
    """One way to call a method.

    Attributes:
        label: `""`, or `"stream"` for the form that returns a stream of events.
        function: the function or overload that declares it.
    """

    label: Literal["", "stream"]
    function: Callable[..., Any]

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """Annotations of the parameters and of `return`."""
        return hints_of(self.function)


@dataclass(frozen=True)
class Method:
    """A public method of a resource.

    Attributes:
        sdk: `openai` or `anthropic`.
        resource: where the client keeps it, as in `beta.threads`.
        name: as in `create`.
        forms: ways to call it.
        colours: which clients have it; some helpers are asynchronous only.
    """

    sdk: str
    resource: str
    name: str
    forms: tuple[Form, ...]
    colours: tuple[str, ...] = COLOURS

    @property
    def path(self) -> str:
        """How a program reaches it, as in `files.create`."""
        return f"{self.resource}.{self.name}"

    def __str__(self) -> str:
        return f"{self.sdk}.{self.path}"


def client(sdk: str, url: str, *, asynchronous: bool = False, **options: Any) -> Any:
    """A client that tries once and has every credential that a method may ask for."""
    module = SDKS[sdk]
    names = {"openai": ("OpenAI", "AsyncOpenAI"), "anthropic": ("Anthropic", "AsyncAnthropic")}
    cls = getattr(module, names[sdk][asynchronous])
    known = inspect.signature(cls).parameters
    keys = {name: KEY for name in ("api_key", "admin_api_key", "auth_token", "webhook_secret") if name in known}
    if sdk == "anthropic":
        keys.pop("auth_token", None)  # the key and the token exclude each other
    base = url + ("/v1" if sdk == "openai" else "")
    http = module.DefaultAsyncHttpxClient if asynchronous else module.DefaultHttpxClient
    # Loading the certificates of the world takes longer than all that a client does here.
    return cls(base_url=base, **{"max_retries": 0, "http_client": http(verify=False), **keys, **options})


@functools.cache
def model_client(sdk: str, colour: str = "sync") -> Any:
    """A client to look at."""
    return client(sdk, "http://127.0.0.1:9", asynchronous=colour == "async")


@functools.cache
def methods(sdk: str) -> tuple[Method, ...]:
    """Every method of an SDK's clients, by resource and name."""
    found: dict[tuple[str, str], Method] = {}
    for colour in COLOURS:
        for resource, owner in _resources(model_client(sdk, colour)):
            for name, function in _functions(type(owner)):
                known = found.get((resource, name))
                forms, colours = (known.forms, known.colours) if known else (_forms(function), ())
                found[resource, name] = Method(sdk, resource, name, forms, (*colours, colour))
    return tuple(found[key] for key in sorted(found))


def resources(sdk: str) -> list[str]:
    """Names of the resources that have methods of their own."""
    return list(dict.fromkeys(method.resource for method in methods(sdk)))


def locate(opened: Any, resource: str) -> Any:
    """The resource of a client, or of one of its views."""
    return functools.reduce(getattr, resource.split("."), opened)


def _resources(opened: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in sorted(dir(type(opened))):
        if name.startswith("_") or name in _VIEWS:
            continue
        attribute = inspect.getattr_static(type(opened), name)
        if inspect.isfunction(attribute) or not hasattr(attribute, "__get__"):
            continue
        found = getattr(opened, name)
        if any(base.__name__ in ("SyncAPIResource", "AsyncAPIResource") for base in type(found).__mro__):
            yield prefix + name, found
            yield from _resources(found, f"{prefix}{name}.")


def _functions(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(cls):
        function = inspect.getattr_static(cls, name)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def _forms(function: Callable[..., Any]) -> tuple[Form, ...]:
    plain = inspect.unwrap(function)
    overloads = typing.get_overloads(plain) or [plain]
    forms: dict[str, Form] = {}
    for overload in overloads:
        form = Form("stream" if _streams(overload) else "", overload)
        forms.setdefault(form.label, form)
    return tuple(forms.values())


def _streams(function: Callable[..., Any]) -> bool:
    """Whether this overload is the one that must be called with `stream=True`."""
    return hints_of(function).get("stream") == Literal[True]


def hints_of(declared: Any) -> dict[str, Any]:
    """Annotations of a function or class, resolved; a name that only a type checker knows leaves its annotation out."""
    try:
        return typing.get_type_hints(declared, include_extras=True)
    except (NameError, TypeError):
        scope = vars(sys.modules[declared.__module__])
        return {
            name: value
            for name, text in declared.__annotations__.items()
            if (value := _evaluated(text, scope)) is not None
        }


def _evaluated(annotation: Any, scope: dict[str, Any]) -> Any:
    try:
        # The SDKs' own source text, which the interpreter would have evaluated without `from __future__`.
        return eval(annotation, scope) if isinstance(annotation, str) else annotation
    except (NameError, TypeError):
        return None
