"""An agent that talks to both SDKs, in one piece and in streams, from a thread and from tasks."""

from __future__ import annotations

import asyncio

import anthropic
import openai

import steplog

steplog.install()


def ask(question: str) -> dict[str, object]:
    return {"model": "gpt-x", "messages": [{"role": "user", "content": question}]}


async def tell(question: str) -> str:
    async with openai.AsyncOpenAI() as client:
        stream = await client.chat.completions.create(stream=True, **ask(question))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def both() -> list[str]:
    return await asyncio.gather(tell("north"), tell("south"))


def main() -> None:
    with openai.OpenAI() as gpt, anthropic.Anthropic() as claude, steplog.run("talking"):
        plan = gpt.chat.completions.create(**ask("plan")).choices[0].message.content
        told = asyncio.run(both())
        question = [{"role": "user", "content": f"{plan} {told}"}]
        with claude.messages.stream(model="c", max_tokens=9, messages=question) as stream:
            print(plan, told, stream.get_final_text())


if __name__ == "__main__":
    main()
