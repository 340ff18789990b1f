"""steplog: a step that may run again after a crash (a model call, a read)."""

from __future__ import annotations

import workload

import steplog

order = workload.Order.read()
steplog.install(home=order.folder, interceptors=[])
with steplog.run("bench"):
    workload.each(order, steplog.step(mode="safe")(workload.body))
