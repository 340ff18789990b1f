"""What is drawn beside the program's course is fresh: never recorded, never an error. And values come back exactly."""

from __future__ import annotations

import functools
import logging
import math
import multiprocessing
import os
import random
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import steplog
from steplog import plugins
from steplog.stores.writer import FileWriter
from steplog_interceptors import ambient, clock


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    steplog.install(home=folder, durability="process", interceptors=[], also=["clock", "random", "uuid"])
    yield folder
    steplog.uninstall()
    ambient._own.clear()
    ambient._verdicts.clear()


def draw_all() -> str:
    return f"{time.time()} {datetime.now()} {uuid.uuid4()} {random.random()}"


def targets(run: Any) -> list[str]:
    return [step.target for step in run.state.steps.values()]


class Stamping(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{draw_all()} {record.getMessage()}"


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []
        self.setFormatter(Stamping())

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


def test_a_log_formatter_that_draws_does_not_disturb_the_recording_of_which_it_tells(home, lines):
    logging.getLogger().setLevel(logging.DEBUG)

    def program() -> tuple[Any, float]:
        with steplog.run("r") as run:
            now = time.time()
            steplog.step("one", lambda: 1)
        return run, now

    live, now = program()
    again, now_again = program()
    assert targets(live) == ["time.time", "one"]
    assert (now_again, again.replayed, again.executed) == (now, 2, 0)
    assert len([text for text in lines.texts if "begins, attempt 1" in text]) == 2


def test_a_resumed_run_may_log_more_or_less(home, lines):
    """Recorded, the stamps of the lines that only one of the two has would be drift."""

    def program(level: int, *, stop: bool) -> int:
        logging.getLogger().setLevel(level)
        with steplog.run("r") as run:
            for number in range(3):
                logging.getLogger("shop").info("detail")
                steplog.step("pay", functools.partial(int, number))
                logging.getLogger("shop").warning("paid")
            if stop:
                raise KeyboardInterrupt
        return int(run.replayed)

    with pytest.raises(KeyboardInterrupt):
        program(logging.WARNING, stop=True)
    assert program(logging.INFO, stop=False) == 3
    assert len([text for text in lines.texts if text.endswith("detail")]) == 3


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def test_a_codec_that_draws(home):
    """Arguments are encoded each time, results only when they are new, and decoded only when they are not."""

    def write(money: Money) -> Any:
        assert draw_all()
        return money.cents

    def read(cents: int) -> Money:
        assert draw_all()
        return Money(cents)

    plugins.register_codec(Money, to=write, of=read, name="test-money")

    @steplog.step
    def pay(price: Money) -> int:
        return price.cents

    def program() -> tuple[Any, int]:
        with steplog.run("r") as run:
            return run, pay(steplog.step("price", lambda: Money(5)))

    live, cents = program()
    again, cents_again = program()
    assert targets(live) == targets(again) == ["price", "pay"]
    assert cents == cents_again == 5
    assert again.executed == 0


def test_a_finalizer_in_the_middle_of_an_append(home, monkeypatch):
    seen: list[str] = []

    class Dropped:
        def __del__(self) -> None:
            seen.append(draw_all())

    append = FileWriter.append

    def appending(self: FileWriter, *args: Any, **kwargs: Any) -> None:
        dropped = Dropped()
        del dropped
        append(self, *args, **kwargs)

    monkeypatch.setattr(FileWriter, "append", appending)
    with steplog.run("r") as run:
        steplog.step("one", lambda: 1)
    assert targets(run) == ["one"]
    assert seen


@pytest.mark.parametrize("form", ["function", "partial", "method", "object"])
def test_a_signal_handler_draws_freshly_wherever_it_strikes(home, monkeypatch, form):
    """In the middle of an append it cannot record; elsewhere, a resumed run would not be struck there again."""
    seen: list[str] = []

    def handle(*_: Any) -> None:
        seen.append(draw_all())

    class Handler:
        def handle(self, *_: Any) -> None:
            seen.append(draw_all())

        __call__ = handle

    handlers = {
        "function": handle,
        "partial": functools.partial(handle, "x"),
        "method": Handler().handle,
        "object": Handler(),
    }
    before = signal.signal(signal.SIGUSR1, handlers[form])
    append = FileWriter.append

    def appending(self: FileWriter, *args: Any, **kwargs: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        append(self, *args, **kwargs)

    try:
        with monkeypatch.context() as patch, steplog.run("r") as run:
            patch.setattr(FileWriter, "append", appending)
            steplog.step("one", lambda: 1)
            patch.undo()
            struck = len(seen)
            signal.raise_signal(signal.SIGUSR1)
            now = time.time()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) == struck + 1 >= 2
    assert targets(run) == ["one", "time.time"]
    with steplog.run("r") as again:
        steplog.step("one", lambda: 1)
        assert time.time() == now
    assert again.executed == 0


def draw_in_child(queue: Any) -> None:
    queue.put(attempt())


def attempt() -> str:
    try:
        return str(uuid.uuid4()) + draw_all()
    except BaseException as error:
        return f"failed: {error!r}"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_worker_draws_freshly_and_is_not_given_what_its_parent_has_recorded(home):
    context = multiprocessing.get_context("fork")

    def program() -> tuple[Any, list[str]]:
        with steplog.run("r") as run:
            found = []
            for _ in range(2):
                queue = context.SimpleQueue()
                process = context.Process(target=draw_in_child, args=(queue,))
                process.start()
                found.append(queue.get())
                process.join()
            # The same place in the program, so that a worker could take this for its own on a resume.
            found.append(attempt())
        return run, found

    live, found = program()
    again, found_again = program()
    assert not [text for text in found + found_again if text.startswith("failed")]
    assert (live.executed, again.executed, again.replayed) == (5, 0, 5)
    assert found_again[-1] == found[-1]
    assert len({*found[:-1], *found_again}) == 5


HUGE = 10**6000

NUMBERS: dict[str, Callable[[], Any]] = {
    "infinity": lambda: random.uniform(0, math.inf),
    "negative infinity": lambda: random.uniform(0, -math.inf),
    "nan": lambda: random.uniform(0, math.nan),
    "negative zero": lambda: random.uniform(-0.0, -0.0),
    "the smallest": lambda: random.uniform(5e-324, 5e-324),
    "the largest": lambda: random.uniform(sys.float_info.max, sys.float_info.max),
    "huge": lambda: random.randrange(HUGE, 2 * HUGE),
    "huge and negative": lambda: random.randint(-2 * HUGE, -HUGE),
    "beyond 64 bits": lambda: random.randint(2**64, 2**65),
    "named bounds": lambda: random.randrange(start=HUGE, stop=2 * HUGE),
    "complex": lambda: random.uniform(complex(0, 1), complex(5, math.inf)),
    "bits": lambda: random.getrandbits(30_000),
}


def exactly(value: Any) -> tuple[type, Any]:
    if isinstance(value, float):
        return float, "nan" if math.isnan(value) else value.hex()
    if isinstance(value, complex):
        return complex, (exactly(value.real), exactly(value.imag))
    return type(value), value


def test_numbers_come_back_exactly(home):
    def program() -> tuple[dict[str, tuple[type, Any]], int]:
        with steplog.run("r") as run:
            found = {name: exactly(draw()) for name, draw in NUMBERS.items()}
        return found, int(run.executed)

    live, executed = program()
    again, executed_again = program()
    assert again == live
    assert (executed, executed_again) == (len(NUMBERS), 0)


class Shifted(float):
    """A number of a library's own, like those of numpy: it stays what it is under arithmetic."""

    def __add__(self, other: float) -> Shifted:
        return Shifted(float(self) + other)


def test_a_number_of_a_librarys_own_comes_back_as_one(home):
    def program() -> float:
        with steplog.run("r"):
            return random.uniform(Shifted(1), 2)

    live, again = program(), program()
    assert type(live) is type(again) is Shifted
    assert again == live


class Vector:
    def __rsub__(self, _other: Any) -> float:
        return 1.0

    def __add__(self, _other: Any) -> Vector:
        return self


def test_what_is_no_number_is_returned_and_a_warning_says_that_it_is_not_recorded(home, caplog):
    with steplog.run("r") as run:
        assert isinstance(random.uniform(Vector(), 2), Vector)
    assert run.executed == 0
    assert "random.uniform gave a Vector, which is not recorded" in caplog.text


def test_the_hour_that_happens_twice_comes_back_as_the_one_it_was(tmp_path):
    drawn = [datetime(2025, 10, 26, 2, 30, fold=fold) for fold in (1, 0)]
    left = [*drawn, datetime(2025, 10, 27), datetime(2025, 10, 27)]
    real, now = vars(datetime)["now"], datetime.now
    # steplog itself asks for the time in UTC.
    clock._set(datetime, "now", classmethod(lambda _cls, tz=None: left.pop(0) if tz is None else now(tz)))
    try:
        steplog.install(home=tmp_path, durability="process", interceptors=[], also=["clock"])
        for _ in range(2):
            with steplog.run("r"):
                found = [datetime.now(), datetime.now()]
            assert [(value, value.fold) for value in found] == [(value, value.fold) for value in drawn]
    finally:
        steplog.uninstall()
        clock._set(datetime, "now", real)
    assert vars(datetime)["now"] is real
    assert not left
