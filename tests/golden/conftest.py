"""A home of its own for a test that asks for one."""

from __future__ import annotations

from tests.runtime.conftest import home

__all__ = ["home"]
