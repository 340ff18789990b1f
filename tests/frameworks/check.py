"""What is asked of a framework: its agent, killed anywhere, carries on and does nothing twice.

    record     one uninterrupted run: the answer, every request once, one payment, every step once in the log
    replay     the same program again, with nothing that listens at the provider's address: the same answer
    boundary   killed after an append to the log, for each append; started again until there is an answer
    inside     killed in the middle of the payment: the next start halts, as one that a person has to decide, without
               asking the model; after `steplog resolve --done` there is the answer

What happened is counted where it happened: requests at the receiver, payments in the shop's file.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from steplog._kernel.fold import RunState, fold
from steplog._runtime.resolve import resolve
from steplog.errors import UnknownRun
from steplog.stores.files import FileStore
from tests.frameworks.launch import HANGS_AFTER_SECONDS, NEEDS_DECISION, RUN
from tests.frameworks.model import ANSWER, CENTS, ORDER
from tests.frameworks.table import Way
from tests.support.processes import environment, wait_for
from tests.support.recorded import ROOT

TOOLS: Final = {"lookup_order": 1, "refund": 1}
PAYMENT: Final = f"refund {ORDER} {CENTS}"
PAID: Final = f"refunded {CENTS} cents for {ORDER}"  # what the tool returns
# Nothing listens there: port 1 is a service that no machine runs, and needs a privilege to open.
NOBODY: Final = "http://127.0.0.1:1"


# What frameworks would ask of the world while they are imported: it takes them seconds to find that nobody answers.
OFFLINE: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "HF_HUB_OFFLINE": "1",
}


class Failed(AssertionError):
    """A framework does not do under steplog what it should."""


class Ended(NamedTuple):
    """How one process ended.

    Attributes:
        status: exit status, negative for a signal.
        outcome: `answer`, `stopped` with `step`, or `error`; empty when it was killed.
    """

    status: int
    outcome: dict[str, Any]


@contextmanager
def model_process(folder: Path) -> Iterator[str]:
    """Run the scripted model as a process of its own and yield its address; its hits go to `folder / "hits"`."""
    url = folder / "url"
    command = [sys.executable, "-m", "tests.frameworks.model", str(url), str(folder / "hits")]
    process = subprocess.Popen(command, cwd=ROOT, env=environment())
    try:
        wait_for(url, process)
        yield url.read_text()
    finally:
        process.terminate()
        process.wait(30)


class Programs:
    """Starts processes of one agent: forks of one that has imported the framework, or fresh ones."""

    def __init__(self, python: Path, agent: str, folder: Path) -> None:
        self._command = [str(python), "-m", "tests.frameworks.launch", agent]
        self._environment = environment(HOME=str(folder), XDG_DATA_HOME=str(folder), **OFFLINE)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with (folder / f"{agent}-said").open("w") as said:
            self._server = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, text=True, stderr=said, **pipes
            )
        first = self._server.stdout.readline()
        while first and first != "ready\n":
            first = self._server.stdout.readline()
        if not first:
            raise Failed(f"{agent} cannot be imported:\n{(folder / f'{agent}-said').read_text()[-2000:]}")

    def fork(self, *arguments: str) -> int:
        """Dispatch in a fork; returns its exit status."""
        self._server.stdin.write(json.dumps(arguments) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def fresh(self, *arguments: str) -> int:
        """Dispatch in a process of its own."""
        with (Path(arguments[0]) / "said").open("a") as said:
            done = subprocess.run(
                [*self._command, *arguments], cwd=ROOT, env=self._environment, stdout=said, stderr=said, check=False
            )
        return done.returncode

    def close(self) -> None:
        """End the process that is forked."""
        self._server.stdin.close()
        self._server.wait(30)
        self._server.stdout.close()


class Case:
    """One run of an agent, over all the processes that it takes."""

    def __init__(self, way: Way, name: str, folder: Path, url: str, programs: Programs) -> None:
        self.way = way
        self.name = f"{way.agent}-{way.function}-{name}"
        self.folder = folder / self.name
        self.folder.mkdir()
        self._hits = folder / "hits"
        self._url = url
        self._programs = programs
        self.kills = 0
        self.asked_in_vain = 0

    def start(self, plan: str = "", *, fresh: bool = False, provider: bool = True) -> Ended:
        """Start or resume the agent in one process."""
        (self.folder / "outcome").unlink(missing_ok=True)
        launch = self._programs.fresh if fresh else self._programs.fork
        url = f"{self._url if provider else NOBODY}/{self.name}"
        status = launch(str(self.folder), url, self.way.function, plan)
        if status == -signal.SIGKILL:
            self.kills += 1
            self.asked_in_vain += self._open_calls()
            return Ended(status, {})
        if status == -signal.SIGALRM:
            raise Failed(f"{self.name} [{plan}]: hangs, ended after {HANGS_AFTER_SECONDS} s\n{self._said()}")
        ended = Ended(status, json.loads((self.folder / "outcome").read_text()))
        if "error" in ended.outcome:
            raise Failed(f"{self.name} [{plan}]: {ended.outcome['error'][-3000:]}")
        return ended

    def run(self, plans: Iterable[str]) -> None:
        """Start the agent, resume it, and settle what is in doubt as an operator does, until there is an answer."""
        for plan in [*plans, *[""] * 6]:
            ended = self.start(plan)
            if "answer" in ended.outcome:
                self.check(ended)
                return
            if ended.outcome:
                self.require(ended.outcome["stopped"] == "indeterminate", ended.outcome["message"])
                self.settle(ended.outcome["step"], "done" if PAYMENT in self.effects() else "retry")
        raise Failed(f"{self.name}: no answer after {self.kills} kills and 6 quiet starts")

    def settle(self, step: str, how: str) -> None:
        """Say what an operator has found out."""
        resolve(FileStore(self.folder / "home"), RUN, step, how=how, result=PAID, by="test")

    def settle_by_command(self, step: str) -> None:
        """Say on the command line that it was done."""
        command = [sys.executable, "-m", "steplog", "resolve", RUN, step, "--home", str(self.folder / "home")]
        command += ["--done", json.dumps(PAID)]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
        self.require(done.returncode == 0, done.stderr)

    def check(self, ended: Ended) -> None:
        """What must hold of a run that has ended, wherever it was killed."""
        steps, hits = self.state().steps.values(), self.hits()
        effects = Counter(self.effects())
        self.require(ended.outcome["answer"] == ANSWER, f"answers {ended.outcome['answer']!r}")
        self.require(effects[PAYMENT] == 1, f"paid {effects[PAYMENT]} times")
        self.require({step.status for step in steps} == {"done"}, f"steps end as {[s.status for s in steps]}")
        tools = Counter(step.target.rpartition(".")[2] for step in steps if step.kind == "tool_call")
        calls = [step for step in steps if step.kind == "llm_call"]
        self.require(tools == TOOLS, f"the log has the tools {dict(tools)}")
        self.require(len(calls) == self.way.calls, f"the log has {len(calls)} model calls")
        self.require(len(hits) == self.way.calls, f"{len(hits)} different requests reached the provider")
        extra = sum(hits.values()) - len(hits)
        self.require(extra <= self.asked_in_vain, f"{extra} requests reached the provider twice")

    def require(self, holds: bool, message: str) -> None:
        """Raise `Failed` unless something holds."""
        if not holds:
            raise Failed(f"{self.name}: {message}\n{self._said()}")

    def hits(self) -> Counter[str]:
        """How often each request of this run has arrived."""
        lines = self._hits.read_text().splitlines() if self._hits.exists() else []
        mine = (hit for hit in map(json.loads, lines) if hit["path"].startswith(f"/{self.name}/"))
        return Counter(hit["body_sha256"] for hit in mine)

    def effects(self) -> list[str]:
        """What was done in the shop."""
        file = self.folder / "effects"
        return file.read_text().splitlines() if file.exists() else []

    def state(self) -> RunState:
        """What the log says; read as any reader would, so a log that does not verify fails here."""
        try:
            return fold(FileStore(self.folder / "home").read(RUN).events)
        except UnknownRun:
            return RunState()

    def requests(self) -> list[str]:
        """What the model calls of the run look like on the wire, each kind once."""
        asked = [step.started["request"] for step in self.state().steps.values() if step.kind == "llm_call"]
        return list(dict.fromkeys(_wire(self.name, request) for request in asked))

    def _open_calls(self) -> int:
        # Asking is safe to repeat: what was under way when the process died is asked again.
        return sum(step.kind == "llm_call" and step.finished is None for step in self.state().steps.values())

    def _said(self) -> str:
        said = self.folder / "said"
        return said.read_text()[-3000:] if said.exists() else ""


def _wire(case: str, request: dict[str, Any]) -> str:
    sent = f"{request['sdk']}: {request['method']} {request['path'].removeprefix(f'/{case}')}"
    return f"{sent}, streamed" if request["stream"] else sent


def record_and_replay(case: Case, *, fresh: bool = True) -> int:
    """Checks `record` and `replay`; returns how many events the run took."""
    case.check(case.start())
    hits, effects = case.hits(), case.effects()
    case.require(sum(hits.values()) == case.way.calls, f"{sum(hits.values())} requests reached the provider")
    events = case.state().seq + 1
    ended = case.start(fresh=fresh, provider=False)
    case.require(ended.outcome.get("answer") == ANSWER, f"replayed: {ended.outcome}")
    case.require((case.hits(), case.effects()) == (hits, effects), "something was done again")
    return events


def killed_at(case: Case, number: int) -> bool:
    """Check `boundary` for one append; False where the run has no such append."""
    case.run([f"append-after:{number}"])
    return bool(case.kills)


def killed_inside(case: Case, *, fresh: bool = True) -> None:
    """Check `inside`, `fresh` with processes and commands as an operator has them."""
    case.require(case.start("after-effect:1").status == -signal.SIGKILL, "was not killed in the payment")
    asked = case.hits()
    ended = case.start(fresh=fresh)
    case.require(ended.outcome.get("stopped") == "indeterminate", f"does not halt: {ended.outcome}")
    case.require(ended.status == NEEDS_DECISION, f"exit status {ended.status}")
    case.require(case.hits() == asked, "the model was told of the halt")
    if fresh:
        case.settle_by_command(ended.outcome["step"])
    else:
        case.settle(ended.outcome["step"], "done")
    case.check(case.start())
