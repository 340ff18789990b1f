"""One process that has steplog and another tool in it: python -m tests.coexistence.program TOOL ORDER HOME URL.

ORDER says who comes first: `tool` or `steplog`. It prints one line of JSON: what the calls gave, how many steps were
replayed and executed, how many spans there are, and whether anything of steplog is left once both have been taken out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import steplog
from tests.coexistence.tools import TOOLS

ASK: dict[str, Any] = {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]}
AGAIN: dict[str, Any] = {"model": "gpt-x", "messages": [{"role": "user", "content": "again"}]}
CLAUDE: dict[str, Any] = {"model": "claude-x", "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
CALLS = 9


def clients(url: str, tool: str) -> tuple[Any, Any, Any, Any]:
    """The four clients that the calls are made with."""
    import anthropic
    import openai

    gpt = {"base_url": url + "/v1", "api_key": "sk-x", "max_retries": 2}
    claude = {"base_url": url, "api_key": "sk-x", "max_retries": 2}
    made = (
        openai.OpenAI(**gpt),
        openai.AsyncOpenAI(**gpt),
        anthropic.Anthropic(**claude),
        anthropic.AsyncAnthropic(**claude),
    )
    if tool == "logfire on clients":
        import logfire

        for client in made[:2]:
            logfire.instrument_openai(client)
        for client in made[2:]:
            logfire.instrument_anthropic(client)
    return made


async def calls(made: tuple[Any, Any, Any, Any]) -> list[Any]:
    """Every way of calling that the tools are known to trip over."""
    gpt, gpt_async, claude, claude_async = made
    said: list[Any] = [gpt.chat.completions.create(**ASK).choices[0].message.content]
    said.append(gpt.chat.completions.create(**AGAIN).choices[0].message.content)
    said.append("".join(map(_delta, gpt.chat.completions.create(stream=True, **ASK))))
    said.append(gpt.chat.completions.with_raw_response.create(user="raw", **ASK).parse().choices[0].message.content)
    answer = await gpt_async.chat.completions.create(user="async", **ASK)
    said.append(answer.choices[0].message.content)
    stream = await gpt_async.chat.completions.create(user="async", stream=True, **ASK)
    said.append("".join([_delta(chunk) async for chunk in stream]))
    said.append(claude.messages.create(**CLAUDE).content[0].text)
    said.append([event.type for event in claude.messages.create(stream=True, **CLAUDE)])
    async with claude_async.messages.stream(**CLAUDE) as helper:
        said.append((await helper.get_final_message()).content[0].text)
    return said


def _delta(chunk: Any) -> str:
    # Some tools ask for a chunk with the usage and keep it to themselves, so only the text is the program's.
    return (chunk.choices[0].delta.content or "") if chunk.choices else ""


async def _main(tool: str, order: str, home: str, url: str) -> dict[str, Any]:
    other = TOOLS[tool]
    first, second = (other.put_in, _install(home)) if order == "tool" else (_install(home), other.put_in)
    first()
    second()
    made = clients(url, tool)
    async with steplog.run("r") as run:
        said = await calls(made)
    report = {"said": said, "replayed": run.replayed, "executed": run.executed}
    report["spans"] = other.spans() if other.spans else None
    return report


def _install(home: str) -> Any:
    return lambda: steplog.install(home=home, durability="process")


def take_out(tool: str, first: str) -> list[str]:
    """Take both out, and name the methods of the SDKs that are still patched by steplog and on."""
    other = TOOLS[tool]
    if first == "tool" and other.take_out:
        other.take_out()
    steplog.uninstall()
    if first != "tool" and other.take_out:
        other.take_out()
    import anthropic._base_client
    import httpx2
    import openai._base_client

    owners = [httpx2.Client, httpx2.AsyncClient]
    for module in (openai._base_client, anthropic._base_client):
        owners += [module.SyncAPIClient, module.AsyncAPIClient]
    return [
        f"{owner.__module__}.{owner.__qualname__}.{name}"
        for owner in owners
        for name, function in vars(owner).items()
        if getattr(getattr(function, "__steplog_patch__", None), "on", False)
    ]


if __name__ == "__main__":
    tool, order, leaves, home, url = sys.argv[1:]
    result = asyncio.run(_main(tool, order, home, url))
    result["left"] = take_out(tool, leaves)
    print(json.dumps(result))
