"""What an attempt has used, told from its outcome."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel.budget import Charge, nanos
from steplog._runtime.price_list import price

if TYPE_CHECKING:
    from steplog._runtime.ticket import Call

# Ends of streams before all of it was there.
_CUT: Final = ("closed_early", "abandoned", "error")


def provider_of(call: Call) -> str | None:
    """The SDK that makes a call, as the price list knows it."""
    return None if call.request is None else call.request.get("sdk")


def spent_of(call: Call, outcome: str, detail: dict[str, Any], held: list[int] | None) -> Charge | None:
    """What an attempt has used; None where that is not known."""
    if call.kind != "llm_call":
        return Charge()
    usage = detail.get("usage")
    if isinstance(usage, dict) and "input" in usage:
        told = _told(call, usage, detail.get("model"), held)
        # The count of a stream that was left in its midst is that of its beginning; what is billed is more.
        return Charge(*map(max, told, held)) if held and _is_cut(detail) else told
    if outcome == "failed" and detail.get("status", 0) >= 400:
        return Charge()  # refused by the provider, which then bills nothing
    return None if held else Charge()


def _told(call: Call, usage: dict[str, int], answered: Any, held: list[int] | None) -> Charge:
    """What an answer says of its tokens, and their price."""
    tokens = usage["input"] + usage.get("output", 0)
    for model in filter(None, (answered, call.target)):
        dollars = price(model, provider_of(call), usage, datetime.now(UTC))
        if dollars is not None:
            return Charge(tokens, nanos(dollars))
    return Charge(tokens, held[1] if held else 0)


def _is_cut(detail: dict[str, Any]) -> bool:
    """Whether nobody has seen the end of an answer, nor the word that says why it ended."""
    last = (detail.get("exchanges") or [detail])[-1]
    return last.get("end") in _CUT and "finish" not in detail
