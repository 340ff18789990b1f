"""What docs/compensation.md says is so."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.test_docs import blocks
from tests.support.processes import environment
from tests.support.recorded import ROOT

PAGE = (ROOT / "docs/compensation.md").read_text()


def test_the_program_places_two_orders_and_takes_them_back(tmp_path):
    (program,) = blocks(PAGE, "python")
    (tmp_path / "agent.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "agent.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "placing jacket",
        "placing shoes",
        "cancelling shoes o_shoes",
        "cancelling jacket o_jacket",
        "2 undone, 0 left",
    ]
