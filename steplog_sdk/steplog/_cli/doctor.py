"""`steplog doctor`: what is recorded on this machine, by the patches that are in once the SDKs are imported."""

from __future__ import annotations

import platform
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from steplog._cli.output import console, emit_json, printable

if TYPE_CHECKING:
    from steplog._runtime.patches import Hooked


@click.command(short_help="Check what is recorded on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; errors too.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Install steplog as a program does, import every SDK that an interceptor waits for, and list what was patched.

    Honours STEPLOG_ALSO and STEPLOG_HTTP. The exit code is 1 where an interceptor cannot be loaded, or does not find
    what it patches: calls through that module are not recorded.
    """
    found = examine()
    if as_json:
        emit_json(found)
    else:
        _print(found)
    ctx.exit(1 if found["broken"] or any(module["fault"] for module in found["modules"]) else 0)


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
        "modules": modules,
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


def _print(found: dict[str, Any]) -> None:
    out = console()
    out.print(f"steplog {found['steplog']}, Python {found['python']}")
    out.print(f"interceptors: {', '.join(found['interceptors']) or 'none'}")
    for name, fault in found["broken"].items():
        out.print(printable(f"interceptor {name} cannot be used: {fault}"))
    versions: dict[str, str] = {}
    for module in found["modules"]:
        package = module["module"].partition(".")[0]
        if package not in versions:
            versions[package] = module["version"] or ""
            out.print(f"\n{package} {module['version'] or ''}".rstrip() if not module["absent"] else f"\n{package}")
        for patch in module["patches"]:
            out.print(f"  {'on ' if patch['on'] else 'off'}  {patch['method']}")
        if module["absent"]:
            out.print(printable(f"  not here: {module['module']} ({module['absent']})"))
        if module["fault"]:
            out.print(printable(f"  NOT RECORDED: {module['module']}: {module['fault']}"))
