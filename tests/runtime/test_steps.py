"""P2: a finished step is never executed again, and comes back as what it was."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import inspect
import json
import random
import sqlite3
import sys
import time
import types
import typing
import uuid

import pydantic
import pytest

import steplog
from steplog._kernel.fold import fold
from steplog._kernel.references import references
from steplog._runtime import redaction
from steplog._runtime.resolve import resolve
from steplog.stores.bodies import SqliteBodies
from steplog.stores.files import FileStore


@dataclasses.dataclass(frozen=True)
class Receipt:
    order: str
    cents: int
    tags: frozenset[str] = frozenset()


class Colour(enum.Enum):
    RED = "red"


class Point(typing.NamedTuple):
    x: float
    y: float


class Order(pydantic.BaseModel):
    id: str
    total: decimal.Decimal
    note: str | None = None


VALUES = [
    None,
    True,
    0,
    2**80,
    -1.5,
    float("inf"),
    "a\u2028b",
    b"\x00\xff",
    (1, (2,)),
    {1, 2},
    [1, {"a": None}],
    {1: "a", "1": "b"},
    {"$steplog": "mine"},
    dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC),
    dt.date(2026, 3, 1),
    decimal.Decimal("1.10"),
    uuid.UUID(int=5),
    Colour.RED,
    Point(1.0, 2.0),
    Receipt("o", 5, frozenset({"x"})),
    Order(id="o", total=decimal.Decimal("9.90")),
    "x" * 20_000,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_recorded_result_comes_back_as_the_same_type(value):
    calls = []

    @steplog.step
    def tool():
        calls.append(1)
        return value

    with steplog.run("r"):
        first = tool()
    with steplog.run("r") as run:
        again = tool()
        assert (run.replayed, run.executed) == (1, 0)

    assert first is value
    assert calls == [1]
    assert again == value
    assert type(again) is type(value)


def test_nan_comes_back():
    with steplog.run("r"):
        steplog.step("n", lambda: float("nan"))
    with steplog.run("r"):
        again = steplog.step("n", lambda: 1.0)

    assert again != again


def test_what_the_program_does_to_a_result_does_not_change_the_record():
    with steplog.run("r"):
        steplog.step("list", lambda: [1]).append(2)
    with steplog.run("r"):
        assert steplog.step("list", list) == [1]


async def test_async_tools_and_local_values():
    calls = []

    @steplog.step
    async def tool(x: int) -> tuple[int, ...]:
        calls.append(x)
        await asyncio.sleep(0)
        return (x,)

    async def fetch() -> str:
        calls.append("fetch")
        return "fetched"

    async def agent() -> object:
        async with steplog.run("r"):
            return await tool(1), await tool(1), await steplog.step("f", fetch)

    first, second = await agent(), await agent()

    assert first == second == ((1,), (1,), "fetched")
    assert calls == [1, 1, "fetch"]


def test_methods_leave_their_object_out_of_the_identity():
    class Desk:
        def __init__(self, socket):
            self.socket = socket
            self.calls = 0

        @steplog.step
        def look(self, order: str) -> str:
            self.calls += 1
            return order.upper()

    first, second = Desk(object()), Desk(object())
    with steplog.run("r"):
        assert first.look("a") == "A"
    with steplog.run("r"):
        assert second.look(order="a") == "A"

    assert (first.calls, second.calls) == (1, 0)


def test_defaults_and_spelling_of_a_call_do_not_change_its_identity():
    calls = []

    @steplog.step
    def tool(a, b=2, *, c=3):
        calls.append((a, b, c))
        return a + b + c

    with steplog.run("r"):
        tool(1)
    with steplog.run("r"):
        tool(b=2, a=1, c=3)

    assert calls == [(1, 2, 3)]


def test_var_arguments_are_part_of_the_identity():
    @steplog.step
    def tool(*args, **kwargs):
        return [list(args), kwargs]

    with steplog.run("r"):
        assert tool(1, 2, x=3) == [[1, 2], {"x": 3}]
    with steplog.run("r") as run:
        assert tool(1, 2, x=3) == [[1, 2], {"x": 3}]
        assert run.replayed == 1


def test_ignored_parameters_need_not_be_recordable():
    @steplog.step(ignore=["client"])
    def tool(client, x):
        return x

    with steplog.run("r"):
        tool(object(), 1)
    with steplog.run("r") as run:
        assert tool(object(), 1) == 1
        assert run.replayed == 1


def test_one_is_not_one_point_zero():
    @steplog.step
    def spell(x):
        return repr(x)

    with steplog.run("r"):
        assert (spell(1), spell(1.0)) == ("1", "1.0")
    with steplog.run("r"):
        assert (spell(1.0), spell(1)) == ("1.0", "1")


def test_a_recorded_failure_is_raised_again_as_the_same_exception():
    class Refused(Exception):
        pass

    calls = []

    @steplog.step
    def tool():
        calls.append(1)
        error = KeyError("order", 7)
        error.add_note("look again")
        raise error

    for _ in range(2):
        with steplog.run("r"):
            with pytest.raises(KeyError) as caught:
                tool()
            assert caught.value.args == ("order", 7)
            assert caught.value.__notes__ == ["look again"]

    assert calls == [1]


def test_a_failure_whose_class_is_gone_becomes_step_failed_and_says_which():
    def tool():
        class Gone(Exception):
            pass

        raise Gone("why")

    recorded = steplog.step(name="tool")(tool)
    with steplog.run("r"), pytest.raises(Exception, match="why"):
        recorded()
    with steplog.run("r"), pytest.raises(steplog.StepFailed) as caught:
        recorded()

    assert "Gone" in caught.value.type_name
    assert caught.value.run_id == "r"


def test_the_signature_and_name_stay():
    def tool(a: int, *, b: str = "x") -> bool:
        """Say."""
        return True

    async def fetch(a: int) -> bool:
        return True

    wrapped, awaited = steplog.step(tool), steplog.step(mode="safe")(fetch)

    assert inspect.signature(wrapped) == inspect.signature(tool)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__) == ("tool", "Say.", tool)
    assert inspect.iscoroutinefunction(awaited)
    assert not inspect.iscoroutinefunction(wrapped)


def test_a_call_that_does_not_fit_raises_what_it_always_raised():
    @steplog.step
    def tool(a):
        return a

    for _ in range(2):
        with steplog.run("r"):
            for call in (tool, lambda: tool(1, 2), lambda: tool(1, a=1), lambda: tool(b=1)):
                with pytest.raises(TypeError, match="tool"):
                    call()


def test_outside_a_run_it_passes_through_and_warns_once(caplog):
    @steplog.step
    def tool():
        return object()

    with caplog.at_level("DEBUG", "steplog"):
        tool(), tool()

    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "outside any run" in caplog.text


def test_strict_refuses_what_would_escape(home):
    steplog.install(home=home, interceptors=[], strict=True)
    calls = []
    tool = steplog.step(name="tool")(lambda: calls.append(1))

    with pytest.raises(steplog.NotInRun, match=r"steplog\.run"):
        tool()

    assert calls == []


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: steplog.step(mode="twice"), "unknown idempotency mode"),
        (lambda: steplog.step(mode="keyed"), "idempotency_key"),
        (lambda: steplog.step(mode="verify"), "verify"),
        (lambda: steplog.step(verify=print), "verify"),
        (lambda: steplog.step(retries=-1), "negative"),
        (lambda: steplog.step(ignore=["nope"]), "nope"),
        (lambda: steplog.step(ignore="x"), r"ignore=\['x'\]"),
    ],
)
def test_a_wrong_declaration_is_refused_when_it_is_made(make, says):
    with pytest.raises(ValueError, match=says):
        make()(lambda x: x)


def test_generators_are_refused():
    def items():
        yield 1

    async def stream():
        yield 1

    for fn in (items, stream):
        with pytest.raises(ValueError, match="is a generator"):
            steplog.step(fn)


def test_an_argument_that_cannot_be_recorded_is_refused_before_the_effect(home, caplog):
    calls = []

    @steplog.step
    def tool(x):
        calls.append(x)

    with steplog.run("r") as run:
        with pytest.raises(steplog.EncodeError) as caught:
            tool({"a": [object()]})
        assert run.state.steps == {}

    assert caught.value.path == "tool(x).a[0]"
    assert '@steplog.step(ignore=["x"])' in str(caught.value)
    assert "was not executed" in caplog.text  # a framework may tell the model of the error, and nobody else
    assert calls == []


def test_a_result_that_cannot_be_recorded_halts_and_is_never_repeated(state_of):
    calls = []

    @steplog.step
    def tool():
        calls.append(1)
        return {"socket": object()}

    for _ in range(2):
        with pytest.raises(steplog.RunStopped, match=r"result\.socket") as caught, steplog.run("r"):
            tool()
        assert isinstance(caught.value.__cause__, steplog.Unreplayable)
        assert "--done JSON" in caught.value.commands[0]

    assert calls == [1]
    (step,) = state_of("r").steps.values()
    assert step.finished["unreplayable"]["path"] == "result.socket"


def test_a_coroutine_from_a_plain_function_is_refused(recwarn):
    async def fetch():
        return 1

    with steplog.run("r"), pytest.raises(ValueError, match="the async function itself"):
        steplog.step("f", lambda: fetch())  # noqa: PLW0108  # a plain function is the point


@pytest.mark.parametrize(
    "fn", [time.time, random.random, uuid.uuid4, dt.datetime.now, list], ids=lambda fn: fn.__name__
)
def test_builtins_and_classes_give_local_values(fn):
    with steplog.run("r"):
        first = steplog.step("x", fn)
    with steplog.run("r"):
        assert steplog.step("x", fn) == first


def test_a_registered_codec_restores_the_users_own_class():
    class Money:
        def __init__(self, cents):
            self.cents = cents

        def __eq__(self, other):
            return isinstance(other, Money) and other.cents == self.cents

        __hash__ = None

    steplog.register_codec(Money, to=lambda money: money.cents, of=Money, name="tests.Money")
    with steplog.run("r"):
        steplog.step("m", lambda: Money(5))
    with steplog.run("r"):
        assert steplog.step("m", lambda: None) == Money(5)


def test_arguments_may_be_of_classes_that_only_this_call_knows():
    @dataclasses.dataclass
    class Local:
        x: int

    @steplog.step
    def tool(local):
        return local.x

    with steplog.run("r"):
        tool(Local(1))
    with steplog.run("r") as run:
        assert (tool(Local(1)), run.executed) == (1, 0)


def test_a_result_whose_class_is_not_here_halts_and_says_what_is_missing(monkeypatch):
    with steplog.run("r"):
        steplog.step("x", lambda: Receipt("o", 1))
    monkeypatch.delitem(globals(), "Receipt")

    with pytest.raises(steplog.RunStopped, match="Receipt") as caught, steplog.run("r"):
        steplog.step("x", lambda: None)

    assert isinstance(caught.value.__cause__, steplog.Unreplayable)
    assert caught.value.commands[0] == "steplog resume r"


def test_a_lost_body_halts_and_can_be_settled(home):
    calls = []

    @steplog.step
    def tool():
        calls.append(1)
        return "x" * 10_000

    with steplog.run("r"):
        tool()
    FileStore(str(home)).bodies.close()
    for file in home.glob("bodies.db*"):
        file.unlink()

    with pytest.raises(steplog.RunStopped, match="lost") as caught, steplog.run("r"):
        tool()
    resolve(FileStore(str(home)), "r", caught.value.step, how="done", result="short")
    with steplog.run("r"):
        assert tool() == "short"
    assert calls == [1]


def test_what_an_intent_names_is_on_disk_with_the_outcome(home, monkeypatch):
    """The intent of a safe step is not synced; the sync of its outcome makes it count, and so also what it names."""
    put, puts = SqliteBodies.put, []

    def noting_put(self, bodies, *, sync=True):
        puts.append((len(bodies), sync))
        put(self, bodies, sync=sync)

    monkeypatch.setattr(SqliteBodies, "put", noting_put)

    @steplog.step(mode="safe")
    def tool(text):
        return len(text)

    with steplog.run("r"):
        tool("x" * 10_000)
        tool("short")
    assert puts == [(1, False), (0, True)]


@pytest.mark.parametrize("mode", ["safe", "unsafe"])
def test_an_intent_whose_arguments_a_loss_of_power_took_is_an_orphan_like_any_other(home, mode):
    """The line of a safe step's intent is not synced, nor is the body that it names; either may be lost alone."""
    calls = []

    @steplog.step(mode=mode)
    def tool(text):
        calls.append(text)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return len(text)

    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        tool("x" * 10_000)
    FileStore(str(home)).bodies.close()
    for file in home.glob("bodies.db*"):
        file.unlink()

    if mode == "unsafe":
        with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
            tool("x" * 10_000)
        assert caught.value.reason == "indeterminate"
        resolve(FileStore(str(home)), "r", caught.value.step, how="retry")
    # This process had the file open; another one would not have known it.
    with pytest.raises(steplog.RunStopped, match="deleted or replaced"), steplog.run("r"):
        tool("x" * 10_000)
    with steplog.run("r"):
        assert tool("x" * 10_000) == 10_000
    assert len(calls) == 2


