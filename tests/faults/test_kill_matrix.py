"""P2, P3, P4: an agent is killed at every boundary of its log and inside every effect, and carries on.

SIGKILL before, after and in the middle of each append, before and after each effect reaches the world, and while each
request is at the provider. Children are forks of a process that has imported the SDK and done nothing else; a few
cases in fresh processes show that this changes nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steplog._kernel.fold import FINISHED, RunState, StepState, fold
from steplog._runtime.resolve import resolve
from steplog.errors import UnknownRun
from steplog.stores.files import FileStore
from steplog.testing import Hit, LocalProvider, Reply
from tests.faults.programs.agent import RUN, result_of
from tests.support.processes import environment
from tests.support.recorded import ROOT
from tests.support.thinned import SEED, thinned

Dispatch = Callable[[Path, str, str], int]

ANSWER = [
    "plan: answered",
    "look_up ord_1: ok",
    [["where is north: answered", "book north: ok"], ["where is south: answered", "book south: ok"]],
    ["restock tea: ok", "restock cup: ok"],
    ["policy of ord_1: answered", "refund ord_1: ok", "send_mail ord_1: ok"],
    "declined: charge fee: ok",
    "last words: answered",
]
STEPS = 17
UNSAFE = {"book north", "book south", "restock tea", "restock cup", "send_mail ord_1", "charge fee"}

# Each kind of moment, in how many tests (one of three is tried a day), and how many moments there are at least.
# Concurrent appends share writes, so their number differs a little from run to run.
KINDS = {
    "append-before": (3, 26),
    "append-after": (3, 26),
    "append-torn": (3, 26),
    "effect-before": (3, 8),
    "effect-after": (3, 8),
    "request": (1, 5),
}


class Provider(LocalProvider):
    """Answers every question, and kills the process that asks when its plan says `request:N`."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._counting = threading.Lock()
        super().__init__(handler=self._reply)

    def _reply(self, hit: Hit) -> Reply:
        with self._counting:
            self._asked[hit.headers["x-dispatch"]] += 1
            number = self._asked[hit.headers["x-dispatch"]]
        if hit.headers["x-plan"] == f"request:{number}":
            os.kill(int(hit.headers["x-pid"]), signal.SIGKILL)
        message = {"role": "assistant", "content": f"{question(hit.json)}: answered"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-5.2"}
        return Reply.json({**head, "choices": [choice], "usage": usage})

    def asked(self, prefix: str) -> Counter[str]:
        """How often each question arrived below a path; one that was cut off by a kill did not arrive."""
        mine = (hit.json for hit in list(self.hits) if hit.path.startswith(f"/{prefix}/"))
        return Counter(f"ask {question(request)}" for request in mine if request)


def question(request: Any) -> str:
    return str(request["messages"][-1]["content"]).partition("|")[2]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as server:
        yield server


@pytest.fixture(scope="module")
def forked() -> Iterator[Dispatch]:
    """Dispatch in a fork of a process that has imported everything and used nothing."""
    command = [sys.executable, "-m", "tests.faults.programs.launch"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), text=True, **pipes) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def dispatch(folder: Path, url: str, plan: str) -> int:
            server.stdin.write(json.dumps([str(folder), url, plan]) + "\n")
            server.stdin.flush()
            return int(server.stdout.readline())

        yield dispatch
        server.stdin.close()


def fresh(folder: Path, url: str, plan: str) -> int:
    """Dispatch in a process of its own."""
    command = [sys.executable, "-m", "tests.faults.programs.launch", str(folder), url, plan]
    return subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode


