"""The range of SDK releases that steplog says it supports is the range that its tests run with."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest

from steplog_interceptors import anthropic, openai
from steplog_interceptors._install import unsupported
from tests.interceptors.support import http_of
from tests.support.recorded import ROOT

SDKS = {"openai": openai.SDK, "anthropic": anthropic.SDK}
each_sdk = pytest.mark.parametrize("name", SDKS)


def pinned(constraints: str, name: str) -> tuple[int, ...]:
    """The version of a package that a row of the matrix is tested with."""
    found = re.search(rf"^{name}==([\d.]+)$", (ROOT / constraints).read_text(), re.MULTILINE)
    assert found is not None
    return numbers(found[1])


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@each_sdk
def test_the_oldest_row_is_the_lowest_supported_release(name):
    assert pinned("constraints/oldest.txt", name) == SDKS[name].minimum


@each_sdk
def test_the_newest_row_is_the_highest_known_major(name):
    assert pinned("constraints.txt", name)[0] == SDKS[name].newest


@each_sdk
def test_the_extra_asks_for_the_lowest_supported_release(name):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    lowest = ".".join(map(str, SDKS[name].minimum)).removesuffix(".0")
    assert extras[name] == [f"{name}>={lowest}"]


@each_sdk
def test_the_docs_name_the_range(name):
    sdk = SDKS[name]
    lowest = ".".join(map(str, sdk.minimum))
    assert f"{name} {lowest} to {sdk.newest}.x" in (ROOT / "docs/sdk-versions.md").read_text()
    assert f"{name} {lowest} to {sdk.newest}.x" in (ROOT / "README.md").read_text()


def test_every_row_is_of_another_pair():
    rows = [*ROOT.glob("constraints/*.txt"), ROOT / "constraints.txt"]
    pairs = {(pinned(str(row), "openai"), pinned(str(row), "anthropic")) for row in rows}
    assert len(pairs) == len(rows) >= 4


def test_this_environment_is_one_of_the_rows():
    names = ["constraints.txt", *(str(row.relative_to(ROOT)) for row in ROOT.glob("constraints/*.txt"))]
    here = [numbers(importlib.metadata.version(name)) for name in SDKS]
    if all(here[i] > pinned("constraints.txt", name) for i, name in enumerate(SDKS)):
        pytest.skip("SDKs that are newer than any row")
    assert here in [[pinned(row, name) for name in SDKS] for row in names]


@each_sdk
def test_a_supported_release_is_not_remarked_upon(name):
    sdk = SDKS[name]
    assert unsupported(sdk, ".".join(map(str, sdk.minimum))) is None
    assert unsupported(sdk, f"{sdk.newest}.99.0b1") is None
    assert unsupported(sdk, importlib.metadata.version(name)) is None


@each_sdk
@pytest.mark.parametrize("version", ["0.1.0", ""])
def test_an_older_release_is_named_with_what_to_do(name, version):
    said = unsupported(SDKS[name], version) or ""
    assert f"pip install -U '{name}>=" in said
    assert "older" in said
    assert version in said


@each_sdk
def test_the_release_just_below_the_range_is_outside_it(name):
    major, minor, *_ = SDKS[name].minimum
    assert "older" in (unsupported(SDKS[name], f"{major}.{minor - 1}.99") or "")


@each_sdk
def test_a_newer_major_is_named_with_what_to_do(name):
    sdk = SDKS[name]
    assert sdk.newest is not None
    said = unsupported(sdk, f"{sdk.newest + 1}.0.0") or ""
    assert "newer than this release of steplog knows" in said
    assert "pip install -U steplog" in said
    assert f"'{name}<{sdk.newest + 1}'" in said


def test_an_sdk_without_a_known_newest_major_is_never_too_new():
    from steplog_interceptors._sdk import UNKNOWN

    assert unsupported(UNKNOWN, "99.0") is None


def test_the_http_library_of_this_row_is_the_one_it_stands_for():
    import openai as sdk

    assert http_of(sdk).__name__ == ("httpx2" if numbers(importlib.metadata.version("openai")) >= (3,) else "httpx")
