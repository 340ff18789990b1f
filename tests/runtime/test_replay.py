"""A replay: the same program once more, nothing done, and a verdict that can be trusted."""

from __future__ import annotations

import _socket
import asyncio
import contextlib
import multiprocessing.util
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import steplog
from steplog._runtime import egress
from steplog._runtime.door import PROCESS

DONE: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    DONE.clear()


@steplog.step
def refund(order: str) -> str:
    DONE.append(order)
    return f"refunded {order}"


@steplog.step(mode="safe")
def look_up(order: str) -> dict[str, int]:
    DONE.append(f"look up {order}")
    return {"amount": len(order)}


@steplog.step
def fail(text: str) -> None:
    DONE.append(text)
    raise ValueError(text)


def agent(order: str) -> str:
    found = look_up(order)
    return refund(f"{order}-{found['amount']}")


def record(run_id: str = "r", order: str = "o-1") -> list[str]:
    with steplog.run(run_id):
        agent(order)
    done = list(DONE)
    DONE.clear()
    return done


def log_of(home: Path, run_id: str = "r") -> bytes:
    return (home / "runs" / run_id / "events.jsonl").read_bytes()


def test_a_finished_run_is_replayed_with_nothing_done_and_nothing_written(home):
    assert record() == ["look up o-1", "o-1-3"]
    before = log_of(home)

    with steplog.replay("r") as replayed, steplog.run("r"):
        assert agent("o-1") == "refunded o-1-3"

    assert DONE == []
    assert log_of(home) == before
    assert (replayed.verdict, replayed.divergence, replayed.note) == ("identical", None, "")
    assert (replayed.replayed, replayed.live_calls, replayed.unplayed) == (2, 0, [])


def test_a_home_is_left_as_it_is_with_its_bodies(home):
    """So a home that may only be read can be replayed from."""

    def program() -> None:
        with steplog.run("r"):
            refund("o" * 9000)

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}

    program()
    before = files()

    with steplog.replay("r") as replayed:
        program()

    assert replayed.identical
    assert files() == before


def test_a_result_whose_body_is_gone_cannot_be_given_back(home):
    def program() -> None:
        with steplog.run("r"):
            refund("o" * 9000)

    program()
    DONE.clear()
    steplog.uninstall()
    for path in home.glob("bodies.db*"):
        path.unlink()
    steplog.install(home=home, interceptors=[])

    with pytest.raises(steplog.RunStopped), steplog.replay("r") as replayed:
        program()

    assert replayed.divergence.kind == "unreplayable"
    assert DONE == []


def test_the_block_is_the_run_where_the_program_opens_none():
    record()

    with steplog.replay("r") as replayed:
        agent("o-1")

    assert DONE == []
    assert replayed.identical


def test_whatever_id_the_program_gives_it_is_the_recorded_run():
    record("r-1")

    with steplog.replay("r-1") as replayed, steplog.run("r-2") as run:
        agent("o-1")

    assert run.run_id == "r-1"
    assert replayed.identical
    assert DONE == []


def test_without_an_id_it_is_the_run_that_was_written_last():
    record("r-1")
    record("r-2")

    with steplog.replay() as replayed:
        agent("o-1")

    assert (replayed.run_id, replayed.identical) == ("r-2", True)


def test_another_call_than_the_recorded_one_is_not_made():
    record()

    with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r") as replayed:
        look_up("o-1")
        refund("o-2")

    assert DONE == []
    assert stopped.value.reason == "drift"
    assert replayed.verdict == "different"
    assert replayed.divergence.kind == "drift"
    assert isinstance(stopped.value.__cause__, steplog.DriftDetected)


def test_a_call_behind_the_recorded_end_is_not_made():
    record()

    with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r") as replayed:
        agent("o-1")
        refund("another")

    assert DONE == []
    assert stopped.value.reason == "unrecorded"
    assert isinstance(stopped.value.__cause__, steplog.Unrecorded)
    assert replayed.divergence.kind == "unrecorded"


def test_steps_that_were_not_asked_for_are_told():
    record()

    with steplog.replay("r") as replayed:
        look_up("o-1")

    assert replayed.verdict == "different"
    assert replayed.divergence.kind == "unplayed"
    assert [step.target for step in replayed.unplayed] == ["refund"]


def test_a_failed_run_replays_to_its_failure_and_is_identical():
    with pytest.raises(ValueError, match="no stock"), steplog.run("r"):
        look_up("o-1")
        fail("no stock")
    DONE.clear()

    with pytest.raises(ValueError, match="no stock"), steplog.replay("r") as replayed, steplog.run("r"):
        look_up("o-1")
        fail("no stock")

    assert DONE == []
    assert replayed.identical
    assert replayed.replayed == 2


