"""The frameworks, where their packages are pinned, and how each is called."""

from __future__ import annotations

from typing import NamedTuple


class Way(NamedTuple):
    """One way to run an agent.

    Attributes:
        agent: name of its program in `agents/`.
        function: of that program; an async one opens the run inside the event loop, any other around it.
        calls: how many model calls the run makes.
    """

    agent: str
    function: str
    calls: int = 3


class Framework(NamedTuple):
    """A framework and what is run of it.

    Attributes:
        name: as its users call it.
        group: name of the file in `requirements/`; what is in one file is installed into one environment.
        packages: distributions whose versions are reported.
        agent: name of its program in `agents/`.
        functions: of that program, each a way to run the agent.
        order: how a tool is decorated, or how it is used where the framework has no decorator.
        decorator: module to import, and expression for what makes a tool of a function; none where nothing does.
        calls: how many model calls a run makes.
        remarks: what a user should know.
    """

    name: str
    group: str
    packages: tuple[str, ...]
    agent: str
    functions: tuple[str, ...]
    order: str
    decorator: tuple[str, str] | None = None
    calls: int = 3
    remarks: str = ""

    def ways(self) -> list[Way]:
        """Every way to run the agent."""
        return [Way(self.agent, function, self.calls) for function in self.functions]


# Installed and run by `make test`; the others by `make test-frameworks`.
LIGHT = "light"

FRAMEWORKS = (
    Framework(
        name="OpenAI Agents SDK",
        group=LIGHT,
        packages=("openai-agents",),
        agent="with_openai_agents",
        functions=("run", "chat", "streamed"),
        order="@function_tool @steplog.step",
        decorator=("agents", "agents.function_tool"),
        remarks="Its own tracing sends to OpenAI from a thread that belongs to no run; the example turns it off.",
    ),
    Framework(
        name="Pydantic AI",
        group=LIGHT,
        packages=("pydantic-ai-slim",),
        agent="with_pydantic_ai",
        functions=("run", "responses", "streamed", "anthropic", "anthropic_streamed"),
        order="@agent.tool_plain @steplog.step",
        decorator=("pydantic_ai", "pydantic_ai.Agent('test').tool_plain"),
        remarks="Functions that are steps can also be given as `Agent(tools=[refund])`, as in the example.",
    ),
    Framework(
        name="LangChain",
        group=LIGHT,
        packages=("langchain", "langchain-openai", "langchain-anthropic"),
        agent="with_langchain",
        functions=("run", "responses", "streamed", "anthropic", "anthropic_streamed"),
        order="@tool @steplog.step",
        decorator=("langchain_core.tools", "langchain_core.tools.tool"),
    ),
    Framework(
        name="LangGraph",
        group=LIGHT,
        packages=("langgraph",),
        agent="with_langgraph",
        functions=("run",),
        order="@tool @steplog.step",
        decorator=("langchain_core.tools", "langchain_core.tools.tool"),
        remarks="The checkpointer in the example lives as long as the process.",
    ),
    Framework(
        name="Instructor",
        group="mid",
        packages=("instructor",),
        agent="with_instructor",
        functions=("run", "anthropic", "streamed"),
        order="@steplog.step",
        remarks="Has no tools; each time it asks again for a valid answer is a step of its own.",
    ),
    Framework(
        name="LiteLLM",
        group="mid",
        packages=("litellm",),
        agent="with_litellm",
        functions=("run", "responses", "streamed", "anthropic", "anthropic_streamed"),
        order="@steplog.step",
        remarks="Has no tools. Anthropic, and OpenAI's responses, it calls with an HTTP client of its own.",
    ),
    Framework(
        name="smolagents",
        group="mid",
        packages=("smolagents",),
        agent="with_smolagents",
        functions=("run", "streamed", "code", "through_litellm"),
        order="@tool @steplog.step",
        decorator=("smolagents", "smolagents.tool"),
    ),
    Framework(
        name="DSPy",
        group="mid",
        packages=("dspy",),
        agent="with_dspy",
        functions=("run", "threads", "responses"),
        order="dspy.Tool(steplog.step(refund))",
        decorator=("dspy", "dspy.Tool"),
        calls=4,
        remarks="`dspy.LM(..., cache=False)`: what DSPy's own cache answers is asked of no model and is in no log.",
    ),
    Framework(
        name="CrewAI",
        group="crewai",
        packages=("crewai",),
        agent="with_crewai",
        functions=("run", "streamed", "threads"),
        order="@tool @steplog.step",
        decorator=("crewai.tools", "crewai.tools.tool"),
    ),
    Framework(
        name="LlamaIndex",
        group="llama-index",
        packages=("llama-index-core", "llama-index-llms-openai"),
        agent="with_llama_index",
        functions=("run", "around", "streamed", "responses"),
        order="@FunctionTool.from_defaults @steplog.step",
        decorator=("llama_index.core.tools", "llama_index.core.tools.FunctionTool.from_defaults"),
    ),
    Framework(
        name="AutoGen",
        group="autogen",
        packages=("autogen-agentchat", "autogen-ext"),
        agent="with_autogen",
        functions=("run", "streamed", "team", "around"),
        order="AssistantAgent(..., tools=[steplog.step(refund)])",
        decorator=("autogen_core.tools", "lambda fn: autogen_core.tools.FunctionTool(fn, description='')"),
        remarks="A team waits for ever for an agent that dies of a halt; steplog ends the wait.",
    ),
    Framework(
        name="Haystack",
        group="haystack",
        packages=("haystack-ai",),
        agent="with_haystack",
        functions=("run", "responses", "streamed"),
        order="@tool @steplog.step",
        decorator=("haystack.tools", "haystack.tools.tool"),
    ),
    Framework(
        name="Agno",
        group="agno",
        packages=("agno",),
        agent="with_agno",
        functions=("run", "responses", "streamed", "anthropic"),
        order="@tool @steplog.step",
        decorator=("agno.tools", "agno.tools.tool"),
    ),
    Framework(
        name="Agno, told the time",
        group="agno",
        packages=("agno",),
        agent="with_agno_and_the_time",
        functions=("run",),
        order="@tool @steplog.step",
        decorator=("agno.tools", "agno.tools.tool"),
        remarks='`add_datetime_to_context=True` needs `also=["clock"]`; otherwise a resumed run halts as drift.',
    ),
    Framework(
        name="Strands",
        group="strands",
        packages=("strands-agents",),
        agent="with_strands",
        functions=("run", "streamed", "anthropic"),
        order="@tool @steplog.step",
        decorator=("strands", "strands.tool"),
    ),
)
