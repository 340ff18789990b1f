"""Prices and context windows of models, where a price list is installed (`pip install "steplog[prices]"`).

The list is a package's own data, of the day of its release; nothing is asked for over a network. A price that is not
known is none, never zero.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, Final

_USAGE: Final = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cache_read_tokens",
    "cache_write": "cache_write_tokens",
}


def price(model: str, provider: str | None, usage: dict[str, Any], when: datetime | None) -> Decimal | None:
    """What a model call costs, in US dollars; None where no list is installed, or it does not know the model.

    Args:
        model: its name.
        provider: the SDK or service through which it was asked, or None.
        usage: tokens, by `input`, `output`, `cached` and `cache_write`.
        when: prices change; that of this time counts.
    """
    library = _library()
    if library is None:
        return None
    counts = {_USAGE[name]: count for name, count in usage.items() if name in _USAGE and isinstance(count, int)}
    for named in (provider, None):
        try:
            found = library.calc_price(
                library.Usage(**counts), model, provider_id=named or None, genai_request_timestamp=when
            )
        except (LookupError, ValueError):
            continue  # the list does not know this provider or model
        return Decimal(found.total_price)
    return None


@lru_cache(maxsize=256)
def window(model: str, provider: str | None) -> int | None:
    """The context window of a model in tokens; None where no list is installed, or it does not know that."""
    library = _library()
    if library is None:
        return None
    for named in (provider, None):
        try:
            found = library.calc_price(library.Usage(input_tokens=1), model, provider_id=named or None).model
        except (LookupError, ValueError):
            continue
        size = found.context_window
        return size if isinstance(size, int) and size > 0 else None
    return None


def named() -> str:
    """The price list and its release, as `genai-prices 0.2.3`; "" where none is installed."""
    if _library() is None:
        return ""
    from importlib.metadata import version

    return f"genai-prices {version('genai-prices')}"


@cache
def _library() -> Any:
    try:
        import genai_prices
    except ImportError:
        return None
    return genai_prices
