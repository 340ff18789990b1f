"""The program of docs/bounded.md runs."""

from __future__ import annotations

import json
import subprocess
import sys

from steplog.testing import LocalProvider, Reply
from tests.docs.test_docs import blocks
from tests.support.processes import environment
from tests.support.recorded import ROOT

PAGE = (ROOT / "docs/bounded.md").read_text()


def answer(hit) -> Reply:
    view = json.loads(hit.json["messages"][-1]["content"])
    if not view["plan"]:
        steps = [{"id": "s1", "tool": "get_order"}, {"id": "s2", "tool": "refund", "depends_on": ["s1"]}]
        reply = {"type": "plan", "steps": steps}
    elif "ord_1001.total_cents" not in view["facts"]:
        reply = {"type": "tool", "name": "get_order", "args": {"order_id": "ord_1001"}, "plan_step": "s1"}
    elif view["plan"][1]["status"] == "pending":
        args = {"order_id": "ord_1001", "cents": view["facts"]["ord_1001.total_cents"]}
        reply = {"type": "tool", "name": "refund", "args": args, "plan_step": "s2"}
    else:
        reply = {"type": "final", "outcome": "completed", "text": "The money is on its way."}
    message = {"role": "assistant", "content": json.dumps(reply)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": "gpt-4.1-mini", "choices": [choice]}
    return Reply.json(body)


def test_the_program_of_the_page_does_its_task_once(tmp_path):
    (program,) = blocks(PAGE, "python")
    (tmp_path / "refund_agent.py").write_text(program)
    with LocalProvider(handler=answer) as provider:
        variables = environment(OPENAI_BASE_URL=f"{provider.url}/v1", OPENAI_API_KEY="none")
        for asked in (4, 4):
            done = subprocess.run(
                [sys.executable, "refund_agent.py"],
                cwd=tmp_path,
                env=variables,
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout == "done | The money is on its way.\n"
            assert len(provider.hits) == asked
