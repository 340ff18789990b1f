"""The loop stands on what steplog offers to anybody."""

from __future__ import annotations

import re

from tests.support.recorded import ROOT
from tests.test_house import imports, name_of

FOLDER = ROOT / "steplog_sdk/steplog/bounded"


def test_it_is_written_on_the_public_names_alone():
    public = re.compile(r"steplog$|steplog\.(plugins|errors|bounded)\b|(?!steplog)")
    found = [(file, module, line) for file in FOLDER.rglob("*.py") for module, line in imports(file)]

    assert len(found) > 20
    assert [f"{name_of(file)}:{line} {module}" for file, module, line in found if not public.match(module)] == []


def test_nothing_else_stands_on_it():
    others = [file for file in (ROOT / "steplog_sdk").rglob("*.py") if FOLDER not in file.parents]
    users = [name_of(file) for file in others for module, _line in imports(file) if "steplog.bounded" in module]

    assert users == []
