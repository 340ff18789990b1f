"""Two branches ask the same thing for two accounts: accounts.py WAY STYLE URL FIRST PLAN [KEYS]

WAY     how they ask: key, organization, host, http, basic, requests, mcp; `one` is http for one and the same account
STYLE   threads or asyncio
FIRST   the account that asks first; the other one follows when it has its answer, or soon after
PLAN    `between` kills the program when the first one has its answer; `after` when both have; `go` does not
KEYS    appended to the accounts' keys, as when they were changed since; NAME=KEYS to that one's alone; =KEY is both's
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import steplog

WAY, STYLE, URL, FIRST, PLAN = sys.argv[1:6]
KEYS = sys.argv[6] if len(sys.argv) > 6 else ""
WHOSE, _, SUFFIX = KEYS.rpartition("=")
ACCOUNTS = (FIRST, "south" if FIRST == "north" else "north")

# How long the second one waits for the first where that cannot have its answer before the second one has asked.
_SOON = float(os.environ.get("SOON", "0.5"))


def key(name: str) -> str:
    if KEYS.startswith("="):
        return KEYS[1:]
    name = "north" if WAY == "one" else name
    return f"sk-{name}-0123456789abcdefghijklmnopqrstuvwxyz{SUFFIX if WHOSE in ('', name) else ''}"


def openai_options(name: str) -> dict[str, Any]:
    url, options = f"{URL}/{name if WAY == 'host' else 'all'}/v1", {}
    if WAY == "host":
        # The path counts, the host does not: two hosts that are one machine.
        url = URL.replace("127.0.0.1", "localhost" if name == "south" else "127.0.0.1") + "/all/v1"
    if WAY == "organization":
        options["organization"] = f"org-{name}{SUFFIX}"
    return {"base_url": url, "api_key": key(name if WAY == "key" else "both"), "max_retries": 0, **options}


BATCH = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
REFUND = {"order": "1001"}


def ask(name: str) -> str:
    """One request of a thread; says for whom the server did it."""
    if WAY in ("key", "organization", "host"):
        import openai

        with openai.OpenAI(**openai_options(name)) as client:
            return str(client.batches.create(**BATCH).id)  # type: ignore[arg-type]
    if WAY == "requests":
        import requests

        headers = {"x-api-key": key(name)}
        return str(requests.post(f"{URL}/refund", json=REFUND, headers=headers, timeout=30).json()["id"])
    import httpx

    with httpx.Client(**http_options(name)) as http:
        return str(http.post(f"{URL}/refund", json=REFUND).json()["id"])


def http_options(name: str) -> dict[str, Any]:
    if WAY == "basic":
        return {"auth": (name, "hunter2")}
    return {"headers": {"authorization": f"Bearer {key(name)}"}}


async def ask_async(name: str) -> str:
    """The same of a task."""
    if WAY in ("key", "organization", "host"):
        import openai

        async with openai.AsyncOpenAI(**openai_options(name)) as client:
            return str((await client.batches.create(**BATCH)).id)  # type: ignore[arg-type]
    if WAY == "mcp":
        return await ask_mcp(name)
    import httpx

    async with httpx.AsyncClient(**http_options(name)) as http:
        return str((await http.post(f"{URL}/refund", json=REFUND)).json()["id"])


async def ask_mcp(name: str) -> str:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    words = [str(Path(__file__).parents[2] / "interceptors" / "mcp_server.py"), name]
    server = StdioServerParameters(command=sys.executable, args=words, env={**os.environ, "KEY": key(name)})
    async with stdio_client(server) as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        result: Any = await session.call_tool("own", {})
        return str(result.content[0].text)


def die(plan: str) -> None:
    if plan == PLAN:
        os.kill(os.getpid(), signal.SIGKILL)


def threads() -> dict[str, str]:
    answers: dict[str, str] = {}
    first_done = threading.Event()
    faults: list[BaseException] = []

    def branch(name: str) -> None:
        try:
            if name != FIRST:
                first_done.wait(None if PLAN != "go" else _SOON)
            answers[name] = ask(name)
            if name == FIRST:
                die("between")
                first_done.set()
        except BaseException as fault:
            faults.append(fault)

    workers = [threading.Thread(target=branch, args=(name,)) for name in ACCOUNTS]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if faults:
        raise faults[0]
    return answers


async def tasks() -> dict[str, str]:
    answers: dict[str, str] = {}
    first_done = asyncio.Event()

    async def branch(name: str) -> None:
        if name != FIRST:
            waiting = asyncio.ensure_future(first_done.wait())
            await asyncio.wait([waiting], timeout=None if PLAN != "go" else _SOON)
            waiting.cancel()
        answers[name] = await ask_async(name)
        if name == FIRST:
            die("between")
            first_done.set()

    async with asyncio.TaskGroup() as group:
        for name in ACCOUNTS:
            group.create_task(branch(name))
    return answers


@steplog.step
def conclude(answers: dict[str, str]) -> None:
    """An effect that follows from what the two branches were told."""
    with Path("concluded").open("a") as file:
        file.write(json.dumps(answers, sort_keys=True) + "\n")


def main() -> None:
    steplog.install(http=[] if WAY == "mcp" else ["127.0.0.1"], drift_grace=float(os.environ.get("GRACE", "5")))
    with steplog.run("two"):
        answers = threads() if STYLE == "threads" else asyncio.run(tasks())
        die("after")
        conclude(answers)
    Path("answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
