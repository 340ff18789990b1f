"""`@step` and `step(name, fn)`: tools and local values as recorded steps.

A wrapper keeps the function's signature, name and types. Without an open run it calls straight through.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, Final

from orjson import Fragment

from steplog._kernel.canonical import plain_text
from steplog._kernel.codec import Classes, encode, holds_wrapped
from steplog._kernel.fold import DONE, StepState
from steplog._kernel.identity import Mode, check_mode, plain_hash
from steplog._kernel.secret import Plan, parameters_of
from steplog._runtime import straight
from steplog._runtime.changes import UNCHANGEABLE, warn_of_changes
from steplog._runtime.context import FRAME, Frame, Owner, advance, inside, new_frame, owner
from steplog._runtime.deadline import within
from steplog._runtime.door import PROCESS, place_of
from steplog._runtime.drive import run, run_async
from steplog._runtime.life import drive, drive_async, life, note_cancelled, refuse_awaitable
from steplog._runtime.outcome import ARGUMENTS, done, failure, returned
from steplog._runtime.refuse import refuse
from steplog._runtime.settle import replayed, settle_in_task, settle_in_thread
from steplog._runtime.signature import Binder
from steplog._runtime.ticket import Call, Ticket
from steplog.errors import EncodeError, Interrupt, InvalidArgument

KEY_PARAMETER: Final = "idempotency_key"


class Tool:
    """A function that is recorded as a step, and what its author declared of it."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        kind: str,
        name: str | None = None,
        mode: str = "unsafe",
        verify: Callable[..., Any] | None = None,
        retries: int = 0,
        backoff: float = 0.5,
        retry_on: tuple[type[Exception], ...] = (Exception,),
        ignore: Collection[str] = (),
    ) -> None:
        refuse(fn, kind)
        self.fn = fn
        # What a `partial` has bound already is part of what is asked for, like any other argument.
        self.bound_args, self.bound_kwargs = (fn.args, fn.keywords) if isinstance(fn, functools.partial) else ((), {})
        self.partial = bool(self.bound_args or self.bound_kwargs)
        self.kind = kind
        # A name that the author gave may stand for several functions, such as the sync and the async form of a tool.
        self.code = None if name else _code_of(fn)
        self.module = None if name else getattr(inspect.unwrap(fn), "__module__", None)
        self.name = name or _name_of(fn)
        owner = f"step {self.name}"
        self.mode: Mode = check_mode(mode, owner)
        self.verify = verify
        self.retries = retries
        self.backoff = backoff
        self.retry_on = retry_on
        # A local value is asked for by its name alone, whatever parameters its function could take.
        shape = _nothing if kind == "local" else fn.func if isinstance(fn, functools.partial) else fn
        self.binder = Binder(shape, owner=owner, ignore=ignore, key=KEY_PARAMETER)
        self._classes: Classes | None = None
        self._secrets: dict[str, Plan] | None = None
        self._check(owner)

    @property
    def classes(self) -> Classes:
        """Where classes in recorded results are found; made late, when forward references can be resolved."""
        if self._classes is None:
            fn = inspect.unwrap(self.fn)
            returned = getattr(fn, "__annotations__", {}).get("return")
            namespace = getattr(fn, "__globals__", None)
            self._classes = Classes.of(returned, namespace=namespace, plan=self.secrets.get("return"))
        return self._classes

    @property
    def secrets(self) -> dict[str, Plan]:
        """By the name of a parameter, and for `return`, how to conceal what its annotation calls secret."""
        if self._secrets is None:
            fn = self.fn.func if isinstance(self.fn, functools.partial) else self.fn
            self._secrets = parameters_of(inspect.unwrap(fn))
        return self._secrets

    def _check(self, owner: str) -> None:
        if self.mode == "keyed" and not self.binder.takes_key:
            message = (
                f"{owner}: mode 'keyed' hands the step's idempotency key to the function, which does not take one.\n"
                f"Add a parameter: def {self.name}(..., *, {KEY_PARAMETER}: str)"
            )
            raise InvalidArgument(message)
        if (self.mode == "verify") != (self.verify is not None):
            message = (
                f"{owner}: mode 'verify' and a verify function go together.\n"
                f'Write @steplog.step(mode="verify", verify=find_refund).'
            )
            raise InvalidArgument(message)
        if self.retries < 0 or self.backoff < 0:
            message = f"{owner}: retries and backoff must not be negative."
            raise InvalidArgument(message)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The effect that a call with these arguments is. Raises EncodeError, naming the argument."""
        if self.kind == "local":
            return Call(self.kind, self.name, {}, self.mode)
        if self.partial:
            arguments = self.binder.bind((*self.bound_args, *args), {**self.bound_kwargs, **kwargs})
        else:
            arguments = self.binder.bind(args, kwargs)
        secrets = self.secrets if self._secrets is None else self._secrets
        hashed = None if secrets else plain_hash(arguments)
        if hashed is None:
            arguments = {name: self._encoded(name, value) for name, value in arguments.items()}
        call = Call(self.kind, self.name, arguments, self.mode)
        call.plain = call.amends = hashed is not None
        call.hashed = hashed
        call.module = self.module
        if self.binder.receiver is not None:
            call.receiver = args[0] if args else kwargs.get(self.binder.receiver)
        return call

    def _encoded(self, name: str, value: Any) -> Any:
        try:
            tree = encode(value, f"{self.name}({name})", ARGUMENTS, above=1)
            plan = self.secrets.get(name)
            return tree if plan is None else plan(tree, ARGUMENTS.secret)
        except EncodeError as refused:
            message = (
                f"{refused}\nIf {name} does not matter for what is asked (a context, a client), leave it out: "
                f'@steplog.step(ignore=["{name}"]).'
            )
            # Agent frameworks tell the model of errors in a tool, and nobody else.
            PROCESS.warn_once(f"arguments of {self.name}", f"step {self.name} was not executed: {message}")
            raise EncodeError(message, path=refused.path, type_name=refused.type_name) from refused

    def changed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], ticket: Ticket
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that a fork has the tool called with."""
        from steplog._runtime.forked import changed_arguments  # few programs need it

        return changed_arguments(self.fn, args, kwargs, ticket.changes)

    def value(self, value: Any, recorded: dict[str, Any]) -> Any:
        """A decoded result as what the function returns, also where an operator gave it by hand. Raises Misfit."""
        by_hand = recorded.get("how") == "done" and recorded.get("by") != "verify"
        return self._by_hand(value) if by_hand else value

    def result(self, ticket: Ticket) -> Any:
        """The recorded result, or the recorded exception raised again."""
        return returned(ticket, self.classes, self._by_hand)

    def _by_hand(self, value: Any) -> Any:
        """What an operator gave, as what the function says it returns. Raises Misfit."""
        from steplog._kernel.coerce import coerce  # few programs need it

        fn = inspect.unwrap(self.fn.func if isinstance(self.fn, functools.partial) else self.fn)
        hints = getattr(fn, "__annotations__", {})
        hint = hints.get("return", Any)
        return coerce(value, type(None) if hint is None else hint, getattr(fn, "__globals__", None), "it")


