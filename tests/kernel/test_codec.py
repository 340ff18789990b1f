"""Values to JSON trees and back: the same value, of the same type, through any JSON encoder, or one typed refusal."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import json
import pathlib
import subprocess
import sys
import threading
import types
import zoneinfo
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import orjson
import pydantic
import pytest
from hypothesis import given, settings

from steplog._kernel import codec_classes
from steplog._kernel.canonical import canonical
from steplog._kernel.codec import Classes, classes_in, decode, encode, register_codec
from steplog.errors import DecodeError, EncodeError, InvalidArgument
from tests.kernel.strategies import JSON, VALUES, Colour, Model, Open, Order, Pair, Point, Receipt, Rights, Size, same


def stored(tree: Any) -> Any:
    """The tree as it is read from a log; every encoder must say the same."""
    by_orjson, by_json = orjson.dumps(tree), json.dumps(tree)
    assert orjson.loads(by_orjson) == json.loads(by_json) == orjson.loads(by_json) == json.loads(by_orjson)
    return orjson.loads(by_orjson)


def through(value: Any, classes: Classes | None = None) -> Any:
    classes = classes or Classes()
    return decode(stored(encode(value, classes=classes)), classes)


@given(VALUES)
@settings(max_examples=400, deadline=None)
def test_any_value_comes_back_as_it_was(value):
    tree = encode(value)
    read = stored(tree)
    assert canonical(read) == canonical(tree)
    assert same(decode(read), value)


@given(JSON)
def test_plain_json_stands_for_itself(value):
    assert encode(value) is value or same(encode(value), value)
    assert same(decode(stored(encode(value))), value)


def test_plain_json_is_not_copied_but_decoding_is_fresh():
    value = {"a": [1, "x", {"b": 0.5}]}
    assert encode(value) is value
    again = decode(value)
    assert again == value
    assert again["a"] is not value["a"]
    assert again["a"][2] is not value["a"][2]


def test_does_not_change_what_it_encodes():
    inner = [1, (2, 3)]
    value = {"a": inner, "b": {"c": b"x"}}
    encode(value)
    assert value == {"a": [1, (2, 3)], "b": {"c": b"x"}}
    assert value["a"] is inner


# Table 36 of the fault list: what JSON encoders disagree about.
ODD = {
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "-0.0": -0.0,
    "2**53-1": 2**53 - 1,
    "2**53": 2**53,
    "2**53+1": 2**53 + 1,
    "-2**53": -(2**53),
    "2**64": 2**64,
    "10**400": 10**400,
    "4,300 digits": -(10**4299),
    "lone surrogate": "a\ud800b",
    "split pair": "\ud83d\ude00",
    "nul": "\x00",
    "line separator": "\u2028\u0085",
    "bom": "\ufeff",
    "astral": "\U0001f600",
    "combining": "e\u0301",
    "keys of all kinds": {1: "int", "1": "str", None: 0, 1.5: 0, (1, 2): 0, b"k": 0, "\ud800": 0},
    "surrogate key": {"a": 1, "\ud800": 2},
    "marked dict": {"$steplog": "tuple", "v": [1]},
    "marked twice": {"$steplog": {"$steplog": 1}},
    "bytes": b"\x00\xff",
    "text bytes": b"plain",
    "offset of a microsecond": dt.time(tzinfo=dt.timezone(dt.timedelta(microseconds=1))),
    "fold": dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    "named offset": dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "GMT")),
    "a million characters": "x" * 1_000_000,
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_what_encoders_disagree_about_is_exact(value):
    tree = encode(value)
    assert same(through(value), value)
    spellings = {canonical(json.loads(json.dumps(tree))), canonical(orjson.loads(orjson.dumps(tree))), canonical(tree)}
    assert len(spellings) == 1


def test_an_int_that_other_tools_would_round_is_written_as_text():
    assert encode([2**53 - 1, -(2**53) + 1]) == [2**53 - 1, -(2**53) + 1]
    assert encode(2**53) == {"$steplog": "int", "v": "9007199254740992"}
    assert encode(-(2**53)) == {"$steplog": "int", "v": "-9007199254740992"}


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Table(dict):
    pass


REFUSED = {
    "5,000 digits": (10**5000, "result", "int"),
    "str subclass": ({"a": Text("x")}, "result.a", "tests.kernel.test_codec.Text"),
    "int subclass": ([Number(1)], "result[0]", "tests.kernel.test_codec.Number"),
    "dict subclass": ({"two words": Table()}, "result['two words']", "tests.kernel.test_codec.Table"),
    "function": ({"items": [1, 2, 3, {"call": len}]}, "result.items[3].call", "builtin_function_or_method"),
    "generator": ((n for n in "a"), "result", "generator"),
    "module": (Receipt(Pair(1, sys)), "result.order.right", "module"),
    "object": ({1: object()}, "result[1]", "object"),
    "in maps": ({1: {"$steplog": {(2,): object}}}, "result[1]['$steplog'][(2,)]", "type"),
    "file": (Model(a=1, b=sys.__stdout__), "result.b", "_io.TextIOWrapper"),
    "class": ([int], "result[0]", "type"),
}


@pytest.mark.parametrize("value,path,type_name", REFUSED.values(), ids=REFUSED)
def test_refuses_with_the_path_and_the_type(value, path, type_name):
    with pytest.raises(EncodeError) as caught:
        encode(value)
    assert (caught.value.path, caught.value.type_name) == (path, type_name)
    assert str(caught.value).startswith(path + " ")


def test_a_refusal_says_what_to_do():
    with pytest.raises(EncodeError, match=r"^args\.t .*Convert it with str\(\.\.\.\).*register_codec\(Text, to="):
        encode({"t": Text("x")}, where="args")


def nested(levels: int, wrap: Any) -> Any:
    value: Any = wrap(1)
    for _ in range(levels - 1):
        value = wrap(value)
    return value


# A wrapper counts as the levels that it adds to the tree.
WRAPS = {
    "list": (lambda inner: [inner], 1),
    "dict": (lambda inner: {"k": inner}, 1),
    "tuple": (lambda inner: (inner,), 2),
    "map": (lambda inner: {1: inner}, 3),
    "dataclass": (Receipt, 2),
    "model": (lambda inner: Model(a=inner), 2),
    "codec": (lambda inner: Point(inner, 0), 3),
}


@pytest.mark.parametrize("wrap,levels", WRAPS.values(), ids=WRAPS)
def test_holds_a_hundred_levels_and_refuses_more(wrap, levels):
    most = 100 // levels
    value = nested(most, wrap)
    tree = encode(value)
    assert canonical(orjson.loads(orjson.dumps(tree))) == canonical(tree)
    assert type(decode(tree)) is type(value)
    with pytest.raises(EncodeError, match="deeper than 100 levels"):
        encode(nested(most + 1, wrap))


def test_a_hundred_thousand_levels_are_refused_and_not_a_crash():
    with pytest.raises(EncodeError, match="deeper than 100 levels") as caught:
        encode(nested(100_000, lambda inner: [inner]))
    assert caught.value.path == "result" + "[0]" * 100


def test_a_value_that_contains_itself_is_refused_with_both_places():
    order = Order("o")
    order.items = [{"back": order}]
    with pytest.raises(EncodeError) as caught:
        encode({"orders": [order]})
    assert caught.value.path == "result.orders[0].items[0].back"
    assert str(caught.value).startswith("result.orders[0].items[0].back is result.orders[0] itself")


def test_a_shared_part_is_written_at_each_place():
    part = (1,)
    first, second = through([part, part])
    assert first == second == part


def test_a_value_that_raises_while_it_is_read_is_refused_with_the_cause():
    class Bad(Model):
        def __getstate__(self):
            raise ZeroDivisionError

    with pytest.raises(EncodeError) as caught:
        encode([Bad(a=1)], classes=Classes.of(Bad))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_sets_and_models_have_one_spelling_in_every_process():
    program = (
        "from steplog._kernel.canonical import digest; from steplog._kernel.codec import encode\n"
        "from tests.kernel.strategies import Open\n"
        "print(digest(encode([{'a', 'b', 'c', ('d', 1)}, frozenset('xyz'), Open(x=1, y=2, z=3)])))"
    )
    env = {"PYTHONPATH": "steplog_sdk:."}
    outputs = {
        subprocess.check_output(
            [sys.executable, "-c", program], env={**env, "PYTHONHASHSEED": seed}, cwd=pathlib.Path(__file__).parents[2]
        )
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_bytes_that_are_text_stay_readable():
    assert encode(b"key=1") == {"$steplog": "bytes", "text": "key=1"}
    assert encode(b"\xff") == {"$steplog": "bytes", "base64": "/w=="}


# --- classes


def test_an_enum_comes_back_by_name_and_an_alias_as_its_member():
    assert encode(Colour.SCARLET) == {"$steplog": "enum", "class": "tests.kernel.strategies:Colour", "name": "RED"}
    assert through(Size.LARGE) is Size.LARGE
    assert through(Rights.READ | Rights.RUN) is Rights.READ | Rights.RUN


def test_a_model_comes_back_without_being_validated():
    model = Model.model_construct(a=object.__name__, b=[1])
    model.__dict__["a"] = {1: 2}
    assert same(through(model), model)
    sparse = Model.model_construct()
    assert "a" not in through(sparse).__dict__
    extra = Open(a=2, **{"$steplog": "odd"})
    assert same(through(extra), extra)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="pydantic.v1 does not support Python 3.14")
def test_an_old_style_model_comes_back():
    from pydantic import v1

    class Old(v1.BaseModel):
        a: Any
        b: int = 2
        _note: Any = v1.PrivateAttr(default=None)

    value = Old(a=(1, 2))
    value._note = {1: 2}
    back = through(value, Classes.of(Old))
    assert (back, type(back), back.__fields_set__, back._note) == (value, Old, {"a"}, {1: 2})


@dataclasses.dataclass
class Lazy:
    a: int

    @dataclasses.dataclass
    class Inner:
        b: int = 2

    def __post_init__(self) -> None:
        self.calls = [self.a]


def test_a_dataclass_keeps_attributes_that_are_no_fields_and_runs_no_code():
    value = Lazy(1)
    value.calls.append(7)
    back = through(value)
    assert back.calls == [1, 7]
    assert through(Lazy.Inner()) == Lazy.Inner()


@dataclasses.dataclass
class Slow:
    a: int

    @functools.cached_property
    def handle(self) -> Any:
        return threading.Lock()


def test_what_a_class_computes_and_caches_is_not_recorded():
    value = Slow(1)
    assert value.handle is value.handle
    assert encode(value)["v"] == {"a": 1}
    assert through(value).handle.acquire()


def test_an_attribute_name_that_utf8_cannot_write_is_refused():
    with pytest.raises(EncodeError, match=r"attribute called '.udc00'"):
        encode(Open.model_construct(**{"\udc00": 1}))


def renamed(tree: dict[str, Any], cls: type) -> dict[str, Any]:
    return {**tree, "class": f"{cls.__module__}:{cls.__qualname__}"}


@dataclasses.dataclass
class Grown:
    order: str
    cents: int
    currency: str = "EUR"
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Demanding:
    order: str
    signature: str


class GrownModel(pydantic.BaseModel):
    a: int
    currency: str = "EUR"


class DemandingModel(pydantic.BaseModel):
    a: int
    signature: str


def test_fields_added_since_take_their_defaults():
    assert decode(renamed(encode(Receipt("o", 5)), Grown)) == Grown("o", 5, "EUR", [])
    assert decode(renamed(encode(Open(a=1)), GrownModel)).currency == "EUR"


@pytest.mark.parametrize("value,cls", [(Receipt("o", 5), Demanding), (Open(a=1), DemandingModel)])
def test_required_fields_added_since_are_named(value, cls):
    with pytest.raises(DecodeError, match="fields have changed since: signature"):
        decode(renamed(encode(value), cls))


def local_class() -> Any:
    @dataclasses.dataclass
    class Local:
        a: int

    return Local


def test_a_class_that_cannot_be_found_again_is_refused_now():
    local = local_class()
    with pytest.raises(EncodeError, match=r"cannot find by name.*return annotation") as caught:
        encode({"d": local(1)})
    assert caught.value.path == "result.d"
    assert through(local(1), Classes.of(list[local] | None)) == local(1)


def test_a_class_replaced_under_its_name_is_refused_now(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "Grown", Demanding)
    with pytest.raises(EncodeError, match="cannot find by name"):
        encode(Order([], [GROWN("o", 1)]))


GROWN = Grown


def test_reading_never_imports():
    before = set(sys.modules)
    with pytest.raises(DecodeError, match=r"Add `import this` before the run") as caught:
        decode({"a": [{"$steplog": "dataclass", "class": "this:Zen", "v": {}}]})
    assert (caught.value.path, caught.value.type_name) == ("result.a[0]", "this:Zen")
    assert set(sys.modules) == before


def test_reading_does_not_trigger_a_module_that_imports_lazily(monkeypatch):
    module = types.ModuleType("lazy_module")
    module.__getattr__ = lambda name: pytest.fail(f"asked for {name}")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    with pytest.raises(DecodeError, match="lazy_module has no such class"):
        decode({"$steplog": "enum", "class": "lazy_module:Thing", "name": "A"})


HOSTILE = {
    "a class of another kind": {"$steplog": "dataclass", "class": "subprocess:Popen", "v": {}},
    "a function": {"$steplog": "exception", "class": "os:system", "args": ["true"], "message": ""},
    "not an exception": {"$steplog": "exception", "class": "subprocess:Popen", "args": ["true"], "message": ""},
    "not a model": {"$steplog": "pydantic", "class": "builtins:dict", "v": {}},
    "not a tuple": {"$steplog": "namedtuple", "class": "builtins:list", "v": {}},
    "not an enum": {"$steplog": "enum", "class": "builtins:int", "v": 1},
    "no member": {"$steplog": "enum", "class": "tests.kernel.strategies:Colour", "name": "GREEN"},
    "unknown kind": {"$steplog": "hologram", "v": 1},
    "unhashable kind": {"$steplog": [], "v": 1},
    "no content": {"$steplog": "tuple"},
    "bad date": {"$steplog": "date", "v": "yesterday"},
    "bad base64": {"$steplog": "bytes", "base64": "?"},
    "unhashable key": {"$steplog": "map", "v": [[[], 1]]},
    "wrong fields": {"$steplog": "namedtuple", "class": "tests.kernel.strategies:Pair", "v": {"up": 1}},
    "no codec": {"$steplog": "custom", "name": "nobody", "v": 1},
    "no zone": {"$steplog": "zoneinfo", "v": "Mars/Olympus"},
}


@pytest.mark.parametrize("tree", HOSTILE.values(), ids=HOSTILE)
def test_a_tree_that_cannot_be_restored_is_one_typed_error(tree):
    with pytest.raises(DecodeError) as caught:
        decode({"k": [tree]})
    assert caught.value.path.startswith("result.k[0]")
    assert caught.value.type_name


def test_a_script_finds_its_classes_when_it_is_imported_and_the_other_way_round():
    for recorded, module in (("__main__", "agent"), ("agent", "__main__")):
        cls = dataclasses.make_dataclass("Answer", ["a"])
        cls.__module__ = module
        tree = {"$steplog": "dataclass", "class": f"{recorded}:Answer", "v": {"a": 1}}
        assert decode(tree, Classes.of(cls)) == cls(1)
        with pytest.raises(DecodeError):
            decode(tree)


# --- annotations

T = TypeVar("T")


class Leaf(enum.Enum):
    A = 1


class Bag(TypedDict):
    leaf: Leaf


@dataclasses.dataclass
class Tree:
    bag: Bag
    child: Tree | None
    unknown: NoSuchName  # noqa: F821 - an annotation that does not resolve must not hide the others


class Page(pydantic.BaseModel, Generic[T]):
    rows: list[T]


class Row(NamedTuple):
    tree: Tree


Alias = NewType("Alias", Row)

REACH = {
    "generic": (list[Row], {"Row", "Tree", "Bag", "Leaf"}),
    "union": (int | Leaf | None, {"Leaf"}),
    "annotated": (Annotated[dict[str, tuple[Bag, ...]], "x"], {"Bag", "Leaf"}),
    "newtype": (Alias, {"Row", "Tree", "Bag", "Leaf"}),
    "literal": (Literal[Leaf.A, "x"], {"Leaf"}),
    "text": ("Row | None", {"Row", "Tree", "Bag", "Leaf"}),
    "unresolved text": ("Missing[Row]", set()),
    "none": (None, set()),
    "builtin": (dict[str, int], set()),
}


@pytest.mark.parametrize("annotation,names", REACH.values(), ids=REACH)
def test_an_annotation_reaches_its_classes(annotation, names):
    found = classes_in(annotation, globals())
    own = {cls.__name__ for cls in found.values() if cls.__module__ == __name__}
    assert own == names
    assert all(name == f"{cls.__module__}:{cls.__qualname__}" for name, cls in found.items())


def test_a_parametrised_model_is_found_through_the_annotation():
    def local() -> Any:
        return Page[Leaf]

    page = local()(rows=[Leaf.A])
    classes = Classes.of(Page[Leaf] | None)
    assert same(through(page, classes), page)
    assert "Leaf" in {cls.__name__ for cls in classes_in(Page[Leaf]).values()}


NESTED_PAGE = Page[Lazy.Inner]


def test_a_parametrised_model_made_at_module_level_is_found_by_name():
    assert NESTED_PAGE.__qualname__ == "Page[Lazy.Inner]"  # the dot inside must not be taken for a path
    page = NESTED_PAGE(rows=[Lazy.Inner(3)])
    assert same(through(page), page)


@pytest.mark.parametrize("kind", ["dataclass", "enum", "namedtuple", "pydantic"])
def test_a_class_that_became_something_else_is_named(kind):
    with pytest.raises(DecodeError, match=r"subprocess\.Popen is none now"):
        decode({"$steplog": kind, "class": "subprocess:Popen", "v": {}})


# --- registered codecs


class Account:
    def __init__(self, number: Any) -> None:
        self.number = number


class Special(Account):
    pass


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(codec_classes, "_by_class", dict(codec_classes._by_class))
    monkeypatch.setattr(codec_classes, "_by_name", dict(codec_classes._by_name))


def test_a_registered_class_is_restored_and_its_subclass_is_not(registry):
    register_codec(Account, to=lambda account: {"n": account.number}, of=lambda part: Account(part["n"]))
    back = through([Account((1, dt.date(2024, 1, 1)))])[0]
    assert (type(back), back.number) == (Account, (1, dt.date(2024, 1, 1)))
    with pytest.raises(EncodeError, match="Special"):
        encode(Special(1))


def test_a_codec_goes_before_what_steplog_knows_itself(registry):
    register_codec(Receipt, to=lambda receipt: receipt.cents, of=lambda cents: Receipt("again", cents), name="r")
    assert encode(Receipt("o", 5)) == {"$steplog": "custom", "name": "r", "v": 5}
    assert through(Receipt("o", 5)) == Receipt("again", 5)


def test_a_codec_that_raises_is_a_refusal_with_the_cause(registry):
    register_codec(Account, to=lambda account: 1 / 0, of=Account)
    with pytest.raises(EncodeError, match=r"result\.a .*ZeroDivisionError") as caught:
        encode({"a": Account(1)})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_path_goes_through_a_codec(registry):
    register_codec(Account, to=lambda account: {"n": account.number}, of=lambda part: Account(part["n"]))
    with pytest.raises(EncodeError) as caught:
        encode([Account(object())])
    assert caught.value.path == "result[0].n"


def test_a_registration_that_makes_no_sense_is_refused(registry):
    for cls in (int, dict, "Account"):
        with pytest.raises(InvalidArgument, match="register_codec"):
            register_codec(cls, to=str, of=str)
    register_codec(Account, to=str, of=Account, name="x")
    with pytest.raises(InvalidArgument, match=r"'x' is taken by .*Account"):
        register_codec(Special, to=str, of=Special, name="x")
    reloaded = type("Account", (), {"__module__": Account.__module__, "__qualname__": "Account"})
    register_codec(reloaded, to=str, of=str, name="x")