class Case:
    """One run of the agent, over all the processes that it takes."""

    def __init__(self, name: str, folder: Path, provider: Provider, dispatch: Dispatch) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.store = FileStore(self.folder / "home")
        self.kills = 0
        self._provider = provider
        self._dispatch = dispatch
        self._frozen: dict[str, int] = {}

    def dispatch(self, plan: str = "") -> dict[str, Any] | None:
        """Start or resume the agent; what it ended with, or None when it was killed."""
        outcome = self.folder / "outcome"
        outcome.unlink(missing_ok=True)
        status = self._dispatch(self.folder, f"{self._provider.url}/{self.name}", plan)
        assert status in (0, -signal.SIGKILL), f"{self.name}: exit status {status}"
        self._look_at_the_log()
        if status:
            self.kills += 1
            return None
        return json.loads(outcome.read_text())

    def run(self, plans: Iterable[str]) -> list[Any]:
        """Start the agent, resume it, and settle what is in doubt as an operator does, until there is an answer."""
        for plan in itertools.chain(plans, [""] * 40):
            ended = self.dispatch(plan)
            if ended is None:
                continue
            if "answer" in ended:
                return ended["answer"]
            assert ended["stopped"] == "indeterminate", f"{self.name}: {ended['message']}"
            self._settle(ended["step"])
        raise AssertionError(f"{self.name}: no answer after {self.kills} kills and 40 quiet dispatches")

    def _settle(self, step: str) -> None:
        found = self.state().steps[step]
        label = label_of(found)
        assert label in UNSAFE
        assert found.finished is None
        assert self.kills, "nothing can be in doubt where nobody was killed"
        happened = label in self.lines("ledger")
        # This tool raises after it has acted.
        how = "retry" if not happened else "failed" if label == "charge fee" else "done"
        resolve(self.store, RUN, step, how=how, result=result_of(label), message=result_of(label), by="test")

    def _look_at_the_log(self) -> None:
        """Verify it, and note how often each step that is finished by now was executed: never again."""
        for step in self.state().steps.values():
            if step.status in FINISHED:
                count = self.executions()[label_of(step)]
                assert self._frozen.setdefault(step.id, count) == count, f"{self.name}: {label_of(step)} ran again"

    def state(self) -> RunState:
        try:
            return fold(self.store.read(RUN).events)
        except UnknownRun:
            return RunState()

    def lines(self, file: str) -> list[str]:
        path = self.folder / file
        return [line.partition("\t")[0] for line in path.read_text().splitlines()] if path.exists() else []

    def executions(self) -> Counter[str]:
        return Counter(self.lines("begun")) + self._provider.asked(self.name)

    def check(self, answer: list[Any]) -> None:
        """What must hold of a run that has ended, wherever it was killed."""
        state, ledger, executed = self.state(), Counter(self.lines("ledger")), self.executions()
        steps = {label_of(step): step for step in state.steps.values()}
        assert answer == ANSWER, self.name
        assert state.status == "completed"
        assert len(steps) == len(state.steps) == STEPS
        assert {step.status for step in steps.values()} == {"done", "failed"}
        assert {label: ledger[label] for label in UNSAFE} == dict.fromkeys(UNSAFE, 1), self.name
        assert len({line.partition("\t")[2] for line in self._keyed_lines()}) == 1
        calls = [label for label in steps if label.startswith("ask ")]
        assert sum(executed[call] for call in calls) <= len(calls) + self.kills * 2, "two branches ask at once"
        assert all(1 <= executed[call] <= 1 + self.kills for call in calls), self.name

    def _keyed_lines(self) -> list[str]:
        lines = (self.folder / "ledger").read_text().splitlines()
        return [line for line in lines if line.startswith("refund ")]


def label_of(step: StepState) -> str:
    """What a step of the log is called in the ledger."""
    if step.kind == "llm_call":
        return f"ask {question(step.started['request']['body']['json'])}"
    if step.kind == "local":
        return step.target
    return f"{step.target} {step.started['args']['what']}"


MATRIX = [
    pytest.param(kind, first, tests, least // tests, id=f"{kind}-{first}")
    for kind, (tests, least) in KINDS.items()
    for first in range(1, tests + 1)
]


def turn(param: Any) -> int:
    """A kind that is one test is tried every day."""
    return int(param.values[1]) if param.values[2] > 1 else SEED


@pytest.mark.parametrize("kind, first, stride, least", thinned(MATRIX, every=3, by=turn))
def test_killed_anywhere_it_carries_on(kind, first, stride, least, tmp_path, provider, forked):
    killed = 0
    for number in itertools.count(first, stride):
        case = Case(f"{kind}-{number}", tmp_path, provider, forked)
        case.check(case.run([f"{kind}:{number}"]))
        if not case.kills:
            break
        killed += 1

    assert killed >= least


@pytest.mark.parametrize("kind", thinned(KINDS, every=2))
def test_killed_again_and_again_it_carries_on(kind, tmp_path, provider, forked):
    """Each process lives a little longer than the one before."""
    case = Case(f"{kind}-each", tmp_path, provider, forked)
    case.check(case.run(f"{kind}:{1 + number // 3}" for number in range(40)))

    assert case.kills >= 5


@pytest.mark.parametrize(
    "plan", thinned(["", "append-after:9", "append-torn:14", "effect-after:5", "request:2"], every=3)
)
def test_a_process_of_its_own_fares_like_a_fork(plan, tmp_path, provider):
    case = Case(f"fresh-{plan.replace(':', '-')}", tmp_path, provider, fresh)
    case.check(case.run([plan]))

    assert case.kills == bool(plan)
