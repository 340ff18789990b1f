"""What a person is told of a program that no longer does what its log says, in at most 25 lines."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel.codec import decode
from steplog._kernel.drift import Difference, common_prefix, windows
from steplog._kernel.drift_chat import told
from steplog._runtime import origin
from steplog._runtime.messages import Named, describe, once_more
from steplog.errors import DecodeError, DriftDetected

if TYPE_CHECKING:
    from steplog._kernel.decide import Halt
    from steplog._kernel.fold import RunState
    from steplog._runtime.evidence import Evidence

LINES: Final = 25
_NEAR: Final = 3
# `steplog resume` calls the function of a workflow so, whoever has begun its run.
_BY_NAME: Final = "-m steplog._cli.workflow "
_ANOTHER_RUN: Final = "Another program, or other arguments, is another run: give it an id of its own."


def drift(run: Named, state: RunState, asked: str, halt: Halt, evidence: Evidence, *, replaying: bool) -> DriftDetected:
    """The interrupt for a program that no longer does what its log says.

    Args:
        run: the run.
        state: its folded log.
        asked: the step that the program asks for now, in a few words.
        halt: what was decided: the recorded step that it is compared with, and those that were not asked for.
        evidence: what is known of the difference.
        replaying: in a replay another program is meant, and nothing is to go on.
    """
    nearest, difference, source = evidence.nearest, evidence.difference, evidence.source
    facts: dict[str, Any] = {"nearest": None if nearest is None else nearest.id, "site": evidence.site or None}
    if difference is not None:
        facts.update(field=difference.path, recorded=difference.recorded, found=difference.found)
    if source is not None:
        facts["source"] = source.kind
    at = f" at {evidence.site}" if evidence.site else ""
    what = [f"run {run.run_id}: the program asks for {asked}{at}, which its log does not hold at this place."]
    what += [once_more(evidence.again)] if evidence.again else []
    what += _recorded_here(state, halt, evidence)
    what += _difference(evidence)
    why = _why(evidence)
    show = run.command("show")
    then = ["It was not executed: nothing new happens in a replay." if replaying else "It was not executed."]
    if halt.hurried and not state.completed_once:
        then += [
            "It is a plain function, called in an event loop: it could not wait until the other tasks had asked for",
            "theirs. Where nothing has changed, resume again; an async function or asyncio.to_thread would wait.",
        ]
    then += _another_start(state.created.get("entry"), meant=replaying)
    if state.completed_once and not replaying:
        then.append("What is to be done now belongs in a run of its own, under another id.")
    elif not replaying:
        then.append('If the change is meant, let it go on from here: steplog.run(..., on_drift="run"), or')
        then.append(f"  {run.command('resume', '--on-drift run')}")
    then += ["What was recorded:", f"  {show}"]
    # What it is and how to go on is told whole; of the reasons, what there is room for.
    lines = [*what, *why[: LINES - len(what) - len(then)], *then]
    return DriftDetected("\n".join(lines), run_id=run.run_id, step=None, commands=(show,), **facts)


def _recorded_here(state: RunState, halt: Halt, evidence: Evidence) -> list[str]:
    nearest, missed = evidence.nearest, len(halt.missed)
    if nearest is None:
        return [f"The run has ended ({state.status}); it can be replayed, but nothing new may happen in it."]
    number = list(state.steps).index(nearest.id) + 1
    more = f" (and {missed - 1} more)" if missed > 1 else ""
    lines = [f"Recorded here: #{number} {describe(nearest)}, event {nearest.started_seq}{more}."]
    if evidence.others:
        near = ", ".join(f"{step.id} ({count})" for step, count in evidence.others[:_NEAR])
        lines.append(f"It is the nearest: {evidence.places} difference(s) in it; of the others, {near}.")
    return lines


def _difference(evidence: Evidence) -> list[str]:
    difference = evidence.difference
    if difference is None:
        return []
    recorded, found = windows(difference)
    lines = told(evidence.recorded, evidence.found)
    if lines:
        lines.insert(0, "The conversation differs in:")
    return [*lines, f"First difference, at {_place(difference)}:", f"  - {recorded}", f"  + {found}"]


def _place(difference: Difference) -> str:
    path = difference.path or "the value itself"
    old, new = difference.recorded, difference.found
    if not isinstance(old, str) or not isinstance(new, str):
        return path
    at = common_prefix(old, new)
    return f"{path}, character {at + 1:,} of {len(old):,}" if at else path


def _why(evidence: Evidence) -> list[str]:
    lines = [f"First cause: {evidence.upstream}"] if evidence.upstream else []
    if evidence.difference is None or evidence.difference.path in ("kind", "target"):
        return [*lines, *([f"The code has changed: {evidence.revisions}"] if evidence.revisions else [])]
    if evidence.source is not None:
        lines += [f"It looks like {evidence.source.what} ({evidence.source.kind}). Record it, or keep it out:"]
        lines += [f"  {evidence.source.fix}", "(from the beginning of a run on: what was drawn unrecorded is gone)."]
    if evidence.tool:
        lines += ["It is what a tool has answered. A tool that is a step gives the recorded answer:", "  @steplog.step"]
    if evidence.revisions:
        lines.append(f"The code has changed: {evidence.revisions}")
    if not lines:
        lines.append("A value that changes from run to run belongs in a step: value = steplog.step(name, function)")
    return lines


def _another_start(entry: Any, *, meant: bool) -> list[str]:
    """What to say where the program was not started as the one that began the run."""
    try:
        before, now = (_typed(decode(one)) for one in (entry, origin.entry()))
    except (DecodeError, TypeError, AttributeError):
        return []  # a log of another release; the drift is told all the same
    if not before or before == now or now.startswith(_BY_NAME):
        return []
    lines = [f"This run was started with: {before}", f"This program is:           {now or '(no script)'}"]
    return lines if meant else [*lines, _ANOTHER_RUN]


def _typed(entry: dict[str, Any]) -> str:
    name = ["-m", entry["module"]] if entry.get("module") else [entry["script"]] if entry.get("script") else []
    return shlex.join([*name, *map(str, entry.get("argv") or ())]) if name else ""
