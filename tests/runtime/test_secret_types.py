"""What a program's own types call secret is never shown: parameters, results, fields; by annotation or by pydantic."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

import orjson
import pydantic
import pytest
from typing_extensions import TypedDict as OtherTypedDict

import steplog
from steplog.stores.cipher import new_key

PASSWORD = "tulip"  # no rule would find it
Hidden = Annotated[str, steplog.Secret]


class Login(TypedDict):
    user: str
    password: Annotated[str, steplog.Secret]


@dataclasses.dataclass
class Account:
    name: str
    password: Annotated[str, steplog.Secret()]
    old: Annotated[list[str], steplog.Secret] | None = None


class Pair(NamedTuple):
    user: str
    password: Hidden


class Session(OtherTypedDict):
    password: Annotated[str, steplog.Secret]


class Model(pydantic.BaseModel):
    name: str
    password: Annotated[str, steplog.Secret]
    token: pydantic.SecretStr = pydantic.SecretStr(PASSWORD)
    sessions: list[Session] = []


VALUES = {
    "text": (Hidden, PASSWORD),
    "optional": (Hidden | None, PASSWORD),
    "list": (list[Hidden], [PASSWORD, PASSWORD]),
    "tuple": (tuple[str, Hidden], ("u", PASSWORD)),
    "mapping": (dict[str, Hidden], {"a": PASSWORD}),
    "keys of another kind": (dict[int, Hidden], {1: PASSWORD}),
    "typed dict": (Login, {"user": "u", "password": PASSWORD}),
    "typed dicts": (list[Login], [{"user": "u", "password": PASSWORD}]),
    "dataclass": (Account, Account("u", PASSWORD, [PASSWORD])),
    "named tuple": (Pair, Pair("u", PASSWORD)),
    "model": (Model, Model(name="u", password=PASSWORD, sessions=[{"password": PASSWORD}])),
    "models": (dict[str, list[Model]], {"a": [Model(name="u", password=PASSWORD)]}),
    "secret str": (pydantic.SecretStr, pydantic.SecretStr(PASSWORD)),
    "secret bytes": (pydantic.SecretBytes, pydantic.SecretBytes(PASSWORD.encode() + b"\xff")),
    "large": (Hidden, PASSWORD * 2000),
}


def bytes_under(home: Path) -> bytes:
    return b"".join(file.read_bytes() for file in home.rglob("*") if file.is_file())


def events(home: Path, run: str = "r") -> list:
    return [orjson.loads(line) for line in (home / "runs" / run / "events.jsonl").read_bytes().splitlines()]


def tools_for(hint, value, calls):
    def give():
        calls.append("give")
        return value

    def take(given):
        calls.append("take")
        return "taken"

    give.__annotations__["return"] = hint
    take.__annotations__["given"] = hint
    return steplog.step(give), steplog.step(take)


@pytest.mark.parametrize("hint, value", VALUES.values(), ids=VALUES)
def test_it_is_in_no_file_and_the_step_says_that_it_was(home, hint, value):
    calls: list[str] = []
    give, take = tools_for(hint, value, calls)
    with steplog.run("r"):
        assert give() == value
        take(value)
    kept = bytes_under(home)
    assert PASSWORD.encode() not in kept
    assert b"[redacted:secret]" in kept
    finished = [event["data"] for event in events(home) if event["type"] == "step.finished"]
    assert finished[0]["redacted"] >= 1
    assert "redacted" not in finished[1], "the result of the second is whole"
    with pytest.raises(steplog.RunStopped, match="a secret was taken out") as caught, steplog.run("r"):
        give()
    assert caught.value.reason == "unreplayable"
    assert calls == ["give", "take"]


@pytest.mark.parametrize("hint, value", VALUES.values(), ids=VALUES)
def test_with_a_key_it_comes_back_as_it_was(home, monkeypatch, hint, value):
    monkeypatch.setenv("STEPLOG_KEY", new_key())
    calls: list[str] = []
    give, take = tools_for(hint, value, calls)
    for _ in range(2):
        with steplog.run("r"):
            again = give()
            assert again == value
            assert type(again) is type(value)
            assert take(value) == "taken"
    assert calls == ["give", "take"]
    assert PASSWORD.encode() not in bytes_under(home)


def test_secret_arguments_tell_calls_apart_and_find_their_results_again(home, monkeypatch):
    calls: list[str] = []

    @steplog.step
    def login(user: str, password: Hidden) -> str:
        calls.append(password)
        return f"session of {user}, {len(password)}"

    def program() -> list[str]:
        with steplog.run("r"):
            return [login("ada", "tulip"), login("ada", "tulip two"), login("ada", "tulip")]

    first = program()
    assert program() == first
    assert calls == ["tulip", "tulip two", "tulip"]
    args = [event["data"]["args"]["password"] for event in events(home) if event["type"] == "step.started"]
    assert {arg["v"] for arg in args} == {"[redacted:secret]"}
    assert len({arg["id"] for arg in args}) == 2
    with steplog.run("other"):
        login("ada", "tulip")
    other = [event["data"]["args"]["password"]["id"] for event in events(home, "other")[2:3]]
    assert other[0] not in {arg["id"] for arg in args}, "equal secrets of two runs do not show"


def test_fingerprints_depend_on_the_key_that_the_run_began_with(home, monkeypatch):
    calls: list[str] = []

    @steplog.step
    def login(password: pydantic.SecretStr) -> int:
        calls.append(password.get_secret_value())
        return len(calls)

    def program(run: str) -> int:
        with steplog.run(run):
            return login(pydantic.SecretStr("4711"))

    old, new = new_key(), new_key()
    monkeypatch.setenv("STEPLOG_KEY", old)
    assert program("r") == 1
    monkeypatch.setenv("STEPLOG_KEY", f"{new},{old}")
    assert program("r") == 1
    assert program("s") == 2
    ids = {event["data"]["args"]["password"]["id"] for run in "rs" for event in events(home, run)[2:3]}
    assert len(ids) == 2


def test_a_secret_that_is_none_is_none(home):
    @steplog.step
    def find(given: Annotated[str | None, steplog.Secret]) -> Annotated[str | None, steplog.Secret]:
        return given

    for _ in range(2):
        with steplog.run("r"):
            assert find(None) is None


def test_an_annotation_that_does_not_resolve_conceals_rather_than_shows(home):
    def take(given: Annotated[NotHere, steplog.Secret]) -> None:  # noqa: F821
        """Names a type that only type checkers import."""

    tool = steplog.step(take)
    with steplog.run("r"):
        tool(PASSWORD)
    assert PASSWORD.encode() not in bytes_under(home)


def test_a_local_value_is_drawn_again(home):
    calls: list[str] = []

    def fresh() -> Hidden:
        calls.append("fresh")
        return PASSWORD

    with pytest.raises(ZeroDivisionError), steplog.run("r"):
        steplog.step("fresh", fresh)
        raise ZeroDivisionError
    with steplog.run("r"):
        assert steplog.step("fresh", fresh) == PASSWORD
    assert calls == ["fresh", "fresh"]
    assert PASSWORD.encode() not in bytes_under(home)
