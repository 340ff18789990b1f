"""call4agents with its SQLite ledger: an effect, whose intent and result are both written."""

from __future__ import annotations

import call4agents
import workload

order = workload.Order.read()
call4agents.init(str(order.folder / "ledger.sqlite"))
with call4agents.run("bench"):
    workload.each(order, call4agents.effect(workload.body))
