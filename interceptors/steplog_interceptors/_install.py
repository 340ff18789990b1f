"""What the interceptors of all SDKs have in common: putting themselves in, and taking themselves out."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Final

from steplog import plugins
from steplog.plugins import Patches
from steplog_interceptors import _codecs, _credentials, _raised, _scope, _websocket, _wire
from steplog_interceptors._sdk import Sdk

Hooks = dict[str, Callable[[ModuleType], None]]


class _Shared:
    """The wire: put in with the first interceptor that needs it, taken out with the last."""

    def __init__(self) -> None:
        self.patches: Final = Patches()
        self._lock = threading.Lock()
        self._users: set[str] = set()

    def acquire(self, user: str) -> None:
        with self._lock:
            self._users.add(user)
            self.patches.install(both(_wire.hooks(self.patches), _codecs.hooks()))

    def release(self, user: str) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self.patches.uninstall()


SHARED: Final = _Shared()


class SdkInterceptor:
    """Turns the calls of one generated SDK into steps.

    Attributes:
        name: the SDK's package.
        honours: settings that may name it.
        credentials: variables in which the SDK looks for a key when it makes a client.
    """

    honours = ("ignore", "modes")

    def __init__(self, sdk: Sdk, *credentials: str) -> None:
        self.name = sdk.name
        self.credentials = credentials or (f"{sdk.name.partition('.')[0].upper()}_API_KEY",)
        self._sdk = sdk
        self._patches = Patches()
        _wire.known[sdk.name] = sdk

    def install(self) -> None:
        """Patch the SDK and the HTTP libraries, now or when they are imported. Idempotent."""
        SHARED.acquire(self.name)
        hooks: Hooks = _scope.hooks(self._patches, self._sdk) | {self.name: self._check_version}
        for part in (_credentials, _raised, _websocket):
            hooks = both(hooks, part.hooks(self._patches, self.name))
        self._patches.install(hooks)

    def uninstall(self) -> None:
        """Take back what is still ours. Idempotent."""
        self._patches.uninstall()
        SHARED.release(self.name)

    def _check_version(self, module: ModuleType) -> None:
        version = str(getattr(module, "__version__", ""))
        advice = unsupported(self._sdk, version)
        if advice is not None:
            plugins.log.warning("%s", advice)


def unsupported(sdk: Sdk, version: str) -> str | None:
    """What to tell about a version of an SDK that is outside the tested range, or None for one that is inside it."""
    found = tuple(map(int, re.findall(r"\d+", version)[:3]))
    lowest = ".".join(map(str, sdk.minimum))
    range_ = f"{sdk.name} {lowest}" + (" and newer" if sdk.newest is None else f" to {sdk.newest}.x")
    this = f"this is {version or 'of an unknown version'}"
    if found < sdk.minimum:
        return (
            f"steplog is tested with {range_}; {this}, which is older. Its calls are recorded as far as it resembles "
            f"{lowest}. For calls that are tested: pip install -U '{sdk.name}>={lowest}'"
        )
    if sdk.newest is not None and found[0] > sdk.newest:
        return (
            f"steplog is tested with {range_}; {this}, which is newer than this release of steplog knows. Its calls "
            f"are recorded as far as it resembles {sdk.newest}.x; steplog.install(strict=True) makes a call that would "
            f"escape an error. For calls that are tested: pip install -U steplog, or pip install "
            f"'{sdk.name}<{sdk.newest + 1}'"
        )
    return None


def both(one: Hooks, other: Hooks) -> Hooks:
    """Hooks of two tables; a module that is in both runs both."""

    def chained(name: str) -> Callable[[ModuleType], None]:
        def run(module: ModuleType) -> None:
            one[name](module)
            other[name](module)

        return run

    return one | other | {name: chained(name) for name in one.keys() & other.keys()}