def test_a_result_that_lost_a_secret_says_so_and_is_not_returned_without_it(home, caplog):
    calls = []
    secret = "ghp_" + "A1b2C3d4E5f6G7h8I9j0" + "K1l2M3n4O5p6Q7r8"

    @steplog.step
    def unsafe():
        calls.append("unsafe")
        return {"token": secret}

    @steplog.step(mode="safe")
    def safe():
        calls.append("safe")
        return {"token": secret}

    with pytest.raises(OSError), steplog.run("r"):
        assert safe() == {"token": secret}
        assert unsafe() == {"token": secret}
        raise OSError
    assert "a secret was taken out" in caplog.text
    with pytest.raises(steplog.RunStopped, match="secret") as caught, steplog.run("r"):
        assert safe() == {"token": secret}
        unsafe()

    assert caught.value.reason == "unreplayable"
    assert calls == ["safe", "unsafe", "safe"]
    assert all(secret.encode() not in file.read_bytes() for file in home.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    "name, value, secret",
    [
        ("OPENAI_API_KEY", "sk-one2three", True),
        ("db_password", "hunter2hunter2", True),
        ("TOKEN", "abcdefghijklmnopqrstuv", True),
        ("AWS_SECRET_ACCESS_KEY", "a/b+c", True),
        ("DB_PASSWORD", "postgres", False),
        ("SORT_KEY", "created_at2", False),
        ("PRIMARY_KEY", "customer_id", False),
        ("SECRET_PATH", "/etc/secrets/app", False),
        ("CSRF_TOKEN_COOKIE_NAME", "session_cookie", False),
        ("SSH_KEY_PATH", "/home/x/.ssh/id", False),
        ("TOKENIZERS_PARALLELISM", "false1", False),
        ("PATH", "/usr/bin", False),
    ],
)
def test_which_variables_hold_secrets(name, value, secret):
    assert list(redaction.secret_values({name: value})) == ([value] if secret else [])


