"""The standard library's own value types: each is one row of a table.

A row says how a value becomes something simpler and back. The modules are looked up by the fixed names in this table
when a value of theirs is met, so that importing steplog imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from steplog._kernel.refusal import Refused, class_name


class Row(NamedTuple):
    """One type: its kind in the log, where its class lives, and both directions."""

    kind: str
    module: str
    name: str
    to: Callable[[Any], Any]
    of: Callable[[Any, Any], Any]

    def cls(self) -> Any:
        """The class itself."""
        return getattr(importlib.import_module(self.module), self.name)


def _plain_zone(zone: Any) -> bool:
    """Whether ISO 8601 text alone restores the zone: none, or a `timezone` without a name of its own."""
    if zone is None:
        return True
    if class_name(type(zone)) != "datetime.timezone":
        return False
    offset, *name = zone.__getinitargs__()
    # CPython reads an offset of some microseconds and no seconds as UTC.
    return not name and offset.microseconds == 0


def _clock_to(value: Any) -> Any:
    if value.fold == 0 and _plain_zone(value.tzinfo):
        return value.isoformat()
    return {"at": value.replace(tzinfo=None, fold=0).isoformat(), "zone": value.tzinfo, "fold": value.fold}


def _clock_of(cls: Any, part: Any) -> Any:
    if isinstance(part, str):
        return cls.fromisoformat(part)
    return cls.fromisoformat(part["at"]).replace(tzinfo=part["zone"], fold=part["fold"])


def _zone_to(value: Any) -> str:
    if value.key is None:
        problem = "is a ZoneInfo read from a file, which has no key to find it by. Use ZoneInfo('Area/City')."
        raise Refused(problem, "zoneinfo.ZoneInfo")
    return str(value.key)


def _spread(cls: Any, part: Any) -> Any:
    return cls(*part)


def _call(cls: Any, part: Any) -> Any:
    return cls(part)


def _path(name: str) -> Row:
    return Row(name, "pathlib", name, str, _call)


_ROWS: Final = (
    Row("datetime", "datetime", "datetime", _clock_to, _clock_of),
    Row("time", "datetime", "time", _clock_to, _clock_of),
    Row("date", "datetime", "date", lambda value: value.isoformat(), lambda cls, part: cls.fromisoformat(part)),
    Row("timedelta", "datetime", "timedelta", lambda value: [value.days, value.seconds, value.microseconds], _spread),
    Row("timezone", "datetime", "timezone", lambda value: list(value.__getinitargs__()), _spread),
    Row("zoneinfo", "zoneinfo", "ZoneInfo", _zone_to, _call),
    Row("decimal", "decimal", "Decimal", str, _call),
    Row("fraction", "fractions", "Fraction", lambda value: [value.numerator, value.denominator], _spread),
    Row("uuid", "uuid", "UUID", str, _call),
    Row("complex", "builtins", "complex", lambda value: [value.real, value.imag], _spread),
    Row("range", "builtins", "range", lambda value: [value.start, value.stop, value.step], _spread),
    Row("ordered", "collections", "OrderedDict", lambda value: [list(pair) for pair in value.items()], _call),
    Row("deque", "collections", "deque", lambda value: [list(value), value.maxlen], _spread),
    *map(_path, ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")),
)

_BY_NAME: Final = {row.name: row for row in _ROWS}
BY_KIND: Final = {row.kind: row for row in _ROWS}


def row_for(cls: type) -> Row | None:
    """The row of exactly this class, or None."""
    # By name first: asking each row for its class would import every module of the table.
    row = _BY_NAME.get(cls.__qualname__)
    return row if row is not None and row.cls() is cls else None
