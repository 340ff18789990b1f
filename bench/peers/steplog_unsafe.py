"""steplog: a step whose effect must not happen twice: intent and outcome are both on disk in time."""

from __future__ import annotations

import workload

import steplog

order = workload.Order.read()
steplog.install(home=order.folder, interceptors=[])
with steplog.run("bench"):
    workload.each(order, steplog.step(workload.body))
