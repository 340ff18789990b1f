"""The stores that ship, against the contract that ships."""

from __future__ import annotations

import pytest

from steplog.stores.base import Store, Writer
from steplog.stores.files import FileStore
from steplog.stores.memory import MemoryStore
from steplog.testing.contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self):
        return MemoryStore()


class TestFileStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return FileStore(tmp_path / "home")


class TestFileStoreAtLevelProcess(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return FileStore(tmp_path / "home", durability="process")


def test_the_protocols_are_met(tmp_path):
    for store in (MemoryStore(), FileStore(tmp_path)):
        typed: Store = store
        writer = typed.open("r")
        assert isinstance(writer, Writer)
        writer.close()
