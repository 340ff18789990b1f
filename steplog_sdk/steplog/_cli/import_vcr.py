"""`steplog import-vcr`: cassettes of vcrpy become cassettes of steplog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steplog._cli.output import console, emit_json, printable
from steplog._kernel.words import counted
from steplog.errors import SteplogError


@click.command("import-vcr", short_help="Turn vcrpy's cassettes into steplog's.")
@click.argument("paths", metavar="FILE|DIR...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--force", is_flag=True, help="Write over cassettes that are there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")
def import_vcr(paths: tuple[Path, ...], force: bool, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Write each cassette of vcrpy (format 1, YAML or JSON) as one of steplog beside it, NAME.steplog.json.

    Requests to models and to any other host become steps that the real SDKs replay; `@pytest.mark.steplog` in the place
    of `@pytest.mark.vcr` finds them. What cannot be imported is listed with its reason, and the exit code is 1. The
    files of vcrpy stay.
    """
    from steplog.testing.importing import Imported
    from steplog.testing.importing import import_vcr as convert
    from steplog.testing.vcr import found_below

    done: list[Imported] = []
    refused: list[tuple[str, str]] = []
    for source in [file for path in paths for file in found_below(str(path))]:
        try:
            done.append(convert(source, replace=force))
        except (SteplogError, OSError) as error:
            refused.append((source, str(error)))
    facts = {
        "imported": [_facts(one) for one in done],
        "refused": [{"file": file, "why": why} for file, why in refused],
        "steps": sum(one.steps for one in done),
    }
    if as_json:
        emit_json(facts)
    else:
        _print(done, refused)
    return 1 if refused or any(one.skipped for one in done) else 0


def _facts(one: Any) -> dict[str, Any]:
    return {**one._asdict(), "skipped": [skipped._asdict() for skipped in one.skipped]}


def _print(done: list[Any], refused: list[tuple[str, str]]) -> None:
    lines = console()
    for one in done:
        lines.print(printable(f"{one.target or one.source}: {counted(one.steps, 'step')}"))
        for number, what, why in one.skipped:
            lines.print(printable(f"  not imported: {number}. {what}: {why}"))
    for file, why in refused:
        lines.print(printable(f"not imported: {file}: {why}"))
    hosts = sorted({host for one in done for host in one.hosts})
    if hosts:
        lines.print(f"tests of these need, in conftest.py: steplog.install(http={hosts!r})")
    if not done and not refused:
        lines.print("there is no cassette of vcrpy there")
