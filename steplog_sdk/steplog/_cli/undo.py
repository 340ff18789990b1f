"""`steplog undo`: take back what a run has done, by the functions that its program names for that."""

from __future__ import annotations

import ast
import os
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from steplog._cli import program as programs
from steplog._cli import workflow
from steplog._cli.lookup import find_run, open_run
from steplog._cli.options import common
from steplog._cli.output import console, emit_json, printable, user
from steplog._kernel.codec import decode
from steplog._kernel.fold import RunState
from steplog.errors import RunStopped, SteplogError

STOPPED = 75

EXAMPLES = """\b
Examples:
  steplog undo refund-1001
  steplog undo refund-1001 --by ann
"""


@click.command(short_help="Take back what a run has done.", epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@click.option("--by", metavar="NAME", help="Who undoes it, for the record.  [default: the user]")
@common
def undo(run: str, by: str | None, home: Path, as_json: bool) -> int:  # noqa: FBT001 - click's own form
    """Undo the finished steps of RUN that have an undo function, the newest first, each as a step of the run RUN.undo.

    The program of RUN is imported for its functions, in its own directory. A RUN that has not ended is ended first, as
    cancelled. After a crash or a failure, call it again: it goes on where it stopped. Exit code: 0 undone, 1 failed, 75
    when RUN.undo needs a decision.
    """
    import steplog

    found = find_run(run, home)
    state = open_run(found).state
    os.environ["STEPLOG_HOME"] = str(found.home.absolute())
    steplog.install(also=state.created.get("also", ()), http=state.created.get("http", ()))
    _load(state)
    try:
        # By its own id: the program may have installed another home.
        done = steplog.undo(found.run_id, by=by or user(), store=found.store)
    except RunStopped as stopped:
        print(f"steplog: {printable(str(stopped))}", file=sys.stderr)
        return STOPPED
    described: dict[str, Any] = {
        "run": done.run_id or None,
        "undone": [_named(state, step) for step in done.undone],
        "left": [_named(state, step) for step in done.left],
    }
    if as_json:
        emit_json(described)
    else:
        _print(described, found.run_id)
    return 0


def _named(state: RunState, step: str) -> dict[str, str]:
    return {"step": step, "target": state.steps[step].target if step in state.steps else ""}


def _print(described: dict[str, Any], run_id: str) -> None:
    lines = [f"undone      {each['target']} ({each['step']})" for each in described["undone"]]
    lines += [f"not undone  {each['target']} ({each['step']}): it has no undo" for each in described["left"]]
    for line in lines or [f"nothing of run {run_id} can be undone"]:
        console().print(printable(line), markup=False, highlight=False)


def _load(state: RunState) -> None:
    """Import the program of a run, so that its functions are known."""
    call, entry = state.created.get("call"), state.created.get("entry")
    if call is not None and workflow.can_be_called(call):
        sys.path[:0] = [path for path in workflow.path(call).split(os.pathsep) if path]
        _enter(str(decode(entry or {}).get("cwd") or ""))
        _import(state.run_id, str(call["module"]))
        return
    program = programs.recorded(entry, state.run_id, None, ("undo", state.run_id))
    _enter(program.cwd)
    if program.is_module:
        sys.path.insert(0, program.cwd)
        _import(state.run_id, program.name)
        return
    _refuse_unguarded(state.run_id, program.name)
    sys.path.insert(0, str(Path(program.name).resolve().parent))
    runpy.run_path(program.name, run_name="__mp_main__")


def _enter(folder: str) -> None:
    if folder and Path(folder).is_dir():
        os.chdir(folder)


def _import(run_id: str, module: str) -> None:
    try:
        import_module(module)
    except ImportError as gone:
        message = f"run {run_id}: its functions are in {module}, which cannot be imported: {gone}\nNothing was undone."
        raise SteplogError(message, run_id=run_id) from gone


def _refuse_unguarded(run_id: str, script: str) -> None:
    """Refuse to import a script that would start its work when it is imported."""
    tree = ast.parse(Path(script).read_bytes(), script)
    if any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body):
        return
    message = (
        f"run {run_id}: importing {script} for its functions would start its work, so that was not done. Nothing was "
        f'undone.\nPut its work below `if __name__ == "__main__":`, or undo it from python: steplog.undo({run_id!r})'
    )
    raise SteplogError(message, run_id=run_id)