_FINAL: Final = frozenset({dict, list, *UNCHANGEABLE})


def _nothing() -> None:
    """The shape of a call without arguments."""


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__qualname__", None)
    if name is None and isinstance(fn, functools.partial):
        name = getattr(fn.func, "__qualname__", None)
    if name is None:
        message = f'{fn!r} has no name to record it under. Write @steplog.step(name="...").'
        raise InvalidArgument(message)
    return str(name).rsplit("<locals>.", 1)[-1]


def _code_of(fn: Any) -> Any:
    """What tells a function from another one, also when each call of the program defines it anew."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    return getattr(fn, "__code__", type(fn))


def call_sync(tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a plain function as a step of the open run, or straight through where none is open."""
    place = place_of(tool.kind, tool.name, tool.mode)
    if place is None:
        return tool.fn(*args, **tool.binder.without_run(args, kwargs))
    recorder = place.recorder
    call = tool.call(args, kwargs)
    if tool.code is not recorder.dispatch.names.get(tool.name):
        recorder.dispatch.check_name(tool.name, tool.code)
    who = owner()
    # In an event loop a plain call cannot wait for other branches: they go on only when it returns.
    may_wait = not who[1]
    if recorder.left:
        run(recorder.conclude_left())
    answer = recorder.ask(call, place, who, may_wait=may_wait)
    if isinstance(answer, StepState):
        return _returned(tool, call, place, who, answer)
    ticket = settle_in_thread(recorder, answer, may_wait=may_wait)
    if ticket.recorded is not None:
        return tool.result(ticket)
    if ticket.changes:
        args, kwargs = tool.changed(args, kwargs, ticket)
    if tool.retries or ticket.verify:
        return drive(life(tool, recorder, ticket, args, kwargs), tool, ticket)
    return _once(tool, ticket, args, kwargs, who)


