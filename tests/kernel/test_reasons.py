"""Every run ends, or stands still, for a reason of one closed list."""

from __future__ import annotations

from steplog._kernel import reasons
from steplog.errors import Interrupt


def _all(cls):
    return [cls, *(each for child in cls.__subclasses__() for each in _all(child))]


def test_every_interrupt_has_a_reason_of_the_closed_list():
    for kind in _all(Interrupt)[1:]:
        if kind.__module__ == "steplog.errors":
            assert kind.reason in reasons.REASONS[reasons.SUSPENDED], kind
    assert reasons.meaning("completed", "done")
    assert reasons.meaning("completed", "of a later release") == ""
