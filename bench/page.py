"""docs/benchmarks.md, written from the figures of one run."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bench.compare import SYSTEMS
from bench.figures import FIGURES, Figure

PAGE = Path(__file__).resolve().parent.parent / "docs/benchmarks.md"

_HEAD = """# Benchmarks

Written by `make bench`, which measures everything in one run on one disk: {machine}.
Machines differ and are noisy, so ratios to the raw append and sync are what to compare; a second run differs by a tenth
or more. What each figure is and how it is taken: [bench/](../bench).
"""

_COMPARED = """
## Beside other systems

500 steps of 1 KB in and 1 KB out, recorded one after the other; the process is killed behind the last; a new one
resumes. Best of three rounds, in which the systems alternate. Releases:
[requirements.txt](../bench/peers/requirements.txt).

- *steplog* records a step that may run again after a crash (one sync); DBOS and LangGraph promise no more than that
  for theirs.
- *steplog_unsafe* and *call4agents* write intent and result, so that an effect in doubt is never repeated.
- *ran again*: bodies that a resume ran although they had returned before the kill.

| system | record µs/step | resume µs/step | resume process s | bytes/step | ran again |
|---|---|---|---|---|---|
"""


def render(results: dict[str, float]) -> str:
    """The page for these results."""
    cores = os.cpu_count()
    machine = f"{cores} cores, {platform.system()}, Python {platform.python_version()}"
    lines = [_HEAD.format(machine=machine), "| figure | measured | target | |", "|---|---|---|---|"]
    lines += [_row(figure, results[figure.name]) for figure in FIGURES if figure.name in results]
    if f"{SYSTEMS[-1].name}_record_us" in results:
        lines.append(_COMPARED.rstrip("\n"))
        lines += [_compared(system.name, results) for system in SYSTEMS]
    return "\n".join(lines) + "\n"


def _row(figure: Figure, value: float) -> str:
    if figure.target is None:
        return f"| {figure.meaning} | {shown(value)} {figure.unit} | | |"
    sign = "≥" if figure.unit == "times" else "≤"
    verdict = "missed" if figure.missed(value) else "met"
    return f"| {figure.meaning} | {shown(value)} {figure.unit} | {sign} {figure.target:g} | {verdict} |"


def _compared(name: str, results: dict[str, float]) -> str:
    columns = ("record_us", "resume_us", "resume_process_s", "bytes_per_step", "ran_again")
    return f"| {name} | " + " | ".join(shown(results[f"{name}_{column}"]) for column in columns) + " |"


def shown(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
