"""Arguments and environment, read once, into one frozen value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from steplog._runtime import extend, redaction
from steplog._start import DIRECTORY
from steplog.errors import InvalidArgument
from steplog.stores.base import DURABILITIES, Durability

if TYPE_CHECKING:
    from steplog._kernel.budget import Budget
    from steplog._runtime.policies import Policy
    from steplog.stores.base import Store
    from steplog.stores.cipher import Keyring

OnDrift = Literal["halt", "warn", "run"]

ON_DRIFT: Final[tuple[OnDrift, ...]] = ("halt", "warn", "run")
_LONGEST_INTERVAL: Final = 3600.0
DEFAULT_HOME: Final = ".agent"

KEY: Final = "STEPLOG_KEY"
"""The variable that holds the keys with which bodies are encrypted, the newest first."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `install()` and the environment decided.

    Attributes:
        home: directory of the logs.
        durability: what survives (docs/durability.md).
        sync_interval: seconds after which what was appended is on the medium, at level `interval`.
        strict: an effect that would escape the log raises `NotInRun`.
        drift_grace: seconds without any new submission for which a new step of a run with branches waits for recorded
            steps that are not submitted yet, before the run counts as drifted; twelve times as long for what branches
            have recorded.
        store: a store to use instead of the files in `home`, or None.
        also: names of the opt-in interceptors that are installed beside the default ones.
        http: host globs, lower case, whose requests through httpx and httpx2 are steps.
        ignore: by interceptor, paths in the request's body that are not part of its identity.
        modes: by interceptor, the idempotency modes of requests by `METHOD /path`; the first that matches counts.
        redact: kinds of secrets, each with the expression to look for, or False where its rules are switched off.
        policy: what runs may do that name no policy of their own, or None.
        budget: what each run may use up that names no budget of its own, or None.
    """

    home: str = DEFAULT_HOME
    durability: Durability = "durable"
    sync_interval: float = 0.1
    strict: bool = False
    drift_grace: float = 5.0
    store: Store | None = None
    also: tuple[str, ...] = ()
    http: tuple[str, ...] = ()
    ignore: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    modes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    redact: tuple[redaction.Choice, ...] = ()
    policy: Policy | None = None
    budget: Budget | None = None


def resolve(
    *,
    home: str | os.PathLike[str] | None = None,
    durability: str | None = None,
    sync_interval: float | None = None,
    strict: bool | None = None,
    drift_grace: float | None = None,
    store: Store | None = None,
    also: Iterable[str] = (),
    http: Iterable[str] = (),
    ignore: Mapping[str, Iterable[str]] | None = None,
    modes: Mapping[str, Mapping[str, str]] | None = None,
    redact: redaction.Given = (),
    policy: Policy | None = None,
    budget: Budget | None = None,
    before: Settings | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Settings from arguments, then environment, then defaults.

    `also`, `http`, `ignore`, `modes` and `redact` add up: what arguments and environment name, beside what is in force
    `before`.

    Raises:
        InvalidArgument: a value that does not exist or does not have the form of its setting.
    """
    level = durability or environ.get("STEPLOG_DURABILITY") or "durable"
    before = before or Settings()
    return Settings(
        # Absolute from now on: a program that changes its directory must not change its log.
        home=_default_home(environ) if home is None else _directory(home),
        durability=check_durability(level),
        sync_interval=_sync_interval(
            environ.get("STEPLOG_SYNC_INTERVAL", "0.1") if sync_interval is None else sync_interval
        ),
        strict=bool(strict) if strict is not None else environ.get("STEPLOG_STRICT", "") not in ("", "0"),
        drift_grace=_seconds(drift_grace if drift_grace is not None else environ.get("STEPLOG_DRIFT_GRACE", "5")),
        store=_usable(store),
        also=extend.names(before.also, environ.get("STEPLOG_ALSO", ""), also),
        http=extend.hosts(before.http, environ.get("STEPLOG_HTTP", ""), http),
        ignore=extend.ignored(before.ignore, ignore or {}),
        modes=extend.modes(before.modes, modes or {}),
        redact=redaction.choices(before.redact, environ.get("STEPLOG_REDACT", ""), redact),
        policy=policy,
        budget=check_budget(budget),
    )


