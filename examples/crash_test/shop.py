"""The outside world of the agent: a shop that writes down what it has done."""

from __future__ import annotations

import os
from pathlib import Path


def _book() -> Path:
    return Path(os.environ.get("SHOP", "shop.txt"))


def done(what: str) -> None:
    """Do something, for good."""
    with _book().open("a", encoding="utf-8") as book:
        book.write(f"{what}\n")


def pay(what: str, key: str) -> None:
    """Do it unless it was done under this key, as a payment service does."""
    if not any(line.endswith(f"\t{key}") for line in entries(with_keys=True)):
        done(f"{what}\t{key}")


def entries(*, with_keys: bool = False) -> list[str]:
    """What has happened, for `steplog crash-test --ledger shop:entries`."""
    lines = _book().read_text(encoding="utf-8").splitlines() if _book().exists() else []
    return lines if with_keys else [line.partition("\t")[0] for line in lines]
