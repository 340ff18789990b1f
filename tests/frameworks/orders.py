"""Decorate a tool the wrong way round, in the environment of a framework: it must be refused.

    python -m tests.frameworks.orders PACKAGE EXPRESSION

The expression is the framework's decorator. Prints what came out of it.
"""

from __future__ import annotations

import importlib
import sys

import steplog


def refund(order_id: str, cents: int) -> str:
    """Pay money back.

    Args:
        order_id: the order.
        cents: how much.
    """
    return f"{cents} for {order_id}"


def wrong_way_round(package: str, expression: str) -> str:
    """What `@steplog.step` above the framework's decorator does."""
    importlib.import_module(package)
    decorator = eval(expression, {package.partition(".")[0]: sys.modules[package.partition(".")[0]]})
    made = decorator(refund)
    try:
        steplog.step(made)
    except steplog.InvalidArgument as refused:
        return "refused" if "below the decorator" in str(refused) else f"failed: {refused}"
    return "failed: is not refused"


if __name__ == "__main__":
    print(wrong_way_round(*sys.argv[1:]))