def _directory(home: object) -> str:
    path = os.fspath(home) if isinstance(home, os.PathLike) else home
    if not isinstance(path, str):
        message = f'home is the path of a directory, not {home!r}. Write steplog.install(home="/var/lib/agent").'
        raise InvalidArgument(message)
    return os.path.abspath(path)


def _usable(store: Store | None) -> Store | None:
    if store is not None and not (callable(getattr(store, "open", None)) and callable(getattr(store, "read", None))):
        message = (
            f"store is an object that keeps logs, not {store!r}. Write steplog.install(home=...) for files, or "
            f"steplog.install(store=steplog.testing.MemoryStore())."
        )
        raise InvalidArgument(message)
    return store


def _seconds(value: float | str) -> float:
    try:
        seconds = float(value)
    except (ValueError, TypeError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        message = f"drift_grace is a number of seconds, not {value!r}. Write steplog.install(drift_grace=5.0)"
        raise InvalidArgument(message)
    return seconds


def _sync_interval(value: float | str) -> float:
    try:
        seconds = float(value)
    except (ValueError, TypeError):
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_INTERVAL:
        message = (
            f"sync_interval is a number of seconds up to {_LONGEST_INTERVAL:.0f}, not {value!r}. "
            f'Write steplog.install(durability="interval", sync_interval=0.1)'
        )
        raise InvalidArgument(message)
    return seconds


def _default_home(environ: Mapping[str, str]) -> str:
    return os.path.normpath(os.path.join(DIRECTORY, environ.get("STEPLOG_HOME") or DEFAULT_HOME))


def check_durability(level: str) -> Durability:
    """Return the level when it exists, else raise InvalidArgument."""
    if level in DURABILITIES:
        return level
    message = (
        f"unknown durability {level!r}. The levels are {', '.join(DURABILITIES)}.\n"
        f'Write steplog.install(durability="durable"), set STEPLOG_DURABILITY=durable, or say --durability durable.'
    )
    raise InvalidArgument(message)


def check_on_drift(value: str) -> OnDrift:
    """Return the value when it is one of `ON_DRIFT`, else raise InvalidArgument."""
    if value in ON_DRIFT:
        return value
    message = f'unknown on_drift {value!r}. Write on_drift="halt", "warn" or "run".'
    raise InvalidArgument(message)


def check_budget(value: object) -> Budget | None:
    """Return the value when it is a budget or None, else raise InvalidArgument."""
    from steplog._kernel.budget import Budget

    if value is None or isinstance(value, Budget):
        return value
    raise InvalidArgument(f"budget is a steplog.Budget, not {value!r}. Write budget=steplog.Budget(max_tokens=50_000).")


def open_store(settings: Settings, durability: Durability | None = None) -> Store:
    """The store that the settings name; one object per home and level, so that its handles are shared."""
    if settings.store is not None:
        return settings.store
    level = durability or settings.durability
    return (
        _memory_store()
        if level == "memory"
        else _file_store(settings.home, level, settings.sync_interval, os.environ.get(KEY, ""))
    )


@lru_cache(maxsize=1)
def _memory_store() -> Store:
    from steplog.stores.memory import MemoryStore

    return MemoryStore()


@lru_cache(maxsize=64)
def _file_store(home: str, durability: Durability, sync_interval: float, keys: str) -> Store:
    from steplog.stores.files import FileStore

    return FileStore(home, durability=durability, sync_interval=sync_interval, cipher=cipher(keys))


def forget_memory() -> None:
    """Let go of the runs that were kept at level `memory`."""
    _memory_store.cache_clear()


def cipher(keys: str | None = None) -> Keyring | None:
    """What encrypts bodies, by the keys given or those of the environment; None where there are none.

    Raises:
        InvalidArgument: a key is none, or the library is not installed.
    """
    keys = os.environ.get(KEY, "") if keys is None else keys
    if not keys.strip():
        return None
    from steplog.stores.cipher import keyring

    return keyring(keys)


def home_option(store: Store) -> str:
    """` --home DIR` where the command line, started in the same place, would look for the store elsewhere, else ""."""
    from steplog.stores.explain import option_for

    home = getattr(store, "home", None)
    return "" if home is None else option_for(home, _default_home(os.environ))
