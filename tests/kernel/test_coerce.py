"""What an operator writes as JSON becomes what the function says it returns, or is refused with the place in it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Protocol, TypedDict
from uuid import UUID

import pydantic
import pytest

from steplog._kernel.coerce import coerce
from steplog._kernel.refusal import Misfit


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: str
    lines: list[Line] = field(default_factory=list)
    due: date | None = None


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Options(TypedDict):
    colour: Colour
    at: NotRequired[datetime]


class Model(pydantic.BaseModel):
    name: str
    tags: set[str] = set()


class Shape(Protocol): ...


Cents = NewType("Cents", int)
ID = "5a1c9b1e-6f0a-4b7e-9d5a-0c7c2a1f8e11"


@pytest.mark.parametrize(
    "value, hint, expected",
    [
        ({"a": 1}, Any, {"a": 1}),
        (None, None.__class__, None),
        (1, int, 1),
        (1, float, 1.0),
        ("1.10", Decimal, Decimal("1.10")),
        ("2026-01-02", date, date(2026, 1, 2)),
        ("2026-01-02T03:04:05+00:00", datetime, datetime.fromisoformat("2026-01-02T03:04:05+00:00")),
        (ID, UUID, UUID(ID)),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, "a"], tuple[int, str], (1, "a")),
        (["a"], set[str], {"a"}),
        (["2026-01-02"], Sequence[date], [date(2026, 1, 2)]),
        ({"1": [1]}, dict[int, list[float]], {1: [1.0]}),
        (None, date | None, None),
        ("x", str | date, "x"),
        (1, int | float, 1),
        (7, Cents, 7),
        (7, Annotated[float, "price"], 7.0),
        ("b", Literal["a", "b"], "b"),
        ("b", Colour, Colour.BLUE),
        ("RED", Colour, Colour.RED),
        (
            {"id": "o", "lines": [{"sku": "s", "price": "1.5"}], "due": "2026-01-02"},
            Order,
            Order("o", [Line("s", Decimal("1.5"))], date(2026, 1, 2)),
        ),
        ({"x": 1, "y": 2}, Point, Point(1, 2.0)),
        ([1], Point, Point(1)),
        ({"colour": "b"}, Options, {"colour": Colour.BLUE}),
        ({"name": "n", "tags": ["t"]}, Model, Model(name="n", tags={"t"})),
        ("/tmp/x", Path, Path("/tmp/x")),
        ([1], Iterator[int], [1]),
        ({"a": 1}, Shape, {"a": 1}),
        ({"a": 1}, "Undefined", {"a": 1}),
        (Line("s", Decimal(1)), Line, Line("s", Decimal(1))),
    ],
)
def test_a_value_becomes_what_the_function_returns(value, hint, expected):
    found = coerce(value, hint, globals())

    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "value, hint, why",
    [
        ("x", None.__class__, "it is 'x', and the function returns NoneType there"),
        (True, int, "returns builtins.int there|returns int there"),
        (1.0, int, "it is 1.0"),
        ("1", int, "it is '1'"),
        (1.1, Decimal, "it is 1.1"),
        ("soon", date, "Invalid isoformat"),
        ([1, 2], tuple[int], "a tuple of 1"),
        ([1, "a"], list[int], r"it\[1\] is 'a'"),
        ({"a": 1}, dict[int, int], "a key of it is 'a'"),
        ("c", Literal["a", "b"], "one of"),
        ("c", Colour, "not a valid Colour"),
        ({"id": "o", "lines": [{"sku": "s"}]}, Order, r"it.lines\[0\] is .*price"),
        ({"id": "o", "more": 1}, Order, "more"),
        ({}, Options, "has no 'colour'"),
        ({}, Model, "name"),
        ({"a": 1}, object.__subclasses__()[0], "and the function returns"),
        ("x", int | None, "it is 'x'"),
        (3, "Order", "it is 3, and the function returns"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_place_and_the_type(value, hint, why):
    with pytest.raises(Misfit, match=why):
        coerce(value, hint, globals(), "it")
