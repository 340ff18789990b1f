"""steplog beside other recorders of model calls: the same agents recorded, then replayed with the provider gone.

Prints the table and writes it to `docs/comparison.md`. It measures no time.

    python bench/compare_recorders.py [CASE...]     the page is written when all cases were played
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

_ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT), str(_ROOT / "bench/recorders")]

import cases  # noqa: E402

from steplog.testing import LocalProvider, Reply  # noqa: E402
from steplog.testing.provider import Hit  # noqa: E402

PAGE: Final = _ROOT / "docs/comparison.md"
_PEERS_PYTHON: Final = _ROOT / ".venv-recorders/bin/python"
_SECONDS: Final = 120
_AT_ONCE: Final = 4
_SLOW: Final = {"slow": 0.4, "slower": 0.8}
NOT_APPLICABLE: Final = "no tools"
# What the SDK raises where a replay tries to reach the provider.
_LIVE: Final = ("APIConnectionError", "ConnectError", "ConnectionRefusedError")


class Recorder(NamedTuple):
    """A recorder under comparison.

    Attributes:
        name: head of its column.
        script: its module in `recorders/`.
        package: its distribution; None for steplog itself.
        options: what it was told, for the page.
        tools: it records tools.
    """

    name: str
    script: str
    package: str | None
    options: str
    tools: bool = True


STEPLOG: Final = Recorder("steplog", "with_steplog", None, '`run`, `replay`, `@step`, `also=["uuid"]`')
PEERS: Final = (
    Recorder("vcrpy", "with_vcrpy", "vcrpy", "as it is", tools=False),
    Recorder("vcrpy, body", "with_vcrpy_body", "vcrpy", "`match_on` with `body`", tools=False),
    Recorder(
        "agent-rewind",
        "with_agent_rewind",
        "agent-rewind",
        '`auto_patch`, `patch_thread_pool`, `@tool`; `match="parallel"` where an agent does several things at once',
    ),
    Recorder("reeltime", "with_reeltime", "reeltime", "`tape run`, `tape replay`, `@tool`"),
)


class Answers:
    """A provider that answers the same question differently each time, some later than others."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._counting = threading.Lock()

    def __call__(self, hit: Hit) -> Reply:
        """The answer to a request."""
        question = str(hit.json["messages"][-1]["content"])
        with self._counting:
            self._asked[question] += 1
            number = self._asked[question]
        if question == "too much":
            return Reply.json({"error": {"message": "slow down", "type": "rate"}}, 429)
        time.sleep(_SLOW.get(question, 0.0))
        head = {"id": f"chatcmpl-{number}", "created": 1, "model": "gpt-x"}
        if hit.json.get("stream"):
            words = ["answer ", f"{number} ", "to ", question]
            deltas: list[Any] = [_chunk(head, {"content": word}) for word in words]
            return Reply.sse([*deltas, _chunk(head, {}, "stop"), "[DONE]"])
        message = {"role": "assistant", "content": f"answer {number} to {question}", "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        return Reply.json(body, x_request_id=f"req_{number}")


def _chunk(head: dict[str, Any], delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**head, "object": "chat.completion.chunk", "choices": [choice]}


def verdict(recorder: Recorder, case: str, folder: Path, python: Path) -> str:
    """`OK`, or what goes wrong."""
    if cases.CASES[case].tools and not recorder.tools:
        return NOT_APPLICABLE
    folder.mkdir(parents=True)
    with LocalProvider(handler=Answers(), event_delay=0.01) as provider:
        url = provider.url
        recorded = _start(recorder, "record", case, folder, url, python)
        made = len(provider.hits)
    if not (folder / "record.json").exists():
        return f"fails while recording: {_error(recorded)}"
    replayed = _start(recorder, "replay", case, folder, url, python)
    return _judged(case, folder, replayed, made)


def _judged(case: str, folder: Path, replayed: subprocess.CompletedProcess[str], made: int) -> str:
    ended = (folder / "replay.json").exists()
    if case == "changed":
        if ended:
            return "the old answer is given"
        live = _error(replayed) in _LIVE
        return "goes live" if live else "OK"
    if not ended:
        error = _error(replayed)
        return "goes live" if error in _LIVE else f"stops: {error}"
    want, have = (json.loads((folder / f"{verb}.json").read_text()) for verb in ("record", "replay"))
    if have["executed"]:
        return f"{len(have['executed'])} tools executed again"
    if want["said"] == have["said"]:
        return "OK"
    if isinstance(want["said"], list) and len(want["said"]) == len(have["said"]):
        wrong = sum(one != other for one, other in zip(want["said"], have["said"], strict=True))
        return f"{wrong} of {len(want['said'])} {'values differ' if case in _VALUES else 'answers are wrong'}"
    return f"another answer ({made} calls were made)"


_VALUES: Final = frozenset({"tool_types", "raw", "limited", "helper"})


def _start(
    recorder: Recorder, verb: str, case: str, folder: Path, url: str, python: Path
) -> subprocess.CompletedProcess[str]:
    script = _ROOT / "bench/recorders" / f"{recorder.script}.py"
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    if recorder.package is not None:
        environment.pop("PYTHONPATH", None)
    command = [str(python), str(script), verb, case, str(folder), url]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )


