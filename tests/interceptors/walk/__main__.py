"""Walk over everything, say what was found, and write it down.

python -m tests.interceptors.walk                  print a summary, and every fault
python -m tests.interceptors.walk --json FILE      write the summary as JSON as well
python -m tests.interceptors.walk --write          bring docs/coverage.md up to date, if nothing is wrong
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import steplog
from steplog_interceptors import anthropic, openai
from tests.interceptors.walk import report
from tests.interceptors.walk.inventory import SDKS, resources
from tests.interceptors.walk.walking import walk


def main() -> int:
    """Run the command; the status is 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.interceptors.walk", description="walk all SDK methods")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summaries there")
    parser.add_argument("--write", action="store_true", help="bring docs/coverage.md up to date")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [report.summary(sdk, _faults(sdk, Path(folder))) for sdk in SDKS]
    for summary in found:
        counts = f"{summary.walked} walked, {summary.passing} passing, {len(summary.refused)} refused"
        print(f"{summary.sdk} {summary.version}: {summary.methods} methods, {counts}, {summary.calls} calls")
        for call, fault in summary.faults.items():
            print(f"  {call}: {fault}")
    if given.json is not None:
        given.json.write_text(json.dumps([summary.as_json() for summary in found], indent=2) + "\n")
    wrong = any(summary.faults for summary in found)
    if given.write and not wrong:
        report.write()
    return int(wrong)


def _faults(sdk: str, folder: Path) -> dict[str, str]:
    home = folder / sdk
    steplog.install(home=home, durability="process", interceptors=())
    interceptors = (openai.interceptor, anthropic.interceptor)
    for interceptor in interceptors:
        interceptor.install()
    faults: dict[str, str] = {}
    for resource in resources(sdk):
        faults |= walk(sdk, resource, home).faults
    for interceptor in interceptors:
        interceptor.uninstall()
    steplog.uninstall()
    return faults


if __name__ == "__main__":
    sys.exit(main())
