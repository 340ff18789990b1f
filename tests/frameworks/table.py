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
        order: how a tool is decorated.
        calls: how many model calls a run makes.
        remarks: what a user should know.
    """

    name: str
    group: str
    packages: tuple[str, ...]
    agent: str
    functions: tuple[str, ...]
    order: str
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
    ),
)
