"""Every method of every resource of the installed SDKs, recorded and replayed."""

from __future__ import annotations

import pytest

from tests.interceptors.walk import report
from tests.interceptors.walk.inventory import SDKS, methods, resources
from tests.interceptors.walk.refused import REFUSED
from tests.interceptors.walk.reviewed import SAFE, UNSAFE_READS
from tests.interceptors.walk.survey import all_modes, survey
from tests.interceptors.walk.walking import walk
from tests.support.thinned import thinned

RESOURCES = [(sdk, resource) for sdk in SDKS for resource in resources(sdk)]


@pytest.mark.parametrize("sdk, resource", thinned(RESOURCES, every=4, ids="-".join))
def test_every_call_of_the_resource_is_recorded_and_returned(sdk, resource, home):
    outcome = walk(sdk, resource, home)

    assert outcome.faults == {}
    assert outcome.modes.items() <= survey(sdk).get(resource, {}).items()


@pytest.mark.parametrize("sdk", SDKS)
def test_a_client_has_about_as_many_methods_as_its_modules_declare(sdk):
    """The inventory goes through properties; a resource that no property leads to would be missed in silence."""
    found = {method.forms[0].function.__qualname__.partition(".")[0] for method in methods(sdk)}
    declared = report.resource_classes(sdk)

    assert declared - found == set()


@pytest.mark.parametrize("method", [m for sdk in SDKS for m in methods(sdk) if str(m) in REFUSED], ids=str)
def test_a_method_that_is_refused_cannot_be_walked(method, home):
    assert walk(method.sdk, method.resource, home, only=[str(method)]).faults != {}


@pytest.mark.parametrize("sdk", SDKS)
def test_the_table_of_releases_says_what_is_found_with_this_one(sdk):
    found = report.row(report.summary(sdk))

    assert [line for line in report.rows() if line[:2] == found[:2]] in ([], [found])


@pytest.mark.skipif(not report.pinned(), reason="the tables are about the pinned versions")
class TestTables:
    def test_a_refused_method_exists(self):
        assert set(REFUSED) <= {str(method) for sdk in SDKS for method in methods(sdk)}

    @pytest.mark.parametrize("sdk", SDKS)
    def test_a_reviewed_request_is_made(self, sdk):
        assert set(SAFE[sdk]) - all_modes(sdk).keys() == ({"POST /v1/complete"} if sdk == "anthropic" else set())
        assert set(UNSAFE_READS[sdk]) <= all_modes(sdk).keys()

    def test_the_table_of_releases_has_this_one(self):
        assert {tuple(line[:2]) for line in report.rows()} >= {(sdk, report.version(sdk)) for sdk in SDKS}

    def test_the_page_says_what_is_found(self):
        text = report.PAGE.read_text()

        assert text == report.page(text), "run `python -m tests.interceptors.walk --write`"


@pytest.mark.parametrize("sdk", SDKS)
def test_what_may_be_repeated_has_been_reviewed(sdk):
    modes = all_modes(sdk)

    assert {request for request, mode in modes.items() if mode == "safe" and not request.startswith("GET ")} <= set(
        SAFE[sdk]
    )
    assert {request for request, mode in modes.items() if mode != "safe" and request.startswith("GET ")} == set(
        UNSAFE_READS[sdk]
    ) & set(modes)
    # Reading, and everything in the table, is not held up after a crash.
    assert {request for request in SAFE[sdk] if modes.get(request, "safe") != "safe"} == set()
    assert set(modes.values()) == {"safe", "unsafe"}
