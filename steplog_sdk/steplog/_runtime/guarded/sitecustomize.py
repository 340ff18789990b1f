"""Puts a python that was started in a replay under the same guard, before anything of its program runs.

The directory of this file is on the `PYTHONPATH` of such a child, so `site` imports it. It fails closed: where the
guard cannot be had, the child ends.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _guard() -> None:
    # The child may be another python, in which steplog is not installed; the guard needs nothing else.
    root = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
    sys.path.append(root)
    try:
        from steplog._runtime import egress

        egress.guard_child()
    finally:
        sys.path.remove(root)


def _go_on() -> None:
    """Import the `sitecustomize` that this one stands in front of."""
    import importlib

    before = list(sys.path)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as missing:
        if missing.name != "sitecustomize":
            raise
        if mine is not None:
            sys.modules["sitecustomize"] = mine
    finally:
        sys.path[:] = before


try:
    _guard()
except BaseException as error:  # noqa: BLE001  # `site` would report any and start the program all the same
    sys.stderr.write(f"steplog: a replay started this python, and its guard could not be set up: {error!r}\n")
    sys.stderr.flush()
    os._exit(70)
_go_on()
