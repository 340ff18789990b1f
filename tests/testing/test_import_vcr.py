"""Cassettes of vcrpy become cassettes that the real SDKs replay with nobody there."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import vcr
import yaml

import steplog
from steplog.testing import LocalProvider
from steplog.testing._files import read
from steplog.testing.importing import Imported, import_vcr
from tests.support.agents import REFUND_ANSWER, REFUND_TOOLS, RESTOCK_ANSWER, RESTOCK_TOOLS, refund_agent, restock_agent
from tests.support.processes import environment
from tests.support.recorded import OWN, recorded

BY_NAME = {exchange.name: exchange.tree for exchange in recorded(OWN)}


def body(name: str) -> dict[str, Any]:
    return BY_NAME[name]["request"]["body"]


@pytest.fixture
def copied(tmp_path) -> Path:
    shutil.copytree(OWN / "vcr", tmp_path / "vcr")
    return tmp_path / "vcr"


class Replaying:
    """The runs of a cassette, resumed where there is no provider; whatever is asked for must be recorded."""

    def __init__(self, file: Imported | Path, **installed: Any) -> None:
        path = file.target if isinstance(file, Imported) else str(file)
        cassette = read(path)
        self._installed = installed
        self._run = steplog.run(cassette.tapes[0].run, store=cassette.store())

    def __enter__(self) -> steplog.Run:
        steplog.install(**self._installed)
        return self._run.__enter__()

    def __exit__(self, *error: object) -> None:
        try:
            self._run.__exit__(*error)
        finally:
            steplog.uninstall()


def test_openai(copied):
    done = import_vcr(str(copied / "openai/chat.yaml"))

    assert (done.steps, done.skipped, done.hosts) == (7, [], [])
    with Replaying(done) as run, openai.OpenAI(api_key="test") as client:
        assert client.chat.completions.create(**body("openai/chat/plain")).choices[0].message.content == "Tagus"
        assert len([*client.chat.completions.create(**body("openai/chat/stream-usage"))]) == 16
        with pytest.raises(openai.RateLimitError) as caught:
            client.with_options(max_retries=0).chat.completions.create(**body("openai/errors/chat-429"))
        assert caught.value.response.headers["retry-after"] == "1"
        assert refund_agent(client, REFUND_TOOLS) == REFUND_ANSWER
        assert (run.replayed, run.executed) == (7, 0)


async def test_anthropic(copied):
    done = import_vcr(str(copied / "anthropic/messages.yaml"))

    assert (done.steps, done.skipped) == (7, [])
    with Replaying(done) as run:
        async with anthropic.AsyncAnthropic(api_key="test", max_retries=0) as client:
            assert (await client.messages.create(**body("anthropic/messages/plain"))).content[0].text == "Petrichor."
            stream = await client.messages.create(**body("anthropic/messages/stream-tool-call"))
            assert [event.type async for event in stream][-1] == "message_stop"
        with anthropic.Anthropic(api_key="test") as client:
            assert restock_agent(client, RESTOCK_TOOLS) == RESTOCK_ANSWER
        assert (run.replayed, run.executed) == (6, 0)


def test_what_vcrpy_itself_records_today(tmp_path):
    """Nothing by hand: vcrpy records the SDKs, in both of its serializers, and each file is imported."""
    with LocalProvider(OWN / "openai", OWN / "anthropic") as provider:
        for serializer, suffix in (("yaml", "yaml"), ("json", "json")):
            with vcr.use_cassette(str(tmp_path / f"a.{suffix}"), serializer=serializer):
                with openai.OpenAI(base_url=provider.url + "/v1", api_key="test") as client:
                    assert refund_agent(client, REFUND_TOOLS) == REFUND_ANSWER
    for suffix in ("yaml", "json"):
        done = import_vcr(str(tmp_path / f"a.{suffix}"), str(tmp_path / f"{suffix}.steplog.json"))
        assert (done.steps, done.skipped) == (4, [])
        with Replaying(done) as run, openai.OpenAI(base_url=provider.url + "/v1", api_key="other") as client:
            assert refund_agent(client, REFUND_TOOLS) == REFUND_ANSWER
        assert run.executed == 0


def cassette(path: Path, *interactions: dict[str, Any], **more: Any) -> str:
    tree = {"version": 1, "interactions": [*interactions], **more}
    path.write_text(json.dumps(tree) if path.suffix == ".json" else yaml.safe_dump(tree))
    return str(path)


def interaction(url: str, sent: Any, got: Any, status: int = 200, **headers: str) -> dict[str, Any]:
    headers = {"content-type": "application/json"} | headers
    return {
        "request": {"method": "POST", "uri": url, "body": sent, "headers": {}},
        "response": {
            "status": {"code": status, "message": ""},
            "headers": {name: [value] for name, value in headers.items()},
            "body": got,
        },
    }


CHAT = "https://api.openai.com/v1/chat/completions"
PLAIN = json.dumps(BY_NAME["openai/chat/plain"]["response"]["body"])
ASKED = json.dumps(body("openai/chat/plain"))


@pytest.mark.parametrize(
    "asked, answer, headers",
    [
        (ASKED, {"string": PLAIN}, {}),
        (ASKED, {"string": gzip.compress(PLAIN.encode())}, {"content-encoding": "gzip"}),
        (ASKED, {"string": PLAIN}, {"content-encoding": "gzip"}),
        (ASKED, {"base64_string": base64.b64encode(PLAIN.encode()).decode()}, {}),
        ({"base64_string": base64.b64encode(ASKED.encode()).decode()}, {"string": PLAIN.encode()}, {}),
    ],
    ids=["text", "compressed", "decompressed, the header left", "base64", "bytes"],
)
def test_bodies_in_every_form_that_is_in_use(asked, answer, headers, tmp_path):
    done = import_vcr(cassette(tmp_path / "a.yaml", interaction(CHAT, asked, answer, **headers)))

    with Replaying(done), openai.OpenAI(api_key="test") as client:
        assert client.chat.completions.create(**body("openai/chat/plain")).choices[0].message.content == "Tagus"


def test_parsed_bodies_of_serializers_for_people(tmp_path):
    one = interaction(CHAT, None, None)
    one["request"]["parsed_body"] = json.loads(ASKED)
    one["response"]["parsed_body"] = json.loads(PLAIN)

    with Replaying(import_vcr(cassette(tmp_path / "a.yml", one))), openai.OpenAI(api_key="test") as client:
        assert client.chat.completions.create(**body("openai/chat/plain")).choices[0].message.content == "Tagus"


def test_attempts_of_one_call_become_one_step(tmp_path):
    again = {"retry-after-ms": "1"}
    limited = [interaction(CHAT, ASKED, {"string": "{}"}, 429, **again) for _ in range(2)]
    done = import_vcr(cassette(tmp_path / "a.json", *limited, interaction(CHAT, ASKED, {"string": PLAIN})))

    assert done.steps == 1
    with Replaying(done) as run, openai.OpenAI(api_key="test", max_retries=2) as client:
        raw = client.chat.completions.with_raw_response.create(**body("openai/chat/plain"))
        assert (raw.retries_taken, raw.parse().choices[0].message.content) == (2, "Tagus")
    assert run.executed == 0


def test_equal_requests_are_answered_in_their_order(tmp_path):
    answers = [PLAIN, PLAIN.replace("Tagus", "Douro")]
    done = import_vcr(cassette(tmp_path / "a.json", *(interaction(CHAT, ASKED, {"string": one}) for one in answers)))

    with Replaying(done), openai.OpenAI(api_key="test") as client:
        found = [client.chat.completions.create(**body("openai/chat/plain")).choices[0].message.content for _ in "12"]
    assert found == ["Tagus", "Douro"]


def test_requests_to_other_hosts_are_steps_where_the_host_is_named(tmp_path):
    one = interaction("https://api.example.com/v1/orders?limit=2", '{"a":1}', {"string": '{"id":7}'})
    done = import_vcr(cassette(tmp_path / "a.json", one))

    assert (done.steps, done.hosts, done.skipped) == (1, ["api.example.com"], [])
    with Replaying(done, http=done.hosts), httpx.Client() as client:
        assert client.post("https://api.example.com/v1/orders?limit=2", json={"a": 1}).json() == {"id": 7}


def test_what_cannot_be_imported_is_listed_with_its_reason_and_the_rest_is_there(tmp_path):
    token = interaction("https://oauth2.googleapis.com/token", "grant_type=x", {"string": "{}"})
    odd = interaction(CHAT, ASKED, {"string": "??"}, **{"content-encoding": "zstd"})
    path = cassette(tmp_path / "a.json", token, {"request": {}}, odd, interaction(CHAT, ASKED, {"string": PLAIN}))
    done = import_vcr(path)

    assert done.steps == 1
    assert [(one.number, one.what) for one in done.skipped] == [
        (1, "POST https://oauth2.googleapis.com/token"),
        (2, "an interaction"),
        (3, f"POST {CHAT}"),
    ]
    assert [why for _, _, why in done.skipped if not why] == []
    assert "credential" in done.skipped[0].why
    assert "zstd" in done.skipped[2].why


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "steplog", "import-vcr", *words]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=120, check=False)


def test_the_command_goes_through_a_folder_and_says_what_it_left(copied, tmp_path):
    (copied / "openai/settings.yaml").write_text("a: 1\n")
    (copied / "openai/broken.yaml").write_text("interactions:\n- !!python/object:os.system {}\n")
    done = command(str(copied), "--json")
    facts = json.loads(done.stdout)

    assert done.returncode == 1, done.stderr
    assert facts["steps"] == 14
    assert [(Path(one["file"]).name, "no plain YAML" in one["why"]) for one in facts["refused"]] == [
        ("broken.yaml", True)
    ]
    assert (copied / "openai/chat.steplog.json").is_file()

    (copied / "openai/broken.yaml").unlink()
    again = command(str(copied))
    assert (again.returncode, again.stdout.count("is there already")) == (1, 2)
    forced = command(str(copied), "--force")
    assert (forced.returncode, forced.stdout.count("7 steps")) == (0, 2), forced.stderr


def test_a_secret_in_an_answer_is_not_carried_over(tmp_path):
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
    answer = {"string": PLAIN.replace("Tagus", f"Take {secret}")}
    done = import_vcr(cassette(tmp_path / "a.json", interaction(CHAT, ASKED, answer)))

    assert secret not in Path(str(done.target)).read_text()
    with Replaying(done), openai.OpenAI(api_key="test") as client:
        text = client.chat.completions.create(**body("openai/chat/plain")).choices[0].message.content
    assert text == "Take [redacted:openai-key]"
