"""How the classes of recorded values are found again: by annotation, by registration, by what is imported already."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import sys
import threading
import types
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import pydantic
import pytest

from steplog._kernel import codec_classes
from steplog._kernel.codec import Classes, classes_in, decode, encode, register_codec
from steplog.errors import DecodeError, EncodeError, InvalidArgument
from tests.kernel.strategies import (
    Colour,
    Model,
    Open,
    Order,
    Receipt,
    Rights,
    Size,
    same,
    through,
)


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
