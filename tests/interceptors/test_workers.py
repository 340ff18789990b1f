"""P8, P10: a model call belongs to its run wherever it is made, and results come back in the order that was seen."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

import anyio
import anyio.to_thread
import pytest

import steplog
from steplog._runtime import turns
from steplog.errors import NotInRun
from steplog.testing import LocalProvider
from steplog.testing.provider import Hit, Reply
from tests.interceptors.support import chat, echo, openai_client, perform

COUNT = 8


class Backwards:
    """A provider's handler that answers the last question first, and each when the program has the one before."""

    def __init__(self) -> None:
        self.seen = 0
        self._told = threading.Condition()

    def __call__(self, hit: Hit) -> Reply:
        text = hit.json["messages"][-1]["content"]
        with self._told:
            assert self._told.wait_for(lambda: self.seen >= COUNT - 1 - int(text), 30)
        return Reply.json(chat(text))

    def show(self, answer: str) -> str:
        """The program has this answer."""
        with self._told:
            self.seen += 1
            self._told.notify_all()
        return answer


@pytest.fixture
def backwards() -> Backwards:
    return Backwards()


@pytest.fixture
def provider() -> Iterator[LocalProvider]:
    with LocalProvider(handler=lambda hit: Reply.json(chat(hit.json["messages"][-1]["content"]))) as found:
        yield found


def ask(client: Any, question: object) -> Any:
    return client.chat.completions.create(model="gpt-x", messages=[{"role": "user", "content": str(question)}])


def asynchronous(client: Any) -> Any:
    """The same client for tasks."""
    return openai_client(str(client.base_url).removesuffix("/v1/"), asynchronous=True)


def text(answer: Any) -> str:
    return answer.choices[0].message.content


# where a call can be made ---------------------------------------------------------------------------------------------


def in_plain_threads(client: Any) -> list[str]:
    found: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: text(ask(client, n))}), daemon=True) for n in range(COUNT)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[n] for n in range(COUNT)]


def in_a_subclass_of_thread(client: Any) -> list[str]:
    class Worker(threading.Thread):
        def run(self) -> None:
            self.answer = text(ask(client, 1))

    worker = Worker()
    worker.start()
    worker.join()
    return [worker.answer]


def in_a_timer(client: Any) -> list[str]:
    found: queue.Queue[str] = queue.Queue()
    threading.Timer(0, lambda: found.put(text(ask(client, 1)))).start()
    return [found.get(timeout=10)]


def in_a_pool(client: Any) -> list[str]:
    with ThreadPoolExecutor(4) as pool:
        return [text(answer) for answer in pool.map(lambda n: ask(client, n), range(COUNT))]


def in_a_pool_of_a_thread(client: Any) -> list[str]:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(in_a_pool(client)))
    thread.start()
    thread.join()
    return found


def in_to_thread(client: Any) -> list[str]:
    async def body() -> list[str]:
        return [text(a) for a in await asyncio.gather(*(asyncio.to_thread(ask, client, n) for n in range(COUNT)))]

    return perform(body)


def in_the_loops_executor(client: Any) -> list[str]:
    async def body() -> list[str]:
        loop = asyncio.get_running_loop()
        futures = [loop.run_in_executor(None, ask, client, n) for n in range(COUNT)]
        return [text(answer) for answer in await asyncio.gather(*futures)]

    return perform(body)


def in_anyio_threads(client: Any) -> list[str]:
    async def body() -> list[str]:
        found: dict[int, str] = {}

        async def one(n: int) -> None:
            found[n] = text(await anyio.to_thread.run_sync(ask, client, n))

        async with anyio.create_task_group() as group:
            for n in range(COUNT):
                group.start_soon(one, n)
        return [found[n] for n in range(COUNT)]

    return perform(body)


