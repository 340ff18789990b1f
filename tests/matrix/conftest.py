"""The fixtures of the interceptors' tests: real SDKs, a local server, replay with connecting forbidden."""

from __future__ import annotations

from tests.interceptors.conftest import _close_clients, events, home, offline

__all__ = ["_close_clients", "events", "home", "offline"]
