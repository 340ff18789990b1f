"""An agent that asks a person before it pays, and may wait for days: its process ends meanwhile.

steplog run --id refund-1001 --on-wait suspend examples/waiting.py order-1001     # stops: it waits
steplog signal refund-1001 approved '{"cents": 4200}'                             # a person decides
steplog resume --due                                                              # cron starts it again
steplog cancel refund-1001                                                        # or somebody stops it for good
"""

from __future__ import annotations

import sys
from typing import Any

import steplog

DAYS = 24 * 3600.0


@steplog.step
def reserve(order: str) -> str:
    """Set the money aside."""
    print(f"reserved for {order}")
    return f"reservation-{order}"


@steplog.step
def pay(reservation: str, cents: int) -> str:
    """Pay what was set aside."""
    print(f"paid {cents} from {reservation}")
    return "paid"


@steplog.step
def release(reservation: str) -> None:
    """Give back what was set aside."""
    print(f"released {reservation}")


def refund(run: steplog.Run, order: str) -> str:
    """Refund an order once a person approves; give the money back where nobody does, or where the run is cancelled."""
    reservation = reserve(order)
    try:
        answer: dict[str, Any] = run.wait("approved", timeout=3 * DAYS)
    except (steplog.WaitTimeout, steplog.Cancelled):
        release(reservation)
        raise
    return pay(reservation, answer["cents"])


if __name__ == "__main__":
    current = steplog.current_run()
    if current is None:
        sys.exit("Start it with: steplog run --on-wait suspend examples/waiting.py ORDER")
    print(refund(current, sys.argv[1]))
