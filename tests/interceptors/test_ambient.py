"""The time, ids and random numbers of a program are its own steps, and nobody else's."""

from __future__ import annotations

import datetime as dt
import importlib
import logging
import pickle
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from time import time as bare_time
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pydantic
import pytest

import steplog
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from steplog_interceptors import ambient
from tests.interceptors.support import chat, perform
from tests.support.processes import environment

NAMES = ["clock", "random", "uuid"]
REAL = {"now": vars(datetime)["now"], "time": time.time, "uuid4": uuid.uuid4.__code__, "choice": random.choice}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    steplog.install(home=folder, durability="process", interceptors=[], also=NAMES)
    yield folder
    steplog.uninstall()
    ambient._own.clear()
    ambient._verdicts.clear()


class Trip(pydantic.BaseModel):
    id: uuid.UUID = pydantic.Field(default_factory=uuid4)
    at: datetime = pydantic.Field(default_factory=lambda: datetime.now())


@dataclass
class Stop:
    id: uuid.UUID = field(default_factory=uuid4)


class Clocked:
    read = time.time


class Later(datetime):
    pass


def shuffled() -> list[int]:
    cards = list(range(20))
    random.shuffle(cards)
    return cards


THINGS = [object(), object(), object()]

DRAWN: dict[str, Callable[[], Any]] = {
    "time.time": lambda: time.time(),
    "time taken before": lambda: bare_time(),
    "time.time_ns": lambda: time.time_ns(),
    "strftime": lambda: time.strftime("%H:%M:%S"),
    "localtime": lambda: time.localtime(),
    "gmtime": lambda: time.gmtime(None),
    "now": lambda: datetime.now(),
    "now of the module": lambda: dt.datetime.now(),
    "now in a zone": lambda: datetime.now(ZoneInfo("Asia/Kathmandu")),
    "now in utc": lambda: datetime.now(tz=dt.UTC),
    "now of a subclass": lambda: Later.now(),
    "utcnow": lambda: datetime.utcnow(),
    "today": lambda: datetime.today(),
    "date": lambda: date.today(),
    "uuid4": lambda: uuid4(),
    "uuid1": lambda: uuid.uuid1(),
    "default of a model": lambda: Trip(),
    "default of a dataclass": lambda: Stop(),
    "random": lambda: random.random(),
    "randint": lambda: random.randint(1, 10**30),
    "uniform": lambda: random.uniform(1, 2),
    "gauss": lambda: random.gauss(0.0, 1.0),
    "choice": lambda: random.choice(THINGS),
    "choices": lambda: random.choices(THINGS, weights=[1, 2, 3], k=9),
    "sample": lambda: random.sample(range(100), 9),
    "sample with counts": lambda: random.sample("abc", 5, counts=[3, 3, 3]),
    "shuffle": shuffled,
    "getrandbits": lambda: random.getrandbits(200),
    "randbytes": lambda: random.randbytes(16),
}


@pytest.mark.filterwarnings("ignore:.*utcnow:DeprecationWarning")
def test_what_was_drawn_is_returned_equal_and_of_its_type(home):
    def program() -> tuple[dict[str, Any], tuple[int, int]]:
        with steplog.run("r") as run:
            found = {name: draw() for name, draw in DRAWN.items()}
        return found, (run.replayed, run.executed)

    live, counts = program()
    returned, counts_again = program()
    assert returned == live
    assert {name: type(value) for name, value in returned.items()} == {n: type(v) for n, v in live.items()}
    assert returned["now in a zone"].tzinfo is live["now in a zone"].tzinfo
    steps = len(DRAWN) + 1  # the model draws two
    assert (counts, counts_again) == ((0, steps), (steps, 0))


@pytest.mark.filterwarnings("ignore:.*utcnow:DeprecationWarning")
def test_nothing_changes_outside_a_run(home):
    assert abs(datetime.now().timestamp() - REAL["time"]()) < 60
    assert all(draw() is not None for draw in DRAWN.values())
    assert date.today() >= date(2024, 1, 1)
    with pytest.raises(TypeError):
        datetime.now(1)
    with pytest.raises(IndexError):
        random.choice([])


