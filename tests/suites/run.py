"""Run the SDKs' own tests with steplog installed, and say which end otherwise than without it.

    python -m tests.suites.run SUITES_PYTHON FOLDER [openai|anthropic] [TESTS...]

The source of the release that is installed for SUITES_PYTHON is fetched into FOLDER; nothing of it is kept elsewhere.
Its tests run three times: without steplog, with it, and with it and a run of its own for each test. A test that passes
without steplog has to pass with it, or be in KNOWN. What needs the vendors' mock server (`tests/api_resources`) is left
out: the same methods are called by tests/interceptors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from fnmatch import fnmatch
from pathlib import Path

PLUGINS = Path(__file__).parent
MODES = ("without", "installed", "inside")
SDKS = ("openai", "anthropic")

# (SDK, node id, mode, why). `*` matches anything.
KNOWN: list[tuple[str, str, str, str]] = [
    (
        *("*", "*::test_binary_content_upload_with_iterator", "inside"),
        "a body that an iterator gives is read before it is sent: the step's identity is what the request says",
    ),
    (
        *("openai", "*::test_body_replay_fixture?body.non-replayable-stream-*", "inside"),
        "for the same reason such a body can be sent again, so the SDK does not have to refuse to",
    ),
]


def source(python: str, sdk: str, folder: Path) -> Path:
    """The unpacked source of an SDK's installed release."""
    code = f"import importlib.metadata as m; print(m.version({sdk!r}))"
    version = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    unpacked = folder / f"{sdk}-{version}"
    if not unpacked.is_dir():
        fetch = [python, "-m", "pip", "download", "--quiet", "--no-binary", ":all:", "--no-deps", "-d", str(folder)]
        subprocess.run([*fetch, f"{sdk}=={version}"], check=True)
        with tarfile.open(folder / f"{sdk}-{version}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return unpacked


def outcomes(python: str, sdk: str, root: Path, mode: str, tests: list[str]) -> dict[str, str]:
    """How each test ends in a mode."""
    report = root.parent / f"{root.name}-{mode}.tsv"
    report.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "STEPLOG_SUITE_MODE": mode,
        "STEPLOG_SUITE_HOME": str(root.parent / f"{root.name}-{mode}-home"),
        "STEPLOG_SUITE_REPORT": str(report),
        "PYTHONPATH": str(PLUGINS),
    }
    options = ["-n", "2", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-p", "plugin", "--tb=short"]
    if (root / "tests/_alias_httpx.py").exists():
        options += ["-p", "tests._alias_httpx"]
    command = [python, "-m", "pytest", *options, *tests, "--ignore=tests/api_resources"]
    with (root.parent / f"{root.name}-{mode}.log").open("w") as log:
        done = subprocess.run(command, check=False, cwd=root, env=environment, stdout=log, stderr=subprocess.STDOUT)
    # 1 says that some tests fail, which they do without steplog too; 2 that files of tests cannot be imported as well.
    if done.returncode > 2 or not report.exists() or "INTERNALERROR" in Path(log.name).read_text():
        sys.exit(f"{sdk}, {mode}: the suite did not come to its end (exit status {done.returncode}); see {log.name}")
    lines = report.read_text().removesuffix("\n").split("\n")
    return {node: outcome for outcome, _, node in (line.partition("\t") for line in lines)}


def differences(without: dict[str, str], with_steplog: dict[str, str]) -> list[str]:
    """The tests that pass without steplog and not with it."""
    passed = [node for node, outcome in without.items() if outcome == "passed"]
    return sorted(node for node in passed if with_steplog.get(node) != "passed")


def why(sdk: str, node: str, mode: str) -> str | None:
    """The reason of a difference that is known."""
    found = (reason for s, n, m, reason in KNOWN if fnmatch(sdk, s) and fnmatch(node, n) and fnmatch(mode, m))
    return next(found, None)


def main(python: str, folder: str, *rest: str) -> int:
    """Compare, print, and return the number of differences that nobody has named."""
    sdks = [name for name in rest if name in SDKS] or list(SDKS)
    tests = [name for name in rest if name not in SDKS] or ["tests"]
    Path(folder).mkdir(parents=True, exist_ok=True)
    unknown = 0
    for sdk in sdks:
        root = source(python, sdk, Path(folder).resolve())
        ended = {mode: outcomes(python, sdk, root, mode, tests) for mode in MODES}
        passed = {mode: sum(outcome == "passed" for outcome in ended[mode].values()) for mode in MODES}
        if not passed["without"]:
            print(f"{root.name}: no test passes without steplog; see {root.parent}/{root.name}-without.log")
            unknown += 1
        for mode in MODES[1:]:
            for node in differences(ended["without"], ended[mode]):
                reason = why(sdk, node, mode)
                unknown += reason is None
                print(f"{root.name} {mode}: {node}: {reason or 'UNKNOWN'}")
        print(f"{root.name}: passed {passed}")
    return unknown


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), 1))
