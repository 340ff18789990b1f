"""`steplog replay` with real scripts in real processes: recorded, killed, changed, cut off from everything."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run import NO_ID, OWN_ID, Shell
from tests.support.processes import hits, provider_process
from tests.support.recorded import OWN


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def replay(shell: Shell, run: str = "last", *words: str, **env: str) -> dict[str, Any]:
    done = shell("replay", run, *words, "--json", **env)
    facts = json.loads(done.stdout)
    assert done.returncode == (0 if facts.get("verdict") == "identical" else 1), done.stderr
    return facts


@pytest.mark.parametrize("script", [None, OWN_ID, NO_ID], ids=["wrapped", "own id", "no id"])
def test_a_run_is_started_again_and_does_nothing(script, shell):
    if script is None:
        assert shell("run", "agent.py", "tea").returncode == 0
    else:
        shell.script("agent.py", script)
        assert shell.execute([sys.executable, "agent.py", "tea"]).returncode == 0
    assert shell.effects.read_text() == "mail ada\n"
    logs = {path: path.read_bytes() for path in shell.home.rglob("events.jsonl")}

    done = shell("replay", "last")

    assert done.returncode == 0, done.stderr
    assert done.stdout == f"TEA sent to ada {shell.folder}\n"
    assert "replayed 2 of 2 steps" in done.stderr
    assert done.stderr.splitlines()[-1] == "steplog: identical"
    assert shell.effects.read_text() == "mail ada\n"
    assert {path: path.read_bytes() for path in shell.home.rglob("events.jsonl")} == logs


def test_a_killed_run_is_replayed_up_to_where_it_died(shell):
    assert shell("run", "agent.py", "tea", DIE="1").returncode == -signal.SIGKILL

    facts = replay(shell, DIE="1")

    assert (facts["verdict"], facts["replayed"], facts["live_calls"]) == ("identical", 1, 0)
    assert "in the middle of tool_call mail" in facts["note"]
    assert shell.effects.read_text() == "mail ada\n"


def test_changed_code_is_told_and_does_nothing(shell):
    assert shell("run", "agent.py", "tea").returncode == 0
    text = (shell.folder / "agent.py").read_text()
    shell.script("agent.py", text.replace('mail("ada")', 'mail("bob")'))

    done = shell("replay", "last")

    assert done.returncode == 1
    assert "the code has changed since the run began" in done.stderr
    assert "steplog: different" in done.stderr
    assert "The code has changed: sha256:" in done.stderr
    assert "agent.py:22 in main" in done.stderr
    assert "- ada" in done.stderr
    assert "+ bob" in done.stderr
    assert shell.effects.read_text() == "mail ada\n"


def test_a_harmless_change_of_the_code_is_identical(shell):
    assert shell("run", "agent.py", "tea").returncode == 0
    text = (shell.folder / "agent.py").read_text()
    shell.script("agent.py", text + "\nprint('and more')\n")

    assert replay(shell)["verdict"] == "identical"


def test_a_failed_run_replays_to_its_failure(shell):
    shell.script("agent.py", (shell.folder / "agent.py").read_text() + "\nraise ValueError('no tea')\n")
    assert shell("run", "agent.py", "tea").returncode == 1

    done = shell("replay", "last")

    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    shell.script("agent.py", (shell.folder / "agent.py").read_text().replace("no tea", "no milk"))
    done = shell("replay", "last")
    assert done.returncode == 1
    assert "ValueError: no tea" in done.stderr
    assert "ValueError: no milk" in done.stderr


def test_another_program_takes_the_place_of_the_recorded_one(shell):
    assert shell("run", "agent.py", "tea").returncode == 0
    (shell.folder / "agent.py").rename(shell.folder / "moved.py")

    assert shell("replay", "last").returncode == 1
    assert replay(shell, "last", "moved.py")["verdict"] == "identical"
    assert replay(shell, "last", "moved.py", "coffee")["verdict"] == "different"


def test_an_imported_run_is_replayed(shell, tmp_path):
    assert shell("run", "--id", "r", "agent.py", "tea").returncode == 0
    assert shell("export", "r", "-o", "r.steplog").returncode == 0, shell("export", "--help").stdout
    other = {"STEPLOG_HOME": str(tmp_path / "elsewhere")}
    assert shell("import", "r.steplog", **other).returncode == 0

    assert replay(shell, "r", **other)["verdict"] == "identical"


CHILD = """
import subprocess, sys
{before}
words = {words}
print("child", subprocess.run(words, capture_output=True, text=True{more}))
"""


@pytest.mark.parametrize(
    "words, more, told",
    [
        pytest.param('["echo", "x"]', "", "only a python child", id="another program"),
        pytest.param("'echo x'", ", shell=True", "only a python child", id="a shell"),
        pytest.param('[sys.executable, "-I", "-c", "1"]', "", "ignore its environment", id="an isolated python"),
        pytest.param(
            '[sys.executable, "-c", "1"]', ", env={'A': 'b'}", "its environment lacks", id="a bare environment"
        ),
    ],
)
def test_a_child_that_would_not_be_guarded_is_refused(words, more, told, shell):
    agent = (shell.folder / "agent.py").read_text()
    shell.script("agent.py", CHILD.format(before="", words=words, more=more) + agent)
    assert shell("run", "agent.py", "tea").returncode == 0

    facts = replay(shell)

    assert facts["divergence"]["kind"] == "unrecorded"
    assert told in facts["divergence"]["message"]
    if "echo" in words and not more:
        assert replay(shell, "last", "--allow", "echo")["verdict"] == "identical"


REACH = {
    "a socket": "import socket; socket.create_connection(('{host}', {port}), 2); print('REACHED')",
    "an SDK": (
        "import steplog; steplog.install(); import openai; "
        "openai.OpenAI(api_key='k', base_url='http://{host}:{port}/v1', max_retries=0)"
        ".embeddings.create(model='m', input='x'); print('REACHED')"
    ),
    "a tool": "import steplog; steplog.step(print)('REACHED')",
    "a run of its own": "import steplog\nwith steplog.run('unknown'): steplog.step(print)('REACHED')",
    "a grandchild": (
        "import subprocess, sys; print(subprocess.run([sys.executable, '-c', "
        "\"import socket; socket.create_connection(('192.0.2.1', 9), 2); print('REACHED')\"]"
        ", capture_output=True, text=True))"
    ),
    "another machine": "import socket; socket.create_connection(('192.0.2.1', 9), 2); print('REACHED')",
}


@pytest.mark.parametrize("how", REACH)
def test_a_python_child_is_under_the_same_guard(how, shell):
    with provider_process(shell.folder, OWN / "openai") as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reach = REACH[how].format(host=host, port=port)
        if how == "a socket":
            reach = "import steplog\nwith steplog.run('own'):\n    " + reach
        child = CHILD.format(before=f"reach = {reach!r}", words='[sys.executable, "-c", reach]', more="")
        shell.script("agent.py", child + (shell.folder / "agent.py").read_text())
        shell("run", "--id", "r", "agent.py", "tea")
        before = len(hits(shell.folder))

        done = shell("replay", "r")

        assert "child CompletedProcess" in done.stdout, done.stderr
        assert "'REACHED\\n'" not in done.stdout
        assert "REACHED\\n" not in done.stdout.replace("print(\\'REACHED\\')", "")
        assert len(hits(shell.folder)) == before


def test_what_runs_at_the_exit_is_refused_too(shell):
    text = "import atexit\n" + (shell.folder / "agent.py").read_text() + "\natexit.register(mail, 'late')\n"
    shell.script("agent.py", text)
    assert shell("run", "agent.py", "tea").returncode == 0
    before = shell.effects.read_text()

    shell("replay", "last")

    assert shell.effects.read_text() == before


DESK = """
import sys, threading, json
from concurrent.futures import ThreadPoolExecutor
import openai, anthropic, steplog
sys.path.insert(0, {root!r})
from tests.support.agents import refund_agent, restock_agent
from tests.cli.replay_tools import tools

