"""What was walked, as data and as the page `docs/coverage.md`."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.interceptors.walk.inventory import SDKS, methods
from tests.interceptors.walk.refused import REFUSED
from tests.interceptors.walk.reviewed import SAFE, UNLESS, UNSAFE_READS
from tests.interceptors.walk.survey import all_modes, planned
from tests.support.recorded import ROOT

PAGE: Final = ROOT / "docs/coverage.md"
# What was found with each release, written by `--write` in an environment that has it.
VERSIONS: Final = Path(__file__).with_name("versions.json")
_BEGIN: Final = "<!-- generated: python -m tests.interceptors.walk --write -->"
_END: Final = "<!-- end -->"


@dataclass(frozen=True)
class Summary:
    """What a walk over one SDK found.

    Attributes:
        sdk: `openai` or `anthropic`.
        version: of the installed release.
        methods: public methods of its resources.
        walked: those of them that were called.
        passing: those of them whose every call was recorded, and returned equal.
        calls: how often a method was called: each form, through each view, with a client of each colour.
        refused: methods that are not walked, with the reason.
        faults: what went wrong, by call.
    """

    sdk: str
    version: str
    methods: int
    walked: int
    passing: int
    calls: int
    refused: dict[str, str]
    faults: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


def summary(sdk: str, faults: dict[str, str] | None = None) -> Summary:
    """The summary of a walk that had these faults."""
    found = methods(sdk)
    refused = {str(method): REFUSED[str(method)] for method in found if str(method) in REFUSED}
    faults = faults or {}
    failing = {fault.split(" ")[0] for fault in faults}
    walked = len(found) - len(refused)
    count = sum(len(call.method.colours) for call in planned(sdk) if str(call.method) not in REFUSED)
    return Summary(sdk, version(sdk), len(found), walked, walked - len(failing), count, refused, faults)


def version(sdk: str) -> str:
    """Version of the installed SDK."""
    return str(SDKS[sdk].__version__)


def resource_classes(sdk: str) -> set[str]:
    """Names of the synchronous resource classes that the SDK's modules declare, found without its clients."""
    base = importlib.import_module(f"{sdk}._resource").SyncAPIResource
    for module in pkgutil.walk_packages(importlib.import_module(f"{sdk}.resources").__path__, f"{sdk}.resources."):
        importlib.import_module(module.name)
    return {cls.__name__ for cls in base.__subclasses__() if any(map(inspect.isfunction, vars(cls).values()))}


def pinned() -> bool:
    """Whether the installed SDKs are those that the page is about."""
    pins = (ROOT / "constraints.txt").read_text()
    return all(re.search(rf"^{sdk}=={re.escape(version(sdk))}$", pins, re.MULTILINE) for sdk in SDKS)


def row(found: Summary) -> list[Any]:
    """A line of the table of releases."""
    counts = [found.methods, found.walked, found.passing, found.calls, len(found.refused)]
    return [found.sdk, found.version, *counts]


def rows() -> list[list[Any]]:
    """The lines of the table of releases, the newest release of an SDK first."""
    written: list[list[Any]] = json.loads(VERSIONS.read_text())
    return sorted(written, key=lambda line: (line[0] != "openai", [-int(part) for part in line[1].split(".")]))


def page(text: str) -> str:
    """The page with its generated part as the installed SDKs make it."""
    before, _, rest = text.partition(_BEGIN)
    return before + _BEGIN + "\n\n" + generated() + "\n" + _END + rest.partition(_END)[2]


def generated() -> str:
    """The tables."""
    found = [summary(sdk) for sdk in SDKS]
    return "\n".join(
        [
            "### Methods",
            "",
            *_table(
                ("SDK", "version", "methods", "walked", "passing", "calls", "refused"),
                rows(),
            ),
            "### Refused",
            "",
            *_table(("method", "why"), [(f"`{name}`", why) for s in found for name, why in s.refused.items()]),
            "### Requests other than GET that are safe",
            "",
            *_table(("SDK", "request", "why"), [row for sdk in SDKS for row in _reviewed(sdk, SAFE[sdk])]),
            "### Unless the body says more",
            "",
            *_table(("in the body", "what a second request would do"), UNLESS),
            "### GET requests that are not safe",
            "",
            *_reads(),
        ]
    )


def _reviewed(sdk: str, rows: dict[str, str]) -> list[tuple[str, str, str]]:
    made = all_modes(sdk)
    return [(sdk, f"`{request}`", why) for request, why in rows.items() if request in made]


def _reads() -> list[str]:
    rows = [row for sdk in SDKS for row in _reviewed(sdk, UNSAFE_READS[sdk])]
    return _table(("SDK", "request", "why"), rows) if rows else ["None.", ""]


def _table(head: tuple[Any, ...], rows: Any) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return [*("| " + " | ".join(map(str, line)) + " |" for line in lines), ""]


def write() -> None:
    """Bring the table of releases up to date, and the page where the SDKs are those that it is about."""
    mine = [row(summary(sdk)) for sdk in SDKS]
    others = [line for line in rows() if line[:2] not in [each[:2] for each in mine]]
    VERSIONS.write_text(json.dumps([*others, *mine], indent=1) + "\n")
    if pinned():
        PAGE.write_text(page(PAGE.read_text()))
