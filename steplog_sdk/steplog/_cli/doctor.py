"""`steplog doctor`: what is recorded on this machine, by the patches that are in once the SDKs are imported."""

from __future__ import annotations

import platform
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from steplog._cli import nondeterminism
from steplog._cli.options import common
from steplog._cli.output import console, emit_json, printable

if TYPE_CHECKING:
    from steplog._runtime.patches import Hooked


RECORDED: Final = "recorded"
PARTLY: Final = "partly recorded"
NOT_HERE: Final = "not here"


EXAMPLES = """\b
Examples:
  steplog doctor
  steplog doctor agent.py order-1001     run it, replay it, and tell what would differ
"""


@click.command(
    short_help="Check what is recorded on this machine, or what in a script would drift.",
    epilog=EXAMPLES,
    context_settings={"allow_interspersed_args": False},
)
@click.option("--all", "everything", is_flag=True, help="Also list what is patched, method by method.")
@click.option("--run", "run_id", metavar="RUN", help="Examine this recorded run, instead of running a script first.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@common
@click.argument("words", metavar="[SCRIPT [ARGS]...]", nargs=-1, type=click.UNPROCESSED)
def doctor(
    words: tuple[str, ...],
    home: Path,
    run_id: str | None,
    *,
    everything: bool,
    is_module: bool,
    as_json: bool,
) -> int:
    """Install steplog as a program does, import every SDK that an interceptor waits for, and tell what is recorded.

    Honours STEPLOG_ALSO and STEPLOG_HTTP. The exit code is 1 where an interceptor cannot be loaded, or does not find
    what it patches: calls through that module are not recorded.

    With SCRIPT, run it once, live, as `steplog run` does, and replay it in another process: every request that is not
    the same again is told with its line, what it looks like and what to write instead, and every line that reads the
    clock or draws a uuid or random number. The exit code is 1 where a request differs.
    """
    if words or run_id is not None:
        return nondeterminism.examine(words, home, run_id, is_module=is_module, as_json=as_json)
    found = examine()
    if as_json:
        emit_json(found)
    else:
        _print(found, everything=everything)
    return 1 if found["broken"] or any(module["fault"] for module in found["modules"]) else 0


def examine() -> dict[str, Any]:
    """Install everything, import everything, and tell what came of it."""
    import steplog
    from steplog._runtime.install import broken, installed
    from steplog._runtime.patches import hooked

    steplog.install()
    absent = {}
    for module in hooked():
        try:
            import_module(module.module)
        except Exception as error:  # noqa: BLE001  # an SDK that cannot be imported makes no calls either
            absent[module.module] = f"{type(error).__name__}: {error}"
    modules = [_facts(module, absent.get(module.module)) for module in hooked()]
    return {
        "steplog": steplog.__version__,
        "python": platform.python_version(),
        "interceptors": sorted(installed()),
        "broken": broken(),
        "sdks": _sdks(modules),
        "modules": modules,
    }


def _sdks(modules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each package: recorded, partly recorded, or not here."""
    packages: dict[str, list[dict[str, Any]]] = {}
    for module in modules:
        packages.setdefault(module["module"].partition(".")[0], []).append(module)
    return [{"package": name, **_summary(own)} for name, own in packages.items()]


def _summary(modules: list[dict[str, Any]]) -> dict[str, Any]:
    patches = [patch for module in modules for patch in module["patches"]]
    whole = all(patch["on"] for patch in patches) and not any(module["fault"] for module in modules)
    # A part that an older release of an SDK does not have makes no calls either.
    here = not all(module["absent"] for module in modules)
    status = (RECORDED if whole else PARTLY) if here else NOT_HERE
    version = next((module["version"] for module in modules if module["version"] and not module["absent"]), None)
    why = [module["absent"] for module in modules] if not here else []
    # That it is not installed is what the word says; any other reason is news.
    return {
        "version": version,
        "status": status,
        "why": next((text for text in why if not text.startswith("ModuleNotFoundError")), None),
    }


def _facts(hooked: Hooked, absent: str | None) -> dict[str, Any]:
    package = sys.modules.get(hooked.module.partition(".")[0])
    return {
        "module": hooked.module,
        "version": str(getattr(package, "__version__", "")) or None,
        "absent": absent,
        "patches": [{"method": patch.place, "on": patch.on} for patch in hooked.patches],
        "fault": hooked.fault,
    }


def _print(found: dict[str, Any], *, everything: bool) -> None:
    out = console()
    out.print(f"steplog {found['steplog']}, Python {found['python']}")
    out.print(f"interceptors: {', '.join(found['interceptors']) or 'none'}")
    for name, fault in found["broken"].items():
        out.print(printable(f"interceptor {name} cannot be used: {fault}"))
    out.print()
    names = {sdk["package"]: f"{sdk['package']} {sdk['version'] or ''}".rstrip() for sdk in found["sdks"]}
    width = max(map(len, names.values()), default=0)
    for sdk in found["sdks"]:
        why = f" ({sdk['why']})" if sdk["why"] else ""
        out.print(printable(f"{names[sdk['package']]:<{width}}  {sdk['status']}{why}"))
    for module in found["modules"]:
        if module["fault"]:
            out.print(printable(f"  NOT RECORDED: {module['module']}: {module['fault']}"))
    if everything:
        for sdk in found["sdks"]:
            out.print(f"\n{names[sdk['package']]}")
            _print_modules([one for one in found["modules"] if one["module"].partition(".")[0] == sdk["package"]])
    else:
        out.print("\nmethod by method: steplog doctor --all")


def _print_modules(modules: list[dict[str, Any]]) -> None:
    out = console()
    for module in modules:
        for patch in module["patches"]:
            out.print(f"  {'on ' if patch['on'] else 'off'}  {patch['method']}")
        if module["absent"]:
            out.print(printable(f"  not here: {module['module']} ({module['absent']})"))
