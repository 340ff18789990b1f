"""What the documentation says of the frameworks is what was found when they were last run."""

from __future__ import annotations

import json

from tests.frameworks import page
from tests.frameworks.build import PINS
from tests.frameworks.table import FRAMEWORKS


def test_the_page_is_made_from_the_results():
    assert page.PAGE.read_text() == page.text(page.read()), "python -m tests.frameworks.page makes it anew"


def test_every_framework_was_run_as_the_table_says():
    found = page.read()["frameworks"]

    assert list(found) == [framework.name for framework in FRAMEWORKS]
    for framework in FRAMEWORKS:
        row = found[framework.name]
        ran = [way["function"] for way in row["ways"]]
        assert "not_run" in row or ran == [*framework.functions], framework.name


def test_no_framework_does_what_it_should_not():
    assert "failed" not in json.dumps(page.read())


def test_an_agent_of_every_framework_was_killed_after_every_append():
    for row in page.read()["frameworks"].values():
        killed, of = row["ways"][0]["kills"].split(" of ")
        assert int(killed) == int(of) >= 13, row["name"]


def test_every_package_is_pinned_and_no_file_names_a_registry():
    for framework in FRAMEWORKS:
        lines = (PINS / f"{framework.group}.txt").read_text().splitlines()
        assert all("==" in line and "://" not in line for line in lines), framework.group
        names = {line.partition("==")[0] for line in lines}
        assert {*framework.packages} <= names
