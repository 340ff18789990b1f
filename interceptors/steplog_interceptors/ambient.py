"""What the interceptors `clock`, `random` and `uuid` share: whose calls they record, and how.

A value that comes from nowhere (the time, a random number) is recorded as a local step where the program asks for it,
so that the program says the same again when it is resumed. Everybody asks: logging stamps its lines, an HTTP library
watches its timeouts. Recording those would be useless, and their number differs from run to run. So the caller decides,
that is, the module of the frame that calls:

    own code     every module outside the standard library and site-packages, `__main__`, the package whose code called
                 `install()`, and packages named with `own(...)`: recorded
    frameworks   packages of agent frameworks, by a fixed list: recorded
    go-betweens  pydantic and libraries of dates and ids: their caller decides
    the rest     the standard library, SDKs, HTTP libraries, test runners, steplog: not recorded

Whoever calls, nothing is recorded beside the program's course (`plugins.aside`): in log formatters, codecs, handlers of
signals and forked processes. There the value is fresh, and the call never fails.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

from steplog import plugins

# Frameworks that put what they draw into requests or into decisions.
FRAMEWORKS: Final = frozenset(
    "agents pydantic_ai langchain langchain_core langchain_classic langchain_community langchain_openai "
    "langchain_anthropic langgraph instructor llama_index smolagents crewai autogen autogen_core autogen_agentchat "
    "autogen_ext dspy haystack agno strands".split()
)
# Libraries of which only a part does so: litellm makes up the ids of tool calls where a provider gives none.
PARTS: Final = ("litellm.llms.",)
# Of these, the ones that can put the date into a prompt by themselves. The others read the clock for their traces.
DATING: Final = frozenset({"agno", "crewai"})
# Parts of a framework that watch it: what they draw is not part of what the agent does.
_WATCHING: Final = frozenset(
    "telemetry tracing tracers trace callbacks events event_bus logging logger log metrics instrumentation "
    "observability monitoring usage debug".split()
)
_BETWEEN: Final = frozenset(
    "pydantic pydantic_core attr attrs functools dataclasses contextlib copy typing arrow pendulum dateutil pytz "
    "delorean whenever shortuuid ulid nanoid".split()
)
# Code on the path like a program's own, that is none: it runs programs, or watches them.
_NOT_OWN: Final = frozenset(
    "steplog steplog_interceptors wrapt pytest _pytest pluggy xdist execnet hypothesis pytest_asyncio coverage pydevd "
    "debugpy IPython ipykernel freezegun time_machine".split()
)
_STANDARD: Final = sys.stdlib_module_names | {"sitecustomize", "usercustomize", "_frozen_importlib"}

_LIBRARY_DIRECTORIES: Final = tuple(
    os.path.join(directory, "") for directory in {*map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))}
)

_own: Final[set[str]] = set()
_verdicts: Final[dict[tuple[str, str], str]] = {}


def own(*packages: str) -> None:
    """Count installed packages as the program's own code, so that the time and the ids that they ask for are recorded.

    Args:
        *packages: top-level names, as in `import NAME`.
    """
    _own.update(packages)
    _verdicts.clear()


def note_installer() -> None:
    """Count the package that calls `install()` as the program's own: a deployed agent may lie in site-packages."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - `inspect` reads source files to say the same
    while frame is not None and _top(frame.f_globals.get("__name__", "")) in ("steplog", "steplog_interceptors"):
        frame = frame.f_back
    name = _top(frame.f_globals.get("__name__", "")) if frame is not None else ""
    if name and name not in _STANDARD and name not in _NOT_OWN:
        own(name)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _verdict(module: str, file: str) -> str:
    """`own`, `framework`, `dating`, `between` or `other`, for code of a module in a file."""
    top = _top(module)
    if top in _own or top == "__main__":
        return "own"
    if top in _BETWEEN or module == "litellm._uuid":
        return "between"
    if top in _STANDARD or top in _NOT_OWN:
        return "other"
    if module.startswith(PARTS):
        return "framework"
    if top in FRAMEWORKS:
        if _WATCHING & {*module.split(".")}:
            return "other"
        return "dating" if top in DATING else "framework"
    return "other" if file.startswith(_LIBRARY_DIRECTORIES) or "-packages" + os.sep in file else "own"


