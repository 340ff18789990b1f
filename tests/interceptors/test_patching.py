"""Putting the patches in and taking them out: visible, once, reversible, and not to be noticed."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import subprocess
import sys
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest

import steplog
from steplog import plugins
from steplog.testing import LocalProvider
from steplog_interceptors import anthropic, openai
from steplog_interceptors._install import SHARED
from tests.interceptors.support import ASK, answers, chat, http_of, openai_client

HTTP = http_of(openai_sdk)
RESOURCE = importlib.import_module("openai._resource")
PATCHED = [
    (openai_sdk._base_client.SyncAPIClient, "request"),
    (openai_sdk._base_client.AsyncAPIClient, "request"),
    (openai_sdk._base_client.SyncAPIClient, "_sleep_for_retry"),
    (openai_sdk._base_client.AsyncAPIClient, "_sleep_for_retry"),
    (RESOURCE.SyncAPIResource, "_sleep"),
    (RESOURCE.AsyncAPIResource, "_sleep"),
    (anthropic_sdk._base_client.SyncAPIClient, "request"),
    (anthropic_sdk._base_client.AsyncAPIClient, "request"),
    (openai_sdk._exceptions.APIError, "__init__"),
    (anthropic_sdk._exceptions.APIError, "__init__"),
    (HTTP.Client, "send"),
    (HTTP.AsyncClient, "send"),
]


def methods() -> list[Any]:
    return [vars(cls)[name] for cls, name in PATCHED]


@pytest.fixture
def interceptors() -> Any:
    for user in sorted(SHARED._users):
        SHARED.release(user)  # what another test of this process has left installed would keep the wire
    yield
    openai.interceptor.uninstall()
    anthropic.interceptor.uninstall()


def install() -> None:
    openai.interceptor.install()
    anthropic.interceptor.install()


def uninstall() -> None:
    openai.interceptor.uninstall()
    anthropic.interceptor.uninstall()


def test_uninstall_leaves_the_classes_as_they_were(interceptors):
    before = {cls: dict(vars(cls)) for cls, _ in PATCHED}
    install()
    assert all(new is not before[cls][name] for new, (cls, name) in zip(methods(), PATCHED, strict=True))
    uninstall()
    assert {cls: dict(vars(cls)) for cls, _ in PATCHED} == before


def test_installing_twice_patches_once(interceptors):
    # Compared with what stood there, which is not the library's own where another test has buried a patch of ours.
    before = methods()
    install()
    once = methods()
    install()
    assert methods() == once
    uninstall()
    assert methods() == before


def test_the_wire_stays_while_one_interceptor_needs_it(interceptors):
    before = HTTP.Client.send
    install()
    openai.interceptor.uninstall()
    assert HTTP.Client.send.__steplog_patch__.on
    assert HTTP.Client.send is not before
    anthropic.interceptor.uninstall()
    assert HTTP.Client.send is before


def test_the_list_of_patches_can_be_read(interceptors):
    install()
    shown = [repr(patch) for patch in SHARED.patches]
    assert any("Client.send on" in line for line in shown)
    uninstall()
    assert list(SHARED.patches) == []


def test_patched_methods_look_like_the_originals(interceptors):
    before = methods()
    install()
    for old, new in zip(before, methods(), strict=True):
        assert inspect.signature(new) == inspect.signature(old)
        assert inspect.iscoroutinefunction(new) == inspect.iscoroutinefunction(old)
        assert (new.__name__, new.__qualname__, new.__module__, new.__doc__) == (
            old.__name__,
            old.__qualname__,
            old.__module__,
            old.__doc__,
        )
        assert new.__wrapped__ is old


def test_patched_methods_can_be_pickled_and_copied(interceptors):
    install()
    for method in methods():
        assert pickle.loads(pickle.dumps(method)) is method
        assert copy.deepcopy(method) is method


def test_a_patch_that_was_put_on_top_of_ours_survives_and_ours_goes_silent(home, events):
    ours = openai_sdk._base_client.SyncAPIClient.request

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(self, *args, **kwargs)

    openai_sdk._base_client.SyncAPIClient.request = theirs
    try:
        uninstall()
        assert vars(openai_sdk._base_client.SyncAPIClient)["request"] is theirs
        with LocalProvider(handler=answers(chat())) as provider, steplog.run("r"):
            openai_client(provider.url).chat.completions.create(**ASK)
        assert not [event for event in events() if event["type"].startswith("step.")]
    finally:
        openai_sdk._base_client.SyncAPIClient.request = ours.__wrapped__


def test_clients_and_methods_taken_before_install_are_recorded(tmp_path, interceptors):
    with LocalProvider(handler=answers(chat())) as provider:
        create = openai_client(provider.url).chat.completions.create
        steplog.install(home=tmp_path, durability="process", interceptors=())
        install()
        for _ in range(2):
            with steplog.run("r"):
                create(**ASK)
        assert len(provider.hits) == 1
    steplog.uninstall()


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_installing_imports_neither_sdk_nor_http_library():
    out = run_python(
        "import sys, steplog_interceptors.openai as o, steplog_interceptors.anthropic as a\n"
        "o.interceptor.install(); a.interceptor.install()\n"
        "print([m for m in ('openai', 'anthropic', 'httpx', 'httpx2') if m in sys.modules])"
    )
    assert out == "[]"


def test_an_sdk_that_is_imported_after_install_is_patched():
    out = run_python(
        "import steplog_interceptors.openai as o\n"
        "o.interceptor.install()\n"
        "import openai\n"
        "print(hasattr(openai.OpenAI.request, '__steplog_patch__'), hasattr(openai.OpenAI(api_key='x')._client.send,"
        " '__steplog_patch__'))"
    )
    assert out == "True True"


def test_an_sdk_that_is_imported_after_uninstall_is_left_alone():
    out = run_python(
        "import steplog_interceptors.openai as o\n"
        "o.interceptor.install(); o.interceptor.uninstall()\n"
        "import openai\n"
        "print(hasattr(openai.OpenAI.request, '__steplog_patch__'))"
    )
    assert out == "False"


@pytest.mark.parametrize("name", ["httpx", "httpx2", "openai._base_client"])
def test_a_module_of_another_shape_is_named_and_can_be_imported(name, tmp_path):
    folder = tmp_path.joinpath(*name.split(".")[:-1])
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    (folder / f"{name.rpartition('.')[2]}.py").write_text("MINE = 1")
    out = run_python(
        f"import logging, sys; sys.path.insert(0, {str(tmp_path)!r}); logging.basicConfig(stream=sys.stdout)\n"
        "import steplog_interceptors.openai as o\n"
        f"o.interceptor.install()\nimport {name}\nprint({name}.MINE)"
    )
    assert f"WARNING:steplog:steplog cannot record calls through the module {name} " in out
    assert out.endswith("1")


@pytest.mark.skipif(
    HTTP.__name__ != "httpx2",
    reason=f"openai {openai_sdk.__version__} comes with httpx, and only httpx2 can stand in for it",
)
@pytest.mark.parametrize("order", ["before", "after"])
def test_httpx_as_an_alias_of_httpx2_is_patched_once(order):
    alias, install_ = "import httpx2; httpx2.alias_httpx()", "o.interceptor.install()"
    first, second = (alias, install_) if order == "before" else (install_, alias)
    out = run_python(
        f"import steplog_interceptors.openai as o\n{first}\n{second}\nimport httpx, httpx2\n"
        "print(httpx.Client is httpx2.Client, hasattr(httpx.Client.send.__wrapped__, '__steplog_patch__'),"
        " hasattr(httpx.Client.send, '__steplog_patch__'))"
    )
    assert out == "True False True"


def test_an_unsupported_release_is_named_with_what_to_do(caplog, monkeypatch, interceptors):
    monkeypatch.setattr(openai_sdk, "__version__", "1.99.0")
    monkeypatch.setattr(anthropic_sdk, "__version__", "99.0.0")
    install()
    assert "pip install -U 'openai>=" in caplog.text
    assert "this is 1.99.0, which is older" in caplog.text
    assert "this is 99.0.0, which is newer" in caplog.text


def test_a_method_that_is_missing_or_only_inherited_is_no_silent_failure():
    class Base:
        def ask(self) -> None: ...

        @staticmethod
        def look() -> None: ...

    class Client(Base): ...

    def wrapper(original: Any, patch: Any) -> Any:
        raise AssertionError("nothing is replaced")

    patches = plugins.Patches()
    with pytest.raises(AttributeError, match=r"Client has no method send"):
        patches.apply(Client, "send", wrapper)
    with pytest.raises(AttributeError, match=r"Client inherits ask from .*Base; patch it there"):
        patches.apply(Client, "ask", wrapper)
    with pytest.raises(AttributeError, match=r"Base.look is no plain method but a staticmethod"):
        patches.apply(Base, "look", wrapper)
    assert list(patches) == []
