"""`install()` and `uninstall()`: settings, interceptors and thread propagation, once per process."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from steplog._kernel.refusal import with_article
from steplog._runtime import collector, extend, settings
from steplog._runtime.door import PROCESS
from steplog.errors import InvalidArgument

if TYPE_CHECKING:
    from steplog._kernel.budget import Budget
    from steplog._runtime.policies import Given, Policy
    from steplog.stores.base import Store

log: Final = logging.getLogger("steplog")

GROUP: Final = "steplog.interceptors"

# Records requests to the hosts that `http` names.
HTTP: Final = "http"

_lock = threading.Lock()
_interceptors: dict[str, Any] = {}
_broken: dict[str, str] = {}


def install(
    *,
    home: str | os.PathLike[str] | None = None,
    durability: str | None = None,
    sync_interval: float | None = None,
    strict: bool | None = None,
    drift_grace: float | None = None,
    interceptors: Collection[str] | None = None,
    also: Collection[str] = (),
    http: Collection[str] = (),
    ignore: Mapping[str, Collection[str]] | None = None,
    modes: Mapping[str, Mapping[str, str]] | None = None,
    redact: Collection[str | re.Pattern[str]] | Mapping[str, Any] = (),
    store: Store | None = None,
    policy: Given = None,
    budget: Budget | None = None,
) -> None:
    """Record the model calls of every supported SDK from now on. Idempotent; import order does not matter.

    Calling it again changes the settings for runs that are opened from then on; `also`, `http`, `ignore`, `modes` and
    `redact` add to what was named before, until `uninstall()`.

    Args:
        home: directory of the logs; `STEPLOG_HOME`, else `.agent`.
        durability: what survives: `memory` (nothing), `process` (the death of the process), `interval` (power loss,
            but for the last moments), `durable` (power loss; the default) or `durable-full` (the same, and never less);
            `STEPLOG_DURABILITY`. docs/durability.md has the details.
        sync_interval: at level `interval`, seconds until an event is on the medium; `STEPLOG_SYNC_INTERVAL`, else 0.1.
        strict: raise `NotInRun` for a model or tool call that would escape the log, instead of warning once;
            `STEPLOG_STRICT=1`.
        drift_grace: seconds for which a step of a run with branches waits for recorded steps that other branches have
            not asked for yet, before the run counts as drifted (twelve times as long for what branches have
            recorded); `STEPLOG_DRIFT_GRACE`, else 5.
        interceptors: names of the interceptors to install; by default all that are found, except opt-in ones.
        also: names of further interceptors to install, such as the opt-in ones `clock`, `random` and `uuid`;
            with those in `STEPLOG_ALSO`, separated by commas.
        http: hosts whose requests through httpx and httpx2 become steps, as in `api.tavily.com`, `*.example.com` or
            `127.0.0.1:8000`; with those in `STEPLOG_HTTP`, separated by commas.
        ignore: by interceptor, paths in a request's body that do not count when a call is compared with the log, as in
            `{"openai": ["metadata.request_id"]}`.
        modes: by interceptor, whether a request is `safe` to repeat after a crash or `unsafe`, where you know better
            than steplog: `{"openai": {"POST /v1/files": "safe", "POST /v1/vector_stores/*/files": "safe"}}`. A pattern
            is the method and the whole path; `*` stands for one part of it, `**` for any number.
        redact: further expressions for what is a secret here, beside the rules that are always in force, in a list or
            by the name of their kind, as in `{"badge": "badge-[0-9]{6}"}`; a group `(?P<secret>...)` is what is taken
            out, else the whole match. `{"password": False}` switches the rules of a kind off. Expressions also come
            from `STEPLOG_REDACT`, one a line.
        store: a store to use instead of files in `home`.
        policy: a `Policy`, or the path of its file, for runs that name none (docs/control.md); `STEPLOG_POLICY`.
        budget: what each run may use up that names none (docs/budgets.md).

    Raises:
        InvalidArgument: a value that a setting does not take, or an interceptor that is not installed on this machine.
    """
    from steplog._runtime import threads

    with _lock:
        chosen = settings.resolve(
            home=home,
            durability=durability,
            sync_interval=sync_interval,
            strict=strict,
            drift_grace=drift_grace,
            store=store,
            also=also,
            http=http,
            ignore=ignore,
            modes=modes,
            redact=redact,
            policy=None if policy is None else _policy(policy),
            budget=budget,
            before=PROCESS.settings,
        )
        if interceptors is not None:
            interceptors = extend.listed("interceptors", interceptors, 'interceptors=["openai"]')
        wanted, found = _find(interceptors, chosen)
        PROCESS.settings = chosen
        threads.install()
        for name, point in found.items():
            _put_in(name, point, named=name in wanted)


def uninstall() -> None:
    """Take back what `install` patched, where it is still ours. Runs that are open go on recording tools and values."""
    from steplog._runtime import threads, uncaught

    with _lock:
        for name, interceptor in _interceptors.items():
            try:
                interceptor.uninstall()
            except Exception:
                # The others are to be taken out all the same.
                log.exception("steplog: interceptor %s could not be taken out", name)
        _interceptors.clear()
        _broken.clear()
        threads.uninstall()
        collector.unwatch()
        uncaught.unwatch()
        PROCESS.settings = None
        settings.forget_memory()
        PROCESS.forget_warnings()


def put_in(names: Collection[str], chosen: settings.Settings) -> None:
    """Put further interceptors in, with other settings than those in force.

    Raises:
        InvalidArgument: one of them is not installed on this machine.
    """
    with _lock:
        _, found = _find(names, chosen)
        PROCESS.settings = chosen
        for name, point in found.items():
            if name not in _interceptors:
                _put_in(name, point, named=True)


def take_out(names: Iterable[str], chosen: settings.Settings) -> None:
    """Take interceptors out again, and go on with these settings."""
    with _lock:
        for name in names:
            _interceptors.pop(name).uninstall()
        PROCESS.settings = chosen


def interceptors() -> list[Any]:
    """The interceptors that are in."""
    return list(_interceptors.values())


def installed() -> list[str]:
    """Names of the interceptors that are in."""
    return list(_interceptors)


def broken() -> dict[str, str]:
    """By name, what is wrong with interceptors that nobody named and that could not be put in."""
    return dict(_broken)


def _policy(given: Given) -> Policy | None:
    from steplog._runtime.policies import policy_of  # few programs need it

    return policy_of(given)


def _find(named: Collection[str] | None, chosen: settings.Settings) -> tuple[Collection[str], dict[str, Any]]:
    """The names that somebody asked for, and the entry points of all that are to be put in."""
    # Imported here: reading the metadata of every distribution costs more than `import steplog` altogether.
    from importlib.metadata import entry_points

    available = {point.name: point for point in entry_points(group=GROUP)}
    wanted = [*(named or ()), *chosen.also, *([HTTP] if chosen.http else ())]
    _refuse_unknown(wanted, available, chosen.also)
    for setting, table in (("ignore", chosen.ignore), ("modes", chosen.modes)):
        if table:
            _refuse_deaf(setting, table, available)
    return wanted, available if named is None else {name: available[name] for name in wanted}


def _refuse_unknown(wanted: Iterable[str], available: Mapping[str, Any], also: Collection[str]) -> None:
    missing = sorted(set(wanted) - set(available))
    if missing:
        known = ", ".join(sorted(available)) or "none"
        where = " (also in STEPLOG_ALSO)" if set(missing) & set(also) else ""
        message = (
            f"no interceptor is named {', '.join(missing)}. Found on this machine: {known}.\n"
            f"Correct the name{where}, or install the distribution that provides it."
        )
        raise InvalidArgument(message)


def _refuse_deaf(setting: str, table: Mapping[str, Any], available: Mapping[str, Any]) -> None:
    """Refuse what an interceptor would pass over in silence, such as a mode that never takes effect."""
    listening: dict[str, bool] = {}
    for name, point in available.items():
        try:
            interceptor = _loaded(name, point)
        except Exception:
            log.debug("steplog: interceptor %s could not be loaded", name, exc_info=True)
            continue
        if setting in getattr(interceptor, "honours", ()):
            listening[name] = True
        listening.update((one, _is_here(one)) for one in getattr(interceptor, "names", ()))
    wrong = sorted(table.keys() - listening.keys())
    if wrong:
        known = ", ".join(sorted(name for name, here in listening.items() if here)) or "none"
        message = (
            f"`{setting}` names {', '.join(wrong)}, and no interceptor of that name takes `{setting}`: it would have "
            f"no effect.\nInterceptors that take it, on this machine: {known}."
        )
        raise InvalidArgument(message)


def _is_here(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package.partition(".")[0]) is not None


def _put_in(name: str, point: Any, *, named: bool) -> None:
    """Load and install an interceptor. If one that nobody named is broken, the program must still start."""
    try:
        interceptor = _loaded(name, point)
        if named or not getattr(interceptor, "opt_in", False):
            interceptor.install()
            _interceptors[name] = interceptor
    except Exception as error:
        if named:
            raise
        _broken[name] = f"{type(error).__name__}: {error}"
        log.exception("steplog: interceptor %s could not be installed; its calls are not recorded", name)


def _loaded(name: str, point: Any) -> Any:
    interceptor = point.load()
    if callable(getattr(interceptor, "install", None)) and callable(getattr(interceptor, "uninstall", None)):
        return interceptor
    message = (
        f"the entry point {point.value} of the interceptor {name} is {with_article(type(interceptor).__name__)} "
        f"without `install` and `uninstall`; it must name an object such as steplog.plugins.Interceptor describes."
    )
    raise InvalidArgument(message)
