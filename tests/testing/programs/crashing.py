"""Programs to be killed by the crash kit, each with something that it shows. `python crashing.py NAME`."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import steplog


def act(what: str) -> None:
    fd = os.open(os.environ["WORLD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{what}\n".encode())
    os.close(fd)


def world() -> list[str]:
    path = Path(os.environ["WORLD"])
    return path.read_text().splitlines() if path.exists() else []


def mine() -> list[str]:
    """A ledger that only one process can read."""
    return [{os.getpid(): "nothing"}[int(os.environ["LEDGER_OF"])]]


@steplog.step(mode="safe")
def read(what: str) -> str:
    return what


@steplog.step
def send(what: str) -> str:
    before = what
    act(f"send {before}")
    return before


@steplog.step
def pack(what: str) -> tuple[str, bytes]:
    act(f"pack {what}")
    return what, b"x" * 9000


@steplog.step
async def book(what: str) -> str:
    await asyncio.sleep(0.001)
    act(f"book {what}")
    await asyncio.sleep(0.001)
    return what


def sent(what: str) -> object:
    return steplog.Happened(what) if f"check {what}" in world() else steplog.NOT_HAPPENED


@steplog.step(mode="verify", verify=sent)
def check(what: str) -> str:
    act(f"check {what}")
    return what


@steplog.step(mode="verify", verify=lambda what: steplog.NOT_HAPPENED)
def forgetful(what: str) -> str:
    act(f"forgetful {what}")
    return what


def everything() -> None:
    with steplog.run("everything"):
        steplog.step("now", time.time)
        read("a")
        check("b")
        send("c")


def branches() -> None:
    async def both() -> list[str]:
        return await asyncio.gather(book("one"), book("two"))

    with steplog.run("branches"):
        asyncio.run(both())
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(send, ["three", "four"]))


def between() -> None:
    with steplog.run("between"):
        read("a")
        act("unrecorded")
        read("b")


def drifting() -> None:
    with steplog.run("drifting"):
        read(f"a {uuid.uuid4()}")
        send("b")


def skipping() -> None:
    """Believes a note of its own, which was written before the effect."""
    with steplog.run("skipping"):
        read("a")
        note = Path(os.environ["WORLD"] + ".note")
        if not note.exists():
            note.write_text("sent")
            send("b")


def packing() -> None:
    with steplog.run("packing"):
        name, content = pack("a")
        send(f"{name} of {len(content)} {type(content).__name__}")


def forgetting() -> None:
    with steplog.run("forgetting"):
        forgetful("a")


def parent() -> None:
    """Has a child that would go on working without it."""
    with steplog.run("parent"):
        code = "import os, time; time.sleep(1); open(os.environ['WORLD'], 'a').write('orphan\\n')"
        subprocess.Popen([sys.executable, "-S", "-c", code])
        send("a")


def job(name: str) -> None:
    with steplog.run(name):
        send("the same")


def workers() -> None:
    """Processes with runs of their own, which do equal things."""
    job("main")
    for context, name in (("fork", "forked"), ("spawn", "spawned")):
        worker = multiprocessing.get_context(context).Process(target=job, args=[name])
        worker.start()
        worker.join()
        assert worker.exitcode == 0


def hashes() -> None:
    """What it asks for depends on the order of a set, which differs from process to process."""
    with steplog.run("hashes"):
        read(" ".join({f"word{number}" for number in range(12)}))
        send("a")


def unwrapped() -> None:
    """Opens no run: it is for `steplog run`."""
    read("a")
    send("b")


def suspended() -> None:
    with steplog.run("suspended"):
        read("a")
        raise KeyboardInterrupt


if __name__ == "__main__":
    steplog.install(interceptors=[])
    globals()[sys.argv[1]]()
