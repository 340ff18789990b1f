"""The model is shown a state, whose size does not grow with the number of turns."""

from __future__ import annotations

import json

from steplog.bounded import Limits, estimate_tokens
from tests.bounded.shop import CUSTOMER, GOAL, POLICY, Stage
from tests.bounded.test_scenarios import searching


def test_the_view_stays_as_large_as_it_is_while_a_transcript_grows(store):
    views, replies = [], []

    def replying(_view, asked):
        replies.append(searching(None, asked))
        return replies[-1]

    stage = Stage(replying, limits=Limits(max_steps=8, max_tool_calls=20, max_stalls=10, max_tokens=100_000))
    ask = stage.model.__call__
    stage.agent._model = lambda view, **limits: views.append(view) or ask(view, **limits)

    stage.agent.run(GOAL, user_id=CUSTOMER)

    shown = [estimate_tokens(view) for view in views]
    result = estimate_tokens(json.dumps({"status": "ok", "text": POLICY}))
    transcript = [shown[0]]
    for reply in replies[:-1]:
        transcript.append(transcript[-1] + estimate_tokens(json.dumps(reply)) + result)
    assert shown == [41, *[1149] * 7]
    assert transcript == [41, 1175, 2309, 3443, 4577, 5711, 6845, 7979]
    assert (sum(shown), sum(transcript)) == (8084, 32080)