def test_a_failed_run_that_does_not_fail_any_more_is_different():
    with pytest.raises(KeyError), steplog.run("r"):
        look_up("o-1")
        raise KeyError("amount")
    DONE.clear()

    with steplog.replay("r") as replayed, steplog.run("r"):
        look_up("o-1")

    assert replayed.divergence.kind == "end"
    assert "KeyError" in replayed.divergence.message


def test_an_effect_outside_the_run_is_refused():
    record()

    with pytest.raises(steplog.RunStopped), steplog.replay("r") as replayed:
        with steplog.run("r"):
            agent("o-1")
        refund("outside")

    assert DONE == []
    assert replayed.divergence.kind == "unrecorded"


def test_a_tool_in_a_thread_outside_the_run_is_refused():
    record()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            refund("in a thread")
        except BaseException as error:
            raised.append(error)

    worker = threading.Thread(target=work)
    with steplog.replay("r") as replayed:
        with steplog.run("r"):
            agent("o-1")
        worker.start()
        worker.join()

    assert [type(error) for error in raised] == [steplog.Unrecorded]
    assert DONE == []
    assert replayed.verdict == "different"


@pytest.mark.parametrize("how", ["connect", "connect_ex", "sendto", "getaddrinfo", "create_connection"])
def test_no_connection_leaves_the_machine(how):
    record()
    tries = {
        # Past the guard that the tests themselves have on `socket.socket`.
        "connect": lambda s: _socket.socket.connect(s, ("192.0.2.1", 80)),
        "connect_ex": lambda s: s.connect_ex(("192.0.2.1", 80)),
        "sendto": lambda s: s.sendto(b"x", ("192.0.2.1", 80)),
        "getaddrinfo": lambda _s: socket.getaddrinfo("provider.example", 443),
        "create_connection": lambda _s: socket.create_connection(("192.0.2.1", 80), timeout=1),
    }
    kind = socket.SOCK_DGRAM if how == "sendto" else socket.SOCK_STREAM

    with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r") as replayed, steplog.run("r"):
        with socket.socket(socket.AF_INET, kind) as one:
            tries[how](one)

    assert isinstance(stopped.value.__cause__, steplog.Unrecorded)
    assert replayed.verdict == "different"
    assert not egress.active()


def test_a_connection_outside_the_run_raises_too():
    record()

    with steplog.replay("r") as replayed:
        with steplog.run("r"):
            agent("o-1")
        with pytest.raises(steplog.Unrecorded), socket.socket() as one:
            one.connect_ex(("192.0.2.1", 80))

    assert replayed.refused == ["connection to 192.0.2.1:80"]
    assert replayed.divergence.kind == "unrecorded"
    assert "steplog replay r --ignore 192.0.2.1:80" in replayed.divergence.message


def test_a_connection_that_is_none_of_its_business_is_as_if_the_host_were_down():
    record()

    with steplog.replay("r", ignore=["192.0.2.1"]) as replayed, steplog.run("r"):
        agent("o-1")
        with pytest.raises(ConnectionRefusedError), socket.socket() as one:
            one.connect_ex(("192.0.2.1", 80))

    assert replayed.refused == ["connection to 192.0.2.1:80"]
    assert replayed.identical


def test_a_child_process_is_refused():
    record()

    with pytest.raises(steplog.RunStopped), steplog.replay("r"), steplog.run("r"):
        subprocess.run(["true"], check=True)

    with steplog.replay("r", allow=["true"]), steplog.run("r"):
        subprocess.run(["true"], check=True)
        agent("o-1")


def test_a_child_that_is_started_below_subprocess_is_refused(tmp_path):
    record()
    made = str(tmp_path / "made")

    def spawn() -> None:
        os.waitpid(multiprocessing.util.spawnv_passfds(b"/usr/bin/touch", [b"touch", os.fsencode(made)], ()), 0)

    with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r"), steplog.run("r"):
        spawn()

    assert "child process /usr/bin/touch" in str(stopped.value)
    assert not os.path.exists(made)
    spawn()
    assert os.path.exists(made)