def test_classes_and_functions_stay_what_they_are(home):
    assert dt.datetime is datetime
    assert type(datetime.now()) is datetime
    assert isinstance(date.today(), date)
    assert pickle.loads(pickle.dumps(datetime)) is datetime
    assert pickle.loads(pickle.dumps(time.time)) is time.time
    assert pickle.loads(pickle.dumps(uuid.uuid4)) is uuid.uuid4
    assert time.time.__name__ == "time"
    assert abs(Clocked().read() - time.time()) < 60
    assert Trip.model_validate_json(Trip().model_dump_json())


def test_uninstalling_puts_everything_back(home):
    steplog.uninstall()
    assert vars(datetime)["now"] is REAL["now"]
    assert time.time is REAL["time"] is bare_time
    assert uuid.uuid4.__code__ is REAL["uuid4"]
    assert random.choice is REAL["choice"]
    assert not [name for name in vars(uuid) if "steplog" in name]


def test_what_was_taken_while_installed_passes_through_afterwards(home):
    taken = time.time, random.random, uuid.uuid4
    steplog.uninstall()
    with steplog.run("r") as run:
        assert all(draw() for draw in taken)
        assert run.executed == 0


def test_each_place_in_the_program_counts_for_itself(home):
    def first() -> uuid.UUID:
        return uuid4()

    def second() -> uuid.UUID:
        return uuid4()

    with steplog.run("r"):
        one, two = first(), second()
    with steplog.run("r"):
        assert (second(), first()) == (two, one)


def test_a_seed_goes_on_where_it_would_have(home):
    def program(*, stop: bool) -> list[float]:
        with steplog.run("r"):
            random.seed(7)
            found = [random.random()]
            if stop:
                raise KeyboardInterrupt
            return [*found, random.random()]

    generator = random.Random(7)
    expected = [generator.random(), generator.random()]
    with pytest.raises(KeyboardInterrupt):
        program(stop=True)
    assert program(stop=False) == expected


def test_the_machinery_is_not_recorded(home, caplog):
    """Logging stamps its lines, an event loop and an HTTP client look at their timeouts, steplog at its own."""
    httpx = importlib.import_module("httpx2")
    caplog.set_level(logging.DEBUG)
    with LocalProvider(handler=lambda _hit: Reply.json({})) as provider, steplog.run("r") as run:
        logging.getLogger("x").warning("stamped")
        httpx.get(provider.url)
        steplog.step("one", lambda: 1)
        assert steplog.step("now", datetime.now) is not None

        async def waits() -> None:
            import asyncio

            await asyncio.wait_for(asyncio.sleep(0), 1)
            time.time()

        perform(waits)
        assert [step.target for step in run.state.steps.values()] == ["one", "now", "time.time"]


def module(folder: Path, name: str, text: str) -> Any:
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace["draw"]


DRAW = "import datetime, time, uuid\ndef draw():\n    return time.time(), datetime.date.today(), uuid.uuid4()\n"


def test_the_caller_decides(home, tmp_path):
    library = tmp_path / "lib/python3/site-packages"
    draws = {
        "mine": module(tmp_path, "mine", DRAW),
        "a library": module(library, "cachelib.store", DRAW),
        "an sdk": module(library, "openai._base_client", DRAW),
        "a framework": module(library, "pydantic_ai._utils", DRAW),
        "a dating one": module(library, "agno.agent", DRAW),
        "its telemetry": module(library, "agno.tracing.spans", DRAW),
    }

    def recorded(name: str) -> int:
        with steplog.run(name.replace(" ", "-")) as run:
            draws[name]()
        return int(run.executed)

    counts = {name: recorded(name) for name in draws}
    assert counts == {
        "mine": 3,
        "a library": 0,
        "an sdk": 0,
        "a framework": 1,
        "a dating one": 3,
        "its telemetry": 0,
    }
    ambient.own("cachelib")
    with steplog.run("own") as run:
        draws["a library"]()
    assert run.executed == 3


