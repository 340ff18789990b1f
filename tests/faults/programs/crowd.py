"""32 threads and 200 tasks record at once, while signal handlers, finalizers and log handlers record in between.

Prints, as JSON, how many callers there were, how many steps each kind of intruder has recorded, and how many of those
were refused because they had interrupted the recording of their own thread. With `fork`, the main thread forks
meanwhile and the children try to record as well.
"""

from __future__ import annotations

import asyncio
import collections
import json
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import steplog
from steplog.errors import ForkedWriter, ReenteredWriter

steplog.install(home="home", interceptors=[])
counts: collections.Counter[str] = collections.Counter()
guard = threading.local()


@steplog.step(mode="safe")
def safe(caller: str, number: int) -> int:
    return number


@steplog.step
def unsafe(caller: str, number: int) -> int:
    return number


@steplog.step
async def in_task(caller: str, number: int) -> int:
    return number


def intrude(kind: str) -> None:
    """Record a step from where nobody expects it, not within another intrusion."""
    if getattr(guard, "inside", False):
        return
    guard.inside = True
    try:
        steplog.step(f"from {kind}", lambda: 1)
        counts[kind] += 1
    except ReenteredWriter:
        counts["refused"] += 1
    finally:
        guard.inside = False


class Dropped:
    def __del__(self) -> None:
        intrude("finalizer")


class Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if "begins" in record.msg and counts["log handler"] < 200:
            intrude("log handler")


def in_thread(number: int) -> str:
    caller = f"thread {number}"
    for step in range(4):
        dropped = Dropped() if step % 2 else None
        (safe if step % 2 else unsafe)(caller, step)
        del dropped
    return caller


async def in_loop() -> list[str]:
    async def caller(number: int) -> str:
        for step in range(2):
            await in_task(f"task {number}", step)
        return f"task {number}"

    return await asyncio.gather(*(caller(number) for number in range(200)))


def fork() -> None:
    """Children of a process whose threads are in the middle of everything try to record, and end."""
    for number in range(8):
        child = os.fork()
        if not child:
            try:
                unsafe("child", number)
            except ForkedWriter:
                os._exit(0)
            os._exit(1)
        counts["children refused"] += os.waitpid(child, 0)[1] == 0


def main(how: str) -> None:
    logging.getLogger("steplog").setLevel(logging.DEBUG)
    logging.getLogger("steplog").addHandler(Handler())
    with steplog.run("r"), ThreadPoolExecutor(32) as pool:
        threads = [pool.submit(in_thread, number) for number in range(32)]
        looping = pool.submit(lambda: asyncio.run(in_loop()))
        if how == "fork":
            fork()
        else:
            signal.signal(signal.SIGALRM, lambda *_: intrude("signal handler"))
            signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
            for number in range(40):
                unsafe("main", number)
        callers = [thread.result() for thread in threads] + looping.result()
        signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout.write(json.dumps({"callers": len(callers), **counts}))


if __name__ == "__main__":
    main(sys.argv[1])