@pytest.mark.parametrize("does", ["the same", "something else", "reaches out", "nothing"])
def test_what_a_forked_child_does_reaches_the_verdict(does):
    def program(does: str) -> None:
        with steplog.run("r"):
            look_up("o-1")
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                if does == "reaches out":
                    socket.getaddrinfo("provider.example", 443)
                elif does != "nothing":
                    with steplog.run("child"):
                        refund("o-1" if does == "the same" else "o-2")
            os._exit(0)
        os.waitpid(child, 0)

    program("the same")

    with steplog.replay("r") as replayed:
        program(does)

    kind = {"the same": None, "something else": "drift", "reaches out": "unrecorded", "nothing": None}[does]
    assert (replayed.divergence and replayed.divergence.kind) == kind
    if kind is not None:
        assert "in a child process" in replayed.divergence.message


def test_a_run_with_an_id_of_its_own_that_is_not_opened_any_more_is_a_difference():
    def program(*, all_of_it: bool = True) -> None:
        with steplog.run("outer"):
            look_up("o-1")
            if all_of_it:
                with steplog.run("mine"):
                    refund("a")

    program()

    with steplog.replay("outer") as replayed:
        program(all_of_it=False)

    assert replayed.divergence.kind == "unplayed"
    assert "without opening run mine" in replayed.divergence.message


def test_a_run_that_a_returned_step_had_opened_is_not_missed():
    @steplog.step
    def nested() -> None:
        with steplog.run("mine"):
            refund("a")

    with steplog.run("outer"):
        nested()
    DONE.clear()

    with steplog.replay("outer") as replayed, steplog.run("outer"):
        nested()

    assert replayed.identical
    assert DONE == []


def test_a_connection_that_no_guard_has_seen_is_told(receiver, monkeypatch):
    from steplog._runtime import open_sockets

    record()
    # A connection to this machine stands for one to another, which there may be no way to.
    monkeypatch.setattr(open_sockets, "is_local", lambda _: False)
    with steplog.replay("r") as replayed:
        agent("o-1")
        with egress_unseen():
            one = socket.create_connection(("127.0.0.1", receiver[0]))
    one.close()

    assert replayed.divergence.kind == "unrecorded"
    # The other end of it is a socket of this process too, at the port that the receiver listens on.
    assert f"connected to 127.0.0.1:{receiver[0]}, past" in replayed.divergence.message


@contextlib.contextmanager
def egress_unseen():
    egress._inside.busy = True
    yield
    egress._inside.busy = False


def test_event_loops_and_pools_work_under_the_guard():
    async def gather() -> list[str]:
        return await asyncio.gather(*(asyncio.to_thread(refund, f"o-{n}") for n in range(5)))

    with steplog.run("r"):
        recorded = asyncio.run(gather())
    DONE.clear()

    with steplog.replay("r") as replayed, steplog.run("r"):
        assert asyncio.run(gather()) == recorded

    assert DONE == []
    assert replayed.identical


def test_a_replay_leaves_nothing_behind():
    record()
    with steplog.replay("r"), steplog.run("r"):
        agent("o-1")

    assert PROCESS.replay is None
    assert not PROCESS.runs
    assert not egress.active()
    with steplog.run("s"):
        refund("live again")
    assert DONE == ["live again"]


def test_one_replay_at_a_time():
    record()

    with steplog.replay("r"), pytest.raises(steplog.InvalidArgument, match="one at a time"), steplog.replay("r"):
        pass


def test_threads_replay_to_the_same_answers():
    def program() -> list[str]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(agent, ["a", "b", "a", "cc"]))

    with steplog.run("r"):
        recorded = program()
    DONE.clear()

    with steplog.replay("r") as replayed, steplog.run("r"):
        assert program() == recorded
    assert DONE == []
    assert replayed.identical


def test_a_run_inside_a_run_is_replayed_with_it():
    def program() -> None:
        with steplog.run("outer"):
            look_up("o-1")
            with steplog.run():
                refund("inner")

    program()
    DONE.clear()

    with steplog.replay("outer") as replayed:
        program()

    assert DONE == []
    assert replayed.identical
    assert replayed.replayed == 2


def with_inner_run(*orders: str, error: Exception | None = None) -> None:
    with steplog.run("outer"):
        look_up("o-1")
        with contextlib.suppress(ValueError), steplog.run():
            for order in orders:
                refund(order)
            if error is not None:
                raise error


def left_out() -> None:
    with steplog.run("outer"):
        look_up("o-1")


