"""P2, P4: killed while a provider works, an agent carries on, and the provider is asked again only where it has to be.

SIGKILL while the request is at the provider, after some chunks, when the last chunk has been read, after a job was
created, and between polls. What counts is what the receiver counted.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from steplog._cli.main import cli
from steplog.testing import Hit, LocalProvider, Reply
from tests.interceptors.support import chat_events, message_events
from tests.support.processes import environment
from tests.support.recorded import ROOT

WORDS = ("one ", "two ", "three ", "four ", "five")
TEXT = "".join(WORDS)
JOB = "resp_0850765c843cca53"


def response(status: str, **fields: Any) -> dict[str, Any]:
    """A response of the openai API."""
    content = [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}]
    output = [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}]
    head = {"id": JOB, "object": "response", "created_at": 1, "model": "gpt-x", "background": True, "status": status}
    rest = {"error": None, "incomplete_details": None, "tools": [], "parallel_tool_calls": True, "tool_choice": "auto"}
    return {**head, **rest, "output": output if status == "completed" else [], **fields}


def job_events() -> list[dict[str, Any]]:
    """The events of a streamed response in the background, numbered."""
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response("queued")},
        {"type": "response.in_progress", "response": response("in_progress")},
        *({"type": "response.output_text.delta", "delta": word, **place} for word in WORDS),
        {"type": "response.completed", "response": response("completed")},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def sse(events: list[dict[str, Any]]) -> Reply:
    return Reply.sse("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))


class Provider(LocalProvider):
    """Answers all agents; a job is done at the third poll."""

    def __init__(self) -> None:
        self._polls: Counter[str] = Counter()
        super().__init__(handler=self._reply)

    def _reply(self, hit: Hit) -> Reply:
        if hit.headers.get("x-plan") == "request":
            os.kill(int(hit.headers["x-pid"]), signal.SIGKILL)
        url = urlsplit(hit.path)
        case, _, path = url.path.lstrip("/").partition("/")
        if hit.method == "POST":
            return self._created(path, hit.json)
        if "stream" in url.query:
            after = int(parse_qs(url.query).get("starting_after", ["-1"])[0])
            return sse(job_events()[after + 1 :])
        self._polls[case] += 1
        return Reply.json(self._job(path, done=self._polls[case] >= 3))

    def _created(self, path: str, asked: dict[str, Any]) -> Reply:
        if path.endswith("chat/completions"):
            return Reply.sse(chat_events(*WORDS))
        if path.endswith("v1/messages"):
            return Reply.sse(message_events(*WORDS))
        if asked.get("stream"):
            return sse(job_events())
        return Reply.json(self._job(path, done=False))

    def _job(self, path: str, *, done: bool) -> dict[str, Any]:
        if "responses" in path:
            return response("completed" if done else "queued")
        if "messages" in path:
            counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
            state = {"processing_status": "ended" if done else "in_progress", "results_url": TEXT if done else None}
            head = {"id": "msgbatch_01X", "type": "message_batch", "request_counts": counts}
            return {**head, **state, "created_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-02T00:00:00Z"}
        head = {"id": "batch_01", "object": "batch", "endpoint": "/v1/chat/completions", "input_file_id": "file-1"}
        state = {"status": "completed" if done else "in_progress", "output_file_id": TEXT if done else None}
        return {**head, **state, "completion_window": "24h", "created_at": 1}

    def asked(self, case: str) -> dict[str, int]:
        """How many requests of each kind arrived for a case."""
        mine = [urlsplit(hit.path) for hit in self.hits if hit.path.startswith(f"/{case}/")]
        methods = [hit.method for hit in self.hits if hit.path.startswith(f"/{case}/")]
        kinds = [
            method if method == "POST" else "follow" if "stream" in url.query else "poll"
            for method, url in zip(methods, mine, strict=True)
        ]
        return dict(Counter(kinds))


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as server:
        yield server


@pytest.fixture(scope="module")
def launch() -> Iterator[Callable[..., int]]:
    """Dispatch in a fork of a process that has imported everything and used nothing."""
    command = [sys.executable, "-m", "tests.faults.programs.streamer"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), text=True, **pipes) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def dispatch(*words: str) -> int:
            server.stdin.write(json.dumps(words) + "\n")
            server.stdin.flush()
            return int(server.stdout.readline())

        yield dispatch
        server.stdin.close()


class Case:
    """One run of one agent, over all the processes that it takes."""

    def __init__(self, name: str, folder: Path, provider: Provider, launch: Callable[..., int]) -> None:
        self.name, self.folder, self._provider, self._launch = name, folder, provider, launch
        self.key = re.sub(r"\W", "-", folder.name)

    def start(self, plan: str = "") -> dict[str, Any] | None:
        """Start or resume the agent; what it ended with, or None when it was killed."""
        outcome = self.folder / "outcome"
        outcome.unlink(missing_ok=True)
        status = self._launch(self.name, str(self.folder), f"{self._provider.url}/{self.key}", plan)
        assert status == (-signal.SIGKILL if plan else 0)
        return None if plan else json.loads(outcome.read_text())

    def steplog(self, *words: str) -> str:
        """The command line on this run."""
        done = CliRunner().invoke(cli, [*words, "--home", str(self.folder / "home")])
        assert done.exit_code == 0, done.output
        return done.output

    def events(self) -> list[dict[str, Any]]:
        log = self.folder / "home/runs/r/events.jsonl"
        return [json.loads(line) for line in log.read_bytes().splitlines()]

    @property
    def step(self) -> str:
        """The step of the call that was cut off."""
        return next(event["step"] for event in self.events() if event["type"] == "step.started")

    @property
    def asked(self) -> dict[str, int]:
        return self._provider.asked(self.key)

    def check_end(self, ended: dict[str, Any] | None) -> None:
        """The answer is that of a run that nobody interrupted, and the side effect has happened once."""
        assert ended == {"answer": TEXT}
        assert (self.folder / "ledger").read_text() == TEXT + "\n"
        asked = self.asked
        assert self.start() == {"answer": TEXT}
        assert self.asked == asked, "a run that has ended asks for nothing"


@pytest.fixture
def case(tmp_path: Path, provider: Provider, launch: Callable[..., int]) -> Callable[[str], Case]:
    return lambda name: Case(name, tmp_path, provider, launch)


@pytest.mark.parametrize("plan, posts", [("", 1), ("request", 2), ("piece:1", 2), ("piece:4", 2), ("end", 1)])
@pytest.mark.parametrize("name", ["chat", "chat_async", "messages"])
def test_a_stream_that_was_cut_off_is_asked_for_once_more(name, plan, posts, case):
    one = case(name)
    if plan:
        one.start(plan)
    one.check_end(one.start())
    assert one.asked == {"POST": posts}


@pytest.mark.parametrize("plan, asked", [("", {"POST": 1}), ("end", {"POST": 1})])
@pytest.mark.parametrize("name", ["background", "background_async"])
def test_a_job_whose_stream_was_read_is_asked_for_once(name, plan, asked, case):
    one = case(name)
    if plan:
        one.start(plan)
    one.check_end(one.start())
    assert one.asked == asked


@pytest.mark.parametrize("plans", [["piece:1"], ["piece:4"], ["piece:7"], ["piece:2", "piece:5", "piece:1"]], ids=str)
@pytest.mark.parametrize("name", ["background", "background_async"])
def test_a_job_whose_stream_was_cut_off_is_taken_up_where_the_log_ends(name, plans, case, provider):
    one = case(name)
    for plan in plans:
        one.start(plan)
    one.check_end(one.start())
    assert one.asked == {"POST": 1, "follow": len(plans)}
    follows = [hit.path for hit in provider.hits if hit.path.startswith(f"/{one.key}/") and hit.method == "GET"]
    assert all(f"/v1/responses/{JOB}?" in path and "starting_after=" in path for path in follows)
    attempts = [event["data"].get("attempt", 1) for event in one.events() if event["type"] == "step.started"]
    assert attempts[: len(plans) + 1] == list(range(1, len(plans) + 2))


@pytest.mark.parametrize("plan, polls", [("created", 3), ("poll:1", 3), ("poll:2", 3)])
@pytest.mark.parametrize("name", ["polled", "batch", "message_batch"])
def test_a_job_that_was_created_is_polled_and_not_created_again(name, plan, polls, case):
    one = case(name)
    one.start(plan)
    one.check_end(one.start())
    assert one.asked == {"POST": 1, "poll": polls}


@pytest.mark.parametrize(
    "name, hint",
    [
        ("background", "dashboard"),
        ("polled", "dashboard"),
        ("batch", "client.batches.list()"),
        ("message_batch", "client.messages.batches.list()"),
    ],
)
def test_a_job_whose_creation_was_cut_off_is_a_matter_for_a_person(name, hint, case):
    one = case(name)
    one.start("request")
    stopped = one.start()
    assert stopped is not None
    assert stopped["stopped"] == "indeterminate"
    assert hint in stopped["message"]
    assert f"steplog resolve r {one.step} --retry" in " ".join(stopped["commands"])
    assert one.asked == {"POST": 1}

    one.steplog("resolve", "r", one.step, "--retry")
    one.check_end(one.start())
    assert one.asked["POST"] == 2


@pytest.mark.parametrize("name", ["background", "polled"])
def test_a_job_that_a_person_has_found_is_not_created_again(name, case):
    one = case(name)
    one.start("request")
    one.steplog("resolve", "r", one.step, "--done", json.dumps(response("completed")))
    one.check_end(one.start())
    assert one.asked == {"POST": 1}


@pytest.mark.parametrize("name", ["chat", "messages", "background"])
def test_what_had_arrived_is_shown_with_its_attempt(name, case):
    one = case(name)
    one.start("piece:5")
    shown = json.loads(one.steplog("show", "r", one.step, "--json"))
    (attempt,) = shown["attempts"]
    assert (attempt["attempt"], attempt["outcome"]) == (1, None)
    assert "one " in attempt["partial"][0]["body"]
    assert sum(attempt["partial"][0]["chunks"]) == len(attempt["partial"][0]["body"].encode())
    assert shown["status"] == ("to take up" if name == "background" else "to repeat")
    text = one.steplog("show", "r", one.step)
    assert "what had arrived by then" in text
    assert "one " in text
    assert (JOB in text) is (name == "background")

    one.start()
    shown = json.loads(one.steplog("show", "r", one.step, "--json"))
    assert [each["attempt"] for each in shown["attempts"]] == [1, 2]
    assert "one " in shown["attempts"][0]["partial"][0]["body"]
    assert WORDS[-1] in shown["output"][0]["body"]
