"""Every recorded exchange of real providers: called, recorded, and returned from the log as the same thing."""

from __future__ import annotations

import json
import socket
from typing import Any

import anthropic
import pytest
import vcr
import yaml

import steplog
from steplog.testing import LocalProvider
from tests.support.recorded import OWN, SHARED, WHY_ABSENT, runs
from tests.support.sdk_calls import call, covered, script, why_not
from tests.support.thinned import thinned

with_traffic = pytest.mark.skipif(not SHARED.exists(), reason=WHY_ABSENT)
both_colours = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])

OLDER_ANTHROPIC = int(anthropic.__version__.partition(".")[0]) < 1
# Each exchange is made in one of these ways a day.
WAYS = {"sync": (False, False), "async": (True, False), "async raw": (True, True)}
EXCHANGES = [
    pytest.param(exchange, *WAYS[way], id=f"{exchange.name}-{way}")
    for number, exchange in enumerate(covered())
    for way in (list(WAYS) * 2)[number % len(WAYS) :][: len(WAYS)]
]
RUNS = {name: parts for name, parts in runs() if all(why_not(part.tree) is None for part in parts)}


@with_traffic
@pytest.mark.parametrize("exchange, asynchronous, raw", thinned(EXCHANGES, every=len(WAYS)))
def test_an_exchange_is_returned_as_it_was(exchange, asynchronous, raw, home, offline):
    if OLDER_ANTHROPIC and raw and exchange.tree["sdk_call"] == "messages.batches.results":
        pytest.skip(f"anthropic {anthropic.__version__} has no raw form of it")
    with LocalProvider(*script(exchange.tree)) as provider:
        with steplog.run("r"):
            live = call(exchange.tree, provider.url, asynchronous=asynchronous, raw=raw)
        sent = len(provider.hits)
        if OLDER_ANTHROPIC and provider.unmatched:
            pytest.skip(f"anthropic {anthropic.__version__} makes another request of these arguments")
        assert not provider.unmatched
        offline(provider)
        with steplog.run("r") as run:
            returned = call(exchange.tree, provider.url, asynchronous=asynchronous, raw=raw)
    assert returned == live
    assert (run.replayed, run.executed) == (sent, 0)


@with_traffic
@pytest.mark.parametrize("name, asynchronous", thinned([(n, a) for n in RUNS for a in (False, True)], every=2))
def test_a_run_of_an_agent_is_returned_as_it_was(name, asynchronous, home, offline):
    trees = [part.tree for part in RUNS[name]]
    with LocalProvider(*[entry for tree in trees for entry in script(tree)], repeat=False) as provider:
        with steplog.run("r"):
            live = [call(tree, provider.url, asynchronous=asynchronous) for tree in trees]
        offline(provider)
        with steplog.run("r") as run:
            returned = [call(tree, provider.url, asynchronous=asynchronous) for tree in trees]
    assert returned == live
    assert run.executed == 0


OWN_CALLS = {"openai": "https://api.openai.com", "anthropic": "https://api.anthropic.com"}


@both_colours
@pytest.mark.parametrize("file", ["openai/chat.yaml", "anthropic/messages.yaml"])
def test_what_vcrpy_plays_is_recorded_and_returned_without_it(file, asynchronous, home, monkeypatch):
    provider = file.partition("/")[0]
    interactions = yaml.safe_load((OWN / "vcr" / file).read_text())["interactions"]
    trees = [_tree(provider, interaction) for interaction in interactions]

    def program() -> list[Any]:
        with steplog.run("r"):
            return [call(tree, OWN_CALLS[provider], asynchronous=asynchronous) for tree in trees]

    matched = {"record_mode": "none", "match_on": ["method", "path", "json_body"]}
    player = vcr.VCR(**matched)
    player.register_matcher("json_body", _same_json)
    with player.use_cassette(str(OWN / "vcr" / file)) as cassette:
        live = program()
        assert cassette.play_count == len(trees)
    monkeypatch.setattr(socket.socket, "connect", _forbidden)
    assert program() == live


def _forbidden(_self: Any, address: Any) -> None:
    raise AssertionError(f"a replayed call connects to {address}")


def _same_json(one: Any, two: Any) -> bool:
    bodies = [json.loads(body.body) for body in (one, two)]
    return _clean(bodies[0]) == _clean(bodies[1])


def _clean(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _clean(value) for key, value in tree.items() if value is not None}
    return [_clean(item) for item in tree] if isinstance(tree, list) else tree


def _tree(provider: str, interaction: dict[str, Any]) -> dict[str, Any]:
    request, response = interaction["request"], interaction["response"]
    body = json.loads(request["body"])
    method = "messages.create" if provider == "anthropic" else "chat.completions.create"
    path = request["uri"].partition(".com")[2]
    asked = {"method": "POST", "path": path, "headers": {}, "body_type": "json", "body": body}
    kind = "sse" if body.get("stream") else "json"
    return {"provider": provider, "sdk_call": method, "request": asked, "response": {**response, "body_type": kind}}
