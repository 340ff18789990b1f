"""What the tools of both agents share: a ledger that anybody can count, and a place to be killed in."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def entries() -> list[Entry]:
    """Everything that has happened in the shop, in order."""
    file = Path(os.environ["DEMO_LEDGER"])
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def book(did: str, *, key: str | None = None, **facts: Any) -> None:
    """Let something happen: one more line in the ledger.

    Like any payment service worth its name, the shop does nothing for a key that it has seen before.
    """
    if key is not None and any(entry["key"] == key for entry in entries()):
        return
    with Path(os.environ["DEMO_LEDGER"]).open("a") as file:
        file.write(json.dumps({"did": did, **facts, "key": key}) + "\n")


def halfway(tool: str) -> None:
    """Stand still after the effect and before the result, when the demo wants to kill the process just there."""
    if os.environ.get("DEMO_STAND_STILL_IN") == tool:
        Path(os.environ["DEMO_HERE"]).touch()
        time.sleep(600)
