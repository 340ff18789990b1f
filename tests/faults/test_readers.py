"""What other tools read in a log: one JSON document a line, whatever a value holds."""

from __future__ import annotations

import ast
import json
import mmap
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

import steplog
from steplog.stores.files import FileStore

HARD = {
    "numbers": [2**53 - 1, -(2**53) + 1, 2**53 + 1, 2**64, 10**400, 0.1, 1e-308, -0.0, 5e-324],
    "not numbers": [float("nan"), float("inf"), float("-inf")],
    "line ends": "a\nb\r\nc\rd\x0be\x0cf\x1cg\x1dh\x1ei\x85j\u2028k\u2029l",
    "surrogates": "\ud800 \udfff",
    "controls": "".join(map(chr, range(32))) + "\x7f\ufeff",
    "keys": {1: "one", None: "none", (1, 2): "pair", "$steplog": "ours"},
    "bytes": bytes(range(256)),
    "text": "ü€𝄞e\u0301",
}


@pytest.fixture
def log(tmp_path):
    steplog.install(home=tmp_path, interceptors=())
    with steplog.run("r"):
        for name, value in HARD.items():
            steplog.step(name, lambda value=value: value)
    steplog.uninstall()
    return Path(FileStore(tmp_path).path_of("r"))


def events(log):
    return FileStore(log.parents[2]).read("r").events


def test_jq_reads_every_line_and_changes_no_number(log):
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    done = subprocess.run(["jq", "-c", ".", log], capture_output=True, check=True)
    lines = done.stdout.split(b"\n")[:-1]
    assert len(lines) == len(events(log))
    for line, event in zip(lines, events(log), strict=True):
        assert numbers(orjson.loads(line)["data"]) == numbers(event.data)


def numbers(tree):
    if isinstance(tree, dict):
        return {key: numbers(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [numbers(item) for item in tree]
    # A reader in JavaScript or jq holds every number as a float.
    return float(tree) if isinstance(tree, int | float) and not isinstance(tree, bool) else tree


def test_grep_finds_every_event_by_its_number(log):
    for event in events(log):
        command = ["grep", "-c", f'^{{"seq":{event.seq},', log]
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"1\n"


def test_the_standard_librarys_parser_reads_what_orjson_reads(log):
    for line in log.read_bytes().split(b"\n")[:-1]:
        assert json.loads(line.decode("utf-8")) == orjson.loads(line)


def test_lines_end_at_a_newline_and_nowhere_else(log):
    """Every way that splits at 0x0A agrees; the ways that know other line ends find more lines than there are."""
    data, count = log.read_bytes(), len(events(log))
    assert data.count(b"\n") == count
    with log.open("rb") as file:
        assert len(list(file)) == count
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert len(list(iter(mapped.readline, b""))) == count
    with log.open(encoding="utf-8", newline="\n") as file:
        assert len(list(file)) == count
    assert not any(byte < 32 and byte != 10 for byte in data), "a control character is written as an escape"
    assert len(data.decode().splitlines()) > count


def test_no_line_of_a_log_is_split_by_a_function_that_knows_other_line_ends():
    """`splitlines` is for texts that are no logs; each use of it is known."""
    known = {"stores/place.py"}
    root = Path(steplog.__path__[0])
    for folder in ("_kernel", "stores"):
        for file in (root / folder).glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute) and node.attr == "splitlines":
                    assert str(file.relative_to(root)) in known, f"{file.name}:{node.lineno}"
