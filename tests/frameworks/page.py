"""`docs/frameworks.md`, made from what `run.py` has found.

python -m tests.frameworks.page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.frameworks.table import FRAMEWORKS, Framework
from tests.support.recorded import ROOT

RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs/frameworks.md"
HEAD = Path(__file__).with_name("page.md")


def read() -> dict[str, Any]:
    """What has been found so far."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"python": "", "frameworks": {}}


def write(results: dict[str, Any]) -> None:
    """Keep results, and make the page from them."""
    found = results["frameworks"]
    results["frameworks"] = {each.name: found[each.name] for each in FRAMEWORKS if each.name in found}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(text(results))


def text(results: dict[str, Any]) -> str:
    """The page."""
    found = [(each, results["frameworks"][each.name]) for each in FRAMEWORKS if each.name in results["frameworks"]]
    rows = [line for each, row in found for line in _rows(each, row)]
    orders = [f"| {each.name} | `{each.order}` | {row.get('wrong_order', 'no decorator')} |" for each, row in found]
    remarks = [f"- **{each.name}**: {each.remarks}" for each in FRAMEWORKS if each.remarks]
    head = "| framework | run as | requests | replay | kills | halt |\n|---|---|---|---|---|---|\n"
    order = "\n\n## How a tool is decorated\n\n| framework | order | the other way round |\n|---|---|---|\n"
    parts = [
        HEAD.read_text(),
        f"\n## Results\n\nPython {results['python']}.\n\n",
        head,
        "\n".join(rows),
        order,
        "\n".join(orders),
        "\n",
    ]
    if remarks:
        parts += ["\n## Remarks\n\n", "\n".join(remarks), "\n"]
    return "".join(parts)


def _rows(framework: Framework, found: dict[str, Any]) -> list[str]:
    versions = "<br>".join(f"{name} {version}" for name, version in found["versions"].items())
    program = f"[{framework.name}](../tests/frameworks/agents/{framework.agent}.py)<br>{versions}"
    if "not_run" in found:
        return [f"| {program} | | | not run: {' '.join(found['not_run'].split())} | | |"]
    rows = []
    for way in found["ways"]:
        requests = "<br>".join(way["requests"])
        verdicts = f"{way['replay']} | {way['kills']} | {way['halt']}"
        rows.append(f"| {program} | `{way['function']}` | {requests} | {verdicts} |")
        program = ""
    return rows


if __name__ == "__main__":
    write(read())
