"""The file of a cassette: it says all that a replay needs, and the same whenever the same is recorded."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import anthropic
import openai
import pytest

import steplog
from steplog.testing import LocalProvider, MemoryStore, _files, layout
from steplog.testing._files import beside_of, read, write
from steplog.testing._forms import Shared
from steplog.testing._taking import taken
from steplog.testing.cassettes import Cassette, CassetteError, Tape, dumps, loads
from tests.support import agents
from tests.support.agents import lookup_order, refund, refund_agent, restock_agent, send_mail
from tests.support.processes import environment
from tests.support.recorded import OWN

BINARY = bytes(range(256)) * 20


@pytest.fixture(autouse=True)
def _installed():
    steplog.install()
    yield
    steplog.uninstall()


def request(name: str) -> dict[str, Any]:
    return json.loads((OWN / f"{name}.json").read_bytes())["request"]["body"]


@steplog.step
def fails(text: str) -> None:
    raise ValueError(text)


@steplog.step
def picture(data: bytes) -> dict[str, Any]:
    return {"data": data, "large": "x" * 9000}


class Programs:
    """What a test may do; `delays` makes branches end in another order."""

    def __init__(self, url: str) -> None:
        self.openai = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
        self._url = url + "/v1"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.openai.close()
        self.anthropic.close()

    def refunds(self) -> Any:
        return refund_agent(self.openai, {f.__name__: steplog.step(f) for f in (lookup_order, refund, send_mail)})

    def restocks(self) -> Any:
        tools = {name: steplog.step(getattr(agents, name)) for name in ("check_stock", "restock", "notify")}
        return restock_agent(self.anthropic, tools)

    def streams(self) -> Any:
        chunks = self.openai.chat.completions.create(**request("openai/chat/stream-usage"))
        return [chunk.model_dump() for chunk in chunks]

    def leaves_a_stream(self) -> Any:
        with self.openai.chat.completions.create(**request("openai/chat/stream-usage")) as chunks:
            return [chunk.model_dump() for chunk in itertools.islice(chunks, 4)]

    def streams_from_anthropic(self) -> Any:
        body = {k: v for k, v in request("anthropic/messages/stream-tool-call").items() if k != "stream"}
        with self.anthropic.messages.stream(**body) as stream:
            return [*stream.text_stream], stream.get_final_message().model_dump()

    def fails(self) -> Any:
        found = []
        for call in (
            lambda: fails("no"),
            lambda: self.openai.chat.completions.create(
                model="gpt-4o-mini", messages=[{"role": "user", "content": "Answer with status 429."}]
            ),
        ):
            with pytest.raises((ValueError, openai.RateLimitError)) as raised:
                call()
            found.append((type(raised.value), str(raised.value)))
        return found

    def keeps_bytes(self) -> Any:
        return picture(BINARY), steplog.step("small", lambda: {"é": float("inf"), "t": (1, 2)})

    def gathers(self, delays: tuple[float, ...] = (0, 0, 0)) -> Any:
        async def one(client: Any, name: str, delay: float) -> Any:
            answer = await client.chat.completions.create(**request(name))

            async def wait() -> None:
                await asyncio.sleep(delay)

            await steplog.step(f"wait for {name}", wait)
            return answer.model_dump()

        async def all_of_them() -> Any:
            names = ("openai/chat/plain", "openai/chat/parallel-tool-calls", "openai/chat/structured-output")
            async with openai.AsyncOpenAI(base_url=self._url, api_key="none", max_retries=0) as client:
                calls = (one(client, name, delay) for name, delay in zip(names, delays, strict=True))
                return await asyncio.gather(*calls), await one(client, "openai/chat/plain", 0)

        return asyncio.run(all_of_them())


NAMES = [name for name in vars(Programs) if not name.startswith("_")]


def play(name: str, url: str, *args: Any) -> Any:
    with Programs(url) as programs:
        return getattr(programs, name)(*args)


def recorded(name: str, url: str, run: str = "test", *args: Any) -> tuple[Any, Cassette]:
    store = MemoryStore()
    with steplog.run(run, store=store):
        result = play(name, url, *args)
    return result, taken(store, [run], "test_x.py::test", "2026-11-30")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_back_replays_to_the_same_answers_without_a_provider(name, provider, tmp_path):
    result, cassette = recorded(name, provider.url)
    path = str(tmp_path / "cassettes/test.steplog.json")
    write(path, cassette)
    provider.close()

    with steplog.run("test", store=read(path).store()) as again:
        assert play(name, provider.url) == result

    assert again.executed == 0
    assert again.replayed == len([step for step in again.state.steps.values() if not step.scope])


@pytest.mark.parametrize("name", NAMES)
def test_a_second_recording_is_the_same_text(name):
    texts = set()
    for pause in (0, 0.01):
        # Another provider, another port, another moment, other chunks.
        with LocalProvider(OWN / "openai", OWN / "anthropic", event_delay=pause) as provider:
            _, cassette = recorded(name, provider.url)
        # Which of two branches was faster is a fact of its own, in one line.
        texts.add("\n".join(line for line in dumps(cassette).splitlines() if '"order": "' not in line))

    assert len(texts) == 1


def test_branches_that_end_in_another_order_change_one_line(provider):
    texts = [
        dumps(recorded("gathers", provider.url, "test", delays)[1]).splitlines()
        for delays in ((0.0, 0.1, 0.2), (0.2, 0.1, 0.0))
    ]

    differing = [(one, other) for one, other in zip(*texts, strict=True) if one != other]
    assert len(differing) == 1
    assert differing[0][0].strip().startswith('"order": ')


def test_answers_come_in_the_order_in_which_they_came():
    async def program() -> list[str]:
        @steplog.step(mode="safe")
        async def slow(name: str, delay: float) -> str:
            await asyncio.sleep(delay)
            return name

        tasks = [asyncio.create_task(slow(name, delay)) for name, delay in (("b", 0.15), ("a", 0.0), ("c", 0.08))]
        return [await found for found in asyncio.as_completed(tasks)]

    store = MemoryStore()
    with steplog.run("test", store=store):
        order = asyncio.run(program())
    text = dumps(taken(store, ["test"], "t", "2026-11-30"))
    with steplog.run("test", store=loads(text).store()) as again:
        assert asyncio.run(program()) == order == ["a", "c", "b"]
    assert again.executed == 0


def test_a_conversation_is_written_once(provider):
    _, cassette = recorded("refunds", provider.url)
    text = dumps(cassette)

    assert text.count("My order ord_1001 arrived damaged") == 1
    assert text.count('"Pay money back for an order."') == 1


def test_nothing_of_the_machine_is_in_it(provider, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH")
    text = "".join(dumps(recorded(name, provider.url)[1]) for name in NAMES)

    for noise in (os.getcwd(), str(os.getpid()), provider.url.rpartition(":")[2], "3.57.0", "GMT", '"ms"', "ratelimit"):
        assert noise not in text


def test_a_secret_is_taken_out_and_the_step_is_returned_with_its_marker(provider):
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
    store = MemoryStore()
    with steplog.run("test", store=store):
        steplog.step("key", lambda: {"key": secret})
    cassette = taken(store, ["test"], "t", "2026-11-30")
    text = dumps(cassette)

    assert secret not in text
    assert cassette.redacted == 1
    with steplog.run("test", store=loads(text).store()) as again:
        assert steplog.step("key", lambda: {"key": secret}) == {"key": "[redacted:openai-key]"}
    assert again.executed == 0


def test_binary_bodies_lie_beside_it_and_go_when_they_are_not_named_any_more(provider, tmp_path):
    def transcribe() -> Any:
        with openai.OpenAI(base_url=provider.url + "/v1", api_key="none", max_retries=0) as client:
            try:
                return client.audio.transcriptions.create(model="whisper-1", file=("a.mp3", BINARY)).text
            except openai.APIStatusError as error:
                return error.status_code

    store = MemoryStore()
    with steplog.run("test", store=store):
        status = transcribe()
    path = str(tmp_path / "test.steplog.json")
    write(path, taken(store, ["test"], "t", "2026-11-30"))
    beside = Path(beside_of(path))

    assert [BINARY in file.read_bytes() for file in beside.iterdir()] == [True]
    with steplog.run("test", store=read(path).store()) as again:
        assert transcribe() == status
    assert again.executed == 0

    next(beside.iterdir()).write_bytes(b"changed")
    with pytest.raises(CassetteError, match="was changed"):
        read(path)
    write(path, recorded("streams", provider.url)[1])
    assert not beside.exists()


def test_writing_says_whether_anything_but_the_day_has_changed(provider, tmp_path):
    path = str(tmp_path / "a.steplog.json")
    _, cassette = recorded("streams", provider.url)

    assert write(path, cassette) is True
    cassette.recorded = "2027-01-01"
    assert write(path, cassette) is False
    cassette.tapes[0].lines.pop()
    assert write(path, cassette) is True


CRASH = """
import os, signal, sys
from steplog.testing import _files
from steplog.testing.cassettes import Cassette, Line, Tape
kill, path = sys.argv[1:]
def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(os, kill, die)
_files.write(path, Cassette("t", "2026-11-30", [Tape("r", [Line("run.created", None, {"goal": "new"})])]))
"""


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_process_that_dies_while_it_writes_leaves_the_old_file(call, tmp_path):
    path = tmp_path / "a.steplog.json"
    path.write_text("the old one")
    command = [sys.executable, "-c", CRASH, call, str(path)]
    died = subprocess.run(command, env=environment(), capture_output=True, timeout=60, check=False)

    assert died.returncode == -signal.SIGKILL, died.stderr
    assert path.read_text() == "the old one"


@pytest.mark.parametrize(
    "text, why",
    [
        ("{", "no JSON"),
        ("<<<<<<< HEAD\n{}", "merge"),
        ("[]", "no steplog cassette"),
        ('{"cassette": "steplog-cassette/99"}', "steplog-cassette/99"),
        ('{"cassette": "steplog-cassette/1"}', "KeyError"),
        (
            '{"cassette": "steplog-cassette/1", "runs": [{"run": "r", "events": [{"type": "x"}], "order": "5"}]}',
            "order",
        ),
    ],
)
def test_what_is_no_cassette_is_refused_with_the_reason(text, why):
    with pytest.raises(CassetteError, match=why):
        loads(text, "tests/cassettes/a.steplog.json")


def test_cases_that_no_file_name_could_tell_apart_have_a_file_each():
    paths = {
        layout.path_of("tests/test_it.py", ["T", f"test[{case}]"])
        for case in ("a b", "a/b", "a-b", "x" * 300, "x" * 301)
    }

    assert len(paths) == 5
    assert max(len(os.path.basename(path)) for path in paths) < 200


def test_a_file_beside_it_is_no_path(tmp_path):
    (tmp_path / "x").write_bytes(b"1")
    body = {"exchanges": [{"body": {"file": "../x", "size": 1}}]}
    events = [{"type": "step.finished", "step": "s_a", "data": body}]
    text = {"cassette": "steplog-cassette/1", "runs": [{"run": "r", "events": events}]}
    path = tmp_path / "deep/a.steplog.json"
    path.parent.mkdir()
    path.write_text(json.dumps(text))

    with pytest.raises(CassetteError, match=r"'\.\./x' is no file beside it"):
        read(str(path))


def test_what_would_not_read_back_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "a.steplog.json"
    path.write_text("the old one")
    monkeypatch.setattr(_files, "loads", lambda *_: Cassette("t", "2026-11-30"))

    with pytest.raises(CassetteError, match="would not read back"):
        write(str(path), Cassette("t", "2026-11-30", [Tape("r", [])]))
    assert path.read_text() == "the old one"


def test_what_two_requests_share_is_what_json_holds_equal():
    shared, long = Shared(), "x" * 500
    one = {"json": {"messages": [{"n": 1, "text": long}, {"n": 1}]}}
    same = {"json": {"messages": [{"n": 1, "text": long}, {"n": True}]}}

    assert shared.shorten("s_1", one) == one
    assert shared.shorten("s_2", same) == {"as": "s_1", "same": {"messages": 1}, "json": {"messages": [{"n": True}]}}


@steplog.step
def pay(order: str, amount: int = 1) -> str:
    return f"paid {order}"


def written(path: Path, url: str) -> str:
    """The text of a cassette with a conversation, a tool, and a file beside it."""
    store = MemoryStore()
    with steplog.run("test", store=store):
        play("refunds", url)
        pay("ord_1001")
        picture(BINARY)
    write(str(path), taken(store, ["test"], "t", "2026-11-30"))
    return path.read_text()


@pytest.mark.parametrize(
    "before, after",
    [
        ("My order ord_1001 arrived damaged", "My order ord_1002 arrived damaged"),
        ('"order": "ord_1001"', '"order": "ord_1002"'),
        ('"amount": 1,', '"amount": 1.0,'),
        ('"target": "pay"', '"target": "repay"'),
        ('"path": "/v1/chat/completions"', '"path": "/v1/responses"'),
        ('"kind": "tool_call"', '"kind": "local"'),
    ],
)
def test_a_request_that_was_edited_answers_nobody(before, after, provider, tmp_path):
    path = tmp_path / "a.steplog.json"
    text = written(path, provider.url)
    assert before in text
    path.write_text(text.replace(before, after, 1))

    with pytest.raises(CassetteError, match=r"is not what was recorded: it was edited") as refused:
        read(str(path))
    line = int(str(refused.value).removeprefix(f"{path}:").partition(":")[0])
    edited = path.read_text().splitlines().index(next(one for one in path.read_text().splitlines() if after in one))
    assert 0 <= edited - line < 30
    assert "pytest --steplog=all" in str(refused.value)


def test_an_id_or_a_sum_that_was_edited_is_noticed_too(provider, tmp_path):
    path = tmp_path / "a.steplog.json"
    text = written(path, provider.url)
    tree = json.loads(text)
    started = next(event for event in tree["runs"][0]["events"] if event["type"] == "step.started")
    for old, new in ((started["step"], "s_" + "a" * 26), (f'"sum": "{started["sum"]}",', "")):
        path.write_text(text.replace(old, new))
        with pytest.raises(CassetteError, match="is not what was recorded"):
            read(str(path))


def test_answers_may_be_edited_and_the_layout_is_free(provider, tmp_path):
    path = tmp_path / "a.steplog.json"
    text = written(path, provider.url)
    path.write_text(json.dumps(json.loads(text.replace("paid ord_1001", "paid it")), indent=4))

    with steplog.run("test", store=read(str(path)).store()) as again:
        play("refunds", provider.url)
        assert pay("ord_1001") == "paid it"
        picture(BINARY)
    assert again.executed == 0


def test_a_run_that_was_opened_twice_is_given_as_it_was_at_each_time():
    store = MemoryStore()
    attempts = []

    @steplog.step(mode="safe")
    def flaky() -> int:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("down")
        return 7

    with pytest.raises(OSError), steplog.run("r", store=store):
        flaky()
    with steplog.run("r", store=store):
        assert flaky() == 7
    cassette = loads(dumps(taken(store, ["r"], "t", "2026-11-30")))

    first, second = (cassette.store(sessions={"r": n}).read("r") for n in (1, 2))
    assert [event.type for event in first.events] == [
        "run.created", "run.claimed", "step.started", "step.finished", "run.ended",
    ]  # fmt: skip
    assert [event.type for event in second.events] == [event.type for event in store.read("r").events]
    assert [event.epoch for event in second.events] == [event.epoch for event in store.read("r").events]
