"""What the documentation says is so: its programs run, the tests and events that it names exist."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from steplog import errors
from steplog._cli.main import cli
from steplog._kernel import events, fold
from steplog.testing import LocalProvider, Reply
from tests.support.processes import environment
from tests.support.recorded import ROOT

README = (ROOT / "README.md").read_text()
FORMAT = (ROOT / "docs/log-format.md").read_text()
GUIDE = (ROOT / "docs/guide.md").read_text()
GUARANTEES = (ROOT / "docs/guarantees.md").read_text()
FAULTS = (ROOT / "docs/faults.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def answer(hit) -> Reply:
    message = {"role": "assistant", "content": "4200"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": hit.json["model"],
        "choices": [choice],
    }
    return Reply.json(body)


def test_the_example_of_the_readme_runs_and_a_second_run_only_reads_the_log(tmp_path):
    (program,) = blocks(README, "python")
    (tmp_path / "agent.py").write_text(program)
    assert len([line for line in program.splitlines() if line.strip()]) <= 20
    with LocalProvider(handler=answer) as provider:
        variables = environment(OPENAI_BASE_URL=f"{provider.url}/v1", OPENAI_API_KEY="none")
        for expected in ("mail to ada@example.com\n", ""):
            done = subprocess.run(
                [sys.executable, "agent.py"], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
            )
            assert done.stdout == expected + '{"refund_id": "re_ord_1001", "cents": 4200}\n'
        assert len(provider.hits) == 1


AGENT = """
def agent(client):
    asked = {"model": "gpt-x", "messages": [{"role": "user", "content": "Are you done?"}]}
    return client.chat.completions.create(**asked).choices[0].message.content
"""

# Looks at what the tests of the guide have recorded, from outside: their own assertions are the guide's.
LOOK = """
import pytest
from steplog.testing import MemoryStore

stores = []
init = MemoryStore.__init__

def noted(self, *args, **kwargs):
    init(self, *args, **kwargs)
    stores.append(self)

MemoryStore.__init__ = noted

@pytest.fixture(autouse=True)
def recorded():
    yield
    events = [event for store in stores for event in store.read("test").events]
    kinds = [event.data["kind"] for event in events if event.type == "step.started"]
    stores.clear()
    assert kinds == ["llm_call"], kinds
"""


@pytest.mark.parametrize("name", ["test_agent.py", "test_stream.py"])
def test_the_tests_of_the_guide_run_and_record_a_model_call(name, tmp_path):
    files = {code.partition("\n")[0].removeprefix("# "): code for code in blocks(GUIDE, "python")}
    assert set(files) == {"test_agent.py", "test_stream.py"}
    for file, code in {**files, "my_agent.py": AGENT, "conftest.py": LOOK}.items():
        (tmp_path / file).write_text(code)

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", name]
    variables = environment(PYTHONPATH=f"{tmp_path}:{environment()['PYTHONPATH']}")
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "1 passed" in done.stdout


def test_the_commands_of_the_readme_exist():
    with_words = r"steplog ([\w-]+) (?:last|agent\.py|refund-|--bodies|run\.steplog|tests/)"
    named = set(re.findall(rf"{with_words}|steplog (ls|du|doctor|key|policy)\b", README))

    assert {name for pair in named for name in pair if name} == set(cli.commands)


@pytest.mark.parametrize("promise", [f"P{number}" for number in range(1, 12)])
def test_every_promise_names_tests_that_exist(promise):
    section = re.search(rf"^## {promise} .*?(?=^## |\Z)", GUARANTEES, re.MULTILINE | re.DOTALL)
    assert section
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section.group())
    assert named
    for file, test in named:
        assert test in functions_of(file), f"{file}::{test}"


def rows(table: str) -> list[list[str]]:
    """The cells of each row of a table, without its head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_fault_that_was_found_has_a_command_that_reproduces_it():
    table = FAULTS[FAULTS.index("| fault |") :].partition("\n\n")[0]
    found = rows(table)
    assert found
    for fault, how, command, where in found:
        assert fault
        assert how
        file, test = re.fullmatch(r"`pytest (?:-m nightly )?(tests/[\w/]+\.py)::(\w+)`", command).groups()
        node = functions_of(file)[test]
        marked = is_nightly(node)
        assert (where, "-m nightly" in command) == (("nightly", True) if marked else ("every run", False)), command


def test_every_accident_names_tests_that_run_when_it_says():
    for accident, must_hold, every_run, nightly in rows(FAULTS[FAULTS.index("| accident |") :]):
        assert accident
        assert must_hold
        assert "`tests/" in every_run
        for cell, wanted in ((every_run, False), (nightly, True)):
            for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cell):
                assert is_nightly(functions_of(file)[test]) == wanted, f"{file}::{test}"


def is_nightly(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return "pytest.mark.nightly" in {ast.unparse(decorator) for decorator in node.decorator_list}


def functions_of(file: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name: node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_every_target_of_make_is_in_its_help():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE).group(1).split()
    helped = set(re.findall(r"@echo 'make ([\w-]+)", makefile))

    assert {*targets} - {"help"} == helped - {"test-row-NAME"}


def test_every_interceptor_is_documented():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["steplog.interceptors"]
    table = (ROOT / "docs/effects.md").read_text().partition("\n\n    ")[0]
    documented = {
        name for line in table.splitlines() if line.startswith("| `") for name in re.findall(r"`([\w-]+)`", line)
    }

    assert set(points) - {"openai", "anthropic"} == documented & set(points)


def test_every_event_type_is_documented_and_folded():
    types = {
        value
        for name, value in vars(events).items()
        if isinstance(value, str) and re.fullmatch(r"(run|step|signal|wait|cancel|log)\.\w+", value)
    }
    documented = set(re.findall(r"^\| `(\w+\.\w+)`", FORMAT, re.MULTILINE))

    assert documented == types
    assert set(fold._TRANSITIONS) <= types


def test_every_reason_of_an_interrupt_is_in_its_list():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.Interrupt)]
    told = " ".join(errors.Interrupt.__doc__.split())
    listed = set(re.findall(r"`(\w+)`", re.search(r"reason: (.*?) run_id:", told)[1]))

    # A suspended run waits for an approval, or for a signal or a time.
    assert {kind.reason for kind in kinds if kind.reason} | {"waiting"} == listed


def test_the_one_liners_of_the_log_format_work(tmp_path):
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    program = (
        "import steplog\nsteplog.install(interceptors=[])\nwith steplog.run('r'): steplog.step('now', lambda: 2**70)"
    )
    variables = environment(STEPLOG_HOME=str(tmp_path / "home"))
    subprocess.run([sys.executable, "-c", program], env=variables, check=True)
    commands = re.findall(r"^    ((?:jq|grep) .*)$", FORMAT, re.MULTILINE)
    assert len(commands) == 2

    outputs = [
        subprocess.run(["sh", "-c", command], cwd=tmp_path / "home/runs/r", capture_output=True, text=True, check=True)
        for command in commands
    ]

    assert '"done"' in outputs[0].stdout
    assert outputs[1].stdout == "now\n"