url = sys.argv[1]
def refund(): return refund_agent(openai.OpenAI(base_url=url + "/v1"), tools)
def restock(): return restock_agent(anthropic.Anthropic(base_url=url), tools)
with ThreadPoolExecutor(2) as pool:
    print([future.result() for future in [pool.submit(refund), pool.submit(restock)]])
"""


def test_real_sdks_with_the_provider_gone_and_no_keys(shell):
    from tests.support.recorded import ROOT

    shell.script("desk.py", DESK.format(root=str(ROOT)))
    with provider_process(shell.folder, OWN / "openai", OWN / "anthropic") as url:
        keys = {"OPENAI_API_KEY": "sk-one", "ANTHROPIC_API_KEY": "sk-ant-two"}
        done = shell("run", "desk.py", url, **keys)
        assert done.returncode == 0, done.stderr
        sent = len(hits(shell.folder))
    effects = shell.effects.read_text()
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        shell.env.pop(name, None)

    again = shell("replay", "last")

    assert again.returncode == 0, again.stderr
    assert (again.stdout, "identical" in again.stderr) == (done.stdout, True)
    assert len(hits(shell.folder)) == sent
    assert shell.effects.read_text() == effects


def test_a_provider_that_is_still_there_is_not_asked(shell):
    from tests.support.recorded import ROOT

    shell.script("desk.py", DESK.format(root=str(ROOT)))
    with provider_process(shell.folder, OWN / "openai", OWN / "anthropic") as url:
        keys = {"OPENAI_API_KEY": "sk-one", "ANTHROPIC_API_KEY": "sk-ant-two"}
        assert shell("run", "desk.py", url, **keys).returncode == 0
        more = "\nopenai.OpenAI(base_url=url + '/v1').embeddings.create(model='m', input='new')\n"
        shell.script("desk.py", DESK.format(root=str(ROOT)) + more)
        sent = len(hits(shell.folder))

        facts = replay(shell, **keys)

        assert facts["divergence"]["kind"] == "unrecorded"
        assert len(hits(shell.folder)) == sent


def test_a_program_that_leaves_without_an_end_gets_no_exit_code_of_an_identical_replay(shell):
    shell.script(
        "leaves.py",
        """
