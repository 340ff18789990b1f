"""Requests through httpx and httpx2 to the hosts that `install(http=[...])` names."""

from __future__ import annotations

from typing import Final

from steplog_interceptors._install import SHARED


class HttpInterceptor:
    """Puts in the wire, which asks the settings for the hosts.

    Attributes:
        name: `http`.
        honours: settings that may name it.
    """

    name = "http"
    honours = ("ignore", "modes")

    def install(self) -> None:
        """Patch the HTTP libraries, now or when they are imported. Idempotent."""
        SHARED.acquire(self.name)

    def uninstall(self) -> None:
        """Take the patches back when no other interceptor needs them. Idempotent."""
        SHARED.release(self.name)


interceptor: Final = HttpInterceptor()
