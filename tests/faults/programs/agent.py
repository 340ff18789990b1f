"""An agent with one of everything that a crash can hit: calls, tools of each mode, branches, threads, nesting, failure.

Each effect tells the world about itself twice: in `begun` before it acts and in `ledger` when it has acted, so that a
test can count what happened however the process ended. What a step is called in these files is its label.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai

import steplog
from tests.faults.programs.killer import Killer

RUN = "agent"


class Declined(Exception):
    """The failure that the agent knows how to handle."""


class World:
    """Where effects leave their traces, and the model that is asked.

    Args:
        folder: gets the files `begun` and `ledger`, and the log below `home`.
        url: of the provider.
        plan: when to die; `request:N` is carried out by the provider, which counts what arrives.
    """

    def __init__(self, folder: Path, url: str, plan: str) -> None:
        self.folder = folder
        self.killer = Killer(plan)
        headers = {"x-pid": str(os.getpid()), "x-dispatch": uuid.uuid4().hex, "x-plan": plan}
        options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": "local", "max_retries": 0}
        options["default_headers"] = headers
        # Nothing is encrypted on the way to this machine, and reading all certificates takes longer than all the rest.
        plain, async_plain = openai.DefaultHttpxClient(verify=False), openai.DefaultAsyncHttpxClient(verify=False)
        self.model = openai.OpenAI(**options, http_client=plain)
        self.async_model = openai.AsyncOpenAI(**options, http_client=async_plain)

    def effect(self, label: str, key: str = "") -> str:
        """Act on the world and return what the receiver says."""
        self._note("begun", label)
        self.killer.moment("effect-before")
        self._note("ledger", f"{label}\t{key}")
        self.killer.moment("effect-after")
        return result_of(label)

    def _note(self, file: str, line: str) -> None:
        # One unbuffered write: what a killed process has noted is noted, whole.
        fd = os.open(self.folder / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)


world: Any = None  # a World, before the agent runs


def result_of(label: str) -> str:
    """What an effect returns; an operator who finds it in the ledger knows it too."""
    return f"{label}: ok"


@steplog.step(mode="safe")
def look_up(what: str) -> str:
    return world.effect(f"look_up {what}")


@steplog.step(mode="keyed")
def refund(what: str, *, idempotency_key: str) -> str:
    return world.effect(f"refund {what}", idempotency_key)


@steplog.step
def restock(what: str) -> str:
    return world.effect(f"restock {what}")


@steplog.step
async def book(what: str) -> str:
    return world.effect(f"book {what}")


@steplog.step
def send_mail(what: str) -> str:
    return world.effect(f"send_mail {what}")


@steplog.step
def charge(what: str) -> str:
    raise Declined(world.effect(f"charge {what}"))


@steplog.step(mode="safe")
def desk(what: str, nonce: str) -> list[str]:
    return [ask(nonce, f"policy of {what}"), refund(what), send_mail(what)]


@steplog.step(mode="safe")
async def sub_agent(what: str, nonce: str) -> list[str]:
    prompt = _prompt(nonce, f"where is {what}")
    answer = await world.async_model.chat.completions.create(**prompt)
    return [_text(answer), await book(what)]


def _prompt(nonce: str, question: str) -> dict[str, Any]:
    # The nonce is new in every process that does not get the recorded one back, and it is part of every identity.
    return {"model": "gpt-5.2", "messages": [{"role": "user", "content": f"{nonce}|{question}"}]}


def _text(completion: Any) -> str:
    return completion.choices[0].message.content


def ask(nonce: str, question: str) -> str:
    """Ask the model."""
    return _text(world.model.chat.completions.create(**_prompt(nonce, question)))


def agent() -> list[Any]:
    """Everything once; returns all that was learnt."""
    nonce = steplog.step("nonce", lambda: uuid.uuid4().hex)
    plan = ask(nonce, "plan")
    order = look_up("ord_1")
    reports = asyncio.run(_branches(nonce))
    with ThreadPoolExecutor(2) as pool:
        stock = list(pool.map(restock, ["tea", "cup"]))
    settled = desk("ord_1", nonce)
    try:
        paid = charge("fee")
    except (Declined, steplog.StepFailed) as declined:  # the latter when an operator says that it failed
        paid = f"declined: {declined}"
    return [plan, order, reports, stock, settled, paid, ask(nonce, "last words")]


async def _branches(nonce: str) -> list[Any]:
    return await asyncio.gather(sub_agent("north", nonce), sub_agent("south", nonce))
