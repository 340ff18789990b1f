"""reeltime: started by `tape run`, and again by `tape replay`; tools with `@tape.tool`.

The script is started by itself, with the words of the other recorders, and starts `tape`, which starts it once more.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cases
import reeltime as tape

order = cases.Order.read()
if "BENCH_TAPED" in os.environ:
    # `tape replay` starts the command of the recording, so what differs between the two is in the environment.
    cases.Agent(order._replace(replay=os.environ["BENCH_TAPED"] == "replay"), tape.tool).play()
else:
    command = [str(Path(sys.executable).with_name("tape"))]
    command += ["replay", "last"] if order.replay else ["run", sys.executable, str(Path(__file__)), *sys.argv[1:]]
    environment = {**os.environ, "BENCH_TAPED": sys.argv[1]}
    sys.exit(subprocess.run(command, cwd=order.folder, env=environment, check=False).returncode)
