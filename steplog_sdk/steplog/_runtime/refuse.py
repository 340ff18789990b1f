"""What `@step` does not go on.

Most important: a tool that an agent framework has made of a function, or a function that a framework has already. The
framework would go on calling the function past the step, and a side effect would happen unrecorded.
"""

from __future__ import annotations

import gc
import inspect
import sys
from types import FunctionType
from typing import Any, Final

from steplog._kernel.refusal import with_article
from steplog.errors import InvalidArgument

# Packages whose objects hold the functions that an agent calls. (The tools of `agents` cannot be called, so they are
# refused without it; it is a name that a program may well have for a package of its own.)
_FRAMEWORKS: Final = frozenset(
    "agno autogen_core autogen_agentchat crewai dspy fastmcp haystack langchain_core langgraph llama_index mcp "
    "pydantic_ai smolagents strands".split()
)

# Those with a decorator that keeps the function and returns it as it is, so that nothing can be seen of it.
_KEEPERS: Final = ("fastmcp", "mcp", "pydantic_ai")


def refuse(fn: Any, kind: str) -> None:
    """Raise InvalidArgument, with what to write instead, for what cannot be recorded as a step."""
    if isinstance(fn, (staticmethod, classmethod)):
        message = "put @steplog.step below @staticmethod or @classmethod, next to the function."
        raise InvalidArgument(message)
    if kind == "tool_call" and _package(fn) in _FRAMEWORKS:
        raise InvalidArgument(_order(f"this is {_class(fn)}, which calls the function by itself"))
    if not callable(fn) and hasattr(fn, "name"):
        raise InvalidArgument(_order(f"this is {_class(fn)}, not a function"))
    if not callable(fn):
        message = f"@steplog.step goes on a function, not on {type(fn).__name__}. For a value: steplog.step(name, fn)."
        raise InvalidArgument(message)
    if inspect.isclass(fn) and kind != "local":
        message = f"@steplog.step goes on a function or method, not on the class {fn.__name__}."
        raise InvalidArgument(message)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        message = (
            f"{getattr(fn, '__qualname__', fn)} is a generator: its values reach the caller before the step has ended, "
            f"so they cannot be recorded first.\nReturn a list, or make each item a step of its own."
        )
        raise InvalidArgument(message)
    keeper = _keeper(fn) if kind == "tool_call" and isinstance(fn, FunctionType) else None
    if keeper is not None:
        raise InvalidArgument(_order(f"{fn.__qualname__} was given to {_class(keeper)} before"))


def _order(why: str) -> str:
    return (
        f"@steplog.step goes directly on the function, below the decorator of an agent framework: {why}, and its calls "
        f"would not be recorded.\nWrite the framework's decorator above, @steplog.step below it, then the function."
    )


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _class(value: Any) -> str:
    return with_article(f"{type(value).__module__}.{type(value).__qualname__}")


def _keeper(fn: FunctionType) -> Any:
    """The framework's object that holds a function already, or None."""
    if not any(name in sys.modules for name in _KEEPERS):
        # Looking through all objects takes some ten milliseconds.
        return None
    for holder in gc.get_referrers(fn):
        if _package(holder) in _FRAMEWORKS:
            return holder
        if type(holder) is dict and holder is not fn.__globals__:
            for owner in gc.get_referrers(holder):
                if _package(owner) in _FRAMEWORKS and getattr(owner, "__dict__", None) is holder:
                    return owner
    return None