import os, steplog
with steplog.run("r"):
    steplog.step("now", lambda: 1)
    if os.environ.get("LEAVE"):
        os._exit(0)
""",
    )
    assert shell.execute([sys.executable, "leaves.py"]).returncode == 0
    assert shell("replay", "r").returncode == 0

    done = shell("replay", "r", LEAVE="1")

    assert done.returncode == 1
    assert "os._exit(0), so there is no verdict on run r" in done.stderr


C_CLIENT = """
import ctypes, os, socket, struct
if os.environ.get("REACH"):
    libc = ctypes.CDLL(None)
    name = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 443) + socket.inet_aton("192.0.2.1") + bytes(8)
    print("C", libc.connect(libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0), name, len(name)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a guard of Linux")
def test_a_connection_of_code_in_c_is_refused_and_told(shell):
    shell.script("agent.py", C_CLIENT + (shell.folder / "agent.py").read_text())
    assert shell("run", "agent.py", "tea").returncode == 0

    facts = replay(shell, "last", REACH="1")

    if facts["guard"] != "kernel":
        pytest.skip("this kernel, or the container around it, has no user notification")
    assert facts["refused"] == ["connection to 192.0.2.1:443"]
    assert facts["divergence"]["kind"] == "unrecorded"
    assert replay(shell, "last", "--ignore", "192.0.2.1", REACH="1")["verdict"] == "identical"
