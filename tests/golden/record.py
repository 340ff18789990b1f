"""Write a golden log: `python -m tests.golden.record NAME`, as soon as a format is released. It is never overwritten.

A folder holds `program.py` as it was, `home/` (logs and bodies), `said.json` (what the program learnt in each run) and
`state.json` (what each log folds to). With a name that ends in `-encrypted` the bodies are encrypted; one that begins
with `control-` is recorded from `control.py` instead: a policy, a budget, signals, a cancellation, an undo.

A golden log names no machine: its folders, host and boot id are made up, wherever it is recorded.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import steplog
from steplog._kernel.fold import fold
from steplog._runtime import origin, settings
from steplog.stores import files, lock
from steplog.stores.files import FileStore
from steplog.testing import LocalProvider, Reply
from steplog.testing.provider import Hit
from tests.golden.state import kept

GOLDEN = Path(__file__).parent
KEY = base64.b64encode(bytes(range(32))).decode()
"""Of every encrypted golden log; it guards nothing."""


PLACE = "/srv/agents"
"""Where every golden log says that it was recorded."""


def load(file: Path) -> ModuleType:
    """A golden program under the one name that its logs know its classes by."""
    spec = spec_from_file_location("golden_program", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["golden_program"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def nowhere() -> Iterator[None]:
    """Record as on a machine of no name, in `PLACE`."""
    entry, save = origin.entry, files._save

    def moved(tree: Any) -> Any:
        return json.loads(json.dumps(tree).replace(str(GOLDEN.parents[1]), PLACE))

    with (
        mock.patch.object(origin, "entry", side_effect=lambda: moved(entry())),
        mock.patch.object(files, "_save", side_effect=lambda *given: moved(save(*given))),
        mock.patch.object(settings, "home_option", return_value=""),
        mock.patch.object(lock, "boot_id", return_value="00000000-0000-4000-8000-000000000000"),
        mock.patch.object(lock.socket, "gethostname", return_value="vm"),
    ):
        yield


@contextmanager
def keyed(name: str) -> Iterator[None]:
    """The environment in which logs of this name are written and read."""
    if not name.endswith("-encrypted"):
        yield
        return
    os.environ["STEPLOG_KEY"] = KEY
    try:
        yield
    finally:
        del os.environ["STEPLOG_KEY"]


def answer(hit: Hit) -> Reply:
    """What the provider of a recording says."""
    from tests.interceptors.support import chat, chat_events, message_events, rate_limited

    body = hit.json
    if body["model"] == "refuse":
        return Reply.json({"error": {"message": "no such model", "type": "invalid_request_error"}}, 404)
    text = body["messages"][-1]["content"]
    if "/messages" in hit.path:
        return Reply.sse(message_events("well ", "then"))
    if body.get("stream"):
        return Reply.sse(chat_events("to ", "say ", text))
    if text == "again" and hit.headers.get("x-stainless-retry-count", "0") == "0":
        return rate_limited()
    return Reply.json(chat(f"answer {hit.number} to {text}"))


def crash(effect: Callable[[], Any]) -> None:
    """Call it in a fork, which must die in it."""
    child = os.fork()
    if not child:
        try:
            effect()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9, "the process came through"


def write(name: str) -> None:
    """Record into a new folder."""
    folder = GOLDEN / name
    if folder.exists():
        sys.exit(f"tests/golden/{name} exists; a golden log is never written again. Choose another name.")
    source = "control.py" if name.startswith("control-") else "program.py"
    shutil.copy(GOLDEN / source, _made(folder) / "program.py")
    program = load(folder / "program.py")
    with nowhere(), keyed(name), LocalProvider(handler=answer, event_delay=0.1) as provider:
        said = program.record(folder / "home", provider.url, crash)
        steplog.uninstall()
    for file in (folder / "home").rglob("*.lock"):
        file.unlink()
    keep(folder, said)


def keep(folder: Path, said: Any) -> None:
    """Write down what is expected of a log."""
    store = FileStore(folder / "home")
    states = {run_id: kept(fold(store.read(run_id).events)) for run_id in sorted(store.runs())}
    for file, expected in (("said.json", said), ("state.json", states)):
        (folder / file).write_text(json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    write(sys.argv[1])