PLACES = [
    in_plain_threads,
    in_a_subclass_of_thread,
    in_a_timer,
    in_a_pool,
    in_a_pool_of_a_thread,
    in_to_thread,
    in_the_loops_executor,
    in_anyio_threads,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_model_call_belongs_to_the_run(place, home, provider, offline, caplog):
    def program() -> list[str]:
        with openai_client(provider.url) as client, steplog.run("r") as run:
            found = place(client)
            assert run.replayed + run.executed == len(found)
        return found

    first = program()
    assert len(provider.hits) == len(first)
    offline(provider)
    assert program() == first
    assert "outside any run" not in caplog.text
    assert "lost its run" not in caplog.text


# in which order the answers come --------------------------------------------------------------------------------------


Show = Callable[[str], str]


def as_futures_complete(client: Any, show: Show) -> list[str]:
    with ThreadPoolExecutor(COUNT) as pool:
        # Futures that are finished before it looks come from `as_completed` in any order. It has looked, and waits for
        # the others, when it gives out the one that is finished from the start.
        first: Future[Any] = Future()
        first.set_result(None)
        has_looked = threading.Event()
        asked = [pool.submit(lambda n=n: has_looked.wait(30) and ask(client, n)) for n in range(COUNT)]
        finished = as_completed([first, *asked])
        assert next(finished) is first
        has_looked.set()
        return [show(text(done.result())) for done in finished]


def through_a_queue(client: Any, show: Show) -> list[str]:
    found: queue.Queue[str] = queue.Queue()
    threads = [threading.Thread(target=lambda n=n: found.put(text(ask(client, n)))) for n in range(COUNT)]
    for thread in threads:
        thread.start()
    return [show(found.get(timeout=30)) for _ in threads]


def in_done_callbacks(sync: Any, show: Show) -> list[str]:
    async def body() -> list[str]:
        order: list[str] = []
        async with asynchronous(sync) as client:
            tasks = [asyncio.create_task(ask(client, n)) for n in range(COUNT)]
            for task in tasks:
                task.add_done_callback(lambda done: order.append(show(text(done.result()))))
            # Which tasks are finished together is not recorded, only which comes before which.
            await asyncio.wait(tasks)
        return order

    return perform(body)


def as_tasks_complete(sync: Any, show: Show) -> list[str]:
    async def body() -> list[str]:
        async with asynchronous(sync) as client:
            return [show(text(await done)) for done in asyncio.as_completed([ask(client, n) for n in range(COUNT)])]

    return perform(body)


def through_an_asyncio_queue(sync: Any, show: Show) -> list[str]:
    async def body() -> list[str]:
        found: asyncio.Queue[str] = asyncio.Queue()
        async with asynchronous(sync) as client:

            async def one(n: int) -> None:
                await found.put(show(text(await ask(client, n))))

            async with asyncio.TaskGroup() as group:
                for n in range(COUNT):
                    group.create_task(one(n))
        return [found.get_nowait() for _ in range(COUNT)]

    return perform(body)


ORDERS = [as_futures_complete, through_a_queue, in_done_callbacks, as_tasks_complete, through_an_asyncio_queue]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_answers_come_back_in_the_order_in_which_they_came(order, home, backwards, offline, monkeypatch):
    # On a busy machine a thread may take longer to use its result than others wait for it; here all of them use it.
    monkeypatch.setattr(turns, "_USE_SECONDS", 30)
    monkeypatch.setattr(turns, "_PATIENCE_SECONDS", 30)

    def program() -> list[str]:
        with openai_client(provider.url) as client, steplog.run("r"):
            return order(client, backwards.show)

    with LocalProvider(handler=backwards) as provider:
        first = program()
        assert first == [str(n) for n in reversed(range(COUNT))]
        offline(provider)
        assert program() == first


# a worker that has lost its run ---------------------------------------------------------------------------------------


@pytest.fixture
def old_worker() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """A thread that is older than the run and gets its work past everything that carries a run along."""
    work: queue.Queue[Any] = queue.Queue()
    results: queue.Queue[Any] = queue.Queue()

    def serve() -> None:
        while (job := work.get()) is not None:
            try:
                results.put(job())
            except Exception as error:
                results.put(error)

    thread = threading.Thread(target=serve)
    thread.start()
    yield lambda job: (work.put(job), results.get(timeout=30))[1]
    work.put(None)
    thread.join(10)


def test_a_lost_model_call_is_warned_of_while_the_run_is_new(home, old_worker, caplog):
    with LocalProvider(handler=echo) as provider, openai_client(provider.url) as client, steplog.run("r"):
        assert text(old_worker(lambda: ask(client, "hi"))) == "echo hi"

    assert "has lost its run (open: r)" in caplog.text


def test_a_lost_model_call_is_an_error_under_strict(home, old_worker):
    steplog.install(home=home, durability="process", strict=True, interceptors=())
    with LocalProvider(handler=echo) as provider, openai_client(provider.url) as client, steplog.run("r"):
        refused = old_worker(lambda: ask(client, "hi"))
        assert provider.hits == []

    assert isinstance(refused, NotInRun)


def test_a_lost_model_call_is_an_error_while_the_run_is_replayed(home, old_worker):
    with LocalProvider(handler=echo) as provider, openai_client(provider.url) as client:
        with steplog.run("r"):
            ask(client, "one")
            ask(client, "two")
        with steplog.run("r"):
            ask(client, "one")
            refused = old_worker(lambda: ask(client, "two"))
            ask(client, "two")
        assert len(provider.hits) == 2

    assert isinstance(refused, NotInRun)
    assert "recorded results" in str(refused)
