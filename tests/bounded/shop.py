"""A shop with two orders, as a task sees it: an authorized backend behind four tools, and models that play their parts.

Time is simulated: whatever takes time moves the clock, and gives up when its timeout is over. A write that outlives its
timeout happens all the same, as one whose answer is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from steplog.bounded import Agent, Limits, Tool

CUSTOMER = "cu_ana"
GOAL = "refund the damaged item on order ord_1001"
NEEDS_NOBODY = 5000
SECONDS = {"get_order": 0.4, "search_policy": 0.8, "issue_refund": 1.2, "send_status_email": 0.9}
POLICY = "Returns are accepted within 30 days of delivery. " * 90


class Clock:
    """Simulated seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def take(self, seconds: float, timeout: float) -> None:
        """Let time pass, or raise TimeoutError where it is over."""
        self.now = round(self.now + min(seconds, timeout), 3)
        if seconds > timeout:
            raise TimeoutError


class Shop:
    """The backend. `effects` is its ledger."""

    def __init__(self, clock: Clock, seconds: dict[str, float] | None = None) -> None:
        self.clock = clock
        self.seconds = {**SECONDS, **(seconds or {})}
        self.orders = {
            "ord_1001": {"customer": CUSTOMER, "total": 4200, "refunded": 0, "status": "delivered"},
            "ord_1004": {"customer": CUSTOMER, "total": 15000, "refunded": 0, "status": "delivered"},
        }
        self.effects: list[tuple[Any, ...]] = []
        self.approved: set[tuple[str, int]] = set()
        self._stored: dict[tuple[str, str], dict[str, Any]] = {}

    def tools(self) -> list[Tool]:
        """What a model may call."""
        return [
            Tool(
                self.get_order,
                writes=False,
                subject="order_id",
                facts=["order_status", "total_cents", "refunded_cents"],
            ),
            Tool(self.search_policy, writes=False),
            Tool(
                self.issue_refund,
                writes=True,
                subject="order_id",
                facts=["refunded_cents"],
                done="The refund was issued.",
                undone="The refund was not issued.",
            ),
            Tool(
                self.send_status_email,
                writes=True,
                subject="order_id",
                facts=["sent"],
                done="The confirmation was sent.",
                undone="The confirmation was not sent.",
            ),
        ]

    def get_order(self, *, user_id: str, timeout: float, order_id: str = "", **_more: Any) -> dict[str, Any]:
        self.clock.take(self.seconds["get_order"], timeout)
        order = self._owned(user_id, order_id)
        if order is None:
            return _error("not_found")
        return {"order_status": order["status"], "total_cents": order["total"], "refunded_cents": order["refunded"]}

    def search_policy(self, *, timeout: float, **_more: Any) -> dict[str, Any]:
        self.clock.take(self.seconds["search_policy"], timeout)
        return {"text": POLICY}

    def issue_refund(self, *, idempotency_key: str, timeout: float, user_id: str, **asked: Any) -> dict[str, Any]:
        return self._write("issue_refund", idempotency_key, timeout, lambda: self._refund(user_id, asked))

    def send_status_email(self, *, idempotency_key: str, timeout: float, user_id: str, **asked: Any) -> dict[str, Any]:
        return self._write("send_status_email", idempotency_key, timeout, lambda: self._mail(user_id, asked))

    def _write(self, name: str, key: str, timeout: float, effect: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        stored = self._stored.get((key, name))
        if stored is not None:
            self.clock.take(0.1, timeout=1.0)
            return {**stored, "replayed": True}
        result = effect()
        if "status" not in result:
            self._stored[key, name] = result
        self.clock.take(self.seconds[name], timeout)
        return result

    def _owned(self, user_id: str, order_id: str) -> dict[str, Any] | None:
        order = self.orders.get(order_id)
        return order if order is not None and order["customer"] == user_id else None

    def _refund(self, user_id: str, asked: dict[str, Any]) -> dict[str, Any]:
        order_id, cents = asked.get("order_id", ""), asked["amount_cents"]
        order = self._owned(user_id, order_id)
        if order is None:
            return _error("not_found")
        if cents > order["total"] - order["refunded"]:
            return _error("invalid_state", detail="amount exceeds refundable")
        if cents > NEEDS_NOBODY and (order_id, cents) not in self.approved:
            return {"status": "needs_approval"}
        order["refunded"] += cents
        self.effects.append(("refund", order_id, cents))
        return {"refunded_cents": order["refunded"]}

    def _mail(self, user_id: str, asked: dict[str, Any]) -> dict[str, Any]:
        if self._owned(user_id, asked.get("order_id", "")) is None:
            return _error("not_found")
        self.effects.append(("email", asked["order_id"]))
        return {"sent": True}


def _error(code: str, **more: Any) -> dict[str, Any]:
    return {"status": "error", "code": code, **more}


class Model:
    """Reads the view, and says what `replies` makes of it and of how often it was asked."""

    def __init__(
        self, clock: Clock, replies: Callable[[dict[str, Any], int], dict[str, Any]], seconds: float = 1.5
    ) -> None:
        self.clock = clock
        self.replies = replies
        self.seconds = seconds
        self.asked = 0

    def __call__(self, view: str, *, max_output_tokens: int, timeout: float) -> dict[str, Any]:
        self.asked += 1
        reply = self.replies(json.loads(view), self.asked)
        self.clock.take(self.seconds, timeout)
        return reply


def refunding(order: str = "ord_1001", cents: int = 3000) -> Callable[[dict[str, Any], int], dict[str, Any]]:
    """Plans, reads the order, refunds, confirms; each time from what it is shown and nothing else."""

    def next_reply(view: dict[str, Any], _asked: int) -> dict[str, Any]:
        facts, plan = view["facts"], view["plan"]
        if not plan:
            names = ["get_order", "issue_refund", "send_status_email"]
            steps = [
                {"id": f"s{n}", "tool": name, "depends_on": [f"s{n - 1}"] if n > 1 else []}
                for n, name in enumerate(names, 1)
            ]
            return {"type": "plan", "steps": steps}
        if f"{order}.total_cents" not in facts:
            return call("get_order", {"order_id": order}, "s1")
        if not any(step["id"] == "s2" and step["status"] == "done" for step in plan):
            return call("issue_refund", {"order_id": order, "amount_cents": cents, "reason": "damaged"}, "s2")
        if f"{order}.sent" not in facts:
            return call("send_status_email", {"order_id": order}, "s3")
        return {"type": "final", "outcome": "completed", "text": "Refund issued and confirmation sent."}

    return next_reply


def call(name: str, args: dict[str, Any], plan_step: str | None = None) -> dict[str, Any]:
    """A reply that proposes a call."""
    reply = {"type": "tool", "name": name, "args": args}
    return reply if plan_step is None else {**reply, "plan_step": plan_step}


class Stage:
    """One agent, one shop and one clock.

    Attributes:
        agent: the agent.
        shop: its backend.
        model: its model.
    """

    def __init__(
        self,
        replies: Callable[[dict[str, Any], int], dict[str, Any]],
        *,
        limits: Limits | None = None,
        model_seconds: float = 1.5,
        tool_seconds: dict[str, float] | None = None,
        shop: Shop | None = None,
    ) -> None:
        self.shop = shop or Shop(Clock(), tool_seconds)
        self.model = Model(self.shop.clock, replies, model_seconds)
        self.agent = Agent(self.model, self.shop.tools(), limits=limits, clock=self.shop.clock)
