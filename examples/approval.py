"""A refund that waits for a person. Run it; it stops. Approve it from another terminal, and run it again.

    python examples/approval.py
    steplog approve refund-ord_1001 --note "checked with the shop"
    python examples/approval.py

A small refund needs nobody, and a second one of the same run is denied: the agent reads why and goes on.
"""

from __future__ import annotations

import sys

import steplog
from steplog import Policy, Rule

steplog.install()

POLICY = Policy(
    [
        Rule(
            id="one-refund",
            action="deny",
            target="refund",
            count_over=1,
            reason="One refund is enough for one case. Tell the customer that a colleague will call.",
        ),
        Rule(
            id="refunds",
            action="require_approval",
            target="refund",
            expires="24h",
            reason="Money leaves the house.",
        ),
    ]
)


@steplog.step(mode="safe")
def look_up(order_id: str) -> dict[str, object]:
    return {"order_id": order_id, "cents": 4200, "status": "delivered broken"}


@steplog.step(mode="keyed")
def refund(order_id: str, cents: int, *, idempotency_key: str) -> str:
    print(f"  paying {cents} back for {order_id}, key {idempotency_key}")
    return f"refunded {cents}"


def agent() -> None:
    order = look_up("ord_1001")
    for cents in (4200, 800):
        try:
            print(refund(str(order["order_id"]), cents))
        except steplog.StepDenied as denied:  # also StepRejected, when somebody said no
            print(f"not refunded: {denied}")


if __name__ == "__main__":
    try:
        with steplog.run("refund-ord_1001", goal="refund the broken teapot", policy=POLICY):
            agent()
    except steplog.RunStopped as stopped:
        print(stopped)
        sys.exit(75)