def verdict(module: str, code: CodeType) -> str:
    """The same, remembered."""
    key = (module, code.co_filename)
    found = _verdicts.get(key)
    if found is None:
        found = _verdicts[key] = _verdict(*key)
    return found


class Source:
    """One thing that gives out values from nowhere, such as `uuid.uuid4`.

    Args:
        target: name of the step.
        whose: the verdicts on callers that are recorded.
    """

    def __init__(self, target: str, whose: frozenset[str]) -> None:
        self.target = target
        self.on = True
        self._whose = whose

    def caller(self, depth: int) -> str | None:
        """Where the call comes from, as `module.function`, or None where it is not to be recorded.

        Args:
            depth: how many frames above this one the caller is.
        """
        if not self.on or not plugins.active() or plugins.collecting():
            return None
        frame: FrameType | None = sys._getframe(depth + 1)  # noqa: SLF001 - as above
        while frame is not None:
            module = frame.f_globals.get("__name__") or ""
            found = verdict(module, frame.f_code)
            if found in self._whose:
                # Looked at last, as it goes through the whole stack: most calls are nobody's that is recorded.
                return None if plugins.aside() else f"{module}.{frame.f_code.co_qualname}"
            if found != "between":
                return None
            frame = frame.f_back
        return None

    def record(self, at: str, fresh: Any, args: Any = None) -> Any:
        """The recorded value, or else `fresh`, recorded.

        Args:
            at: what `caller` gave.
            fresh: a JSON value, drawn anew in any case, so that a generator with a seed moves on as it would.
            args: JSON that tells the call from others.
        """
        ticket = plugins.begin(plugins.Call("local", self.target, {"at": at, "args": args}, "safe"))
        if ticket is None:
            return fresh
        if ticket.recorded is not None:
            value = ticket.recorded.value("result")
            ticket.replayed()
            return value
        ticket.finish("done", {"result": fresh})
        return fresh


OWN: Final = frozenset({"own"})
OWN_AND_DATING: Final = frozenset({"own", "dating"})
OWN_AND_FRAMEWORKS: Final = frozenset({"own", "dating", "framework"})


class Replacement:
    """Stands for a builtin function. Unlike a python function it does not become a method of a class that keeps it."""

    def __init__(self, original: Callable[..., Any], call: Callable[..., Any]) -> None:
        self.__wrapped__ = original
        self.__name__: str = original.__name__
        self.__qualname__: str = original.__qualname__
        self.__doc__ = original.__doc__
        self.__module__ = original.__module__
        self.__self__ = getattr(original, "__self__", None)
        self.__call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the builtin does, with what is recorded."""
        return self.__call(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.__name__

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


class Functions:
    """Functions of a module that are replaced: there, and in every module of the program that has taken them."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._replaced: list[tuple[ModuleType, str, Any, Any]] = []

    def replace(self, table: dict[str, Callable[..., Any]]) -> None:
        """Put the functions of `table` in place of those of the same name."""
        stand_ins: dict[int, tuple[Any, Any]] = {}
        for name, function in table.items():
            original = getattr(self._module, name)
            stand_ins[id(original)] = (original, Replacement(original, function))
        for holder, name, value in self._holders({*stand_ins}):
            original, stand_in = stand_ins[id(value)]
            setattr(holder, name, stand_in)
            self._replaced.append((holder, name, original, stand_in))

    def _holders(self, wanted: set[int]) -> Iterator[tuple[ModuleType, str, Any]]:
        for module in [*sys.modules.values()]:
            # Anything can stand in `sys.modules`: a proxy that imports on the first look must not be looked at.
            if type(module) is not ModuleType or not isinstance(module.__dict__.get("__name__"), str):
                continue
            file = module.__dict__.get("__file__") or ""
            if module is not self._module and _verdict(module.__name__, file) == "other":
                continue
            for name, value in [*module.__dict__.items()]:
                if id(value) in wanted:
                    yield module, name, value

    def restore(self) -> None:
        """Put the originals back, where nobody has put something else since."""
        while self._replaced:
            holder, name, original, stand_in = self._replaced.pop()
            if holder.__dict__.get(name) is stand_in:
                setattr(holder, name, original)
