"""An agent whose author was wrong about one of its tools. Find out which:

cd examples/crash_test
steplog crash-test --ledger shop:entries agent.py ord_1001
"""

from __future__ import annotations

import sys

import shop

import steplog

steplog.install()


@steplog.step(mode="safe")
def lookup_order(order_id: str) -> dict[str, object]:
    return {"order_id": order_id, "cents": 4200}


@steplog.step(mode="keyed")
def refund(order_id: str, cents: int, *, idempotency_key: str) -> str:
    shop.pay(f"refund {order_id} {cents}", idempotency_key)
    return order_id.replace("ord", "re")


@steplog.step(mode="safe")  # it is not: a second mail goes out when the process dies behind the first
def send_mail(to: str, text: str) -> None:
    shop.done(f"mail to {to}: {text}")


@steplog.step
def restock(item: str) -> None:
    shop.done(f"restock {item}")


if __name__ == "__main__":
    order_id = sys.argv[1]
    with steplog.run(f"refund-{order_id}"):
        order = lookup_order(order_id)
        receipt = refund(order_id, int(str(order["cents"])))
        send_mail("ada@example.com", f"You are refunded: {receipt}")
        restock("teapot")
