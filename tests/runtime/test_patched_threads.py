"""Other tools patch `Thread.start` too, and take `run` apart on the way; threads keep working and keep their run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import steplog
from steplog._runtime import threads


@steplog.step
def tool(x: int) -> int:
    return x * x


class Worker(threading.Thread):
    """A thread whose work is its own method."""

    def __init__(self, into: list[int]) -> None:
        super().__init__()
        self.into = into

    def run(self) -> None:
        self.into.append(tool(3))


@pytest.mark.parametrize("order", ["tool first", "steplog first"])
def test_a_tool_that_replaces_run_in_start(order, monkeypatch):
    noticed: list[str] = []

    def patch() -> None:
        start = threading.Thread.start

        def start_noticed(self: threading.Thread) -> None:
            # Error trackers do this: the function is taken out of the method and given the thread again.
            function = getattr(self.run, "__func__", self.run)

            def run(*args: Any) -> None:
                noticed.append("runs")
                function(threading.current_thread(), *args[1:])

            self.run = run
            start(self)

        monkeypatch.setattr(threading.Thread, "start", start_noticed)

    if order == "tool first":
        threads.uninstall()
        patch()
        threads.install()
    else:
        patch()

    def agent() -> list[int]:
        into: list[int] = []
        workers = [Worker(into), threading.Thread(target=lambda: into.append(tool(4)))]
        for worker in workers:
            worker.start()
            worker.join()
        return into

    try:
        with steplog.run("r") as run:
            assert agent() == [9, 16]
            assert run.executed == 2
        with steplog.run("r") as run:
            assert agent() == [9, 16]
            assert (run.executed, run.replayed) == (0, 2)
    finally:
        threads.uninstall()
        monkeypatch.undo()
        threads.install()
    assert noticed == ["runs"] * 4
