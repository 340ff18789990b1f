"""What docs/budgets.md says is so."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import steplog
from steplog._kernel import bounds
from tests.docs.test_docs import blocks, rows
from tests.support.processes import environment
from tests.support.recorded import ROOT

PAGE = (ROOT / "docs/budgets.md").read_text()


def test_the_program_runs_into_its_budget_and_goes_on_with_more(tmp_path):
    (program,) = blocks(PAGE, "python")
    (tmp_path / "agent.py").write_text(program)
    variables = environment()
    done = subprocess.run(
        [sys.executable, "agent.py"], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["2 done, 60 seconds left", "max_tool_calls 3 of 3"]
    (command,) = re.findall(r"^    steplog (resume .*?)  go on", PAGE, re.MULTILINE)

    resumed = subprocess.run(
        [sys.executable, "-m", "steplog", *command.split()],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )

    assert resumed.stdout.splitlines()[-1] == "max_tool_calls 6 of 6"
    assert resumed.returncode == 75
    shown = subprocess.run(
        [sys.executable, "-m", "steplog", "show", "search-1001"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "suspended (budget)" in shown.stdout
    assert "6 of 6 tool calls" in shown.stdout
    assert "(set by hand: max_tool_calls)" in shown.stdout
    assert "next: steplog resume search-1001 --budget max_tool_calls=12" in shown.stdout


def test_every_limit_and_every_number_is_as_written():
    table = PAGE[PAGE.index("| limit |") :].partition("\n\n")[0]

    assert [row[0].strip("`") for row in rows(table)] == [field.name for field in fields(steplog.Budget)]
    for number in (bounds.ADDED, bounds.ADDED + bounds.ADDED_FOR_TOOLS, bounds.UNCAPPED):
        assert f"{number:,}" in PAGE
