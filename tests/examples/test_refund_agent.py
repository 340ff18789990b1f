"""The short example does what it says, and does it once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "refund_agent.py"


def test_it_works_and_a_second_run_only_reads_the_log(tmp_path):
    environment = {**os.environ, "STEPLOG_HOME": str(tmp_path / "home")}
    environment.pop("OPENAI_API_KEY", None)

    def run() -> list[str]:
        done = subprocess.run(
            [sys.executable, EXAMPLE],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    paying, writing, answer, figures = run()
    assert "paying 4200 back for ord_1001" in paying
    assert "writing to ada@example.com" in writing
    assert "re_1001" in answer
    assert figures == "7 steps executed, 0 returned from the log"
    assert run() == [answer, "0 steps executed, 7 returned from the log"]
