"""What model calls have cost, where a price list is installed (`pip install "steplog[prices]"`).

The list is a package's own data, of the day of its release; nothing is asked for over a network. A price that is not
known is none, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from typing import Any, Final, NamedTuple

from steplog._cli.facts import parse_time
from steplog._kernel.fold import StepState

_USAGE: Final = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cache_read_tokens",
    "cache_write": "cache_write_tokens",
}


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
    library = _library()
    finished = step.finished or {}
    usage = finished.get("usage")
    if library is None or not isinstance(usage, dict):
        return None
    counts = {_USAGE[name]: count for name, count in usage.items() if name in _USAGE and isinstance(count, int)}
    request = step.started.get("request")
    provider = request.get("sdk") if isinstance(request, dict) else None
    model = finished.get("model") or step.target
    when = parse_time(step.started_ts)
    for named in (provider, None):
        try:
            found = library.calc_price(
                library.Usage(**counts), model, provider_id=named or None, genai_request_timestamp=when
            )
        except (LookupError, ValueError):
            continue  # the list does not know this provider or model
        return Decimal(found.total_price)
    return None


@cache
def _library() -> Any:
    try:
        import genai_prices
    except ImportError:
        return None
    return genai_prices
