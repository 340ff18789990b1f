"""What the model calls of a run have cost, by the price list of `pip install "steplog[prices]"`."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

from steplog._cli.facts import parse_time
from steplog._kernel.fold import StepState
from steplog._runtime.price_list import price


class Cost(NamedTuple):
    """What some steps have cost.

    Attributes:
        usd: US dollars of those with a known price, or None where there is none such.
        unknown: how many calls have used tokens whose price is not known.
    """

    usd: Decimal | None
    unknown: int

    def text(self) -> str:
        """For people: `$0.0312`, `-` where nothing is known."""
        if self.usd is None:
            return "-"
        return f"${self.usd:.4f}" + (f" and {self.unknown} calls without a known price" if self.unknown else "")

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {"usd": None if self.usd is None else round(float(self.usd), 6), "calls_without_price": self.unknown}


def cost_of(steps: Iterable[StepState]) -> Cost:
    """What the model calls among some steps have cost."""
    total, known, unknown = Decimal(0), False, 0
    for step in steps:
        if step.kind != "llm_call" or step.end is None or not (step.finished or {}).get("usage"):
            continue
        price = price_of(step)
        if price is None:
            unknown += 1
        else:
            total, known = total + price, True
    return Cost(total if known else None, unknown)


def price_of(step: StepState) -> Decimal | None:
    """What a model call has cost at the prices of its day, in US dollars; None where that is not known."""
    finished = step.finished or {}
    usage = finished.get("usage")
    if not isinstance(usage, dict):
        return None
    request = step.started.get("request")
    provider = request.get("sdk") if isinstance(request, dict) else None
    return price(finished.get("model") or step.target, provider, usage, parse_time(step.started_ts))
