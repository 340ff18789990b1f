"""What docs/workflows.md says is so."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.test_docs import blocks
from tests.support.processes import environment
from tests.support.recorded import ROOT

PAGE = (ROOT / "docs/workflows.md").read_text()


def test_the_program_refunds_once_and_prints_the_same_result_twice(tmp_path):
    (program,) = blocks(PAGE, "python")
    (tmp_path / "agent.py").write_text(program)
    for effect in (["refunding ord_1001"], []):
        done = subprocess.run(
            [sys.executable, "agent.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == [*effect, *["{'order': 'ord_1001', 'refund': 're_ord_1001'}"] * 2]
