"""The rules of the house, each of them a test: who may import whom, what is public, how large things may grow."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import steplog
from steplog import errors
from tests.support.processes import environment
from tests.support.recorded import ROOT

CORE = ROOT / "steplog_sdk/steplog"
INTERCEPTORS = ROOT / "interceptors/steplog_interceptors"
FILES = sorted([*CORE.rglob("*.py"), *INTERCEPTORS.rglob("*.py")])

FILE_LINES = 400
FUNCTION_LINES = 80

PUBLIC = [
    "UndoFailed",
    "undo",
    "Workflow",
    "workflow",
    "Budget",
    "BudgetExceeded",
    "NOT_HAPPENED",
    "UNKNOWN",
    "Cancelled",
    "Corrupt",
    "DriftDetected",
    "EncodeError",
    "Happened",
    "Indeterminate",
    "Interrupt",
    "InvalidArgument",
    "NotInRun",
    "Policy",
    "Replay",
    "Run",
    "RunBusy",
    "RunStopped",
    "Rule",
    "Secret",
    "Simulated",
    "StepDenied",
    "StepFailed",
    "StepRateLimited",
    "StepRejected",
    "SteplogError",
    "StoreError",
    "Suspended",
    "Unrecorded",
    "Unreplayable",
    "WaitTimeout",
    "__version__",
    "approve",
    "cancel",
    "current_run",
    "fork",
    "install",
    "register_codec",
    "reject",
    "replay",
    "run",
    "signal",
    "sleep",
    "sleep_async",
    "sleep_until",
    "sleep_until_async",
    "step",
    "uninstall",
]

# All that a pure room may stand on: it computes, and touches neither the machine nor the clock. `sys` is for looking up
# what the program has already imported, `importlib` for value classes of the standard library out of a fixed table.
PURE = {
    *("__future__", "abc", "base64", "binascii", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal"),
    *(
        "array",
        "contextlib",
        "enum",
        "functools",
        "hashlib",
        "heapq",
        "importlib",
        "itertools",
        "json",
        "math",
        "operator",
        "orjson",
        "re",
        "string",
    ),
    *("struct", "sys", "types", "typing", "unicodedata"),
}

# Reading the clock hides behind harmless modules.
CLOCKS = {"now", "utcnow", "today"}

HEAVY = {
    *("openai", "anthropic", "httpx", "httpx2", "pydantic", "asyncio", "sqlite3", "zstandard", "importlib.metadata"),
    *("click", "rich", "http.server", "steplog_interceptors"),
}


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def imports(file: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, wherever in it, with the line."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def test_the_files_are_found():
    assert len(FILES) > 40


def test_every_arrow_points_the_right_way():
    # In a process of its own: it configures logging, which would disable the loggers that other tests listen to.
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_an_interceptor_names_only_its_one_page():
    allowed = re.compile(r"steplog\.(plugins|errors)\b|steplog_interceptors\b|(?!steplog)")
    wrong = [f"{name_of(f)}:{n} {m}" for f in INTERCEPTORS.rglob("*.py") for m, n in imports(f) if not allowed.match(m)]

    assert wrong == []


def test_nobody_imports_the_folders_instead_of_the_packages():
    wrong = [
        f"{name_of(f)}:{n}" for f in FILES for m, n in imports(f) if m.startswith(("steplog_sdk", "interceptors."))
    ]

    assert wrong == []


def test_the_kernel_is_pure():
    wrong = [
        f"{name_of(file)}:{line} {module}"
        for file in (CORE / "_kernel").rglob("*.py")
        for module, line in imports(file)
        if module.partition(".")[0] not in PURE and not module.startswith(("steplog._kernel", "steplog.errors"))
    ]

    assert wrong == []


def test_the_kernel_reads_no_clock_opens_no_file_and_prints_nothing():
    wrong = [
        f"{name_of(file)}:{node.lineno}"
        for file in (CORE / "_kernel").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS)
            or (isinstance(node.func, ast.Name) and node.func.id in {"open", "print", "input", "__import__"})
        )
    ]

    assert wrong == []


def test_no_file_is_too_long():
    lengths = {name_of(file): len(file.read_text().splitlines()) for file in FILES}

    assert {name: length for name, length in lengths.items() if length > FILE_LINES} == {}


def test_no_function_is_too_long():
    functions = [
        (f"{name_of(file)}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for file in FILES
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]

    assert [function for function in functions if function[1] > FUNCTION_LINES] == []


def test_public_names_change_only_on_purpose():
    assert sorted(steplog.__all__) == sorted(PUBLIC)
    assert [name for name in PUBLIC if not hasattr(steplog, name)] == []


ERRORS = [
    kind
    for name, kind in vars(errors).items()
    if not name.startswith("_") and inspect.isclass(kind) and issubclass(kind, BaseException)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_is_documented_and_survives_pickling_with_its_facts(kind: type[BaseException]):
    facts = {"run_id": "r-1", "step": "s_1", "own_fact": [1, "two"]}
    error = pickle.loads(pickle.dumps(kind("what happened", **facts)))

    assert type(error) is kind
    assert str(error) == "what happened"
    assert vars(error) == facts
    assert inspect.getdoc(kind)
    assert kind.__doc__


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_belongs_to_exactly_one_tree(kind: type[BaseException]):
    assert issubclass(kind, errors.SteplogError) != issubclass(kind, errors.Interrupt)
    assert issubclass(kind, Exception) == issubclass(kind, errors.SteplogError)


def test_the_documented_attributes_of_an_error_exist():
    missing = [
        f"{kind.__name__}.{name}"
        for kind in ERRORS
        for name in re.findall(r"^ {4,8}(\w+): ", (kind.__doc__ or "").partition("Attributes:")[2], re.MULTILINE)
        if not hasattr(kind, name)
    ]

    assert missing == []


def python(code: str, cwd: Path) -> str:
    """Run code in a fresh interpreter whose first path entry is `cwd`, as `python script.py` there would have it."""
    code = f"import sys; sys.path.insert(0, {str(cwd)!r})\n{code}"
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(
        command, env=environment(), cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def loaded_by(code: str, cwd: Path) -> set[str]:
    """The modules that a fresh interpreter loads for some code."""
    return {*python(f"before = {{*sys.modules}}\n{code}\nprint(*{{*sys.modules}} - before)", cwd).split()}


def test_using_steplog_imports_nothing_heavy(tmp_path):
    loaded = loaded_by("import steplog\nfor name in steplog.__all__: getattr(steplog, name)", tmp_path)

    assert "steplog._runtime.recorder" in loaded
    assert HEAVY & loaded == set()


def test_importing_steplog_alone_imports_the_errors_and_little_else(tmp_path):
    own = {name for name in loaded_by("import steplog", tmp_path) if name.startswith("steplog")}

    assert own == {"steplog", "steplog._start", "steplog.errors"}
    assert not {"orjson", "logging", "inspect", "dataclasses"} & loaded_by("import steplog", tmp_path)


def test_a_relative_home_is_where_the_program_imported_steplog(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    code = """
import os, steplog
os.environ["STEPLOG_HOME"] = "logs"
os.chdir("elsewhere")
steplog.install(interceptors=[])
with steplog.run("r-1"): pass
"""
    python(code, tmp_path)

    assert (tmp_path / "logs/runs/r-1/events.jsonl").is_file()


def test_a_name_that_steplog_does_not_have_is_refused_and_those_that_it_has_are_listed():
    with pytest.raises(AttributeError, match="has no attribute 'instal'"):
        _ = steplog.instal
    assert {*PUBLIC} <= {*dir(steplog)}


@pytest.mark.parametrize("name", ["openai", "anthropic", "httpx", "httpx2"])
def test_a_file_of_the_user_that_is_named_like_an_sdk_breaks_nothing(name, tmp_path):
    (tmp_path / f"{name}.py").write_text("WHOSE = 'the user'\n")
    code = f"""
import steplog
steplog.install()
import {name}
with steplog.run("r-1"):
    print({name}.WHOSE, steplog.step("one", lambda: 1))
steplog.uninstall()
"""

    assert python(code, tmp_path).split() == ["the", "user", "1"]


def test_the_packages_are_marked_as_typed_and_alone_in_their_folders():
    for package in (CORE, INTERCEPTORS):
        assert (package / "py.typed").is_file()
        assert [p.name for p in package.parent.iterdir() if p.name not in {package.name, "__pycache__"}] == []
