"""What `install()` is told: which interceptors come beside the default ones, which hosts, which paths do not count."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

import steplog
from steplog import plugins
from steplog.errors import InvalidArgument


class Recording:
    """An interceptor that notes what is done to it."""

    def __init__(self, name: str, *, opt_in: bool = False) -> None:
        self.name = name
        self.honours = () if opt_in else ("ignore", "modes") if name == "sdk" else ("modes",)
        self.opt_in = opt_in
        self.installed = 0

    def install(self) -> None:
        self.installed += 1

    def uninstall(self) -> None:
        self.installed = 0


class Point:
    def __init__(self, interceptor: Recording) -> None:
        self.name = interceptor.name
        self._interceptor = interceptor

    def load(self) -> Any:
        return self._interceptor


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Recording]:
    """The interceptors of an imaginary machine, with nothing installed."""
    steplog.uninstall()
    kinds = {"sdk": False, "http": False, "clock": True, "uuid": True}
    interceptors = {name: Recording(name, opt_in=opt_in) for name, opt_in in kinds.items()}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Point(one) for one in interceptors.values()])
    return interceptors


def on(found: dict[str, Recording]) -> set[str]:
    return {name for name, interceptor in found.items() if interceptor.installed}


def test_an_opt_in_interceptor_is_installed_only_where_it_is_named(found):
    steplog.install()
    assert on(found) == {"sdk", "http"}
    steplog.install(also=["clock"])
    assert on(found) == {"sdk", "http", "clock"}
    steplog.uninstall()
    assert on(found) == set()


def test_installing_again_adds_and_uninstalling_takes_all_back(found):
    steplog.install(interceptors=[], also=["clock"], http=["a.example"], ignore={"sdk": ["user"]})
    steplog.install(interceptors=[], also=["uuid", "clock"], http=["B.example"], ignore={"sdk": ["user", "metadata.x"]})

    assert on(found) == {"clock", "uuid", "http"}
    assert plugins.settings().also == ("clock", "uuid")
    assert plugins.settings().http == ("a.example", "b.example")
    assert plugins.settings().ignore == {"sdk": ("user", "metadata.x")}
    steplog.uninstall()
    assert on(found) == set()
    assert plugins.settings().also == plugins.settings().http == ()
    steplog.install(interceptors=[])
    assert on(found) == set()


def test_modes_add_up_and_what_was_said_last_counts_first(found):
    steplog.install(interceptors=[], modes={"sdk": {"POST /a": "safe", "POST /*": "unsafe"}})
    steplog.install(interceptors=[], modes={"sdk": {"POST /**": "safe", "POST /a": "unsafe"}, "http": {}})

    assert list(plugins.settings().modes["sdk"].items()) == [
        ("POST /**", "safe"),
        ("POST /a", "unsafe"),
        ("POST /*", "unsafe"),
    ]
    steplog.uninstall()
    assert plugins.settings().modes == {}


def test_the_environment_adds_too(found, monkeypatch):
    monkeypatch.setenv("STEPLOG_ALSO", "clock, ,")
    monkeypatch.setenv("STEPLOG_HTTP", "127.0.0.1:8000,[::1]:80, *.example.com")
    steplog.install(interceptors=[], also=["uuid"])

    assert on(found) == {"clock", "uuid", "http"}
    assert plugins.settings().http == ("127.0.0.1:8000", "[::1]:80", "*.example.com")


def test_naming_interceptors_does_not_keep_those_out_that_are_named_beside(found):
    steplog.install(interceptors=["sdk"], also=["clock"])
    assert on(found) == {"sdk", "clock"}


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"also": "clock"}, r"also is a list of names.*also=\["),
        ({"also": [None]}, "None is not a name"),
        ({"also": 3}, "list of names"),
        ({"also": ["clocks"]}, "no interceptor is named clocks. Found on this machine: clock, http, sdk, uuid"),
        ({"home": 5}, r"home is the path of a directory, not 5\. Write"),
        ({"home": b"runs"}, "home is the path"),
        ({"drift_grace": []}, "drift_grace is a number of seconds"),
        ({"store": "runs"}, "store is an object that keeps logs"),
        ({"interceptors": "openai"}, "interceptors is a list of names"),
        ({"interceptors": 5}, "interceptors is a list of names"),
        ({"http": "api.example.com"}, r"http is a list of names.*http=\["),
        ({"http": ["https://Api.Example.com/v1"]}, r'http=\["api.example.com"\]'),
        ({"http": [""]}, "'' is not a name"),
        ({"http": ["a b"]}, "names hosts"),
        ({"ignore": ["metadata"]}, "maps the name of an interceptor to paths"),
        ({"ignore": {"sdk": "metadata"}}, r"ignore\['sdk'\] is a list of names"),
        ({"ignore": {"sdkk": ["metadata"]}}, r"names sdkk.*no effect[^,]*, on this machine: sdk\.$"),
        ({"ignore": {"http": ["metadata"]}}, r"names http.*no effect[^,]*, on this machine: sdk\.$"),
        ({"interceptors": ["sdkk"]}, r"named sdkk.*\nCorrect the name, or"),
        ({"modes": ["POST /x"]}, "maps the name of an interceptor to modes"),
        ({"modes": {"sdk": "safe"}}, "maps the name of an interceptor to modes"),
        ({"modes": {"sdk": {"/v1/files": "safe"}}}, "'/v1/files' names no kind of request"),
        ({"modes": {"sdk": {3: "safe"}}}, "3 names no kind of request"),
        ({"modes": {"sdk": {"POST /v1/files": "keyed"}}}, "is 'keyed'; a request to a provider is either safe"),
        ({"modes": {"sdkk": {"POST /v1/files": "safe"}}}, r"names sdkk.*no effect[^,]*, on this machine: http, sdk\.$"),
        ({"modes": {"clock": {}}}, r"names clock.*no effect[^,]*, on this machine: http, sdk\.$"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(found, wrong, told):
    with pytest.raises(InvalidArgument, match=told):
        steplog.install(**wrong)
    assert on(found) == set()
    assert plugins.settings() == plugins.Settings()


def test_a_run_says_what_it_was_recorded_with(found, tmp_path, state_of):
    steplog.install(home=tmp_path / "home", interceptors=[], also=["clock"], http=["a.example"])
    with steplog.run("r"):
        pass
    created = state_of("r").created
    assert (created["also"], created["http"]) == (["clock"], ["a.example"])


def test_a_process_that_would_record_less_is_told_so(found, tmp_path, caplog):
    steplog.install(home=tmp_path / "home", interceptors=[], also=["clock", "uuid"])
    with pytest.raises(KeyboardInterrupt), steplog.run("r"):
        raise KeyboardInterrupt
    steplog.uninstall()
    steplog.install(home=tmp_path / "home", interceptors=[], also=["uuid"])
    with steplog.run("r"):
        pass
    assert "this process leaves out clock" in caplog.text
    assert "STEPLOG_ALSO=clock,uuid" in caplog.text
