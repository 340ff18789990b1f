"""DBOS with its SQLite system database: synchronous steps of a workflow."""

from __future__ import annotations

import workload
from dbos import DBOS, SetWorkflowID

order = workload.Order.read()
DBOS(
    config={
        "name": "bench",
        "system_database_url": f"sqlite:///{order.folder / 'system.sqlite'}",
        "application_version": "1",
        "run_admin_server": False,
        "log_level": "ERROR",
    }
)
step = DBOS.step()(workload.body)


@DBOS.workflow()
def workflow() -> int:
    """The steps, one after the other."""
    workload.each(order, step)
    return order.steps


# A launch takes up what an earlier process of the same version left pending; naming it waits for its end.
DBOS.launch()
with SetWorkflowID("bench"):
    handle = DBOS.start_workflow(workflow)
handle.get_result()
DBOS.destroy()
