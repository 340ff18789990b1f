"""What `steplog doctor SCRIPT` does: run a program, and replay it in a process that goes on where something differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steplog._cli.lookup import find_run
from steplog._cli.output import emit_json, printable, say
from steplog._kernel.words import counted
from steplog.errors import SteplogError

_STEPLOG = [sys.executable, "-m", "steplog"]
_SHOWN = 20


def examine(words: Sequence[str], home: Path, run_id: str | None, *, is_module: bool, as_json: bool) -> int:
    """Tell what in a program is not the same when it runs again; returns the exit code."""
    if run_id is None:
        run_id = _record(words, home, is_module=is_module, as_json=as_json)
        words = ()
    run_id = find_run(run_id, home).run_id
    script = ["-m", *words] if is_module and words else list(words)
    found = _replay(run_id, home, script)
    if as_json:
        emit_json(found)
    else:
        _tell(found)
    return 1 if found["findings"] or found["verdict"] != "identical" else 0


def _record(words: Sequence[str], home: Path, *, is_module: bool, as_json: bool) -> str:
    from steplog._runtime import ulid

    run_id = f"doctor-{ulid.new()}"
    command = [*_STEPLOG, "run", "--home", str(home), "--id", run_id, *(["-m"] if is_module else []), *words]
    # Two seeds, so that a set of texts has two orders.
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run(command, env=environment, check=False, stdout=sys.stderr if as_json else None)  # noqa: S603
    return run_id


def _replay(run_id: str, home: Path, script: Sequence[str]) -> dict[str, Any]:
    command = [*_STEPLOG, "replay", "--home", str(home), "--examine", "--json", run_id, *script]
    environment = {**os.environ, "PYTHONHASHSEED": "2"}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)  # noqa: S603
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        found = {}
    if "findings" not in found:
        message = f"the replay of run {run_id} came to no end (exit code {done.returncode}):\n{done.stderr[-2000:]}"
        raise SteplogError(message, run_id=run_id)
    return found


def _tell(found: dict[str, Any]) -> None:
    findings, draws = found["findings"], found["draws"]
    say(f"replayed {found['replayed']} of {counted(found['steps'], 'step')} of run {found['run']}")
    for number, one in enumerate(findings[:_SHOWN], 1):
        at = f"{one['site']}: " if one["site"] else ""
        _print(f"{number}. {at}{one['asked']} differs at {one['field'] or 'the value itself'}")
        _print(f"     - {one['recorded']}\n     + {one['found']}")
        if one["source"]:
            _print(f"   it looks like this: {one['source']}\n   what mends it: {one['fix']}")
        if one["cause"]:
            _print(f"   first cause: {one['cause']}")
    _more(findings)
    if draws:
        _print("Drawn anew each time, and not recorded:")
    for one in draws[:_SHOWN]:
        times = f", {one['times']} times" if one["times"] > 1 else ""
        _print(f"  {one['site'] or 'a library'}: {one['what']}{times}")
    _more(draws)
    if draws:
        also = ", ".join(sorted({_interceptor(one["what"]) for one in draws}))
        _print(f"What reaches a request or a decision belongs in a step; install(also=[...]) records all of: {also}")
    divergence = found["divergence"]
    if divergence is not None and not findings:
        _print(divergence["message"])
    _print(f"{counted(len(findings), 'request')} not the same again" if findings else "every request is the same again")


def _interceptor(what: str) -> str:
    return {"uuid": "uuid", "random": "random"}.get(what.partition(".")[0], "clock")


def _more(items: Sequence[Any]) -> None:
    if len(items) > _SHOWN:
        _print(f"  and {len(items) - _SHOWN} more: --json has all")


def _print(text: str) -> None:
    print(printable(text))
