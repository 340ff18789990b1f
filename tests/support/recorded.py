"""The recorded traffic of real providers, kept beside the repository and read there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OWN = ROOT / "cassettes"
SHARED = ROOT.parent / "shared" / "cassettes"

WHY_ABSENT = "the recorded traffic of real providers is not beside this checkout (../shared/cassettes)"


@dataclass(frozen=True)
class Recorded:
    """One exchange.

    Attributes:
        name: path below its root without the suffix, as `openai/chat/plain`; what a failing test shows.
        tree: schema 1.
    """

    name: str
    tree: dict[str, Any] = field(repr=False, compare=False)

    @property
    def run(self) -> str | None:
        """The run it is a part of, as `openai/runs/chat-model-retry`, or None when it stands alone."""
        folder, _, last = self.name.rpartition("/")
        return folder if last.isdigit() else None


@cache
def recorded(root: Path = SHARED) -> tuple[Recorded, ...]:
    """Return every exchange below a root in order of name; none where the root is absent."""
    files = sorted(root.rglob("*.json"))
    return tuple(Recorded(str(file.relative_to(root).with_suffix("")), json.loads(file.read_bytes())) for file in files)


def runs(root: Path = SHARED) -> list[tuple[str, list[Recorded]]]:
    """Return the runs, each with its exchanges in order."""
    parts: dict[str, list[Recorded]] = {}
    for exchange in recorded(root):
        if exchange.run:
            parts.setdefault(exchange.run, []).append(exchange)
    return list(parts.items())
