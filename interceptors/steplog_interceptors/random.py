"""The functions of the module `random` as local steps. Opt-in.

They draw from one hidden generator. Recorded is what was drawn, or where something was chosen its index, so that the
very object is returned again. Generators that a program makes itself (`random.Random()`) are its own business, and
what `secrets` gives out is never written.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, Final

from steplog import plugins
from steplog_interceptors.ambient import OWN_AND_FRAMEWORKS, Functions, Source, note_installer

_NUMBERS: Final = (
    "random uniform triangular randint randrange normalvariate lognormvariate gauss expovariate vonmisesvariate "
    "gammavariate betavariate paretovariate weibullvariate binomialvariate".split()
)

# Bits of an integer that is written in hexadecimal digits.
_LONG: Final = 2000


class Random:
    """Records what the program and its framework draw.

    Attributes:
        name: `random`.
        opt_in: it is installed where it is named.
    """

    name = "random"
    opt_in = True

    def __init__(self) -> None:
        self._functions = Functions(random)
        self._sources: list[Source] = []

    def install(self) -> None:
        """Replace the functions. Idempotent."""
        note_installer()
        if self._sources:
            return
        numbers = {name: self._number(name) for name in _NUMBERS if hasattr(random, name)}
        chosen = {"choice": self._choice(), "choices": self._choices(), "sample": self._sample()}
        bits = {"getrandbits": self._getrandbits(), "randbytes": self._randbytes(), "shuffle": self._shuffle()}
        self._functions.replace(numbers | chosen | bits)

    def uninstall(self) -> None:
        """Put the originals back. Idempotent."""
        for source in self._sources:
            source.on = False
        self._sources = []
        self._functions.restore()

    def _of(self, name: str) -> tuple[Any, Source]:
        source = Source(f"random.{name}", OWN_AND_FRAMEWORKS)
        self._sources.append(source)
        return getattr(random, name), source

    def _number(self, name: str) -> Callable[..., Any]:
        original, source = self._of(name)

        def draw(*args: Any, **kwargs: Any) -> Any:
            fresh, at = original(*args, **kwargs), source.caller(2)
            if at is None:
                return fresh
            if not isinstance(fresh, (int, float, complex)):
                what = (
                    "steplog: random.%s gave a %s, which is not recorded: a resumed run gets another one. Draw numbers."
                )
                plugins.log.warning(what, name, type(fresh).__name__)
                return fresh
            return _number(source.record(at, _text(fresh), _told(args, kwargs)), type(fresh))

        return draw

    def _choice(self) -> Callable[..., Any]:
        original, source = self._of("choice")

        def choice(seq: Any) -> Any:
            at = source.caller(2)
            if at is None or not len(seq):
                return original(seq)
            return seq[source.record(at, original(range(len(seq))), len(seq))]

        return choice

    def _choices(self) -> Callable[..., Any]:
        original, source = self._of("choices")

        def choices(population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> Any:
            weighted = {"cum_weights": cum_weights, "k": k}
            at = source.caller(2)
            if at is None:
                return original(population, weights, **weighted)
            drawn = original(range(len(population)), weights, **weighted)
            return [population[number] for number in source.record(at, drawn, [len(population), k])]

        return choices

    def _sample(self) -> Callable[..., Any]:
        original, source = self._of("sample")

        def sample(population: Any, k: int, *, counts: Any = None) -> Any:
            at = source.caller(2)
            if at is None or not hasattr(population, "__getitem__"):
                return original(population, k, counts=counts)
            drawn = original(range(len(population)), k, counts=counts)
            return [population[number] for number in source.record(at, drawn, [len(population), k])]

        return sample

    def _shuffle(self) -> Callable[..., Any]:
        original, source = self._of("shuffle")

        def shuffle(x: Any) -> None:
            at = source.caller(2)
            if at is None:
                original(x)
                return
            order = list(range(len(x)))
            original(order)
            before = [*x]
            for place, number in enumerate(source.record(at, order, len(x))):
                x[place] = before[number]

        return shuffle

    def _getrandbits(self) -> Callable[..., Any]:
        original, source = self._of("getrandbits")

        def getrandbits(k: int) -> int:
            fresh, at = original(k), source.caller(2)
            return fresh if at is None else int(source.record(at, hex(fresh), k), 16)

        return getrandbits

    def _randbytes(self) -> Callable[..., Any]:
        original, source = self._of("randbytes")

        def randbytes(n: int) -> bytes:
            fresh, at = original(n), source.caller(2)
            return fresh if at is None else bytes.fromhex(source.record(at, fresh.hex(), n))

        return randbytes


def _text(number: Any) -> Any:
    """A number as JSON, which has no infinity and no integers of any size."""
    if isinstance(number, int):
        return {"int": _digits(number)}
    if isinstance(number, float):
        return float(number) if math.isfinite(number) else {"float": _unusual(number)}
    return {"complex": [_text(number.real), _text(number.imag)]}


def _digits(number: int) -> str:
    # Python refuses to write or read more than some thousand decimal digits; its limit can be set no lower than 640.
    return str(number) if number.bit_length() < _LONG else hex(number)


def _unusual(number: float) -> str:
    sign = "-" if math.copysign(1, number) < 0 else ""
    return sign + ("nan" if math.isnan(number) else "inf")


def _number(recorded: Any, kind: type) -> Any:
    """The number again, of the type that is drawn: those of numpy are floats as well."""
    if not isinstance(recorded, dict):
        return kind(recorded)
    if "int" in recorded:
        return kind(int(recorded["int"], 0))
    if "float" in recorded:
        return kind(float(recorded["float"]))
    real, imaginary = (_number(part, float) for part in recorded["complex"])
    return kind(complex(real, imaginary))


def _told(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    return [_word(value) for value in args] + [f"{name}={_word(value)}" for name, value in sorted(kwargs.items())]


def _word(value: Any) -> str:
    return _digits(value) if type(value) is int else str(value)


interceptor: Final = Random()
