"""Every value that the log can hold, and what it means that two of them are the same."""

from __future__ import annotations

import datetime as dt
import enum
import json
import pathlib
import struct
import zoneinfo
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import orjson
import pydantic
from hypothesis import strategies as st

from steplog._kernel.codec import Classes, decode, encode, register_codec


class Colour(enum.Enum):
    RED = "r"
    SCARLET = "r"  # noqa: PIE796 - an alias on purpose
    BLUE = (1, 2)


class Size(enum.StrEnum):
    SMALL = "s"
    LARGE = "l"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Pair(NamedTuple):
    left: Any
    right: Any = None


@dataclass
class Base:
    name: Any


@dataclass
class Order(Base):
    items: list[Any] = field(default_factory=list)
    total: Any = field(init=False)

    def __post_init__(self) -> None:
        self.total = [len(self.items)]


@dataclass(frozen=True, slots=True)
class Receipt:
    order: Any
    cents: int = 0


@dataclass(frozen=True, slots=True)
class Signed(Receipt):
    by: Any = "nobody"


class Model(pydantic.BaseModel):
    a: Any
    b: Any = None
    _note: Any = pydantic.PrivateAttr(default=None)


class Open(pydantic.BaseModel, extra="allow"):
    a: int = 1


class Point:
    """Known only through its registered codec."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Point({self.x!r}, {self.y!r})"


register_codec(Point, to=lambda point: (point.x, point.y), of=lambda part: Point(*part), name="tests.Point")


class Declined(Exception):
    """Wants arguments that `args` does not hold, and slots besides `__dict__`."""

    __slots__ = ("code",)

    def __init__(self, message: str, *, code: Any) -> None:
        super().__init__(message)
        self.code = code
        self.seen = True


def model(a: Any, b: Any, note: Any, *, whole: bool) -> Model:
    made = Model(a=a, b=b) if whole else Model.model_construct(b=b)
    made._note = note
    return made


def failing(kind: int, part: Any) -> BaseException:
    made: BaseException = (
        ValueError("bad", part),
        Declined("no", code=part),
        FileNotFoundError(2, "gone", "a.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad start"),
        KeyError("k"),
        StopIteration(3),
    )[kind]
    made.add_note("noted")
    return made


def caused(first: BaseException, second: BaseException, *, explicit: bool) -> BaseException:
    if explicit:
        first.__cause__ = second
    else:
        first.__context__ = second
    return first


# The whole of Unicode, lone surrogates and NUL included, with the characters that trip line-based tools made frequent.
TEXT = st.text(st.characters() | st.sampled_from('\x00\u2028\x85\ufeff\ud800\udfff\U0001f600é$"'), max_size=20)
INTS = st.integers() | st.sampled_from([2**53 - 1, 2**53, -(2**53) + 1, -(2**53), 2**64, 10**40])
FLOATS = st.floats() | st.sampled_from([-0.0, 1e16, 1e22, 5e-324])
JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON_LEAVES = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | JSON_TEXT
JSON_LEAVES |= st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    JSON_LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(JSON_TEXT, inner, max_size=4),
    max_leaves=15,
)

ZONES = st.sampled_from([zoneinfo.ZoneInfo("Europe/Berlin"), zoneinfo.ZoneInfo("America/New_York")]) | st.builds(
    dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23))
)
ZONES |= st.just(dt.timezone(dt.timedelta(hours=1), "CET"))
PATHS = st.builds(pathlib.Path, JSON_TEXT.filter(lambda text: "\x00" not in text))

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    INTS,
    FLOATS,
    TEXT,
    st.binary(max_size=20),
    st.datetimes(timezones=st.none() | ZONES, allow_imaginary=True),
    st.times(timezones=st.none() | ZONES),
    st.dates(),
    st.timedeltas(),
    ZONES,
    st.fractions(),
    st.uuids(),
    PATHS,
    st.builds(pathlib.PureWindowsPath, st.just("c:/a b")),
    st.complex_numbers(),
    st.builds(range, st.integers(-5, 5), st.integers(-5, 5)),
    st.sampled_from([*Colour, *Size, *Level, *Rights, Rights.READ | Rights.RUN, Rights(0)]),
)


# A composite prints as its own name; without it Hypothesis would warn of strategies that take pages to print.
@st.composite
def scalars(draw: st.DrawFn) -> Any:
    return draw(_SCALARS | st.decimals())


@st.composite
def hashable_scalars(draw: st.DrawFn) -> Any:
    return draw(_SCALARS | st.decimals(allow_nan=False))  # a signalling NaN has no hash


HASHABLE = st.recursive(
    hashable_scalars(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3) | st.builds(Pair, inner, inner),
    max_leaves=4,
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    errors = st.builds(failing, st.integers(0, 5), inner)
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(TEXT | st.just("$steplog"), inner, max_size=4),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        st.frozensets(HASHABLE, max_size=4),
        st.binary(max_size=9).map(bytearray),
        st.dictionaries(HASHABLE, inner, max_size=3).map(OrderedDict),
        st.builds(deque, st.lists(inner, max_size=3), st.sampled_from([None, 5])),
        st.builds(Pair, inner, inner),
        st.builds(Order, inner, st.lists(inner, max_size=3)),
        st.builds(Receipt, inner, st.integers(0, 9)),
        st.builds(Signed, inner, st.integers(0, 9), inner),
        st.builds(model, inner, inner, inner, whole=st.booleans()),
        st.builds(lambda extra: Open(x=extra), inner),
        st.builds(Point, inner, inner),
        errors,
        st.builds(caused, errors, errors, explicit=st.booleans()),
        st.builds(lambda error: ExceptionGroup("several", [error, KeyError(1)]), errors),
    )


VALUES = st.recursive(scalars(), _containers, max_leaves=8)
"""Any value that the log can hold."""


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal and of one type, in every part; NaN is the same as NaN, 0.0 is not -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b) or (a != a and b != b)
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(same(one, other) for other in b) for one in a)
    parts = _parts(a)
    if parts is not None:
        return _all_same(parts, _parts(b))
    return bool(a == b)


def _all_same(left: list[Any], right: list[Any] | None) -> bool:
    return right is not None and len(left) == len(right) and all(map(same, left, right))


def _parts(value: Any) -> list[Any] | None:
    """What must be the same in a value besides its type; None where `==` says it all."""
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, Decimal):
        return [str(value)]
    if isinstance(value, dt.datetime | dt.time):
        return [value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo]
    if isinstance(value, dt.timezone):
        return [value.utcoffset(None), str(value)]
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, deque):
        return [list(value), value.maxlen]
    if isinstance(value, BaseException):
        return _error_parts(value)
    if isinstance(value, pydantic.BaseModel):
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        return [dict(value.__dict__), value.__pydantic_fields_set__, extra, private]
    if isinstance(value, Point):
        return [value.x, value.y]
    if isinstance(value, Base | Receipt):
        return [getattr(value, name, "unset") for name in value.__dataclass_fields__]
    return None


def _error_parts(error: BaseException) -> list[Any]:
    slots = [getattr(error, name, "unset") for name in ("code", "errno", "filename", "object", "value")]
    shown = None if error.__suppress_context__ else error.__context__
    return [error.args, dict(error.__dict__), slots, error.__cause__, shown, error.__suppress_context__]


def stored(tree: Any) -> Any:
    """The tree as it is read from a log; every encoder must say the same."""
    by_orjson, by_json = orjson.dumps(tree), json.dumps(tree)
    assert orjson.loads(by_orjson) == json.loads(by_json) == orjson.loads(by_json) == json.loads(by_orjson)
    return orjson.loads(by_orjson)


def through(value: Any, classes: Classes | None = None) -> Any:
    classes = classes or Classes()
    return decode(stored(encode(value, classes=classes)), classes)
