"""What a type checker says about a user's program; checked by mypy, never run.

The lines that must be refused carry the error they are refused with: the day one of them is accepted, its `ignore` is
unused and the check fails.
"""

from __future__ import annotations

from datetime import date
from typing import assert_type

import steplog


@steplog.step
def send_mail(to: str, text: str = "") -> None: ...


@steplog.step(mode="keyed")
def refund(order_id: str, cents: int, *, idempotency_key: str = "") -> dict[str, int]:
    return {order_id: cents}


@steplog.step(mode="safe", retries=2, backoff=0.1, retry_on=(OSError,), ignore=("client",))
async def fetch(url: str, client: object = None) -> bytes:
    return url.encode()


class Desk:
    @steplog.step
    def close(self, ticket: int) -> bool:
        return ticket > 0


def signatures_are_kept() -> None:
    assert_type(refund("ord_1", 5), dict[str, int])
    assert_type(Desk().close(1), bool)
    send_mail("ada@example.com", text="hello")

    send_mail(1)  # type: ignore[arg-type]
    refund("ord_1")  # type: ignore[call-arg]
    refund("ord_1", 5, note="?")  # type: ignore[call-arg]
    Desk().close("1")  # type: ignore[arg-type]


async def async_steps_stay_async() -> None:
    assert_type(await fetch("x"), bytes)

    fetch("x").upper()  # type: ignore[attr-defined]


async def tomorrow() -> date:
    return date.max


async def values_keep_their_type() -> None:
    assert_type(steplog.step("today", date.today), date)
    assert_type(steplog.step("n", lambda: 1), int)
    assert_type(await steplog.step("tomorrow", tomorrow), date)

    steplog.step("today", date.max)  # type: ignore[call-overload]
    steplog.step("today")  # type: ignore[call-overload]


async def runs_open_both_ways() -> None:
    with steplog.run("r-1", goal="show it") as run:
        assert_type(run, steplog.Run)
        assert_type(run.run_id, str)
    async with steplog.run("r-2") as other:
        assert_type(other, steplog.Run)
    assert_type(steplog.current_run(), steplog.Run | None)

    run.no_such_method()  # type: ignore[attr-defined]
    steplog.install(durability=3)  # type: ignore[arg-type]
