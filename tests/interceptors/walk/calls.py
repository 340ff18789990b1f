"""The calls of a walk: each form of each method, through each view, and how their results are read."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tests.interceptors.support import listed, settled
from tests.interceptors.walk.answers import Answer, answer
from tests.interceptors.walk.entered import entered
from tests.interceptors.walk.helpers import HELPERS, Helper
from tests.interceptors.walk.inventory import Form, Method, locate, model_client
from tests.interceptors.walk.snapshot import response, snapshot
from tests.interceptors.walk.values import arguments

View = Literal["", "with_raw_response", "with_streaming_response"]

VIEWS: Final[tuple[View, ...]] = ("", "with_raw_response", "with_streaming_response")


@dataclass(frozen=True)
class Call:
    """One call of a method: a form, through a view.

    Attributes:
        method: what is called.
        form: with or without `stream`.
        view: `""` for the method itself.
        arguments: by keyword.
        answer: what the provider answers.
        number: tells its answers from those of every other call.
        helper: how a method above the generated ones is used, or None.
    """

    method: Method
    form: Form
    view: View
    arguments: dict[str, Any] = field(repr=False)
    answer: Answer
    number: int
    helper: Helper | None

    def __str__(self) -> str:
        how = [self.form.label, self.view]
        return str(self.method) + "".join(f" [{each}]" for each in how if each)

    async def perform(self, client: Any) -> Any:
        """Make the call and read all that it gives; `client` may be of either colour."""
        owner = locate(client, self.method.resource)
        function = getattr(getattr(owner, self.view) if self.view else owner, self.method.name)
        # Some methods take what they are given apart.
        given = {name: copy.deepcopy(value) for name, value in self.arguments.items()}
        if self.helper is not None and self.helper.read is not None:
            return await self.helper.read(function, given)
        result = function(**given)
        if self.view == "with_streaming_response":
            async with entered(result) as raw:
                return [response(raw), await self._body(raw)]
        result = await settled(result)
        if self.view == "with_raw_response":
            return [response(result), await self._body(result)]
        return await self._plain(result)

    async def _body(self, raw: Any) -> Any:
        if self.answer.kind in ("binary", "lines") and hasattr(raw, "iter_bytes"):
            return b"".join(await listed(raw.iter_bytes()))
        if self.answer.kind == "binary":
            return await settled(raw.read()) if hasattr(raw, "read") else raw.content
        parsed = await settled(raw.parse())
        return await self._events(parsed) if self.answer.kind in ("stream", "lines") else snapshot(parsed)

    async def _plain(self, result: Any) -> Any:
        if self.answer.kind == "page":
            return [snapshot(result), [snapshot(item) for item in await listed(result)]]
        if self.answer.kind == "binary":
            return [type(result).__qualname__, await settled(result.read())]
        if self.answer.kind in ("stream", "lines"):
            return await self._events(result)
        return snapshot(result)

    @staticmethod
    async def _events(stream: Any) -> Any:
        return [type(stream).__qualname__, [snapshot(event) for event in await listed(stream)]]


def calls(method: Method) -> Iterator[Call]:
    """All calls of a method. Raises `NoValue` where one of its types has no known value."""
    owner = locate(model_client(method.sdk, method.colours[0]), method.resource)
    for form in method.forms:
        helper = HELPERS.get(f"{method} [{form.label}]", HELPERS.get(str(method)))
        given = dict(helper.arguments) if helper is not None else {}
        filled = given if helper is not None and helper.complete else arguments(form.function, form.hints, given)
        if form.label == "stream" or "stream" in filled:
            filled["stream"] = form.label == "stream"
        found = (
            helper.answer() if helper is not None and helper.answer is not None else answer(form.hints.get("return"))
        )
        if found is None:
            raise TypeError(f"no answer is known for what {method} returns, {form.hints.get('return')}")
        for number, view in enumerate(VIEWS):
            if not view or (method.name in _names(getattr(owner, view, None)) and not (helper and helper.read)):
                yield Call(method, form, view, filled, found, number, helper)


def _names(view: Any) -> set[str]:
    return {name for name, value in vars(view).items() if callable(value)} if view is not None else set()
