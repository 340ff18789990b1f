"""vcrpy with `body` among what requests are matched by, as its documentation says for calls to one address."""

from __future__ import annotations

import cases
import vcr

order = cases.Order.read()
matched = ["method", "scheme", "host", "port", "path", "query", "body"]
recorder = vcr.VCR(record_mode="none" if order.replay else "once", match_on=matched)
with recorder.use_cassette(str(order.folder / "cassette.yaml")):
    cases.Agent(order).play()
