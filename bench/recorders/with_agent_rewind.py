"""agent-rewind: `auto_patch()`, `record` and `replay`; tools with `@rewind.tool`.

As its documentation says: `match="parallel"` for agents that do several things at the same time, else the default
`strict`; `patch_thread_pool()` for thread pools.
"""

from __future__ import annotations

import cases
import rewind

order = cases.Order.read()
rewind.auto_patch()
rewind.patch_thread_pool()
trace = str(order.folder / "run.rewind")
match = "parallel" if order.is_concurrent else "strict"
with rewind.replay(trace, match=match) if order.replay else rewind.record(trace):
    cases.Agent(order, rewind.tool).play()