def test_secrets_of_the_environment_are_in_no_file(home, monkeypatch):
    secret = 'hunter2"with\nquotes'
    monkeypatch.setenv("SHOP_PASSWORD", secret)
    monkeypatch.setattr("sys.argv", ["agent.py", f"--password={secret}"])

    @steplog.step(mode="safe")
    def login(password, filler=""):
        raise PermissionError(f"{password} is wrong {filler}")

    with pytest.raises(PermissionError), steplog.run("r", goal=f"log in with {secret}"):
        steplog.step("v", lambda: secret)
        steplog.step("w", lambda: [secret, "x" * 5000])
        login(secret, filler="y" * 5000)

    spellings = [secret.encode(), json.dumps(secret)[1:-1].encode()]
    FileStore(str(home)).bodies.close()
    for file in home.rglob("*"):
        if file.is_file():
            assert not any(spelling in file.read_bytes() for spelling in spellings), file
    with sqlite3.connect(home / "bodies.db") as db:
        assert db.execute("select count(*) from bodies").fetchone()[0] >= 2
    db.close()
    bodies = FileStore(str(home)).bodies
    state = fold(FileStore(str(home)).read("r").events)
    for step in state.steps.values():
        for name in references({"started": step.started, "finished": step.finished}):
            assert not any(spelling in bodies.get(name) for spelling in spellings)


