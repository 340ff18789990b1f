"""Runs: open, resume, finish, fail, stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import re
import subprocess
import sys
import threading

import pytest

import steplog
from steplog._runtime import origin
from steplog.errors import InvalidArgument, LogFailed, StoreError
from steplog.testing import MemoryStore
from tests.support.processes import environment


def test_a_failure_that_ended_the_run_is_tried_again_and_one_that_was_handled_is_not(state_of):
    healthy = False
    calls = []

    @steplog.step
    def handled():
        calls.append("handled")
        raise ValueError("as always")

    @steplog.step
    def outage():
        calls.append("outage")
        if not healthy:
            raise ConnectionError("provider down")
        return "answer"

    def agent():
        with steplog.run("r"):
            with pytest.raises(ValueError, match="as always"):
                handled()
            try:
                return outage()
            except ConnectionError as error:
                raise RuntimeError("agent gave up") from error

    for _ in range(2):
        with pytest.raises(RuntimeError, match="gave up"):
            agent()
    assert state_of("r").status == "failed"
    healthy = True
    assert agent() == "answer"
    assert agent() == "answer"

    assert calls == ["handled", "outage", "outage", "outage"]
    assert state_of("r").status == "completed"


def test_a_replayed_failure_that_ends_the_run_is_tried_again_next_time(home):
    """The process died after the failure was recorded and before the run could end."""
    program = (
        "import os, signal, steplog\n"
        f"steplog.install(home={str(home)!r}, interceptors=[])\n"
        "def boom(): raise ConnectionError('down')\n"
        "with steplog.run('r'):\n"
        "    try: steplog.step('x', boom)\n"
        "    finally: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], env=environment(), check=False).returncode == -9

    with pytest.raises(ConnectionError), steplog.run("r"):
        steplog.step("x", lambda: "up")
    with steplog.run("r"):
        assert steplog.step("x", lambda: "up") == "up"


def test_a_completed_run_replays_whole_and_nothing_new_may_happen_in_it():
    with steplog.run("r"):
        steplog.step("a", lambda: 1)
    calls = []

    with pytest.raises(steplog.RunStopped, match="has ended") as caught, steplog.run("r"):
        assert steplog.step("a", lambda: 2) == 1
        steplog.step("b", lambda: calls.append(1))

    assert caught.value.reason == "drift"
    assert calls == []


def test_steps_that_a_finishing_run_does_not_ask_for_are_told(caplog, state_of):
    with pytest.raises(OSError), steplog.run("r"):
        steplog.step("a", lambda: 1)
        steplog.step("b", lambda: 2)
        raise OSError
    with steplog.run("r"):
        steplog.step("a", lambda: 1)

    assert "without asking for 1 step(s)" in caplog.text
    assert state_of("r").ended["unplayed"] == 1


@pytest.mark.parametrize(
    "error, status, reason",
    [
        (None, "completed", "done"),
        (SystemExit(0), "completed", "done"),
        (SystemExit(3), "failed", "exit"),
        (ValueError("x"), "failed", "error"),
        (KeyboardInterrupt(), "suspended", "interrupted"),
    ],
    ids=repr,
)
def test_how_a_block_is_left_decides_the_outcome(error, status, reason, state_of):
    expected = contextlib.nullcontext() if error is None else pytest.raises(type(error))
    with expected as caught, steplog.run("r"):
        if error is not None:
            raise error
    assert caught is None or caught.value is error

    state = state_of("r")
    assert (state.status, state.reason) == (status, reason)


def test_escalation_is_an_outcome(state_of):
    with steplog.run("r") as run:
        run.escalate("needs a person")

    state = state_of("r")
    assert (state.status, state.ended["message"]) == ("escalated", "needs a person")


def test_run_created_says_what_an_incident_needs(state_of):
    with steplog.run("r", goal="refund", workflow="desk", version="v7", trigger={"kind": "webhook", "by": "shop"}):
        pass

    created = state_of("r").created
    assert created["goal"] == "refund"
    assert (created["workflow"], created["version"]) == ("desk", "v7")
    assert created["trigger"] == {"kind": "webhook", "by": "shop"}
    assert created["durability"] == "durable"
    assert created["entry"]["cwd"] == os.getcwd()
    assert created["python"].startswith("3.")


def test_the_revision_names_the_commit_and_notices_an_edit(tmp_path):
    script = tmp_path / "repo" / "agents" / "agent.py"
    script.parent.mkdir(parents=True)
    script.write_text("one")

    def revision():
        origin.revision.cache_clear()
        return origin.revision(script)

    alone = revision()
    assert re.fullmatch(r"sha256:[0-9a-f]{16}", alone)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.invalid", "-C", str(tmp_path / "repo")]
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert revision() == f"git:{head} {alone}"
    subprocess.run([*git, "pack-refs", "--all"], check=True)
    assert revision() == f"git:{head} {alone}"
    script.write_text("two")
    assert revision().startswith(f"git:{head} sha256:")
    assert revision() != f"git:{head} {alone}"


@pytest.mark.parametrize("bad", ["", "../x", "a/b", "-x", ".x", "x" * 129, "a b", "ü", "a\n", None], ids=repr)
def test_an_invalid_run_id_is_refused(bad, home):
    if bad is None:
        assert len(steplog.run(None).run_id) == 26
        return
    with pytest.raises(InvalidArgument, match="run id"):
        steplog.run(bad)
    assert not home.exists()


def test_other_bad_arguments_are_refused():
    with pytest.raises(InvalidArgument, match="durability"):
        steplog.run("r", durability="maybe")
    with pytest.raises(InvalidArgument, match="on_drift"):
        steplog.run("r", on_drift="shrug")
    for grace in (-1, float("inf"), float("nan")):
        with pytest.raises(InvalidArgument, match="number of seconds"):
            steplog.install(drift_grace=grace, interceptors=[])
    with pytest.raises(InvalidArgument, match="no interceptor is named nope"):
        steplog.install(interceptors=["nope"])


def test_the_environment_names_only_the_first_run(monkeypatch):
    monkeypatch.setattr("steplog._runtime.naming._unnamed", 0)
    monkeypatch.setenv("STEPLOG_RUN_ID", "from-env")

    assert steplog.run().run_id == "from-env"
    assert steplog.run().run_id != "from-env"


def test_the_environment_can_name_a_later_run(monkeypatch):
    monkeypatch.setattr("steplog._runtime.naming._unnamed", 0)
    monkeypatch.setenv("STEPLOG_RUN_ID", "from-env")
    monkeypatch.setenv("STEPLOG_RUN_NTH", "1")

    assert steplog.run().run_id != "from-env"
    assert steplog.run().run_id == "from-env"


def test_a_run_inside_a_run_is_found_again_without_a_name():
    calls = []

    def agent():
        with steplog.run("outer"):
            for _ in range(2):
                with steplog.run() as inner:
                    steplog.step("x", lambda: calls.append(1))
                    names.append(inner.run_id)

    names = []
    agent(), agent()

    assert names == ["outer.1", "outer.2"] * 2
    assert calls == [1, 1]


def test_one_run_has_one_writer_in_this_process_and_in_others(home):
    program = f"import steplog; steplog.install(home={str(home)!r}, interceptors=[])\nwith steplog.run('r'): pass"
    with steplog.run("r"):
        with pytest.raises(steplog.RunBusy, match="open in this process"), steplog.run("r"):
            pass
        other = subprocess.run(
            [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=False
        )
    assert "RunBusy" in other.stderr
    assert str(os.getpid()) in other.stderr
    again = subprocess.run([sys.executable, "-c", program], env=environment(), check=False)
    assert again.returncode == 0


def test_a_run_handle_is_entered_once():
    handle = steplog.run("r")
    with handle:
        pass
    with pytest.raises(InvalidArgument, match="entered before"), handle:
        pass


def test_current_run():
    assert steplog.current_run() is None
    with steplog.run("r") as run:
        assert steplog.current_run() is run
        with steplog.run("inner") as inner:
            assert steplog.current_run() is inner
        assert steplog.current_run() is run
    assert steplog.current_run() is None


def test_a_forked_child_cannot_write(home):
    with steplog.run("r"):
        steplog.step("a", lambda: 1)
        pid = os.fork()
        if pid == 0:
            try:
                steplog.step("b", lambda: 2)
            except steplog.StoreError as error:
                os._exit(0 if "forked child" in str(error) else 1)
            except BaseException:
                os._exit(2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert steplog.step("c", lambda: 3) == 3


def test_a_failed_intent_means_no_effect_and_a_failed_outcome_halts(monkeypatch):
    """P3, its other half: what cannot be recorded does not happen, or stops the run."""
    calls = []

    @steplog.step
    def tool(x):
        calls.append(x)
        return x

    from steplog.stores.writer import FileWriter

    real = FileWriter.append
    fail = {"step.started": False, "step.finished": False}

    def append(self, lines, first_seq, *, sync):
        for line in lines:
            for type_, failing in fail.items():
                if failing and f'"type":"{type_}"'.encode() in line:
                    raise StoreError("disk full", errno=28)
        return real(self, lines, first_seq, sync=sync)

    monkeypatch.setattr(FileWriter, "append", append)
    fail["step.started"] = True
    with pytest.raises(steplog.RunStopped, match="did not begin") as caught, steplog.run("r"):
        tool(1)
    assert isinstance(caught.value.__cause__, LogFailed)
    assert calls == []

    fail.update({"step.started": False, "step.finished": True})
    with pytest.raises(steplog.RunStopped, match="in doubt"), steplog.run("r"):
        tool(1)
    assert calls == [1]

    fail["step.finished"] = False
    with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
        tool(1)
    assert caught.value.reason == "indeterminate"
    assert calls == [1]


def test_a_run_in_memory_needs_no_files(home):
    store = MemoryStore()
    with steplog.run("r", store=store):
        steplog.step("a", lambda: 1)
    with steplog.run("r", store=store):
        assert steplog.step("a", lambda: 2) == 1

    assert not home.exists()


def test_the_errors_of_a_stopped_run_survive_pickling():
    @steplog.step
    def tool():
        return object()

    with pytest.raises(steplog.RunStopped) as caught, steplog.run("r"):
        tool()

    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.run_id, copy.reason, copy.commands) == ("r", "unreplayable", caught.value.commands)


def test_nested_runs_are_runs_of_their_own_and_an_interrupt_leaves_the_outermost(state_of):
    @steplog.step
    def bad():
        return object()

    with pytest.raises(steplog.RunStopped) as caught, steplog.run("outer"):
        steplog.step("a", lambda: 1)
        try:
            with steplog.run("inner"):
                bad()
        except Exception as error:
            pytest.fail(f"an inner run must not turn its interrupt into an ordinary exception: {error!r}")

    assert caught.value.run_id == "outer"
    assert caught.value.__cause__.run_id == "inner"
    assert (state_of("inner").status, state_of("outer").status) == ("suspended", "suspended")


def test_a_halted_run_refuses_every_further_effect_whatever_the_agent_swallows():
    calls = []

    @steplog.step
    def bad():
        return object()

    with pytest.raises(steplog.RunStopped), steplog.run("r"):
        with contextlib.suppress(BaseException):
            bad()
        with pytest.raises(steplog.Unreplayable):
            steplog.step("later", lambda: calls.append(1))

    assert calls == []


async def test_an_interrupt_in_a_task_that_nobody_awaits_reaches_the_task_that_opened_the_run():
    @steplog.step
    async def bad():
        return object()

    lost = []

    async def actor():
        try:
            await bad()
        except BaseException as error:
            lost.append(error)

    with pytest.raises(steplog.RunStopped):
        async with steplog.run("r"):
            task = asyncio.create_task(actor())
            await asyncio.Queue().get()

    assert isinstance(lost[0], steplog.Unreplayable)
    assert task.done()
    assert asyncio.current_task().cancelling() == 0
    await asyncio.sleep(0)


def in_a_task(tool):
    return asyncio.create_task(asyncio.to_thread(tool))


def in_a_thread(tool):
    def die():
        with contextlib.suppress(BaseException):
            tool()

    threading.Thread(target=die).start()


@pytest.mark.parametrize("start", [in_a_task, in_a_thread])
def test_an_interrupt_that_nobody_waits_for_ends_a_run_that_was_opened_around_the_loop(start):
    @steplog.step
    def bad():
        return object()

    async def main():
        kept.append(start(bad))
        try:
            await asyncio.Queue().get()
        finally:
            left.append("cleaned up")

    kept, left = [], []
    with pytest.raises(steplog.RunStopped) as stopped:
        with steplog.run("r"):
            asyncio.run(main())

    assert stopped.value.reason == "unreplayable"
    assert left == ["cleaned up"]


def test_a_loop_that_was_there_before_keeps_its_other_tasks():
    @steplog.step
    def bad():
        return object()

    async def main():
        background = asyncio.create_task(asyncio.Event().wait())
        halted = asyncio.to_thread(run_in_a_thread)
        assert await halted == "unreplayable"
        await asyncio.sleep(0.5)  # longer than a halt takes to reach whom it concerns
        return background.cancel()

    def run_in_a_thread():
        try:
            with steplog.run("r"):
                bad()
        except steplog.RunStopped as stopped:
            return stopped.reason

    assert asyncio.run(main())


async def test_a_task_group_and_gather_end_promptly():
    @steplog.step
    async def bad(i):
        return object()

    for number, together in enumerate(("group", "gather")):
        with pytest.raises(steplog.RunStopped):
            async with steplog.run(f"r{number}"):
                if together == "gather":
                    await asyncio.gather(*(bad(i) for i in range(5)))
                else:
                    async with asyncio.TaskGroup() as group:
                        for i in range(5):
                            group.create_task(bad(i))


def test_an_interrupt_in_a_pool_stops_the_run():
    from concurrent.futures import ThreadPoolExecutor

    @steplog.step
    def bad(i):
        return object()

    with pytest.raises(steplog.RunStopped), steplog.run("r"), ThreadPoolExecutor(4) as pool:
        list(pool.map(bad, range(8)))


def test_an_effect_after_the_run_ended_passes_through(caplog):
    go, done = threading.Event(), []

    def worker():
        go.wait(10)
        done.append(steplog.step("late", lambda: 5))

    with steplog.run("r"):
        thread = threading.Thread(target=worker)
        thread.start()
    go.set()
    thread.join(10)

    assert done == [5]


async def test_cancelling_while_the_log_is_being_opened_leaves_the_run_free(monkeypatch):
    from steplog._runtime.journal import Journal

    real, entered = Journal.open, threading.Event()

    def slow(*args):
        entered.set()
        threading.Event().wait(0.2)
        return real(*args)

    monkeypatch.setattr(Journal, "open", slow)

    async def agent():
        async with steplog.run("r"):
            pass

    task = asyncio.create_task(agent())
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.5)
    monkeypatch.setattr(Journal, "open", real)
    async with steplog.run("r"):
        pass


def test_a_program_that_is_resumed_does_nothing_in_a_new_run(monkeypatch):
    calls = []
    with steplog.run("other"):
        steplog.step("a", lambda: calls.append(1))
    monkeypatch.setenv("STEPLOG_RESUME", "wanted")

    with pytest.raises(InvalidArgument, match="resume run wanted, but it opens a new run fresh"), steplog.run("fresh"):
        calls.append("never")
    with steplog.run("other"):
        steplog.step("a", lambda: calls.append(1))
    with steplog.run("wanted"):
        pass

    assert calls == [1]


def test_a_run_without_install_says_that_model_calls_escape(caplog, monkeypatch, tmp_path):
    steplog.uninstall()
    monkeypatch.setenv("STEPLOG_HOME", str(tmp_path / "home"))

    for run_id in ("a", "b"):
        with steplog.run(run_id):
            pass

    assert caplog.text.count("without steplog.install()") == 1


def test_the_default_home_stays_where_the_program_was_started(monkeypatch, tmp_path):
    program = "import os, steplog\nos.mkdir('sub'); os.chdir('sub')\nwith steplog.run('r'): pass\n"
    environment_without_home = environment()
    environment_without_home.pop("STEPLOG_HOME", None)
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment_without_home, check=True)

    assert (tmp_path / ".agent/runs/r/events.jsonl").exists()


def test_a_home_that_cannot_be_made_is_a_typed_error():
    steplog.install(home="/proc/steplog/home", interceptors=[])

    with pytest.raises(StoreError, match="/proc/steplog"), steplog.run("r"):
        pass