def _returned(tool: Tool, call: Call, place: Frame, who: Owner, step: StepState) -> Any:
    """The recorded result of a step, or its recorded exception raised again."""
    recorder = place.recorder
    data, text = recorder.read(step)
    if step.status != DONE or text is None or holds_wrapped(text) or "how" in data or "exact" in data:
        return tool.result(replayed(recorder, call, place, step, data))
    # It is JSON, parsed for nobody else: its own value.
    recorder.note_replayed(step)
    advance(recorder, place.scope, step.id, who)
    return data.get("result")


def _once(tool: Tool, ticket: Ticket, args: tuple[Any, ...], kwargs: dict[str, Any], who: Owner) -> Any:
    """The `life` of the ordinary step, which is neither verified nor retried, without what those two need."""
    if tool.binder.takes_key:
        kwargs = tool.binder.with_key(args, kwargs, ticket.key)
    recorder = ticket.recorder
    outer = FRAME.get()
    try:
        try:
            FRAME.set(new_frame(Frame, (recorder, ticket.step, None, who, "")))
            result = tool.fn(*args, **kwargs)
        finally:
            FRAME.set(outer)
        if type(result) not in _FINAL:
            refuse_awaitable(tool, result)
    except Interrupt:
        raise
    except Exception as error:
        straight.finish(ticket, "failed", {"error": failure(error, tool.classes)}, who, error=error)
        raise
    warn_of_changes(tool, ticket, args, kwargs)
    text = None if tool.secrets else plain_text(result)
    if text is not None:
        straight.finish(ticket, "done", {"result": Fragment(text)}, who)
    else:
        run(done(recorder, ticket, result, tool.classes))
    return result


async def call_async(tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an async function as a step of the open run, or straight through where none is open."""
    place = place_of(tool.kind, tool.name, tool.mode)
    if place is None:
        return await tool.fn(*args, **tool.binder.without_run(args, kwargs))
    recorder = place.recorder
    call = tool.call(args, kwargs)
    if tool.code is not recorder.dispatch.names.get(tool.name):
        recorder.dispatch.check_name(tool.name, tool.code)
    who = owner()
    if recorder.left:
        await run_async(recorder.conclude_left())
    answer = recorder.ask(call, place, who, may_wait=True)
    if isinstance(answer, StepState):
        return _returned(tool, call, place, who, answer)
    ticket = await settle_in_task(recorder, answer)
    if ticket.recorded is not None:
        return tool.result(ticket)
    if ticket.changes:
        args, kwargs = tool.changed(args, kwargs, ticket)
    if tool.retries or ticket.verify:
        return await drive_async(life(tool, recorder, ticket, args, kwargs), ticket)
    return await _once_async(tool, ticket, args, kwargs, who)


async def _once_async(tool: Tool, ticket: Ticket, args: tuple[Any, ...], kwargs: dict[str, Any], who: Owner) -> Any:
    """The same as `_once` for a task."""
    if tool.binder.takes_key:
        kwargs = tool.binder.with_key(args, kwargs, ticket.key)
    try:
        # The coroutine is awaited in the step's scope, not only created there.
        with inside(ticket.recorder, ticket.step, who):
            result = tool.fn(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await (result if ticket.recorder.allowance is None else within(ticket, result))
    except Interrupt:
        raise
    except Exception as error:
        await straight.finish_async(ticket, "failed", {"error": failure(error, tool.classes)}, who, error=error)
        raise
    except BaseException as interruption:
        note_cancelled(ticket, interruption)
        raise
    warn_of_changes(tool, ticket, args, kwargs)
    text = None if tool.secrets else plain_text(result)
    if text is not None:
        await straight.finish_async(ticket, "done", {"result": Fragment(text)}, who)
    else:
        await run_async(done(ticket.recorder, ticket, result, tool.classes))
    return result
