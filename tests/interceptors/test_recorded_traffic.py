"""Every recorded exchange of real providers: called, recorded, and returned from the log as the same thing."""

from __future__ import annotations

import pytest
import steplog
from steplog.testing import LocalProvider

from tests.support.recorded import SHARED, WHY_ABSENT, runs
from tests.support.sdk_calls import call, covered, script, why_not

pytestmark = pytest.mark.skipif(not SHARED.exists(), reason=WHY_ABSENT)

RUNS = {name: parts for name, parts in runs() if all(why_not(part.tree) is None for part in parts)}


@pytest.mark.parametrize("raw", [False, True], ids=["parsed", "raw"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("exchange", covered(), ids=lambda exchange: exchange.name)
def test_an_exchange_is_returned_as_it_was(exchange, asynchronous, raw, home, offline):
    with LocalProvider(*script(exchange.tree)) as provider:
        with steplog.run("r"):
            live = call(exchange.tree, provider.url, asynchronous=asynchronous, raw=raw)
        sent = len(provider.hits)
        assert not provider.unmatched
        offline(provider)
        with steplog.run("r") as run:
            returned = call(exchange.tree, provider.url, asynchronous=asynchronous, raw=raw)
    assert returned == live
    assert (run.replayed, run.executed) == (sent, 0)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", RUNS)
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
