"""What the contract of interceptors asks of a third party, and what it makes of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import steplog
from steplog.testing import _rig
from steplog.testing._rig import opened, read, settled
from steplog.testing.provider import Hit, LocalProvider, Reply


class Hooks:
    """What a contract has to be told about an SDK: set the attributes and define `client`, `call` and `answer`.

    Attributes:
        interceptor: its entry point, `package.module:object`.
        sdk: the package that it patches, which `install` must not import.
        packages: all packages in which it may replace functions; the SDK by default.
        colours: `sync`, `async` or both, as the SDK has clients.
        patience: seconds after which an item that does not come counts as held back.
        key: a credential for the client. It must not look like one: what redaction takes out by itself would prove
            nothing about the interceptor.
    """

    interceptor: ClassVar[str]
    sdk: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    colours: ClassVar[tuple[str, ...]] = ("sync", "async")
    patience: ClassVar[float] = 30.0
    key: ClassVar[str] = "the contract's own words"

    # hooks -----------------------------------------------------------------------------------------------------------

    def client(self, url: str, key: str, *, asynchronous: bool) -> Any:
        """Return a client of the SDK that does not retry, for the provider at this URL."""
        raise NotImplementedError(_missing("client(self, url, key, *, asynchronous)"))

    def call(self, client: Any, text: str) -> Any:
        """Make one call that asks for `text`; return the result, or what is to be awaited for it."""
        raise NotImplementedError(_missing("call(self, client, text)"))

    def answer(self, hit: Hit) -> Reply:
        """Return what the provider answers, to every hook. Another `text` must get another answer, with it inside."""
        raise NotImplementedError(_missing("answer(self, hit)"))

    def write(self, client: Any, text: str) -> Any:  # noqa: ARG002  # a hook
        """Make one call that must not be made twice, or leave this hook out where the SDK has none."""
        pytest.skip("no hook `write`")

    def stream(self, client: Any, text: str) -> Any:  # noqa: ARG002  # a hook
        """Open a stream of at least three items, answered by at least three chunks; or leave it out."""
        pytest.skip("no hook `stream`")

    def refusal(self, hit: Hit) -> Reply:  # noqa: ARG002  # a hook
        """Return what the provider answers to a call that fails."""
        return Reply.json({"error": {"type": "invalid_request_error", "message": "refused"}}, 400)

    def facts(self, value: Any) -> Any:
        """Return what must be equal in a result or an item when it is returned again; by default the value itself.

        It is compared with `==`, so a class without `__eq__` needs this hook: `return vars(value)`, for example. The
        `text` that was asked for must be in it.
        """
        return value

    # fixtures --------------------------------------------------------------------------------------------------------

    @pytest.fixture(params=["sync", "async"])
    def asynchronous(self, request: pytest.FixtureRequest) -> bool:
        """Whether the async client is under test."""
        if request.param not in self.colours:
            pytest.skip(f"this SDK has no {request.param} client")
        return bool(request.param == "async")

    @pytest.fixture(params=["call", "write", "stream"])
    def hook(self, request: pytest.FixtureRequest) -> str:
        """The hook whose calls are under test."""
        if not self.has(request.param):
            pytest.skip(f"no hook `{request.param}`")
        return str(request.param)

    def has(self, hook: str) -> bool:
        """Whether the SDK has such calls; what must be defined counts as there."""
        return hook == "call" or getattr(type(self), hook) is not getattr(Hooks, hook)

    @pytest.fixture
    def home(self, tmp_path: Path) -> Iterator[Path]:
        """The log's directory, with steplog and the interceptor installed."""
        interceptor = _rig.load(self.interceptor)
        steplog.install(home=tmp_path / "home", durability="process", strict=False, interceptors=())
        interceptor.install()
        yield tmp_path / "home"
        interceptor.uninstall()
        steplog.uninstall()

    @pytest.fixture
    def provider(self) -> Iterator[LocalProvider]:
        """The provider."""
        self.answer_with(self.answer)
        with LocalProvider(handler=self._handle) as provider:
            yield provider

    def answer_with(self, handler: Callable[[Hit], Reply]) -> None:
        """Let the provider answer something else from now on."""
        self._answer = handler

    def _handle(self, hit: Hit) -> Reply:
        return self._answer(hit)

    async def ask(self, hook: str, client: Any, text: str) -> Any:
        """Make the call of a hook, read to its end; return what must be equal when it is made again."""
        value = await settled(getattr(self, hook)(client, text))
        return [self.facts(item) for item in await read(value)] if hook == "stream" else self.facts(value)

    async def refused(self, hook: str, client: Any) -> Exception:
        """Make a call that the provider refuses; return what the SDK raises."""
        try:
            await self.ask(hook, client, "one")
        except Exception as error:  # noqa: BLE001  # whatever the SDK raises
            return error
        pytest.fail(f"`{hook}` raised nothing: let `refusal(hit)` return an answer for which the SDK raises")

    def same(self, recorded: Any, live: Any) -> None:
        """Fail, saying what to do, where what came from the log is not what the SDK had given."""
        if recorded != live:
            for name in _rig.only_equal_to_themselves(live):
                pytest.fail(
                    f"two equal objects of {name} cannot be compared, since the class has no `__eq__`: define "
                    "`facts(self, value)` in the test class, which returns what must be equal (`return vars(value)`)"
                )
        assert recorded == live, (
            "what the log gives back (left) is not what the SDK gave (right); where the difference means nothing, let "
            "`facts(self, value)` leave it out"
        )

    @contextmanager
    def unpatched(self) -> Iterator[None]:
        """The SDK as it is by itself."""
        interceptor = _rig.load(self.interceptor)
        interceptor.uninstall()
        try:
            yield
        finally:
            interceptor.install()

    def perform(self, use: Callable[[Any], Any], url: str, *, asynchronous: bool, run: str | None = "r") -> Any:
        """Use a client in a run, or outside every run; give what `use` gives."""

        async def body() -> Any:
            client = self.client(url, self.key, asynchronous=asynchronous)
            try:
                if run is None:
                    return await use(client)
                async with opened(run, asynchronous=asynchronous):
                    return await use(client)
            finally:
                await _rig.close(client)

        return _rig.perform(body(), asynchronous=asynchronous)

    def again(self, use: Callable[[Any], Any], provider: LocalProvider, *, asynchronous: bool) -> Any:
        """The same, with the provider gone and every connection forbidden."""
        provider.close()
        with _rig.unreachable() as tried:
            result = self.perform(use, provider.url, asynchronous=asynchronous)
        assert tried == [], "a call that is in the log was made again"
        return result


def _missing(signature: str) -> str:
    return f"define `def {signature}` in the test class; docs/interceptors.md, Testing, has an example"
