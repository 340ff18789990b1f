"""steplog: `with steplog.run(...)`, then `with steplog.replay(...)`; tools with `@steplog.step`."""

from __future__ import annotations

import cases

import steplog

order = cases.Order.read()
# uuid4() is recorded on request only; no case but one asks for it.
steplog.install(home=order.folder / "home", also=["uuid"])
agent = cases.Agent(order, steplog.step(mode="unsafe", name="look_up"))
with steplog.replay("case") if order.replay else steplog.run("case"):
    agent.play()
