"""What a recorded step costs, as ratios to the raw append and sync that no durable log can avoid.

Everything is taken in one run on one disk, because machines differ and are noisy; compare ratios, not microseconds.
Writes `bench/results.json`.
"""

from __future__ import annotations

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

from bench import chat, processes, steps, streams

RESULTS = Path(__file__).with_name("results.json")

# DESIGN targets; None where this release only reports the figure.
TARGETS = {
    "record_safe_ratio": 1.5,
    "record_unsafe_ratio": 2.8,
    "gather_ratio": 0.45,
    "threads_ratio": 0.45,
    "record_process_us": 40.0,
    "replay_us_per_step_10000": 15.0,
    "resume_process_s": 0.2,
    "open_100000_s": 1.0,
    "import_ms": 30.0,
    "disk_bytes_per_payload_byte": 1.3,
    "chat_200_mb": 0.5,
    "first_chunk_ms": 1.0,
}


def main() -> None:
    """Measure, print and save."""
    folder = Path(tempfile.mkdtemp(prefix="steplog-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        results = {
            **steps.measure(folder),
            **processes.measure(folder),
            **chat.measure(folder),
            **streams.measure(folder),
        }
    finally:
        shutil.rmtree(folder)
    RESULTS.write_text(json.dumps({"python": platform.python_version(), **results}, indent=1) + "\n")
    table = Table("figure", "measured", "target", title="steplog")
    for name, value in results.items():
        target = TARGETS.get(name)
        verdict = "" if target is None else f"<= {target:g}" + ("" if value <= target else "  missed")
        table.add_row(name, f"{value:,.3f}", verdict)
    Console(width=90).print(table)


if __name__ == "__main__":
    main()
