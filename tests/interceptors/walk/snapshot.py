"""What a caller can see of a result, as plain data that can be compared."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def snapshot(value: Any) -> Any:
    """The types, fields, fields that were set, extra fields and request ids of a value, and of all that is in it."""
    if isinstance(value, BaseModel):
        fields = {name: snapshot(field) for name, field in vars(value).items() if not name.startswith("_")}
        extra = {name: snapshot(field) for name, field in (value.model_extra or {}).items()}
        private = {"_request_id": getattr(value, "_request_id", None)}
        return [_name(value), fields, extra, sorted(value.model_fields_set), private]
    if isinstance(value, Mapping):
        return [_name(value), {str(key): snapshot(each) for key, each in value.items()}]
    if isinstance(value, list | tuple | set | frozenset):
        return [_name(value), [snapshot(each) for each in value]]
    if dataclasses.is_dataclass(value) and not inspect.isclass(value):
        return [_name(value), {field.name: snapshot(getattr(value, field.name)) for field in dataclasses.fields(value)}]
    if isinstance(value, BaseException):
        return [_name(value), str(value), snapshot(getattr(value, "body", None)), getattr(value, "status_code", None)]
    if isinstance(value, str | bytes | int | float | bool) or value is None:
        return [_name(value), value]
    return [_name(value), repr(value)]


def response(raw: Any) -> Any:
    """Status, headers and protocol of a raw response."""
    return [_name(raw), raw.status_code, sorted(raw.headers.items()), str(raw.http_version), str(raw.url)]


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
