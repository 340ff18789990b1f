"""SDKs of the same generator as those of OpenAI and Anthropic: groq, cerebras, together, and any other by one line.

    from steplog_interceptors import stainless
    stainless.register("groq")

or, in the package that provides an SDK, without any code:

    [project.entry-points."steplog.interceptors"]
    groq = "steplog_interceptors.stainless:groq"

A registered SDK has what openai and anthropic have: one step for a call with all its retries. Of an SDK that nobody
registered, each request is a step of its own.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, Final

from steplog_interceptors import _wire
from steplog_interceptors._install import SdkInterceptor
from steplog_interceptors._recognise import INFERENCE
from steplog_interceptors._sdk import Sdk

_ALSO_INFERENCE: Final = re.compile(INFERENCE.pattern + r"|/(?:generate|classify|score|tokenize)$", re.VERBOSE)

_lock: Final = threading.RLock()
_registered: Final[dict[str, SdkInterceptor]] = {}


class Registered:
    """All SDKs that are registered, installed and uninstalled together.

    Attributes:
        name: `stainless`.
    """

    name = "stainless"

    def __init__(self) -> None:
        self._installed = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the registered SDKs, for `install(ignore=...)` and `install(modes=...)`."""
        return tuple(_registered)

    @property
    def installed(self) -> bool:
        """Whether `install` has been called more recently than `uninstall`."""
        return self._installed

    def install(self) -> None:
        """Install every registered SDK, and from now on each that is registered. Idempotent."""
        with _lock:
            self._installed = True
            for one in _registered.values():
                one.install()

    def uninstall(self) -> None:
        """Take all of them out. Idempotent."""
        with _lock:
            self._installed = False
            for one in _registered.values():
                one.uninstall()


interceptor: Final = Registered()


def register(
    package: str,
    *,
    product: str = "",
    inference: re.Pattern[str] = _ALSO_INFERENCE,
    changes_state: Callable[[Any], bool] = lambda _body: False,
    minimum: tuple[int, int] = (0, 0),
) -> SdkInterceptor:
    """Record the calls of a generated SDK, before or after `install()`. Idempotent.

    Args:
        package: the SDK's package, in which `_base_client` lies, as in `groq` or `cerebras.cloud.sdk`.
        product: how it names itself in its user agent, in small letters; the package's first name by default.
        inference: matches the paths of POST requests that compute an answer and change nothing, so that they may be
            repeated after a crash; by default those of the known inference APIs. Other requests that are no GET are
            never repeated by themselves.
        changes_state: given the JSON body of a request that `inference` matches: whether it changes something after
            all.
        minimum: the lowest version (major, minor) that does not bring a warning.

    Returns:
        The interceptor, for an entry point.
    """
    with _lock:
        if package not in _registered:
            one = SdkInterceptor(Sdk(package, minimum, inference, changes_state))
            _wire.known[product or package.partition(".")[0]] = _wire.known[package]
            _registered[package] = one
            if interceptor.installed:
                one.install()
        return _registered[package]


def __getattr__(name: str) -> SdkInterceptor:
    """The interceptor of a package, for an entry point."""
    if name.startswith("_"):
        raise AttributeError(name)
    return register(name)


for _package in ("groq", "cerebras.cloud.sdk", "together"):
    register(_package)
