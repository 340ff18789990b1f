"""The tools of both agents as steps that leave a mark where they run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import steplog
from tests.support.agents import REFUND_TOOLS, RESTOCK_TOOLS


def _marking(name: str, tool: Callable[..., Any]) -> Callable[..., Any]:
    @steplog.step(name=name)
    def run(**arguments: Any) -> Any:
        with open(os.environ["EFFECTS"], "a") as file:
            file.write(f"{name}\n")
        return tool(**arguments)

    return run


tools = {name: _marking(name, tool) for name, tool in {**REFUND_TOOLS, **RESTOCK_TOOLS}.items()}
