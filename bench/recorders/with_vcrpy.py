"""vcrpy as it is: requests are matched by method and address."""

from __future__ import annotations

import cases
import vcr

order = cases.Order.read()
recorder = vcr.VCR(record_mode="none" if order.replay else "once")
with recorder.use_cassette(str(order.folder / "cassette.yaml")):
    cases.Agent(order).play()