def _error(done: subprocess.CompletedProcess[str]) -> str:
    """The class of the exception that ended a process, by what stands behind its tracebacks."""
    before, *tracebacks = done.stderr.split("Traceback (most recent call last):")
    names = [name for text in tracebacks or [before] if (name := _raised(text))]
    if not names:
        return f"exit status {done.returncode}"
    return next((name for name in names if name in _LIVE), names[-1])


def _raised(traceback: str) -> str:
    """The class that a traceback ends with: its first line that is not indented, behind which a message may go on."""
    line = next((line for line in traceback.splitlines() if line[:1].isalpha()), "")
    return line.partition(":")[0].strip().rpartition(".")[2]


def compare(chosen: list[str], recorders: list[Recorder], folder: Path) -> dict[str, dict[str, str]]:
    """The verdicts by case, each by recorder."""

    def one(case: str, recorder: Recorder) -> str:
        python = Path(sys.executable) if recorder.package is None else _PEERS_PYTHON
        found = verdict(recorder, case, folder / recorder.script / case, python)
        print(f"{case}: {recorder.name}: {found}", file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        played = {(case, each.name): pool.submit(one, case, each) for case in chosen for each in recorders}
        return {case: {each.name: played[case, each.name].result() for each in recorders} for case in chosen}


_HEAD = """# Beside other recorders

Written by `make compare`: each recorder records the same small agents (openai {openai}, a provider on 127.0.0.1 that
answers the same question differently each time), and replays them in a new process with the provider gone. The
agents: [bench/recorders/cases.py](../bench/recorders/cases.py). *OK*: the same answers, no tool executed again, no
call made.

"""

_FOOT = """
{recorders}

- *no tools*: the recorder knows HTTP traffic only.
- *goes live*: the replay made a call at the provider, which was not there.
- *N of M answers are wrong*: the replay ended well, and calls got the answers to other calls.
- *stops*: the replay ended with this error. Where a changed prompt is to be noticed, that is OK.

Each recorder is used as its own documentation says for such a program. Where threads and tasks race, what goes wrong
differs from run to run. Not compared here is what the others do and steplog does not: traffic of any kind (vcrpy), a
viewer and recording without a line of code in the cases above (reeltime), approximate matching (agent-rewind).
"""


def render(found: dict[str, dict[str, str]], versions: dict[str, str]) -> str:
    """The page."""
    recorders = [STEPLOG, *PEERS]
    lines = [f"| | {' | '.join(one.name for one in recorders)} |", "|---" * (len(recorders) + 1) + "|"]
    for case, verdicts in found.items():
        lines.append(f"| {cases.CASES[case].title} | {' | '.join(verdicts[one.name] for one in recorders)} |")
    used = [
        f"- {one.name} {versions.get(one.package or '', '')}: {one.options}".replace(" :", ":") for one in recorders
    ]
    return _HEAD.format(**versions) + "\n".join(lines) + "\n" + _FOOT.format(recorders="\n".join(used))


def versions() -> dict[str, str]:
    """What was compared, by distribution."""
    packages = ["openai", *{one.package for one in PEERS if one.package}]
    code = f"import importlib.metadata as m, json; print(json.dumps({{p: m.version(p) for p in {packages!r}}}))"
    done = subprocess.run([str(_PEERS_PYTHON), "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main(chosen: list[str]) -> None:
    """Compare, print, and write the page."""
    unknown = sorted(set(chosen) - set(cases.CASES))
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}. The cases are {', '.join(cases.CASES)}.")
    with tempfile.TemporaryDirectory(prefix="steplog-compare-") as folder:
        found = compare(chosen or list(cases.CASES), [STEPLOG, *PEERS], Path(folder))
    page = render(found, versions())
    print(page)
    if not chosen:
        PAGE.write_text(page)


if __name__ == "__main__":
    main(sys.argv[1:])