def test_a_deployed_agent_is_its_own_code(tmp_path):
    """An agent that is installed like a library, and started by a console script."""
    package = tmp_path / "lib/python3/site-packages/shop"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "agent.py").write_text(
        "import time, steplog\n"
        "def main():\n"
        "    steplog.install(interceptors=[], also=['clock'])\n"
        "    with steplog.run('r') as run:\n"
        "        time.time()\n"
        "    print(run.executed)\n"
    )
    code = f"import sys; sys.path.insert(0, {str(package.parent)!r}); from shop.agent import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "1", done.stderr


def test_the_clock_gives_way_to_time_machine(home, caplog, monkeypatch, tmp_path):
    (tmp_path / "time_machine.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("time_machine")
    try:
        assert time.time is REAL["time"]
        assert vars(datetime)["now"] is REAL["now"]
        assert "time_machine is imported" in caplog.text
        steplog.install(interceptors=[], also=["clock"])
        assert time.time is REAL["time"]
    finally:
        sys.modules.pop("time_machine")


AGENT = """\
import json, os, signal, sys
from datetime import datetime
from uuid import uuid4

import openai
import steplog
from steplog._runtime import context, recorder, straight

steplog.install(home=sys.argv[1], also=[name for name in sys.argv[3].split(",") if name])

advance = context.advance


def die_after(*args):
    advance(*args)
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)


# What every step does when its outcome is written, whichever way it came.
recorder.advance = straight.advance = die_after


@steplog.step
def book(order, at):
    with open(sys.argv[4], "a") as file:
        file.write(f"{order} {at}\\n")
    return f"booked {order}"


def main():
    client = openai.OpenAI(base_url=sys.argv[2] + "/v1", api_key="x", max_retries=0)
    messages = [{"role": "system", "content": f"It is {datetime.now()}."}]
    answer = client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content
    messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": book(str(uuid4()), datetime.now().isoformat())})
    return client.chat.completions.create(model="gpt-x", messages=messages).choices[0].message.content


with steplog.run("trip"):
    print(main())
"""


class Trips:
    """The agent above, in processes that are killed, beside a provider that is not."""

    def __init__(self, folder: Path, also: str) -> None:
        self.folder = folder
        self.effects = folder / "effects"
        self.also = also
        (folder / "agent.py").write_text(AGENT)

    def start(self, url: str, **env: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "agent.py", self.folder / "home", url, self.also, self.effects]
        return subprocess.run(
            [*map(str, words)], cwd=self.folder, env=environment(**env), capture_output=True, text=True, check=False
        )


def last_words(hit: Hit) -> Reply:
    return Reply.json(chat("heard: " + hit.json["messages"][-1]["content"]))


def test_an_agent_with_the_time_in_its_prompt_is_killed_after_each_step_and_resumes(tmp_path):
    trips = Trips(tmp_path, "clock,uuid")
    with LocalProvider(handler=last_words) as provider:
        deaths = 0
        while (done := trips.start(provider.url, DIE="1")).returncode == -signal.SIGKILL:
            deaths += 1
        assert done.returncode == 0, done.stderr
        answer = done.stdout
        again = trips.start(provider.url)
    booked = trips.effects.read_text().splitlines()
    # The time of the prompt, a model call, an id, a time, a booking, the last call.
    assert deaths == 6
    assert len(provider.hits) == 2
    assert len(booked) == 1
    assert answer == f"heard: booked {booked[0].split()[0]}\n" == again.stdout


def test_without_the_interceptors_the_same_agent_halts_as_drift(tmp_path):
    trips = Trips(tmp_path, "")
    with LocalProvider(handler=last_words) as provider:
        assert trips.start(provider.url, DIE="1").returncode == -signal.SIGKILL
        done = trips.start(provider.url)
        assert len(provider.hits) == 1
    assert "drift" in done.stderr
    assert not trips.effects.exists()
