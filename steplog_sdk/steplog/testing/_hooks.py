"""What the contract of interceptors asks of a third party, and what it makes of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import steplog
from steplog.testing import _rig
from steplog.testing._rig import opened
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
        raise NotImplementedError

    def call(self, client: Any, text: str) -> Any:
        """Make one call that asks for `text`; return the result, or what is to be awaited for it."""
        raise NotImplementedError

    def answer(self, hit: Hit) -> Reply:
        """Return what the provider answers. Another `text` must get another answer, with that text in it."""
        raise NotImplementedError

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
        """Return what must be equal in a result or an item when it is returned again; by default the value itself."""
        return value

    # fixtures --------------------------------------------------------------------------------------------------------

    @pytest.fixture(params=["sync", "async"])
    def asynchronous(self, request: pytest.FixtureRequest) -> bool:
        """Whether the async client is under test."""
        if request.param not in self.colours:
            pytest.skip(f"this SDK has no {request.param} client")
        return bool(request.param == "async")

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
