"""What an operator gives for a tool in doubt reaches the program as what the tool returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import steplog
from steplog._runtime.resolve import resolve
from steplog.errors import Unreplayable
from steplog.stores.files import FileStore


@dataclass
class Receipt:
    id: str
    day: date


class Died(BaseException):
    """Stands for the death of the process."""


@steplog.step
def refund(order: str) -> Receipt:
    raise Died


@steplog.step
async def refund_async(order: str) -> list[Receipt] | None:
    raise Died


@steplog.step
def untold(order: str):
    raise Died


@pytest.fixture
def settle(tmp_path: Path):
    steplog.install(home=tmp_path, interceptors=())
    yield lambda step, result: resolve(FileStore(tmp_path), "r", step, how="done", result=result)
    steplog.uninstall()


def die(tool: Any) -> str:
    with pytest.raises(Died), steplog.run("r"):
        tool("1001")
    with pytest.raises(steplog.RunStopped) as stopped, steplog.run("r"):
        tool("1001")
    assert stopped.value.step is not None
    return stopped.value.step


def test_it_is_of_the_annotated_type_and_what_does_not_fit_can_be_given_anew(settle):
    step = die(refund)
    settle(step, {"id": "r_17", "day": "yesterday"})

    with pytest.raises(steplog.RunStopped) as stopped, steplog.run("r"):
        refund("1001")

    assert isinstance(stopped.value.__cause__, Unreplayable)
    assert "what was given for it does not fit: it.day is 'yesterday'" in str(stopped.value)
    settle(step, {"id": "r_17", "day": "2026-01-02"})
    for _ in range(2):
        with steplog.run("r"):
            assert refund("1001") == Receipt("r_17", date(2026, 1, 2))


async def test_it_is_so_for_an_async_tool(settle):
    with pytest.raises(Died):
        async with steplog.run("r"):
            await refund_async("1001")
    with pytest.raises(steplog.RunStopped) as stopped:
        async with steplog.run("r"):
            await refund_async("1001")
    settle(stopped.value.step, [{"id": "r_17", "day": "2026-01-02"}])

    async with steplog.run("r"):
        assert await refund_async("1001") == [Receipt("r_17", date(2026, 1, 2))]


def test_without_an_annotation_it_is_what_was_given(settle):
    settle(die(untold), {"id": "r_17"})

    with steplog.run("r"):
        assert untold("1001") == {"id": "r_17"}
