"""Run every check of every framework, write down what came out, and make the page of the documentation from it.

python -m tests.frameworks.run [AGENT ...]     only these; the others keep what was found last time
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

SDKS = ("openai", "anthropic", "litellm")
VERSIONS = """
import importlib.metadata, json, sys
have = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
print(json.dumps({name: have[name] for name in sys.argv[1:] if name in have}))
"""


def examine(framework: Framework, folder: Path, url: str) -> dict[str, Any]:
    """Everything that is asked of one framework, and what it answers."""
    row: dict[str, Any] = {"name": framework.name, "agent": framework.agent, "order": framework.order}
    try:
        python = build(framework.group)
        found = _output(python, "-c", VERSIONS, *framework.packages, *SDKS)
        row["versions"] = json.loads(found)
        programs = Programs(python, framework.agent, folder)
    except (NotInstallable, Failed) as failed:
        return row | {"versions": row.get("versions", {}), "ways": [], "not_run": str(failed)}
    try:
        row["ways"] = [_examine(way, folder, url, programs) for way in framework.ways()]
    finally:
        programs.close()
    return row


def _examine(way: Way, folder: Path, url: str, programs: Programs) -> dict[str, Any]:
    found: dict[str, Any] = {"function": way.function}

    def case(name: str) -> Case:
        return Case(way, name, folder, url, programs)

    recorded = case("record")
    found["replay"] = _verdict(lambda: record_and_replay(recorded))
    found["requests"] = recorded.requests()
    found["inside"] = _verdict(lambda: killed_inside(case("inside")))
    number = 0
    verdict: Any = True
    while verdict is True:
        number += 1
        verdict = _verdict(lambda number=number: killed_at(case(f"kill{number}"), number))
    found["boundaries"] = number - 1 if verdict is False else verdict
    return found


def _verdict(check: Callable[[], Any]) -> Any:
    try:
        result = check()
    except Failed as failed:
        print(failed, file=sys.stderr, flush=True)
        return f"failed: {str(failed).splitlines()[0]}"
    return result if isinstance(result, bool) else "ok"


def _output(python: Path, *arguments: str) -> str:
    return subprocess.run([python, *arguments], capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Examine, two frameworks at a time; exit with 1 when one of them fails."""
    chosen = [each for each in FRAMEWORKS if not sys.argv[1:] or each.agent in sys.argv[1:]]
    results = page.read()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(temporary)
        for group in {each.group: None for each in chosen}:
            pool.submit(build, group).exception()
        with model_process(folder) as url:
            for row in pool.map(lambda each: examine(each, folder, url), chosen):
                results["frameworks"][row["name"]] = row
                print(row["name"], json.dumps(row.get("not_run", row["ways"])), flush=True)
    results["python"] = platform.python_version()
    results["frameworks"] = {each.name: results["frameworks"][each.name] for each in FRAMEWORKS}
    page.write(results)
    sys.exit(any("failed" in json.dumps(row) for row in results["frameworks"].values()))


if __name__ == "__main__":
    main()
