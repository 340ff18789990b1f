"""The real SDKs against the local provider, without steplog: every recorded exchange goes through and comes back."""

from __future__ import annotations

import base64
import json

import pytest

from steplog.testing import LocalProvider
from tests.support.recorded import SHARED, WHY_ABSENT, Recorded, recorded
from tests.support.sdk_calls import Outcome, call, covered, script, why_not

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
        check_against_recording(outcome, tree)


def check_against_recording(outcome: Outcome, tree: dict) -> None:
    response = tree["response"]
    if response["status"] >= 400:
        error = outcome.error
        assert error is not None
        assert error["status_code"] == response["status"]
        assert error["body"] == response["body"] or error["body"] == response["body"]["error"]
    elif response["body_type"] == "sse":
        assert len(outcome.chunks) + bool(outcome.error) == len(events(response["body"]))
    elif response["body_type"] == "json":
        assert outcome.wire == response["body"]
    elif response["body_type"] == "ndjson":
        assert outcome.wire == [json.loads(line) for line in response["body"].splitlines()]
    else:
        assert outcome.value.value == base64.b64decode(response["body"])


def events(text: str) -> list[dict]:
    """The events that the SDK shows: all but pings and the end marker, and nothing after an error."""
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
    shown = [event for line in lines if line != "[DONE]" and (event := json.loads(line)).get("type") != "ping"]
    error = next((i for i, event in enumerate(shown) if event.get("error")), len(shown))
    return shown[: error + 1]