def test_a_decorator_in_between_that_adds_arguments_lets_no_call_escape():
    sent = []

    def inject(fn):
        @functools.wraps(fn)
        def call(to):
            return fn(object(), to)

        return call

    @steplog.step
    @inject
    def mail(client, to):
        sent.append(to)

    for _ in range(2):
        with steplog.run("r"):
            mail("ada")

    assert sent == ["ada"]


def test_equal_calls_on_two_objects_are_told_apart_where_the_objects_are_values(caplog):
    @dataclasses.dataclass(frozen=True)
    class Account:
        owner: str

        @steplog.step
        def charge(self, cents):
            return f"{self.owner} {cents}"

    class Desk:
        @steplog.step
        def look(self, order):
            return order

    ada, bob = Account("ada"), Account("bob")
    with steplog.run("r"):
        assert (ada.charge(1), bob.charge(1)) == ("ada 1", "bob 1")
    with steplog.run("r") as run:
        assert (bob.charge(1), ada.charge(1)) == ("bob 1", "ada 1")
        assert run.executed == 0
    assert "two objects" not in caplog.text
    one, other = Desk(), Desk()
    with steplog.run("s"):
        one.look("a"), one.look("a"), other.look("b")
        assert "two objects" not in caplog.text
        other.look("a")
    assert "two objects" in caplog.text


