"""Logs as a run would leave them, written event by event, so that a test says what is in them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson

from steplog._kernel.line import Chain
from steplog.stores.bodies import SqliteBodies

REQUEST = {
    "model": "gpt-5.2",
    "temperature": 0.2,
    "messages": [
        {"role": "system", "content": "You are a careful clerk."},
        {"role": "user", "content": "Refund order ord_1001."},
    ],
    "tools": [{"type": "function", "function": {"name": "refund"}}],
}
ANSWER = {
    "id": "chatcmpl-1",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "refund", "arguments": '{"cents": 4200}'}}
                ],
            },
        }
    ],
}

MODEL = "s_aaaa2222333344445555666677"
TOOL = "s_aabb2222333344445555666677"
INNER = "s_bbbb2222333344445555666677"
MAIL = "s_cccc2222333344445555666677"


class LogFile:
    """A log that grows by one sealed line at a time."""

    def __init__(self, home: Path, run_id: str) -> None:
        self.run_id = run_id
        self.home = home
        self.path = home / "runs" / run_id / "events.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._chain = Chain(run_id)
        self._minute = 0

    def add(self, type: str, step: str | None = None, **data: Any) -> LogFile:
        """Append an event, one second after the one before."""
        if type == "run.claimed":
            self._chain.epoch += 1
        stamp = f"2026-03-01T10:00:{self._minute:02d}Z"
        self._minute += 1
        with self.path.open("ab") as file:
            file.write(self._chain.seal(type, step, stamp, orjson.dumps(data)))
        return self

    def rest(self, seconds: int) -> LogFile:
        """Let time pass in which nothing is written."""
        self._minute += seconds
        return self

    def body(self, data: bytes) -> str:
        """Store a body and return its name."""
        name = hashlib.sha256(data).hexdigest()
        bodies = SqliteBodies(str(self.home / "bodies.db"))
        bodies.put([(name, data)])
        bodies.close()
        return name

    def begin(self, **created: Any) -> LogFile:
        """The first two events of every log."""
        self.add("run.created", format="steplog/1", run_id=self.run_id, durability="durable", **created)
        return self.add("run.claimed", pid=1, host="h")

    def tool(self, step: str, target: str, *, mode: str = "unsafe", scope: str = "", **args: Any) -> LogFile:
        """A tool step that begins."""
        key = f"{self.run_id}:{step}"
        return self.add(
            "step.started", step, kind="tool_call", target=target, scope=scope, mode=mode, attempt=1, key=key, args=args
        )

    def model(self, step: str, request: dict[str, Any]) -> LogFile:
        """A model call that begins."""
        return self.add(
            "step.started", step, kind="llm_call", target="gpt-5.2", scope="", mode="safe", attempt=1,
            request={"method": "POST", "path": "/v1/chat/completions", "params": {"text": "plain"}, "body": request},
        )  # fmt: skip


def refund_run(home: Path, run_id: str = "refund-1001") -> LogFile:
    """A run that was killed while it sent a mail: a model call, a tool with a step inside it, a tool in doubt."""
    log = LogFile(home, run_id).begin(
        goal="refund the damaged item",
        workflow="agent",
        version="git:0123456789",
        trigger={"kind": "command", "by": "ada"},
        entry={"script": "/srv/agent.py", "argv": ["ord_1001"], "cwd": "/srv"},
    )
    log.model(MODEL, {"json": REQUEST})
    log.add(
        "step.finished", MODEL, outcome="done", attempt=1, model="gpt-5.2-2026-02-01", finish="tool_calls", status=200,
        request_id="req_77", parse="ok", usage={"input": 1204, "output": 88},
        ms={"total": 910.0, "provider": 900.0, "own": 10.0},
        exchanges=[{"status": 200, "http": "HTTP/1.1", "headers": [], "body": {"json": ANSWER}, "ms": 900.0}],
    )  # fmt: skip
    log.tool(TOOL, "refund", mode="keyed", order_id="ord_1001", cents=4200)
    log.tool(INNER, "ledger", mode="safe", scope=TOOL, text="a note")
    log.add("step.finished", INNER, outcome="done", attempt=1, result=None, ms={"total": 0.2, "own": 0.2})
    log.add("step.finished", TOOL, outcome="done", attempt=1, result={"receipt": "r_1"}, ms={"total": 3.0, "own": 3.0})
    return log.tool(MAIL, "send_mail", to="ada@example.org", text="done")
