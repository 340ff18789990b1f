"""`steplog check`: what is wrong with the cassettes of a folder of tests."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from steplog._cli.output import console, emit_json, printable
from steplog._kernel.words import counted
from steplog.errors import SteplogError

# Exit codes of pytest that say nothing about the cassettes: all passed, some failed, there are no tests.
_RAN = (0, 1, 5)


@click.command("check", short_help="Check the cassettes of tests.")
@click.argument("paths", metavar="[TESTS]...", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--max-age", type=int, default=90, show_default=True, help="Days after which a cassette is old.")
@click.option("--no-run", is_flag=True, help="Only collect the tests: nothing is said of steps and failures.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")
def check(paths: tuple[Path, ...], max_age: int, *, no_run: bool, as_json: bool) -> int:
    """Play every test that has a cassette, offline, and list what is wrong.

    Orphans (cassettes of tests that are gone), recorded steps that a test does not ask for, tests that fail, secrets in
    files, cassettes that cannot be read or are old. The exit code is 1 where there is any of it. TESTS are files and
    folders of tests; by default what pytest finds here.
    """
    report = _played([str(path) for path in paths], collect_only=no_run)
    files = sorted({*_below(report["whole"]), *(path for path in report["used"] if os.path.exists(path))})
    secrets, unreadable, old = _looked_through(files, max_age)
    facts: dict[str, Any] = {
        "cassettes": len(files),
        "orphans": report["orphans"],
        "unplayed": {test: one["unplayed"] for test, one in report["tests"].items() if one["unplayed"]},
        "failed": report["failed"],
        "secrets": secrets,
        "unreadable": unreadable,
        "old": old,
    }
    wrong = any(facts[name] for name in facts if name != "cassettes")
    if as_json:
        emit_json({"ok": not wrong, **facts})
    else:
        _print(facts, max_age)
    return 1 if wrong else 0


def _played(paths: list[str], *, collect_only: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "report.json")
        words = [sys.executable, "-m", "pytest", "-q", "--steplog=none", f"--steplog-report={target}"]
        words += ["--collect-only"] if collect_only else []
        # Steps that were not asked for are listed here, and fail nothing.
        environment = {**os.environ, "CI": ""}
        done = subprocess.run([*words, *paths], env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode not in _RAN or not os.path.exists(target):
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-10:])
            raise SteplogError(f"pytest could not run the tests (exit code {done.returncode}):\n{said}")
        with open(target, encoding="utf-8") as file:
            report: dict[str, Any] = json.load(file)
    return report


def _below(places: list[str]) -> list[str]:
    from steplog.testing import layout

    return [path for place in places for path in layout.below(place)]


def _looked_through(files: list[str], max_age: int) -> tuple[list[str], dict[str, str], dict[str, int]]:
    from steplog._runtime.redaction import redactor
    from steplog.testing import _files
    from steplog.testing.cassettes import CassetteError

    secrets, unreadable, old = [], {}, {}
    today = dt.datetime.now(dt.UTC).date()
    for path in files:
        shown = os.path.relpath(path)
        with open(path, "rb") as file:
            if redactor(()).redact(file.read())[1]:
                secrets.append(shown)
        try:
            age = (today - dt.date.fromisoformat(_files.read(path).recorded)).days
        except (CassetteError, ValueError) as error:
            unreadable[shown] = str(error)
            continue
        if age > max_age:
            old[shown] = age
    return secrets, unreadable, old


def _print(facts: dict[str, Any], max_age: int) -> None:
    lines = console()
    for path in facts["orphans"]:
        lines.print(printable(f"orphan: {path} belongs to no test"))
    for test, steps in facts["unplayed"].items():
        lines.print(printable(f"unplayed: {test} does not ask for {counted(len(steps), 'step')}, first {steps[0]}"))
    for test, why in facts["failed"].items():
        lines.print(printable(f"failed: {test}: {why}"))
    for path in facts["secrets"]:
        lines.print(printable(f"secret: {path} holds what looks like one; record it again, or see docs/secrets.md"))
    for path, why in facts["unreadable"].items():
        lines.print(printable(f"unreadable: {path}: {why}"))
    for path, age in facts["old"].items():
        lines.print(printable(f"old: {path} is {age} days old, more than {max_age}"))
    told = (f"{len(facts[name])} {name}" for name in facts if name != "cassettes")
    lines.print(f"{counted(facts['cassettes'], 'cassette')}: {', '.join(told)}")
