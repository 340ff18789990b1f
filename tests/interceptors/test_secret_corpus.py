"""A corpus of secrets in every place and spelling, through real runs: afterwards no file holds a byte of one.

What is checked is what anybody could find: every file below the home as it lies there, every body as it was put in,
what bodies say when they are decompressed or decoded, and what the fragments of recorded streams add up to.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import subprocess
import sys
import urllib.parse
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import brotli
import openai
import pytest
import zstandard

import steplog
from steplog._cli.export import _names
from steplog._kernel.redact import Redactor
from steplog._kernel.spellings import spellings
from steplog._runtime.resolve import resolve
from steplog.stores.archive import export_run
from steplog.stores.files import FileStore
from steplog.testing import LocalProvider
from steplog.testing.provider import Reply
from tests.interceptors.support import (
    ASK,
    ASK_CLAUDE,
    RawServer,
    answers,
    anthropic_client,
    chat,
    chat_events,
    message_events,
    openai_client,
)
from tests.kernel.test_redact import SECRETS, fake
from tests.support.processes import environment

OF_THE_ENVIRONMENT = "corpus horse/battery+staple=9"
NAMED = {"ACME_PASSWORD": OF_THE_ENVIRONMENT, "ACME_API_TOKEN": "tulip" + fake(20, "xyzw")}
# A key block has line ends, so each of its lines is a secret of its own.
CORPUS = {
    **{name: secret for name, (_, secret) in SECRETS.items() if "\n" not in secret},
    **{name.lower(): value for name, value in NAMED.items()},
}
LINES = [
    line for name, (_, secret) in SECRETS.items() if "\n" in secret for line in secret.split("\n") if len(line) > 30
]
CONNECTIONS = [
    ("postgres://app:{}@db:5432/x", "hunter22-swordfish"),
    ("Server=db;User Id=app;Password={};Encrypt=yes", "hunter22-swordfish"),
    ("AccountName=x;AccountKey={}==;EndpointSuffix=core", fake(86)),
    ("Authorization: Basic {}", base64.b64encode(b"user:hunter22-swordfish").decode()),
    ("x-api-key: {}", fake(32)),
]


@pytest.fixture(autouse=True)
def _secrets_of_the_environment(monkeypatch):
    for name, value in NAMED.items():
        monkeypatch.setenv(name, value)


# looking ------------------------------------------------------------------------------------------------------------


def texts_under(home: Path) -> Iterator[tuple[str, bytes]]:
    """Everything that can be read out of a home, by where it stands."""
    for file in home.rglob("*"):
        if file.is_file():
            yield str(file), file.read_bytes()
    store = FileStore(str(home))
    for run in store.runs():
        for event in store.read(run).events:
            yield from of_tree(f"{run} {event.seq}", event.data, store)


def of_tree(where: str, node: object, store: FileStore) -> Iterator[tuple[str, bytes]]:
    if isinstance(node, dict):
        name = node.get("sha256") if node.get("$steplog") == "body" else node.get("body")
        if isinstance(name, str) and "size" in node:
            yield from said_by(f"{where} body", store.bodies.get(name))
        if isinstance(node.get("base64"), str) and "[redacted:" not in node["base64"]:
            yield from said_by(f"{where} base64", base64.b64decode(node["base64"]))
        for key, value in node.items():
            yield from of_tree(f"{where}.{key}", value, store)
    elif isinstance(node, list):
        for item in node:
            yield from of_tree(where, item, store)
    elif isinstance(node, str):
        yield from said_by(where, node.encode())


def said_by(where: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    yield where, data
    yield f"{where} UTF-16", data[::2]
    yield f"{where} UTF-16", data[1::2]
    for unpack in (gzip.decompress, zlib.decompress, zstandard.decompress, brotli.decompress):
        with contextlib.suppress(OSError, zlib.error, zstandard.ZstdError, brotli.error, EOFError):
            yield f"{where} unpacked", unpack(data)
    fragments = re.findall(rb'"(?:content|text|arguments)":\s?"((?:[^"\\]|\\.)*)"', data)
    yield f"{where} joined", b"".join(fragments)


def assert_nothing_of(secrets: list[str], home: Path) -> None:
    wanted = {spelling: secret for secret in secrets for spelling in spellings(secret)}
    expression = re.compile(b"|".join(re.escape(spelling) for spelling in sorted(wanted, key=len, reverse=True)))
    found = {(where, wanted[match[0]]) for where, text in texts_under(home) for match in expression.finditer(text)}
    assert not found, sorted(found)[:10]


# programs -----------------------------------------------------------------------------------------------------------


class Refused(Exception):
    def __init__(self, what: str, detail: dict) -> None:
        super().__init__(what)
        self.detail = detail


def failure_with(secret: str) -> Exception:
    error = Refused(f"refused {secret}", {"sent": secret})
    error.__cause__ = ValueError(f"because of {secret}")
    error.add_note(f"it was sent to https://host.example/x?api_key={secret}")
    return ExceptionGroup(f"all of {secret}", [error, KeyError(secret)])


RESULTS = {
    "text": lambda secret: f"The key is {secret}, keep it.",
    "nested": lambda secret: {"a": [{"key": secret}, None]},
    "key of a mapping": lambda secret: {secret: 1},
    "json in json": lambda secret: json.dumps({"arguments": json.dumps({"key": secret})}),
    "url": lambda secret: "https://host.example/x?a=1&q=" + urllib.parse.quote(secret, safe=""),
    "bytes": lambda secret: b"x " + secret.encode() + b" y",
    "binary": lambda secret: b"\xff\xfe\x00 " + secret.encode() + b" \x80",
    "utf-16": lambda secret: f"key {secret} end".encode("utf-16"),
    "gzip": lambda secret: gzip.compress(f"key {secret} end".encode()),
    "zstd": lambda secret: zstandard.compress(f"key {secret} end".encode()),
    "zlib": lambda secret: zlib.compress(f"key {secret} end".encode()),
    "data url": lambda secret: "data:text/plain;base64," + base64.b64encode(f"key {secret} end".encode()).decode(),
    "large": lambda secret: "word " * 1000 + secret + " word" * 1000,
    "tuple and set": lambda secret: (secret, frozenset([secret])),
}


# Every secret in one way, and these in every way: what makes one kind differ from another is where it begins and ends.
THOROUGH = ("openai", "github p", "jwt", "acme_password", "acme_api_token")
thorough = pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.nightly)])


@thorough
def test_tools_leave_nothing_of_any_secret(everything, home):
    @steplog.step(mode="safe")
    def tool(given, how, *, key=None):
        if how == "raise":
            raise failure_with(given)
        return RESULTS[how](given)

    calls = 0
    with steplog.run("r", goal=f"use {CORPUS['openai']}", trigger=f"{CORPUS['github p']}") as run:
        for name, secret in CORPUS.items():
            for how in RESULTS if everything or name in THOROUGH else ("text",):
                tool(secret, how, key={"k": secret})
                calls += 1
            with pytest.raises(ExceptionGroup):
                tool(secret, "raise")
        for template, secret in CONNECTIONS:
            tool(template.format(secret), "text")
        for name, (_, block) in SECRETS.items():
            if "\n" in block:
                tool(block, "nested", key=name)
        run.escalate(f"somebody must look at {CORPUS['jwt']}")
    assert_nothing_of([*CORPUS.values(), *LINES, *(secret for _, secret in CONNECTIONS)], home)
    redacted = [event for event in FileStore(str(home)).read("r").events if "redacted" in event.data]
    assert len(redacted) >= calls + len(CORPUS), "each result says that it lost something"


def test_a_failed_run_and_what_an_operator_says_leave_nothing(home, tmp_path):
    secret = CORPUS["anthropic"]

    @steplog.step
    def tool():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        tool()
    store = FileStore(str(home))
    step = next(event.step for event in store.read("r").events if event.step)
    resolve(store, "r", step, how="failed", message=f"it said {secret}", by=secret, note=f"see {secret}")
    with pytest.raises(ExceptionGroup), steplog.run("r"):
        raise failure_with(secret)
    # What a crash leaves behind the last whole line is kept beside the log.
    log = home / "runs/r/events.jsonl"
    log.write_bytes(log.read_bytes() + b'{"seq":99,"type":"step.fin')
    with pytest.raises(ValueError, match="again"), steplog.run("r"):
        raise ValueError(f"again {secret}")
    assert len(list(log.parent.iterdir())) > 2
    export_run(store, "r", str(home / "r.steplog"), _names)
    with zipfile.ZipFile(home / "r.steplog") as exported:
        assert all(secret.encode() not in exported.read(name) for name in exported.namelist())
    assert_nothing_of([secret], home)


def words(secret: str) -> list[str]:
    """As a model says it: a few characters at a time."""
    text = f"The key is {secret} , as you asked."
    return [text[at : at + 4] for at in range(0, len(text), 4)]


MORE = [pytest.param(name, marks=pytest.mark.nightly) for name in ("anthropic", "google", "github p", "stripe", "jwt")]


@pytest.mark.parametrize("name", ["openai", "acme_password", "acme_api_token", *MORE])
def test_model_calls_leave_nothing(name, home):
    secret = CORPUS[name]
    told = [{"role": "user", "content": f"my key is {secret}"}]
    with LocalProvider(handler=answers(chat(f"so it is {secret}"), Reply.sse(chat_events(*words(secret))))) as provider:
        client = openai_client(provider.url, api_key=secret)
        with steplog.run("r"):
            client.chat.completions.create(**{**ASK, "messages": told})
            said = client.chat.completions.create(stream=True, **{**ASK, "messages": told})
            assert secret in "".join(chunk.choices[0].delta.content or "" for chunk in said if chunk.choices)
    with LocalProvider(handler=answers(Reply.sse(message_events(*words(secret))))) as provider:
        claude = anthropic_client(provider.url, api_key=secret)
        with steplog.run("s"):
            list(claude.messages.create(stream=True, **{**ASK_CLAUDE, "system": secret}))
    refusal = Reply.json({"error": {"message": f"Incorrect API key provided: {secret}", "type": "x"}}, 401)
    with LocalProvider(handler=answers(refusal)) as provider:
        client = openai_client(provider.url, api_key=secret)
        with steplog.run("t"), pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(**ASK)
    assert_nothing_of([secret], home)


PACKED = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress}


@pytest.mark.parametrize("encoding", PACKED)
@pytest.mark.parametrize("name", ["openai", "acme_password"])
def test_compressed_streams_leave_nothing_and_ordinary_ones_keep_their_bytes(encoding, name, home):
    secret = CORPUS[name]
    for run, parts in (("secret", words(secret)), ("plain", words("in the drawer"))):
        events = "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in chat_events(*parts))
        body = PACKED[encoding](events.encode())
        half = len(body) // 2
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: {encoding}\r\n".encode()
        answer = head + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        with RawServer(answer + body[:half], body[half:]) as server, steplog.run(run):
            said = openai_client(server.url).chat.completions.create(stream=True, **ASK)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in said if chunk.choices)
        assert text == "".join(parts)
    assert_nothing_of([secret], home)
    store = FileStore(str(home))
    for run, lost in (("secret", True), ("plain", False)):
        finished = next(event.data for event in store.read(run).events if event.type == "step.finished")
        assert ("redacted" in finished) is lost


PROGRAM = """
import sys, steplog
steplog.install(interceptors=[])
with steplog.run(goal=sys.argv[-1]):
    steplog.step("said", lambda: sys.argv[1:])
