"""Records the calls of the acme SDK as steps: all that its author had to write."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from steplog import plugins

# They only read. Anything else happens at most once for each idempotency key.
_READS: Final = frozenset({"/forecast", "/report"})


def describe(_client: Any, path: str, body: dict[str, Any], **_options: Any) -> plugins.Call:
    """What a call asks for: of the arguments that decide the answer, all, and of the others none."""
    return plugins.Call("tool_call", f"acme{path}", body, mode="safe" if path in _READS else "keyed")


class AcmeInterceptor:
    """Patches the two methods that every call of the SDK passes."""

    name = "acme"

    def __init__(self) -> None:
        self.patches = plugins.Patches()

    def install(self) -> None:
        self.patches.install({"acme": self._patch})

    def uninstall(self) -> None:
        self.patches.uninstall()

    def _patch(self, acme: ModuleType) -> None:
        for client in (acme.Client, acme.AsyncClient):
            self.patches.apply(client, "_call", plugins.recording(describe, key="idempotency_key"))
            self.patches.apply(client, "_lines", plugins.recording_items(describe, last=lambda line: line == "END"))


interceptor: Final = AcmeInterceptor()
