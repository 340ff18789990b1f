"""The agents of the lightest environment are killed and carry on. `make test-frameworks` kills all, everywhere."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.frameworks.build import is_built, python_of
from tests.frameworks.check import Case, Failed, Programs, killed_at, killed_inside, model_process, record_and_replay
from tests.frameworks.table import FRAMEWORKS, LIGHT, Way
from tests.support.processes import environment
from tests.support.recorded import ROOT

WAYS = [way for framework in FRAMEWORKS if framework.group == LIGHT for way in framework.ways()]
EVERYWHERE, ELSEWHERE = range(1, 14), (10,)  # once the payment is in the log

pytestmark = pytest.mark.skipif(
    not is_built(LIGHT) and "CI" not in os.environ, reason="`make test` sets up the environment of the frameworks"
)


@pytest.fixture(scope="session")
def ground(tmp_path_factory):
    """A folder, and the model that serves all programs."""
    folder = tmp_path_factory.mktemp("frameworks")
    with model_process(folder) as url:
        yield folder, url


@pytest.fixture(scope="session")
def case(ground):
    """Makes a case; the process that has imported the framework is started once."""
    folder, url = ground
    running: dict[str, Programs] = {}

    def make(way: Way, name: str) -> Case:
        if way.agent not in running:
            running[way.agent] = Programs(python_of(LIGHT), way.agent, folder)
        return Case(way, name, folder, url, running[way.agent])

    yield make
    for programs in running.values():
        programs.close()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.agent}-{way.function}")
def test_a_finished_run_is_returned_without_a_provider(way, case):
    record_and_replay(case(way, "record"), fresh=False)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.agent}-{way.function}")
def test_killed_in_the_middle_of_a_payment_it_halts_until_a_person_decides(way, case):
    killed_inside(case(way, "inside"), fresh=way is WAYS[0])


KILLS = [(way, number) for way in WAYS for number in (EVERYWHERE if way is WAYS[0] else ELSEWHERE)]


@pytest.mark.parametrize("way, number", KILLS, ids=lambda value: value if isinstance(value, int) else value.agent)
def test_killed_after_an_append_it_carries_on(way, number, case):
    assert killed_at(case(way, f"kill{number}"), number)


@pytest.mark.parametrize("decorator", sorted({each.decorator for each in FRAMEWORKS if each.group == LIGHT}))
def test_a_step_above_the_decorator_of_the_framework_is_refused(decorator):
    command = [python_of(LIGHT), "-m", "tests.frameworks.orders", *decorator]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)

    assert done.stdout == "refused\n"


def test_a_run_that_pays_twice_fails_the_check(case):
    found = case(WAYS[0], "twice")
    ended = found.start()
    found.check(ended)
    with (found.folder / "effects").open("a") as effects:
        effects.write("refund ord_1001 4200\n")

    with pytest.raises(Failed, match="paid 2 times"):
        found.check(ended)
