"""How the commands speak: text for people, JSON for programs, one error form for both.

What a log holds was written by models, tools and strangers. It is printed as plain text: no markup is read out of it,
and control characters are shown instead of sent, because a terminal obeys them.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steplog.errors import Interrupt, SteplogError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_THOUSAND = 1000
DEFAULT_HOME = Path(".agent")

# Facts that an error already says in its message, or that mean nothing outside the process.
_UNSAID = frozenset({"__notes__"})


def console(*, err: bool = False) -> Console:
    """A console that never crops, never wraps inside a word and reads no markup."""
    from rich.console import Console

    return Console(stderr=err, highlight=False, markup=False, emoji=False, soft_wrap=True)


def printable(text: str) -> str:
    """`text` with control characters shown as escapes; newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(char if _harmless(char) else _escape(char) for char in text)


def _harmless(char: str) -> bool:
    # Format characters (zero-width joiners, bidi overrides) are not printable either; escaping them also defuses
    # text that displays differently from what it says. Ordinary spaces of other scripts are left alone.
    return char.isprintable() or char in "\n\t" or (char.isspace() and char not in "\r\x0b\x0c\x1c\x1d\x1e\x1f\x85")


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def one_line(text: str, limit: int = 60) -> str:
    """The start of `text` on one line."""
    flat = printable(" ".join(text.split()))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def columns(rows: Sequence[Sequence[Text]], *, right: frozenset[int] = frozenset()) -> list[Text]:
    """Rows as lines with aligned columns; columns whose index is in `right` are set flush right."""
    from rich.text import Text

    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    return [_line(row, widths, right, Text()) for row in rows]


def _line(row: Sequence[Text], widths: Sequence[int], right: frozenset[int], line: Text) -> Text:
    for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
        padding = " " * (width - cell.cell_len)
        if index in right:
            line.append(padding).append_text(cell)
        else:
            line.append_text(cell).append(padding)
        line.append("  ")
    line.rstrip()
    return line


def fits(lines: Iterable[Text], target: Console) -> bool:
    """Whether every line is shown whole without wrapping. A pipe has no width."""
    return not target.is_terminal or all(line.cell_len <= target.width for line in lines)


def emit_json(value: Any, *, compact: bool = False) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(value, ensure_ascii=False, default=str, indent=None if compact else 2))


def error_facts(error: BaseException) -> dict[str, Any]:
    """The JSON form of an error: its type, its message and every fact that it carries."""
    facts = {name: value for name, value in vars(error).items() if name not in _UNSAID and not name.startswith("_")}
    if isinstance(error, SteplogError | Interrupt):
        facts.setdefault("run_id", error.run_id)
        facts.setdefault("step", error.step)
    return {"error": {"type": type(error).__name__, "message": str(error), **facts}}


def size(count: int) -> str:
    """A number of bytes, short."""
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < _THOUSAND:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= _THOUSAND
    return f"{amount:.1f} GB"


def say(text: str) -> None:
    """Print a line about the run on stderr, where it does not mix with the output of the script."""
    print(f"steplog: {printable(text)}", file=sys.stderr, flush=True)


def user() -> str:
    """Who is at the keyboard, for the record."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"  # a container may run under a number that has no name


def command(*words: str, home: Path | None = None) -> str:
    """A command line that can be pasted into a shell, naming the home where it is not the default one."""
    return with_home(shlex.join(["steplog", *words]), home)


def with_home(line: str, home: Path | None) -> str:
    """`line` naming the home, where it was chosen by an option and a new shell would not find it."""
    return line if home is None or " --home " in line else f"{line} --home {shlex.quote(str(home))}"