@pytest.mark.parametrize(
    "program, kind",
    [
        (lambda: with_inner_run("a", "b"), None),
        (lambda: with_inner_run("a"), "unplayed"),
        (lambda: with_inner_run("a", "b", error=ValueError("new")), "end"),
        (left_out, "unplayed"),
    ],
)
def test_a_run_inside_that_does_something_else_is_a_difference(program, kind):
    with_inner_run("a", "b")
    DONE.clear()

    with steplog.replay("outer") as replayed:
        program()

    assert DONE == []
    assert (replayed.divergence and replayed.divergence.kind) == kind
    assert replayed.identical == (kind is None)
    if kind is not None:
        assert "run outer.1" in replayed.divergence.message


def test_a_run_inside_that_cannot_be_opened_is_a_difference(home):
    def program() -> None:
        with steplog.run("outer"):
            look_up("o-1")
            with contextlib.suppress(steplog.Corrupt), steplog.run("inner"):
                refund("a")

    program()
    log = home / "runs" / "inner" / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b"tool_call", b"tool_cxll"))
    DONE.clear()

    with steplog.replay("outer") as replayed:
        program()

    assert DONE == []
    assert replayed.divergence.kind == "not opened"
    assert "run inner" in replayed.divergence.message


def test_an_async_block():
    @steplog.step
    async def pay(order: str) -> str:
        DONE.append(order)
        return f"paid {order}"

    async def program() -> str:
        async with steplog.run("r"):
            return await pay("o-1")

    async def replay() -> steplog.Replay:
        async with steplog.replay("r") as replayed:
            assert await program() == "paid o-1"
        return replayed

    asyncio.run(program())
    DONE.clear()
    assert asyncio.run(replay()).identical
    assert DONE == []


def test_a_killed_process_is_replayed_as_far_as_it_came(home, tmp_path):
    script = tmp_path / "agent.py"
    script.write_text(
        "import os, signal, steplog\n"
        "steplog.install(interceptors=[])\n"
        "@steplog.step\n"
        "def first(): return 1\n"
        "@steplog.step\n"
        "def second(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "with steplog.run('r'):\n"
        "    first()\n"
        "    second()\n"
    )
    done = subprocess.run([sys.executable, str(script)], env={"STEPLOG_HOME": str(home)}, check=False)
    assert done.returncode == -9

    @steplog.step
    def first() -> int:
        raise AssertionError

    @steplog.step
    def second() -> int:
        raise AssertionError

    with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r") as replayed:
        first()
        second()

    assert stopped.value.reason == "unrecorded"
    assert replayed.identical
    assert "in the middle of tool_call second" in replayed.note


@pytest.fixture
def receiver():
    """A server whose address and number of requests are known."""
    got: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            got.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, got
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("how", ["sendall", "send", "sendmsg", "sendfile", "asyncio"])
def test_a_connection_from_before_the_replay_is_no_way_out(receiver, how, tmp_path):
    record()
    port, got = receiver
    request = b"GET /during HTTP/1.1\r\nhost: x\r\n\r\n"
    (tmp_path / "request").write_bytes(request)
    pooled = socket.create_connection(("127.0.0.1", port))
    pooled.sendall(b"GET /before HTTP/1.1\r\nhost: x\r\n\r\n")
    pooled.recv(1000)

    async def in_a_loop() -> None:
        pooled.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(pooled, request)

    def send() -> None:
        if how == "asyncio":
            asyncio.run(in_a_loop())
        elif how == "sendmsg":
            pooled.sendmsg([request])
        elif how == "sendfile":
            with (tmp_path / "request").open("rb") as file:
                pooled.sendfile(file)
        else:
            getattr(pooled, how)(request)

    with pytest.raises(steplog.RunStopped) as stopped, steplog.replay("r") as replayed, steplog.run("r"):
        agent("o-1")
        send()
    assert stopped.value.reason == "unrecorded"
    assert not replayed.identical
    assert {"send", "sendall"}.isdisjoint(vars(socket.socket))
    pooled.setblocking(True)
    pooled.sendall(b"GET /after HTTP/1.1\r\nhost: x\r\n\r\n")
    pooled.recv(1000)
    pooled.close()
    assert got == ["/before", "/after"]


@pytest.mark.parametrize("allowed", [False, True])
def test_a_python_child_reaches_no_service_of_this_machine_unless_it_is_allowed(receiver, allowed):
    record()
    port, got = receiver
    fetch = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/child')"

    with steplog.replay("r", allow=[f"127.0.0.1:{port}"] if allowed else []), steplog.run("r"):
        agent("o-1")
        child = subprocess.run([sys.executable, "-c", fetch], check=False, capture_output=True, text=True)

    assert (child.returncode == 0) == allowed, child.stderr
    assert got == (["/child"] if allowed else [])
