"""A refund agent of DSPy that survives being killed."""

from __future__ import annotations

import dspy

import steplog
from tests.frameworks.shop import shop

steplog.install()


@steplog.step(mode="safe")
def lookup_order(order_id: str) -> str:
    """Look an order up."""
    return shop.lookup(order_id)


@steplog.step
def refund(order_id: str, cents: int) -> str:
    """Pay money back."""
    return shop.pay_back(order_id, cents)


def agent() -> dspy.ReAct:
    return dspy.ReAct("question -> answer", tools=[lookup_order, refund])


def model(name: str = "openai/gpt-5.2", **options: str) -> dspy.LM:
    # DSPy's own cache answers without asking; steplog's log is the record of a run.
    return dspy.LM(name, cache=False, **options)


def run(question: str) -> str:
    with dspy.context(lm=model()):
        return agent()(question=question).answer


def threads(question: str) -> str:
    with dspy.context(lm=model()):
        (prediction,) = dspy.Parallel(num_threads=2)([(agent(), {"question": question})])
        return prediction.answer


async def responses(question: str) -> str:
    with dspy.context(lm=model(model_type="responses")):
        return (await agent().acall(question=question)).answer


if __name__ == "__main__":
    with steplog.run("refund-ord_1001"):
        print(run("Refund the broken teapot of order ord_1001."))
