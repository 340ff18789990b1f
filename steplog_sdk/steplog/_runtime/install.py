"""`install()` and `uninstall()`: settings, interceptors and thread propagation, once per process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from steplog._runtime import settings
from steplog._runtime.door import PROCESS
from steplog.errors import InvalidArgument

if TYPE_CHECKING:
    from steplog.stores.base import Store

log: Final = logging.getLogger("steplog")

GROUP: Final = "steplog.interceptors"

_lock = threading.Lock()
_interceptors: dict[str, Any] = {}


def install(
    *,
    home: str | os.PathLike[str] | None = None,
    durability: str | None = None,
    strict: bool | None = None,
    drift_grace: float | None = None,
    interceptors: Collection[str] | None = None,
    store: Store | None = None,
) -> None:
    """Record the model calls of every supported SDK from now on. Idempotent; import order does not matter.

    Calling it again changes the settings for runs that are opened from then on.

    Args:
        home: directory of the logs; `STEPLOG_HOME`, else `.agent`.
        durability: `durable` (default: survives power loss) or `process` (survives the death of the process);
            `STEPLOG_DURABILITY`.
        strict: raise `NotInRun` for a model or tool call that would escape the log, instead of warning once;
            `STEPLOG_STRICT=1`.
        drift_grace: seconds for which a step of a run with branches waits for recorded steps that other branches have
            not asked for yet, before the run counts as drifted (twelve times as long for what branches have
            recorded); `STEPLOG_DRIFT_GRACE`, else 5.
        interceptors: names of the interceptors to install; all that are found by default.
        store: a store to use instead of files in `home`.

    Raises:
        InvalidArgument: an unknown durability level, or an interceptor that is not installed on this machine.
    """
    chosen = settings.resolve(home=home, durability=durability, strict=strict, drift_grace=drift_grace, store=store)
    from steplog._runtime import threads

    with _lock:
        found = _find(interceptors)
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
        PROCESS.settings = None
        PROCESS.forget_warnings()


def _find(names: Collection[str] | None) -> dict[str, Any]:
    # Imported here: reading the metadata of every distribution costs more than `import steplog` altogether.
    from importlib.metadata import entry_points

    available = {point.name: point for point in entry_points(group=GROUP)}
    if names is None:
        return {name: found for name, point in available.items() if (found := _load(point)) is not None}
    missing = sorted(set(names) - set(available))
    if missing:
        known = ", ".join(sorted(available)) or "none"
        message = (
            f"no interceptor is named {', '.join(missing)}. Found on this machine: {known}.\n"
            f"Install the distribution that provides it, or leave `interceptors` out to take all."
        )
        raise InvalidArgument(message)
    return {name: available[name].load() for name in names}


def _load(point: Any) -> Any:
    """An interceptor that nobody named: if a third party's is broken, the program must still start."""
    try:
        return point.load()
    except Exception:
        log.exception("steplog: interceptor %s could not be loaded; its calls are not recorded", point.name)
        return None
