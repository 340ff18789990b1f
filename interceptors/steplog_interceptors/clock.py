"""The time of day as local steps: `time.time()` and its relatives, `datetime.now()`, `date.today()`. Opt-in.

`datetime.datetime` is a type of C. Its methods are replaced inside the type itself, so the class stays the class that
every module, annotation, pickle and `isinstance` knows, also where it was imported before `install()`. That depends on
CPython; where it does not hold, `install()` says so and leaves the dates alone.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import gc
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from steplog import plugins
from steplog_interceptors.ambient import OWN_AND_DATING, Functions, Source, note_installer

# Where the clocks are set back an hour happens twice. ISO 8601 cannot say which of the two is meant.
_SECOND_TIME: Final = " fold=1"


def _naive(value: dt.datetime) -> str:
    return value.replace(tzinfo=None).isoformat() + _SECOND_TIME * value.fold


def _parsed(recorded: str) -> dt.datetime:
    value = dt.datetime.fromisoformat(recorded.removesuffix(_SECOND_TIME))
    return value.replace(fold=1) if recorded.endswith(_SECOND_TIME) else value


class Clock:
    """Records what the program's own code reads from the clock.

    Attributes:
        name: `clock`.
        opt_in: it is installed where it is named.
    """

    name = "clock"
    opt_in = True

    def __init__(self) -> None:
        self._functions = Functions(time)
        self._types: list[tuple[type, str, Any]] = []
        self._sources: dict[str, Source] = {}
        self._hooked = False
        self._installed = False

    def install(self) -> None:
        """Replace the functions and methods. Idempotent."""
        note_installer()
        if self._installed or self._is_taken():
            return
        self._installed = True
        self._functions.replace(self._of_time())
        self._replace_methods()

    def uninstall(self) -> None:
        """Put the originals back. Idempotent."""
        self._installed = False
        for source in self._sources.values():
            source.on = False
        self._sources = {}
        self._functions.restore()
        while self._types:
            owner, name, original = self._types.pop()
            _set(owner, name, original)

    def _is_taken(self) -> bool:
        """time-machine reaches into the functions that it finds, and crashes the process where they are not C."""
        if not self._hooked:
            import wrapt

            self._hooked = True
            wrapt.register_post_import_hook(self._give_way, "time_machine")
        if "time_machine" not in sys.modules:
            return False
        plugins.log.warning(
            "steplog: the clock is not recorded, because time_machine is imported in this process and cannot share it. "
            "Leave `clock` out of install(also=...) here, or do without time_machine."
        )
        return True

    def _give_way(self, _module: ModuleType) -> None:
        if self._installed:
            self.uninstall()
            self._is_taken()

    def _source(self, target: str) -> Source:
        return self._sources.setdefault(target, Source(target, OWN_AND_DATING))

    def _of_time(self) -> dict[str, Callable[..., Any]]:
        def reading(name: str) -> Callable[..., Any]:
            original, source = getattr(time, name), self._source(f"time.{name}")

            def read() -> Any:
                at = source.caller(2)
                return original() if at is None else source.record(at, original())

            return read

        def dating(name: str, place: int) -> Callable[..., Any]:
            """A function that takes the time as its argument number `place`, and reads the clock where it is absent."""
            original, source, now = getattr(time, name), self._source(f"time.{name}"), time.time
            takes_seconds = name in ("localtime", "gmtime", "ctime")
            broken_down = time.localtime

            def read(*args: Any, **kwargs: Any) -> Any:
                absent = len(args) == place or (takes_seconds and len(args) > place and args[place] is None)
                at = source.caller(2) if absent and not kwargs else None
                if at is None:
                    return original(*args, **kwargs)
                seconds = source.record(at, now())
                return original(*args[:place], seconds if takes_seconds else broken_down(seconds))

            return read

        table = {name: reading(name) for name in ("time", "time_ns")}
        table |= {name: dating(name, 0) for name in ("localtime", "gmtime", "ctime", "asctime")}
        return table | {"strftime": dating("strftime", 1)}

    def _replace_methods(self) -> None:
        now, utcnow, today = (self._source(f"datetime.{name}") for name in ("now", "utcnow", "today"))
        date_today = self._source("date.today")
        original = {name: vars(dt.datetime)[name] for name in ("now", "utcnow")}
        original_today = vars(dt.date)["today"]

        def read_now(cls: Any, *args: Any, **kwargs: Any) -> Any:
            fresh = original["now"].__get__(None, cls)(*args, **kwargs)
            at = now.caller(1)
            if at is None:
                return fresh
            zone = args[0] if args else kwargs.get("tz")
            if zone is None:
                return _same(fresh, now.record(at, _naive(fresh)))
            utc = dt.datetime.fromisoformat(now.record(at, _naive(fresh.astimezone(dt.UTC))))
            return _of(cls, utc.replace(tzinfo=dt.UTC).astimezone(zone))

        def read_utcnow(cls: Any) -> Any:
            at = utcnow.caller(1)
            fresh = original["utcnow"].__get__(None, cls)()
            return fresh if at is None else _same(fresh, utcnow.record(at, _naive(fresh)))

        def read_today(cls: Any) -> Any:
            fresh = original_today.__get__(None, cls)()
            source = today if isinstance(fresh, dt.datetime) else date_today
            at = source.caller(1)
            if at is None:
                return fresh
            if source is today:
                return _same(fresh, today.record(at, _naive(fresh)))
            day = dt.date.fromisoformat(date_today.record(at, fresh.isoformat()))
            return type(fresh)(day.year, day.month, day.day)

        for owner, name, function in (
            (dt.datetime, "now", read_now),
            (dt.datetime, "utcnow", read_utcnow),
            (dt.date, "today", read_today),
        ):
            held = vars(owner)[name]
            function.__name__, function.__qualname__ = name, f"{owner.__name__}.{name}"
            function.__doc__ = held.__doc__
            if not _set(owner, name, classmethod(function)):
                _set(owner, name, held)
                plugins.log.warning(
                    "steplog: %s.%s() cannot be recorded on this interpreter (%s); time.time() is. Take the date "
                    'through steplog.step("now", datetime.now) instead.',
                    *(owner.__name__, name, sys.implementation.name),
                )
                return
            self._types.append((owner, name, held))


def _same(fresh: dt.datetime, recorded: str) -> Any:
    return fresh if _naive(fresh) == recorded else _of(type(fresh), _parsed(recorded))


def _of(cls: Any, value: dt.datetime) -> Any:
    if cls is dt.datetime:
        return value
    parts = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    return cls(*parts, value.tzinfo, fold=value.fold)


def _set(owner: type, name: str, value: Any) -> bool:
    """Set an attribute of a type of C, in the dictionary behind its read-only view; says whether that took."""
    if sys.implementation.name != "cpython":
        return False
    (namespace,) = gc.get_referents(vars(owner))
    namespace[name] = value
    # Lookups of attributes are cached by the type's version.
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
    return vars(owner)[name] is value


interceptor: Final = Clock()
