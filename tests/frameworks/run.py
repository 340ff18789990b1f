"""Run every check of every framework, write down what came out, and make the page of the documentation from it.

    python -m tests.frameworks.run [--some] [AGENT ...]

With agents, only these; of the others is kept what was found last time. With `--some`, only the first way to run each
agent is killed after every append, the others after every fourth: what is left out is in the table.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.frameworks import page
from tests.frameworks.build import NotInstallable, build
from tests.frameworks.check import Case, Failed, Programs, killed_at, killed_inside, model_process, record_and_replay
from tests.frameworks.table import FRAMEWORKS, Framework, Way
from tests.support.processes import environment
from tests.support.recorded import ROOT

SDKS = ("openai", "anthropic", "litellm")
VERSIONS = """
import importlib.metadata, json, sys
have = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
print(json.dumps({name: have[name] for name in sys.argv[1:] if name in have}))
"""


def examine(framework: Framework, folder: Path, url: str, *, some: bool) -> dict[str, Any]:
    """Everything that is asked of one framework, and what it answers."""
    row: dict[str, Any] = {"name": framework.name, "versions": {}, "ways": []}
    try:
        python = build(framework.group)
        row["versions"] = json.loads(_output(python, "-c", VERSIONS, *framework.packages, *SDKS))
        programs = Programs(python, framework.agent, folder)
    except (NotInstallable, Failed) as failed:
        return row | {"not_run": str(failed)}
    try:
        for number, way in enumerate(framework.ways()):
            found = _examine(way, folder, url, programs, stride=4 if some and number else 1, fresh=not number)
            row["ways"].append(found)
    finally:
        programs.close()
    asked = {request.partition(":")[0] for way in row["ways"] for request in way["requests"]}
    named = {*framework.packages, *asked}
    row["versions"] = {name: version for name, version in row["versions"].items() if name in named}
    if framework.decorator is not None:
        row["wrong_order"] = _output(python, "-m", "tests.frameworks.orders", *framework.decorator).strip()
    return row


def _examine(way: Way, folder: Path, url: str, programs: Programs, *, stride: int, fresh: bool) -> dict[str, Any]:
    def case(name: str) -> Case:
        return Case(way, name, folder, url, programs)

    recorded = case("record")
    events = 0

    def record() -> None:
        nonlocal events
        events = record_and_replay(recorded, fresh=fresh)

    replay = _verdict(record)
    found: dict[str, Any] = {"function": way.function, "requests": recorded.requests(), "replay": replay}
    found["halt"] = _verdict(lambda: killed_inside(case("inside"), fresh=fresh))
    numbers = range(1, events + 1, stride)
    verdicts = [_verdict(lambda number=number: killed_at(case(f"kill{number}"), number)) for number in numbers]
    found["kills"] = next((verdict for verdict in verdicts if verdict != "ok"), f"{len(verdicts)} of {events}")
    return found


def _verdict(check: Callable[[], Any]) -> str:
    try:
        check()
    except Failed as failed:
        print(failed, file=sys.stderr, flush=True)
        return f"failed: {str(failed).splitlines()[0]}"
    return "ok"


def _output(python: Path, *arguments: str) -> str:
    done = subprocess.run(
        [python, *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else f"failed: {done.stderr.splitlines()[-1]}"


def main() -> None:
    """Examine, two frameworks at a time; exit with 1 when one of them fails."""
    some, names = "--some" in sys.argv, {*sys.argv[1:]} - {"--some"}
    chosen = [each for each in FRAMEWORKS if not names or each.agent in names]
    results = page.read()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(temporary)
        for group in dict.fromkeys(each.group for each in chosen):
            pool.submit(build, group).exception()
        with model_process(folder) as url:
            for row in pool.map(lambda each: examine(each, folder, url, some=some), chosen):
                results["frameworks"][row["name"]] = row
                print(row["name"], json.dumps(row.get("not_run", row["ways"])), flush=True)
                results["python"] = platform.python_version()
                page.write(results)
    sys.exit(any("failed" in json.dumps(row) for row in results["frameworks"].values()))


if __name__ == "__main__":
    main()
