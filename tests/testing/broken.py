"""The contract applied to faulty interceptors. Not collected by itself: most of these tests must fail."""

from __future__ import annotations

from tests.examples.test_interceptor import TestAcme as Sound
from tests.testing import faulty


class TestHand(Sound):
    interceptor = "tests.testing.faulty:SOUND"


for fault in faulty.FAULTS:
    name = f"Test{fault.__name__}"
    attributes = {"interceptor": f"tests.testing.faulty:{fault.__name__}_", "patience": 1.0, "__module__": __name__}
    globals()[name] = type(name, (Sound,), attributes)

del Sound
