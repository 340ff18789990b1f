"""Tools for testing agents and extensions; each is imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steplog.stores.memory import MemoryStore as MemoryStore
    from steplog.testing.contract import StoreContract as StoreContract
    from steplog.testing.crash import CrashReport as CrashReport
    from steplog.testing.crash import crash_matrix as crash_matrix
    from steplog.testing.faults import FaultyFS as FaultyFS
    from steplog.testing.faults import PowerFailure as PowerFailure
    from steplog.testing.incident import run_program as run_program
    from steplog.testing.interceptor import InterceptorContract as InterceptorContract
    from steplog.testing.provider import Exchange as Exchange
    from steplog.testing.provider import Fault as Fault
    from steplog.testing.provider import Hit as Hit
    from steplog.testing.provider import LocalProvider as LocalProvider
    from steplog.testing.provider import Reply as Reply

_HOMES = {
    **dict.fromkeys(("Exchange", "Fault", "Hit", "LocalProvider", "Reply"), "steplog.testing.provider"),
    **dict.fromkeys(("CrashReport", "crash_matrix"), "steplog.testing.crash"),
    **dict.fromkeys(("FaultyFS", "PowerFailure"), "steplog.testing.faults"),
    "InterceptorContract": "steplog.testing.interceptor",
    "MemoryStore": "steplog.stores.memory",
    "run_program": "steplog.testing.incident",
    "StoreContract": "steplog.testing.contract",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - derived, so that the table stays the only list


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.endswith("Contract"):
        import pytest

        # Without this, a failing `assert` of a contract would not say what it has compared.
        pytest.register_assert_rewrite(_HOMES[name], *(f"steplog.testing.{part}" for part in ("_hooks", "_streams")))
    return getattr(import_module(_HOMES[name]), name)
