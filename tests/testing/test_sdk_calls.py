"""The real SDKs against the local provider, without steplog: every recorded exchange goes through and comes back."""

from __future__ import annotations

import pytest

from steplog.testing import LocalProvider
from tests.support.recorded import SHARED, WHY_ABSENT, Recorded, recorded
from tests.support.sdk_calls import assert_as_recorded, call, covered, script, why_not

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=WHY_ABSENT)


def test_every_exchange_is_covered_or_has_a_reason():
    left_out = {e.tree["provider"] for e in recorded(SHARED) if why_not(e.tree)}

    assert left_out == {"bedrock", "cohere", "google", "mcp", "ollama"}
    assert len(covered()) >= 120


@pytest.mark.parametrize("exchange", covered(), ids=lambda exchange: exchange.name)
def test_exchange_round_trips(exchange: Recorded):
    tree = exchange.tree
    with LocalProvider(*script(tree)) as provider:
        outcomes = [call(tree, provider.url, asynchronous=a, raw=r) for a in (False, True) for r in (False, True)]

    assert [hit.path for hit in provider.unmatched] == []
    assert len(provider.hits) == 4 * len(script(tree))
    for outcome in outcomes:
        assert_as_recorded(outcome, tree)
