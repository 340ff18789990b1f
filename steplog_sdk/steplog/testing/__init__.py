"""Tools for testing agents and extensions; each is imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steplog.testing.provider import Exchange as Exchange
    from steplog.testing.provider import Fault as Fault
    from steplog.testing.provider import Hit as Hit
    from steplog.testing.provider import LocalProvider as LocalProvider
    from steplog.testing.provider import Reply as Reply

_HOMES = dict.fromkeys(("Exchange", "Fault", "Hit", "LocalProvider", "Reply"), "steplog.testing.provider")

__all__ = sorted(_HOMES)  # noqa: PLE0605 - derived, so that the table stays the only list


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