"""


def test_the_command_line_of_a_program_leaves_nothing(home, tmp_path):
    (tmp_path / "agent.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "steplog", "run", "agent.py", "--api-key", fake(24), CORPUS["openai"]]
    there = environment(STEPLOG_HOME=str(home), **NAMED)
    subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, check=True)
    assert_nothing_of([fake(24), CORPUS["openai"]], home)
    again = [sys.executable, "-m", "steplog", "resume", "last"]
    refused = subprocess.run(again, cwd=tmp_path, env=there, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "argument 2 of the program of run" in refused.stderr
    assert "held a secret" in refused.stderr


# false alarms -------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
TRAFFIC = ROOT.parent / "shared" / "cassettes"


def test_the_words_of_this_repository_hold_few_false_alarms():
    """Prose and code about keys and passwords are the worst case; what is found in it are the examples of this page."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "steplog_sdk").rglob("*.py")]
    assert len(files) > 50
    redactor = Redactor()
    found = [
        (file.name, file.read_bytes()[span.start : span.stop])
        for file in files
        for span in redactor.spans(file.read_bytes())
    ]
    assert found == []


def test_the_own_cassettes_hold_no_false_alarm():
    files = [*(ROOT / "cassettes").rglob("*.json"), *(ROOT / "cassettes").rglob("*.yaml")]
    assert files
    assert [file.name for file in files if Redactor().redact(file.read_bytes())[1]] == []