def test_a_namesake_in_another_module_does_not_get_the_result(monkeypatch):
    def notify(order):
        return f"sms {order}"

    notify.__module__ = "shop.sms"
    with pytest.raises(OSError), steplog.run("r"):
        steplog.step(notify)("o1")
        raise OSError

    notify.__module__ = "shop.mail"
    with pytest.raises(steplog.RunStopped, match=r"shop\.sms.*shop\.mail"), steplog.run("r"):
        steplog.step(notify)("o1")
    with steplog.run("r"):
        assert steplog.step(name=steplog.step(notify).__qualname__.rsplit(".", 1)[-1])(notify)("o1") == "sms o1"


def test_a_module_is_said_once_and_counts_for_every_step_behind(home):
    def notify(order):
        return f"sms {order}"

    notify.__module__ = "shop.sms"
    for orders in (["o1", "o2"], ["o1", "o2", "o3"]):
        with pytest.raises(OSError), steplog.run("r"):
            [steplog.step(notify)(order) for order in orders]
            raise OSError
    with pytest.raises(OSError), steplog.run("r"):
        [steplog.step(notify)(order) for order in orders]
        steplog.step(name="notify", mode="safe")(lambda: None)()
        raise OSError
    started = [event.data for event in FileStore(home).read("r").events if event.type == "step.started"]
    assert [data.get("module") for data in started] == ["shop.sms", None, None, None]

    notify.__module__ = "shop.mail"
    with pytest.raises(steplog.RunStopped, match=r"shop\.sms.*shop\.mail"), steplog.run("r"):
        steplog.step(notify)("o3")


def test_what_a_partial_has_bound_is_part_of_the_call():
    def charge(who, cents):
        return f"{who} {cents}"

    ada, bob = (steplog.step(name="charge")(functools.partial(charge, who)) for who in ("ada", "bob"))
    with steplog.run("r"):
        assert (ada(1), bob(1)) == ("ada 1", "bob 1")
    with steplog.run("r") as run:
        assert (bob(1), ada(1)) == ("bob 1", "ada 1")
        assert run.executed == 0


def test_two_functions_that_happen_to_have_one_name_are_refused():
    def sms():
        @steplog.step
        def notify(x):
            return x

        return notify

    def mail():
        @steplog.step
        def notify(x):
            return -x

        return notify

    with steplog.run("r"):
        assert (sms()(1), sms()(2)) == (1, 2)
        with pytest.raises(steplog.InvalidArgument, match="two different functions"):
            mail()(1)


def test_a_tool_that_changes_its_argument_is_told(caplog):
    @steplog.step
    def add(items, x):
        items.append(x)
        return x

    with steplog.run("r"):
        add([], 1), add([], 2)

    assert caplog.text.count("changes an argument") == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("\ud800 torn"),
        lambda: ValueError("x" * 3_000_000),
        type("Broken", (Exception,), {"__str__": lambda self: 1 / 0}),
    ],
    ids=["surrogate", "large", "unprintable"],
)
def test_any_failure_can_be_recorded(make, state_of):
    @steplog.step
    def tool():
        raise make()

    for _ in range(2):
        with steplog.run("r"), contextlib.suppress(Exception):
            tool()

    (step,) = state_of("r").steps.values()
    assert (step.status, step.attempt) == ("failed", 1)


