"""`steplog run` and `steplog resume` with real scripts in real processes, killed where it hurts."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

AGENT = """\
import os, signal, sys
import steplog

def note(text):
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(text + "\\n")

@steplog.step(mode="safe")
def look(order):
    return order.upper()

@steplog.step
def mail(to):
    note("mail " + to)
    if os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "sent to " + to

def main():
    found = look(sys.argv[1])
    try:
        print(found, mail("ada"), os.getcwd())
    except steplog.StepFailed as failed:
        print(found, "not sent:", failed)
"""
RECORDED = AGENT + "\nmain()\n"
OWN_ID = AGENT + '\nsteplog.install()\nwith steplog.run("own"):\n    main()\n'
NO_ID = AGENT + "\nsteplog.install()\nwith steplog.run():\n    main()\n"

STEPLOG = [sys.executable, "-m", "steplog"]


class Shell:
    """A directory with a home, a script and a file of effects, and a way to run commands there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.effects = folder / "effects"
        self.script("agent.py", RECORDED)
        self.env = {**os.environ, "STEPLOG_HOME": str(self.home), "EFFECTS": str(self.effects), "NO_COLOR": "1"}
        for name in ("STEPLOG_RUN_ID", "FORCE_COLOR"):
            self.env.pop(name, None)

    def script(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def __call__(self, *words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return self.execute([*STEPLOG, *words], cwd=cwd, **env)

    def execute(self, words: list[str], cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=cwd or self.folder,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def line(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command line that was printed for people."""
        name, *words = shlex.split(command)
        assert name == "steplog"
        return self(*words)

    def facts(self, run: str = "last") -> dict:
        return json.loads(self("show", run, "--json").stdout)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.splitlines()[-1]


def test_a_script_runs_as_python_would_run_it(shell):
    shell.script("see.py", "import sys\nprint(sys.argv, __name__, __file__, sys.path[0], __doc__)\n")
    words = ["see.py", "a b", "--json", "--id", "-x", "--", "last"]
    assert shell("run", *words).stdout == shell.execute([sys.executable, *words]).stdout


def test_a_module_runs_as_python_would_run_it(shell):
    package = shell.folder / "shop"
    package.mkdir()
    text = "import sys\nprint(sys.argv, __name__, __package__, sys.path[0])\n"
    for name in ("__init__.py", "agent.py", "__main__.py"):
        (package / name).write_text("" if name == "__init__.py" else text)
    for module in ("shop.agent", "shop"):
        words = ["-m", module, "a", "--json"]
        assert shell("run", *words).stdout == shell.execute([sys.executable, *words]).stdout
    assert shell.facts()["entry"]["module"] == "shop.__main__"


def test_what_was_run_is_recorded(shell):
    assert shell("run", "--id", "r", "--goal", "sell tea", "agent.py", "x y").returncode == 0
    facts = shell.facts("r")
    assert facts["status"] == "completed"
    assert facts["goal"] == "sell tea"
    assert facts["workflow"] == "agent"
    assert facts["version"].startswith(("sha256:", "git:"))
    entry = facts["entry"]
    assert (entry["script"], entry["argv"], entry["cwd"]) == (
        str(shell.folder / "agent.py"), ["x y"], str(shell.folder)
    )  # fmt: skip


def test_a_new_run_gets_an_id_and_says_it(shell):
    done = shell("run", "agent.py", "x")
    run_id = shell.facts()["run"]
    assert done.stderr.splitlines()[0] == f"steplog: run {run_id}"
    assert len(run_id) == 26


@pytest.mark.parametrize(
    "line, code, status",
    [
        ("sys.exit()", 0, "completed"),
        ("sys.exit(0)", 0, "completed"),
        ("sys.exit(3)", 3, "failed"),
        ("sys.exit('no tea')", 1, "failed"),
        ("raise ValueError('no tea')", 1, "failed"),
    ],
)
def test_the_exit_code_is_the_scripts_own(shell, line, code, status):
    shell.script("leave.py", f"import sys\n{line}\n")
    done = shell("run", "leave.py")
    facts = shell.facts()
    assert (done.returncode, facts["status"]) == (code, status)
    assert ("no tea" in done.stderr) == ("no tea" in line)
    assert (last_line(done) == f"steplog resume {facts['run']}") == (status == "failed")


FAILS_TWICE = """\
def inner():
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise ValueError("no") from error

inner()
"""


def test_a_traceback_is_the_one_that_python_prints(shell):
    shell.script("fail.py", FAILS_TWICE)
    expected = shell.execute([sys.executable, "fail.py"]).stderr
    assert "ZeroDivisionError" in expected
    assert expected in shell("run", "fail.py").stderr


FAILS_IN_A_STEP = """\
import steplog

@steplog.step
def tool():
    raise ValueError("no")

try:
    tool()
except ValueError as error:
    raise KeyError("none") from error
"""


def test_a_traceback_through_a_step_leaves_our_frames_out(shell):
    script = shell.script("fail.py", FAILS_IN_A_STEP)
    done = shell("run", "fail.py")
    frames = [line.split(", ", 1) for line in done.stderr.splitlines() if line.startswith("  File")]
    assert frames == [
        [f'  File "{script}"', "line 8, in <module>"],
        [f'  File "{script}"', "line 5, in tool"],
        [f'  File "{script}"', "line 10, in <module>"],
    ]


def test_a_failed_run_goes_on_with_the_printed_command(shell):
    text = "import os, steplog\n@steplog.step\ndef tool():\n    return 1 / int(os.environ['N'])\nprint(tool())\n"
    shell.script("fail.py", text)
    failed = shell("run", "fail.py", N="0")
    shell.env["N"] = "2"
    done = shell.line(last_line(failed))
    assert (done.returncode, done.stdout) == (0, "0.5\n")


@pytest.mark.parametrize(
    "verdict, answer, mails",
    [
        (["--done", '"sent, says the log of the mail server"'], "sent, says the log of the mail server", 1),
        (["--retry"], "sent to ada", 2),
        (["--failed", "the address is gone"], "not sent: the address is gone", 1),
    ],
    ids=["done", "retry", "failed"],
)
def test_a_tool_that_was_killed_is_settled_and_the_run_goes_on(shell, verdict, answer, mails):
    assert shell("run", "--id", "r", "agent.py", "ord_1", DIE="1").returncode == -signal.SIGKILL
    assert shell.facts("r")["status"] == "interrupted"
    stopped = shell("resume", "r")
    assert stopped.returncode == 75
    words = shlex.split(last_line(stopped))
    assert words[:3] == ["steplog", "resolve", "r"]
    settled = shell("resolve", "r", words[3], *verdict, "--by", "ada", "--json")
    assert json.loads(settled.stdout)["by"] == "ada"
    done = shell.line(json.loads(settled.stdout)["next"])
    assert done.returncode == 0
    assert done.stdout.startswith(f"ORD_1 {answer}")
    assert shell.effects.read_text().splitlines() == ["mail ada"] * mails


def test_a_step_that_is_not_in_doubt_is_not_settled(shell):
    shell("run", "--id", "r", "agent.py", "x")
    before = (shell.home / "runs/r/events.jsonl").read_bytes()
    step = shell.facts("r")["tree"][1]["step"]
    refused = shell("resolve", "r", step, "--retry")
    assert refused.returncode == 2
    assert "done" in refused.stderr
    assert (shell.home / "runs/r/events.jsonl").read_bytes() == before


def test_resume_works_from_any_directory(shell, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shell("run", "--id", "r", "agent.py", "ord_1")
    done = shell("resume", "r", cwd=elsewhere)
    assert done.stdout == f"ORD_1 sent to ada {shell.folder}\n"
    assert "2 steps returned from the log, 0 steps executed" in done.stderr
    assert "has ended (completed)" in done.stderr
    assert shell.effects.read_text() == "mail ada\n"


def test_resume_says_when_the_code_has_changed(shell):
    shell("run", "--id", "r", "agent.py", "x")
    assert "code has changed" not in shell("resume", "r").stderr
    shell.script("agent.py", RECORDED + "# changed\n")
    assert "the code has changed since the run began: sha256:" in shell("resume", "r").stderr


@pytest.mark.parametrize("program", [OWN_ID, NO_ID], ids=["its own id", "no id"])
def test_a_program_that_opens_its_run_itself_is_resumed(shell, program, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shell.script("own.py", program)
    assert shell.execute([sys.executable, "own.py", "ord_1"], DIE="1").returncode == -signal.SIGKILL
    facts = shell.facts()
    stopped = shell("resume", facts["run"])
    assert stopped.returncode == 75
    words = shlex.split(last_line(stopped))
    assert words[:3] == ["steplog", "resolve", facts["run"]]
    shell("resolve", "last", words[3], "--done", '"found"')
    done = shell("resume", "last", "--json", cwd=elsewhere)
    assert done.stdout.startswith(f"ORD_1 found {shell.folder}\n")
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert (outcome["run"], outcome["status"], outcome["exit_code"]) == (facts["run"], "completed", 0)
    assert len(list((shell.home / "runs").iterdir())) == 1


def test_the_outcome_as_json_is_the_last_line_of_stdout(shell):
    shell("run", "--id", "r", "agent.py", "x", DIE="1")
    stopped = shell("resume", "r", "--json")
    outcome = json.loads(stopped.stdout.splitlines()[-1])
    assert (outcome["status"], outcome["reason"], outcome["exit_code"]) == ("suspended", "indeterminate", 75)
    assert outcome["next"] == last_line(stopped)


def test_a_home_that_was_named_is_named_in_the_command(shell):
    shell.script("leave.py", "raise SystemExit(3)")
    done = shell("run", "--home", "my home", "--id", "r", "leave.py")
    assert last_line(done) == "steplog resume r --home 'my home'"
    assert shell.line(last_line(done)).returncode == 3


def test_every_command_of_a_stop_names_the_home_that_was_named(shell):
    shell("run", "--home", "here", "--id", "r", "agent.py", "x", DIE="1")
    for words in (("resume", "r"), ("run", "--id", "r")):
        script = ("agent.py", "x") if words[0] == "run" else ()
        stopped = shell(*words, "--home", "here", *script)
        commands = [line for line in stopped.stderr.splitlines() if line.strip().startswith("steplog resolve r s_")]
        assert len(commands) == 5
        assert all(f" --home {shell.folder / 'here'}" in line for line in commands[:4])
    (shell.folder / "here").rename(shell.folder / "there")
    shown = json.loads(shell("show", "r", "--home", "there", "--json").stdout)
    assert all(line.endswith(" --home there") for line in shown["next"]), "where it is now"
    assert "steplog show r --home there" in shell("show", "r", "s_none", "--home", "there").stderr
    assert "steplog ls --home there" in shell("show", "none", "--home", "there").stderr
    by_path = json.loads(shell("show", "there/runs/r", "--json").stdout)
    assert all(line.endswith("/there") for line in by_path["next"])


def test_a_script_that_changes_its_directory_keeps_its_log(shell):
    shell.script("move.py", "import os, steplog\nos.chdir('/')\nprint(steplog.step('now', lambda: 1))\n")
    done = shell("run", "--home", "here", "--id", "r", "--json", "move.py")
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "completed"
    assert json.loads(shell("show", "r", "--home", "here", "--json").stdout)["steps"]["done"] == 1


@pytest.fixture
def waiting(shell: Shell) -> Callable[[], subprocess.Popen[str]]:
    """A run that is held by a live process, which waits for its end."""
    shell.script("wait.py", "import sys, time\nprint('here', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [*STEPLOG, "run", "--id", "r", "wait.py"], cwd=shell.folder, env=shell.env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == "here\n"
    yield process
    process.kill()
    process.communicate()


def test_a_run_that_is_held_is_busy(shell, waiting):
    assert shell.facts("r")["status"] == "running"
    assert shell.facts("r")["holder"]["pid"] == waiting.pid
    for words in (["run", "--id", "r", "agent.py", "x"], ["resume", "r"]):
        refused = shell(*words)
        assert refused.returncode == 1
        assert f"process {waiting.pid}" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_an_interrupted_run_can_be_resumed(shell, waiting):
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=30)
    assert waiting.returncode == 130
    assert "KeyboardInterrupt" in err
    assert err.splitlines()[-1] == "steplog resume r"
    assert shell.facts("r")["reason"] == "interrupted"


@pytest.mark.parametrize("verb", ["run", "resume", "ls", "show", "resolve", "verify"])
def test_every_verb_explains_itself(shell, verb):
    done = shell(verb, "--help")
    assert done.returncode == 0
    assert f"steplog {verb}" in done.stdout
    assert "--json" in done.stdout


def test_help_loads_nothing_heavy(shell):
    code = (
        "import sys\nsys.argv = ['steplog', '--help']\nfrom steplog._cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'rich', 'sqlite3', 'asyncio', 'openai', 'zstandard'} & set(sys.modules)), file=sys.stderr)"
    )
    assert last_line(shell.execute([sys.executable, "-c", code])) == "[]"


def test_a_program_that_has_changed_what_it_does_stops_and_says_how_to_go_on(shell):
    shell("run", "--id", "r", "agent.py", "x", DIE="1")
    shell.script("agent.py", RECORDED.replace("look(sys.argv[1])", "look('something else')"))
    stopped = shell("resume", "r")
    assert stopped.returncode == 75
    assert "something else" in stopped.stderr
    assert last_line(stopped) == "steplog resume r"


def test_a_result_that_cannot_be_returned_is_given_by_hand(shell):
    text = "import steplog\n@steplog.step\ndef tool():\n    return open(__file__)\nprint(tool())\n"
    shell.script("odd.py", text)
    shell("run", "--id", "r", "odd.py")
    stopped = shell("resume", "r")
    assert stopped.returncode == 75
    words = shlex.split(last_line(stopped))
    assert shell(*words[1:4], "--done", '{"by": "hand"}').returncode == 0
    assert shell("resume", "r").stdout == "{'by': 'hand'}\n"


SETTINGS = """
from steplog import plugins
import sys
print(plugins.settings().also, plugins.settings().http)
sys.exit(0 if look("x") and "stop" not in sys.argv else 3)
"""


def test_what_is_recorded_beside_the_default_is_recorded_again_on_resume(shell):
    shell.script("agent.py", AGENT + SETTINGS)
    words = ["--also", "http", "--http", "a.example", "--http", "b.example"]
    ran = shell("run", "--id", "r", *words, "agent.py", "stop")
    assert ran.stdout.strip() == "('http',) ('a.example', 'b.example')", ran.stderr
    assert shell("resume", "r").stdout == ran.stdout

    own = AGENT + '\nsteplog.install()\nwith steplog.run("own"):\n' + SETTINGS.replace("\n", "\n    ")
    shell.script("own.py", own)
    ran = shell.execute([sys.executable, "own.py", "stop"], STEPLOG_HTTP="c.example")
    assert ran.stdout.strip() == "() ('c.example',)", ran.stderr
    assert shell("resume", "own").stdout == ran.stdout


def test_an_interceptor_that_is_not_there_is_refused(shell):
    ran = shell("run", "--also", "clocks", "agent.py", "x")
    assert ran.returncode != 0
    assert "no interceptor is named clocks" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not shell.effects.exists()
