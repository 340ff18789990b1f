"""`install()` and `uninstall()`: settings, interceptors and thread propagation, once per process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from steplog._runtime import collector, settings
from steplog._runtime.door import PROCESS
from steplog.errors import InvalidArgument

if TYPE_CHECKING:
    from steplog.stores.base import Store

log: Final = logging.getLogger("steplog")

GROUP: Final = "steplog.interceptors"

# Records requests to the hosts that `http` names.
HTTP: Final = "http"

_lock = threading.Lock()
_interceptors: dict[str, Any] = {}


def install(
    *,
    home: str | os.PathLike[str] | None = None,
    durability: str | None = None,
    strict: bool | None = None,
    drift_grace: float | None = None,
    interceptors: Collection[str] | None = None,
    also: Collection[str] = (),
    http: Collection[str] = (),
    ignore: Mapping[str, Collection[str]] | None = None,
    store: Store | None = None,
) -> None:
    """Record the model calls of every supported SDK from now on. Idempotent; import order does not matter.

    Calling it again changes the settings for runs that are opened from then on; `also`, `http` and `ignore` add to what
    was named before, until `uninstall()`.

    Args:
        home: directory of the logs; `STEPLOG_HOME`, else `.agent`.
        durability: `durable` (default: survives power loss) or `process` (survives the death of the process);
            `STEPLOG_DURABILITY`.
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
        store: a store to use instead of files in `home`.

    Raises:
        InvalidArgument: a value that a setting does not take, or an interceptor that is not installed on this machine.
    """
    from steplog._runtime import threads

    with _lock:
        chosen = settings.resolve(
            home=home,
            durability=durability,
            strict=strict,
            drift_grace=drift_grace,
            store=store,
            also=also,
            http=http,
            ignore=ignore,
            before=PROCESS.settings,
        )
        found = _find(interceptors, chosen)
        PROCESS.settings = chosen
        threads.install()
        for name, interceptor in found.items():
            interceptor.install()
            _interceptors[name] = interceptor


def uninstall() -> None:
    """Take back what `install` patched, where it is still ours. Runs that are open go on recording tools and values."""
    from steplog._runtime import threads

    with _lock:
        for interceptor in _interceptors.values():
            interceptor.uninstall()
        _interceptors.clear()
        threads.uninstall()
        collector.unwatch()
        PROCESS.settings = None
        PROCESS.forget_warnings()


def _find(named: Collection[str] | None, chosen: settings.Settings) -> dict[str, Any]:
    # Imported here: reading the metadata of every distribution costs more than `import steplog` altogether.
    from importlib.metadata import entry_points

    available = {point.name: point for point in entry_points(group=GROUP)}
    wanted = [*(named or ()), *chosen.also, *([HTTP] if chosen.http else ())]
    _refuse_unknown("interceptor", wanted, available)
    _refuse_unknown("interceptor (in `ignore`)", chosen.ignore, available)
    found = {name: available[name].load() for name in wanted}
    if named is None:
        for name in available.keys() - found.keys():
            interceptor = _load(available[name])
            if interceptor is not None and not getattr(interceptor, "opt_in", False):
                found[name] = interceptor
    return found


def _refuse_unknown(what: str, wanted: Iterable[str], available: Mapping[str, Any]) -> None:
    missing = sorted(set(wanted) - set(available))
    if missing:
        known = ", ".join(sorted(available)) or "none"
        message = (
            f"no {what} is named {', '.join(missing)}. Found on this machine: {known}.\n"
            f"Correct the name (also in STEPLOG_ALSO), or install the distribution that provides it."
        )
        raise InvalidArgument(message)


def _load(point: Any) -> Any:
    """An interceptor that nobody named: if a third party's is broken, the program must still start."""
    try:
        return point.load()
    except Exception:
        log.exception("steplog: interceptor %s could not be loaded; its calls are not recorded", point.name)
        return None
