"""Two agents are killed in the middle of their work, twice each, and carry on.

    python examples/demo/main.py            against a local provider; needs no key and no network
    python examples/demo/main.py --live     against the real providers, with the keys in the environment

Exit code 0 when every effect happened exactly once and the answers are those of agents that were left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import report
from rich.text import Text
from stage import KILLED, STOPPED, Ended, Provider, Stage, local_provider

HANGING = 2  # the model call that is in flight when the first process of each agent is killed


class Agent(NamedTuple):
    """An agent of the demo, and the tool in which it is killed."""

    sdk: str
    script: str
    run_id: str
    kill_in: str
    result: dict[str, object]  # what the tool returns; given by hand where the kill left it in doubt
    key_variable: str


AGENTS = [
    Agent(
        "openai",
        "refund.py",
        "refund-ord_1001",
        "send_mail",
        {"sent": True, "to": "ada@example.com"},
        "OPENAI_API_KEY",
    ),
    Agent("anthropic", "restock.py", "restock-monday", "restock", {}, "ANTHROPIC_API_KEY"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true", help="use the real providers whose keys are set")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs in a new directory, to look at them")
    options = parser.parse_args()
    agents = [agent for agent in AGENTS if not options.live or os.environ.get(agent.key_variable)]
    if not agents:
        print("--live needs OPENAI_API_KEY or ANTHROPIC_API_KEY in the environment", file=sys.stderr)
        return 2
    began = time.monotonic()
    with _folder(options.keep) as folder:
        totals = {agent.sdk: _perform(agent, folder / agent.sdk, live=options.live) for agent in agents}
    return _verdict(totals, time.monotonic() - began)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True)
    with nullcontext(keep) if keep is not None else tempfile.TemporaryDirectory(prefix="steplog-demo-") as name:
        yield Path(name)


def _perform(agent: Agent, folder: Path, *, live: bool) -> report.Figures:
    _title(f"{agent.script}: an agent on the {agent.sdk} SDK, run {agent.run_id}")
    if live:
        stage = Stage(folder / "killed", agent.script, agent.run_id, Provider())
        _play(agent, stage)
        report.print_steps(stage)
        return report.figures_of(stage, None, None)
    with local_provider(folder / "provider", hang=HANGING) as provider, ThreadPoolExecutor(1) as background:
        reference = background.submit(_left_alone, agent, folder)
        stage = Stage(folder / "killed", agent.script, agent.run_id, provider)
        _play(agent, stage)
        report.print_steps(stage)
        return report.figures_of(stage, reference.result(), HANGING)


def _left_alone(agent: Agent, folder: Path) -> Stage:
    """Run the same agent without disturbing it: the measure for the one that is killed."""
    with local_provider(folder / "reference-provider") as provider:
        stage = Stage(folder / "reference", agent.script, agent.run_id, provider)
        ended = stage.finish(stage.start(*stage.first()))
        if ended.code != 0:
            raise SystemExit(f"the agent that was left alone failed:\n{ended.err}")
        return stage


def _play(agent: Agent, stage: Stage) -> None:
    _shell(f"steplog run --id {agent.run_id} {agent.script}")
    first = stage.kill_when(lambda: _in_model_call(stage), stage.start(*stage.first()))
    _killed(first, f"in the middle of model call {HANGING}")
    resume = ["resume", agent.run_id]
    _shell(f"steplog resume {agent.run_id}")
    second = stage.kill_when(stage.here.exists, stage.start(*resume, stand_still_in=agent.kill_in))
    _killed(second, f"in the middle of {agent.kill_in}")
    _shell(f"steplog resume {agent.run_id}")
    third = stage.finish(stage.start(*resume))
    if third.code == STOPPED:
        _settle(agent, stage, third)
        _shell(f"steplog resume {agent.run_id}")
        third = stage.finish(stage.start(*resume))
    if third.code != 0:
        raise SystemExit(f"the run did not end well (exit code {third.code}):\n{third.err}")
    _note("done: ", report.answer_of(stage), style="green")


def _in_model_call(stage: Stage) -> bool:
    """Whether the call to be killed is in flight: it has reached the provider, or, with the real one, it has begun."""
    if stage.provider.hits_file is not None:
        return len(stage.provider.hits()) >= HANGING
    if not stage.log.exists():
        return False
    # A line that is being written has no end yet; `kind` stands in the lines in which a call begins.
    return stage.log.read_text().count('"kind":"llm_call"') >= HANGING


def _settle(agent: Agent, stage: Stage, stopped: Ended) -> None:
    """Do what an operator does: look whether it happened, and say so."""
    for line in stopped.err.splitlines()[1:3]:
        _note("", line, style="yellow")
    happened = any(json.loads(line)["did"] == agent.kill_in for line in report.ledger_of(stage))
    _note("look into the ledger: ", f"{agent.kill_in} {'is there' if happened else 'is not there'}", style="bold")
    step = next(event["step"] for event in report.events_of(stage) if event["data"].get("target") == agent.kill_in)
    verdict = ["--done", json.dumps(agent.result)] if happened else ["--retry"]
    words = ["resolve", agent.run_id, step, *verdict]
    _shell(" ".join(["steplog", *words[:3], verdict[0], *(f"'{word}'" for word in verdict[1:])]))
    process = stage.start(*words)
    _, err = process.communicate()
    if process.returncode != 0:
        raise SystemExit(err)


def _killed(ended: Ended, where: str) -> None:
    if ended.code != KILLED:
        raise SystemExit(f"the agent ended with exit code {ended.code} before it could be killed {where}:\n{ended.err}")
    _note("SIGKILL ", where, style="bold red")


def _title(text: str) -> None:
    report.CONSOLE.print(Text(f"\n{text}", style="bold"))


def _shell(text: str) -> None:
    report.CONSOLE.print(Text.assemble(("  $ ", "dim"), text))


def _note(head: str, text: str, *, style: str) -> None:
    report.CONSOLE.print(Text.assemble("    ", (head, style), (text, "" if head else style)))


def _verdict(totals: dict[str, report.Figures], seconds: float) -> int:
    _title("altogether")
    report.print_totals(totals)
    faults = [f"{sdk}: {fault}" for sdk, figures in totals.items() for fault in _faults(figures)]
    twice = sum(figures.twice for figures in totals.values())
    compared = all(figures.same_answer is not None for figures in totals.values())
    report.CONSOLE.print(Text(f"\nexecuted twice: {twice}", style="bold red" if twice else "bold green"))
    if compared and not faults:
        report.CONSOLE.print(f"answers and ledgers are those of agents that were left alone; {seconds:.0f} seconds")
    for fault in faults:
        report.CONSOLE.print(Text(fault, style="bold red"))
    return 1 if faults else 0


def _faults(figures: report.Figures) -> Iterator[str]:
    if figures.twice:
        yield f"{figures.twice} effects were executed more than once"
    if figures.same_answer is False:
        yield "the answer differs from that of the agent that was left alone"
    if figures.same_ledger is False:
        yield "the ledger differs from that of the agent that was left alone"
    if figures.returned != figures.said_returned:
        yield f"the log says that {figures.returned} steps were returned, the process counted {figures.said_returned}"


if __name__ == "__main__":
    sys.exit(main())
