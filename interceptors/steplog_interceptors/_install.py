"""What the interceptors of all SDKs have in common: putting themselves in, and taking themselves out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Final

from steplog import plugins
from steplog.plugins import Patches
from steplog_interceptors import _codecs, _credentials, _scope, _websocket, _wire
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
            self.patches.install(_both(_wire.hooks(self.patches), _codecs.hooks()))

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
    """

    def __init__(self, sdk: Sdk) -> None:
        self.name = sdk.name
        self._sdk = sdk
        self._patches = Patches()
        _wire.known[sdk.name] = sdk

    def install(self) -> None:
        """Patch the SDK and the HTTP libraries, now or when they are imported. Idempotent."""
        SHARED.acquire(self.name)
        hooks = _scope.hooks(self._patches, self._sdk) | {self.name: self._check_version}
        hooks = _both(hooks, _credentials.hooks(self._patches, self.name))
        self._patches.install(_both(hooks, _websocket.hooks(self._patches, self.name)))

    def uninstall(self) -> None:
        """Take back what is still ours. Idempotent."""
        self._patches.uninstall()
        SHARED.release(self.name)

    def _check_version(self, module: ModuleType) -> None:
        version = str(getattr(module, "__version__", ""))
        if _number(version) < self._sdk.minimum:
            wanted = ".".join(map(str, self._sdk.minimum))
            plugins.log.warning(
                "steplog supports %s %s and newer; this is %s. Its calls are recorded as far as it resembles them; run "
                "`pip install -U %s` for calls that are tested.",
                *(self.name, wanted, version or "of an unknown version", self.name),
            )


def _number(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major) if major.isdecimal() else 0, int(minor) if minor.isdecimal() else 0)


def _both(one: Hooks, other: Hooks) -> Hooks:
    """Hooks of two tables; a module that is in both runs both."""

    def chained(name: str) -> Callable[[ModuleType], None]:
        def run(module: ModuleType) -> None:
            one[name](module)
            other[name](module)

        return run

    return one | other | {name: chained(name) for name in one.keys() & other.keys()}