def test_a_failure_that_lost_a_secret_is_not_returned_without_it():
    secret = "ghp_" + "A1b2C3d4E5f6G7h8I9j0" + "K1l2M3n4O5p6Q7r8"

    @steplog.step
    def tool():
        raise ValueError(f"bad token {secret}")

    with steplog.run("r"), pytest.raises(ValueError, match=secret):
        tool()
    with pytest.raises(steplog.RunStopped, match="secret"), steplog.run("r"):
        tool()


def test_a_secret_that_looks_like_a_number_leaves_numbers_alone(monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "20240131")
    with steplog.run("r"):
        assert steplog.step("n", lambda: [7720240131, "x"]) == [7720240131, "x"]
    with steplog.run("r") as run:
        assert steplog.step("n", list) == [7720240131, "x"]
        assert run.executed == 0


def test_an_interrupt_that_holds_a_secret_is_recorded_without_it(home):
    secret = "ghp_" + "A1b2C3d4E5f6G7h8I9j0" + "K1l2M3n4O5p6Q7r8"

    def find():
        raise OSError(f"token {secret} refused")

    @steplog.step(mode="verify", verify=find)
    def tool():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        tool()
    with pytest.raises(steplog.RunStopped), steplog.run("r"):
        tool()

    assert secret not in (home / "runs/r/events.jsonl").read_text()


# the order of decorators


class Tool:
    """What a framework makes of a function: an object that can be called, or one that cannot."""

    def __init__(self, function, name="pay"):
        self.function, self.name = function, name


class CallableTool(Tool):
    def __call__(self, *args):
        return self.function(*args)


@pytest.fixture
def framework(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic_ai", types.ModuleType("pydantic_ai"))
    for kind in (Tool, CallableTool):
        monkeypatch.setattr(kind, "__module__", "pydantic_ai.tools")


@pytest.mark.parametrize("kind", [Tool, CallableTool])
@pytest.mark.parametrize("name", [None, "pay"])
def test_a_tool_of_a_framework_is_refused(framework, kind, name):
    with pytest.raises(steplog.InvalidArgument, match="below the decorator of an agent framework"):
        steplog.step(name=name)(kind(lambda: 1))


@pytest.mark.parametrize("materialised", [False, True])
def test_a_function_that_a_framework_has_kept_is_refused(framework, materialised):
    def pay():
        return 1

    kept = Tool(pay)
    if materialised:
        assert vars(kept)["function"] is pay

    with pytest.raises(steplog.InvalidArgument, match="was given to a pydantic_ai"):
        steplog.step(pay)


def test_a_step_may_be_given_to_a_framework_and_be_wrapped_by_a_program_of_the_users(framework, monkeypatch):
    monkeypatch.setattr(CallableTool, "__module__", "agents.tools")

    def pay():
        return 1

    tool = Tool(steplog.step(pay))
    mine = steplog.step(name="mine")(CallableTool(lambda: 2))

    assert (tool.function(), mine()) == (1, 2)


def test_an_object_of_the_agents_sdk_is_refused_with_the_order():
    with pytest.raises(steplog.InvalidArgument, match="Write the framework's decorator above"):
        steplog.step(Tool(lambda: 1))


@pytest.mark.parametrize("module, article", [("agents.tool", "an agents.tool."), ("some.tool", "a some.tool.")])
def test_a_tool_of_a_framework_is_refused_in_plain_english(module, article):
    tool = type("FunctionTool", (), {"__module__": module, "name": "mail"})()
    with pytest.raises(steplog.InvalidArgument, match=f"this is {article}FunctionTool, not a function"):
        steplog.step(tool)


class Called:
    def __call__(self):
        return 7


CALLABLES = {
    "bound method of a builtin": iter([7]).__next__,
    "method of an object": [7].pop,
    "partial": functools.partial(int, "7"),
    "object": Called(),
    "lambda": lambda: 7,
}


@pytest.mark.parametrize("name", CALLABLES)
def test_a_value_is_taken_through_any_callable(name):
    for _ in range(2):
        with steplog.run("r"):
            assert steplog.step("value", CALLABLES[name]) == 7
