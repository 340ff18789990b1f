"""What a recorded step costs, as ratios to the raw append and sync that no durable log can avoid, and beside peers.

Everything is taken in one run on one disk, because machines differ and are noisy; compare ratios, not microseconds.
Prints the figures, writes `bench/results.json` and, when all of them were taken, `docs/benchmarks.md`.

    python bench/run.py [PART...]    only these parts: steps, processes, many_runs, chat, streams, fanout, compare
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import page
from bench.figures import FIGURES

RESULTS = Path(__file__).with_name("results.json")
PARTS = ("steps", "processes", "many_runs", "chat", "streams", "fanout", "compare")


def main(chosen: list[str]) -> None:
    """Measure, print and save."""
    unknown = sorted(set(chosen) - set(PARTS))
    if unknown:
        sys.exit(f"no such part: {', '.join(unknown)}. The parts are {', '.join(PARTS)}.")
    results: dict[str, float] = {}
    folder = Path(tempfile.mkdtemp(prefix="steplog-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        for part in chosen or PARTS:
            results |= importlib.import_module(f"bench.{part}").measure(folder)
    finally:
        shutil.rmtree(folder)
    RESULTS.write_text(json.dumps({"python": platform.python_version(), **results}, indent=1) + "\n")
    if not chosen:
        page.PAGE.write_text(page.render(results))
    _show(results)


def _show(results: dict[str, float]) -> None:
    figures = {figure.name: figure for figure in FIGURES}
    table = Table("figure", "measured", "target", title="steplog")
    for name, value in results.items():
        figure = figures.get(name)
        verdict = ""
        if figure is not None and figure.target is not None:
            sign = ">=" if figure.unit == "times" else "<="
            verdict = f"{sign} {figure.target:g}" + ("  missed" if figure.missed(value) else "")
        table.add_row(name, f"{value:,.3f}", verdict)
    Console(width=90).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