def test_other_traffic_holds_no_false_alarm():
    files = sorted(TRAFFIC.rglob("*.json"))
    if not files:
        pytest.skip("the recorded traffic of the providers is not at hand")
    assert [file.name for file in files if Redactor().redact(file.read_bytes())[1]] == []


# with a key ---------------------------------------------------------------------------------------------------------


def test_with_a_key_calls_and_streams_with_secrets_are_returned_exactly(home, monkeypatch, offline):
    from steplog.stores.cipher import new_key

    monkeypatch.setenv("STEPLOG_KEY", new_key())
    secret = CORPUS["openai"]
    replies = chat(f"so it is {secret}"), Reply.sse(chat_events(*words(secret), *["word "] * 300))

    def program(url: str) -> list[str]:
        client = openai_client(url)
        with steplog.run("r"):
            said = [client.chat.completions.create(**ASK).choices[0].message.content]
            stream = client.chat.completions.create(stream=True, **ASK)
            return [*said, *(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)]

    with LocalProvider(handler=answers(*replies)) as provider:
        live = program(provider.url)
        offline(provider)
        assert program(provider.url) == live
    assert secret in live[0]
    assert secret in "".join(live[1:])
    for file in home.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes()
    log = (home / "runs/r/events.jsonl").read_bytes()
    assert b"[redacted:openai-key]" in log
    assert b'"withheld":' in log


def test_without_a_key_a_model_call_that_lost_a_secret_runs_again(home):
    secret = CORPUS["openai"]
    reply = Reply.sse(chat_events(*words(secret)))
    with LocalProvider(handler=answers(reply)) as provider:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), steplog.run("r"):
                stream = openai_client(provider.url).chat.completions.create(stream=True, **ASK)
                assert secret in "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
                raise ZeroDivisionError
        assert len(provider.hits) == 2
